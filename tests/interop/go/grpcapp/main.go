// Command grpcapp is the app in a pod: an ordinary grpc-go server that stops gracefully, and after a while not so.
package main

import (
	"flag"
	"log"
	"net"
	"os"
	"os/signal"
	"syscall"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/health"
	"google.golang.org/grpc/health/grpc_health_v1"

	"interop/wire"
)

func main() {
	address := flag.String("listen", "127.0.0.1:0", "address to listen on")
	pod := flag.String("pod", "pod", "name that every answer carries")
	work := flag.Duration("work", 5*time.Millisecond, "time that a unary call takes")
	interval := flag.Duration("interval", 20*time.Millisecond, "time between the messages of a server stream")
	patience := flag.Duration("patience", 1500*time.Millisecond, "how long GracefulStop may take before Stop")
	flag.Parse()

	listener, err := net.Listen("tcp", *address)
	if err != nil {
		log.Fatal(err)
	}
	app := &wire.App{Pod: *pod, Work: *work, Interval: *interval}
	server := grpc.NewServer()
	server.RegisterService(&wire.Description, app)
	grpc_health_v1.RegisterHealthServer(server, health.NewServer())

	signals := make(chan os.Signal, 1)
	signal.Notify(signals, syscall.SIGTERM)
	go func() {
		<-signals
		app.Journal.Stop()
		time.AfterFunc(*patience, server.Stop)
		server.GracefulStop()
	}()
	wire.Say(map[string]any{"event": "listening", "address": listener.Addr().String()})
	if err := server.Serve(listener); err != nil {
		log.Fatal(err)
	}
	// Serve returns when the listener closes; the calls in flight are waited for by a second GracefulStop.
	server.GracefulStop()
	app.Journal.Exit()
}
