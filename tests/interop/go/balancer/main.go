// Command balancer stands for the Service: it spreads new connections over the backends and leaves existing ones alone,
// as kube-proxy does. Each line on standard input is a new list of backends. With -tls it ends TLS and stands for a sidecar
// of the careless kind: its exit leaves connections to the kernel, which says no close_notify.
package main

import (
	"bufio"
	"crypto/tls"
	"errors"
	"flag"
	"io"
	"log"
	"net"
	"os"
	"slices"
	"strings"
	"sync"
	"syscall"

	"interop/wire"
)

type balancer struct {
	mutex    sync.Mutex
	backends []string
	next     int
	counts   map[string]int
	// The backend of each client address, if clients are to come back to theirs.
	known map[string]string
}

func (balancer *balancer) set(backends []string) {
	balancer.mutex.Lock()
	defer balancer.mutex.Unlock()
	balancer.backends, balancer.next = backends, 0
	for client, backend := range balancer.known {
		if !slices.Contains(backends, backend) {
			delete(balancer.known, client)
		}
	}
}

func (balancer *balancer) pick(client net.Addr) string {
	balancer.mutex.Lock()
	defer balancer.mutex.Unlock()
	host := client.(*net.TCPAddr).IP.String()
	backend, known := balancer.known[host]
	if !known {
		backend = balancer.backends[balancer.next%len(balancer.backends)]
		balancer.next++
		if balancer.known != nil {
			balancer.known[host] = backend
		}
	}
	balancer.counts[backend]++
	return backend
}

// connection is one with or without TLS.
type connection interface {
	net.Conn
	CloseWrite() error
}

func reset(conn connection) {
	var inner net.Conn = conn
	if over, is := conn.(*tls.Conn); is {
		inner = over.NetConn()
	}
	inner.(*net.TCPConn).SetLinger(0)
	inner.Close()
}

// copyTo moves bytes one way and passes on how the way ended: FIN as FIN, reset as reset.
func copyTo(to, from connection) {
	_, err := io.Copy(to, from)
	if errors.Is(err, syscall.ECONNRESET) {
		reset(to)
		return
	}
	to.CloseWrite()
}

func (balancer *balancer) relay(client connection) {
	defer client.Close()
	dialled, err := net.Dial("tcp", balancer.pick(client.RemoteAddr()))
	if err != nil {
		// The client shall see a refused pod as a failure and not as an orderly end.
		reset(client)
		return
	}
	server := dialled.(*net.TCPConn)
	defer server.Close()
	var both sync.WaitGroup
	both.Go(func() { copyTo(server, client) })
	both.Go(func() { copyTo(client, server) })
	both.Wait()
}

func main() {
	address := flag.String("listen", "127.0.0.1:0", "address to listen on")
	backends := flag.String("backends", "", "addresses, separated by commas")
	sticky := flag.Bool("sticky", false, "keep each client address at its backend, as sessionAffinity: ClientIP does")
	certificates := flag.String("tls", "", "folder of certificates: speak TLS")
	mutual := flag.Bool("mutual", false, "ask clients for certificates too")
	flag.Parse()

	listener, err := net.Listen("tcp", *address)
	if err != nil {
		log.Fatal(err)
	}
	if *certificates != "" {
		listener = tls.NewListener(listener, wire.ServerTLS(*certificates, *mutual))
	}
	balancer := &balancer{backends: strings.Split(*backends, ","), counts: map[string]int{}}
	if *sticky {
		balancer.known = map[string]string{}
	}
	go func() {
		lines := bufio.NewScanner(os.Stdin)
		for lines.Scan() {
			balancer.set(strings.Split(lines.Text(), ","))
		}
		balancer.mutex.Lock()
		wire.Say(map[string]any{"event": "exit", "connections": balancer.counts})
		os.Exit(0)
	}()
	wire.Say(map[string]any{"event": "listening", "address": listener.Addr().String()})
	for {
		client, err := listener.Accept()
		if err != nil {
			log.Fatal(err)
		}
		go balancer.relay(client.(connection))
	}
}
