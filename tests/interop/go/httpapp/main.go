// Command httpapp is the app in a pod for plain HTTP clients: HTTP/1.1 and HTTP/2 on one port, with -tls by ALPN.
package main

import (
	"context"
	"flag"
	"fmt"
	"io"
	"log"
	"net"
	"net/http"
	"os"
	"os/signal"
	"strconv"
	"syscall"
	"time"

	"interop/wire"
)

func main() {
	address := flag.String("listen", "127.0.0.1:0", "address to listen on")
	pod := flag.String("pod", "pod", "name that every answer carries")
	patience := flag.Duration("patience", 1500*time.Millisecond, "how long Shutdown may take before Close")
	certificates := flag.String("tls", "", "folder of certificates: speak TLS")
	flag.Parse()

	var journal wire.Journal
	var protocols http.Protocols
	protocols.SetHTTP1(true)
	protocols.SetHTTP2(true)
	protocols.SetUnencryptedHTTP2(true)
	handler := func(response http.ResponseWriter, request *http.Request) {
		defer journal.Begin(request.Header.Get("X-Request-Id"))()
		body, err := io.ReadAll(request.Body)
		if err != nil {
			http.Error(response, err.Error(), http.StatusBadRequest)
			return
		}
		if wait, err := strconv.Atoi(request.URL.Query().Get("ms")); err == nil {
			time.Sleep(time.Duration(wait) * time.Millisecond)
		}
		response.Header().Set("X-Pod", *pod)
		response.Header().Set("X-Proto", request.Proto)
		if request.URL.Query().Has("chunked") {
			http.NewResponseController(response).Flush()
		}
		fmt.Fprintf(response, "hello from %s %s %s", *pod, request.Header.Get("X-Request-Id"), body)
	}
	server := http.Server{Handler: http.HandlerFunc(handler), Protocols: &protocols}
	listener, err := net.Listen("tcp", *address)
	if err != nil {
		log.Fatal(err)
	}
	serve := server.Serve
	if *certificates != "" {
		server.TLSConfig = wire.ServerTLS(*certificates, false)
		serve = func(listener net.Listener) error { return server.ServeTLS(listener, "", "") }
	}

	signals := make(chan os.Signal, 1)
	signal.Notify(signals, syscall.SIGTERM)
	done := make(chan struct{})
	go func() {
		defer close(done)
		<-signals
		journal.Stop()
		bounded, cancel := context.WithTimeout(context.Background(), *patience)
		defer cancel()
		if server.Shutdown(bounded) != nil {
			server.Close()
		}
	}()
	wire.Say(map[string]any{"event": "listening", "address": listener.Addr().String()})
	if err := serve(listener); err != http.ErrServerClosed {
		log.Fatal(err)
	}
	<-done
	journal.Exit()
}
