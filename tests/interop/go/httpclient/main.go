// Command httpclient is Go's net/http speaking HTTP/2 without TLS, or with -tls both HTTP/2 and HTTP/1.1 as ALPN has it:
// GET and POST at a steady pace, some of them slow, until standard input ends. net/http repeats a GET that the server says it has not processed, as the protocol allows;
// a POST whose body it can't read twice it never repeats.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"net/http"
	"strings"
	"sync"
	"time"

	"interop/wire"
)

var (
	target = flag.String("target", "", "address of the service")
	pace   = flag.Duration("pace", 20*time.Millisecond, "pause between the requests of a task")
	folder = flag.String("tls", "", "folder of certificates: speak TLS")
	mutual = flag.Bool("mutual", false, "show a certificate, and expect that without one there is no answer")
)

const (
	transports = 2
	tasks      = 6
	slowMillis = 700
)

// once is a body that can't be sent a second time.
type once struct{ io.Reader }

// client is one transport and the version it has to speak.
type client struct {
	http.Client
	major int
}

func newClient(major int, mutual bool) *client {
	var protocols http.Protocols
	transport := &http.Transport{Protocols: &protocols}
	if *folder != "" {
		transport.TLSClientConfig = wire.ClientTLS(*folder, mutual)
		protocols.SetHTTP2(major == 2)
		protocols.SetHTTP1(major == 1)
	} else {
		protocols.SetUnencryptedHTTP2(true)
	}
	return &client{http.Client{Transport: transport}, major}
}

// exchange makes one request and says what is wrong with its answer: a code and a text.
func exchange(client *client, id string, number int) (string, error) {
	method, wait := http.MethodGet, 5
	var body io.Reader
	if number%2 == 1 {
		method, body = http.MethodPost, once{strings.NewReader("body-of-" + id)}
	}
	if number%10 >= 8 {
		wait = slowMillis
	}
	bounded, cancel := context.WithTimeout(context.Background(), 10*time.Second)
	defer cancel()
	scheme := "http"
	if *folder != "" {
		scheme = "https"
	}
	request, err := http.NewRequestWithContext(bounded, method, fmt.Sprintf("%s://%s/?ms=%d", scheme, *target, wait), body)
	if err != nil {
		return "request", err
	}
	request.Header.Set("X-Request-Id", id)
	response, err := client.Do(request)
	if err != nil {
		return "transport", err
	}
	defer response.Body.Close()
	answer, err := io.ReadAll(response.Body)
	switch {
	case err != nil:
		return "body", err
	case response.StatusCode != http.StatusOK:
		return fmt.Sprint(response.StatusCode), fmt.Errorf("%s %s: %s", method, id, response.Status)
	case response.ProtoMajor != client.major:
		return "protocol", fmt.Errorf("answered in %s", response.Proto)
	case !strings.Contains(string(answer), id):
		return "answer", fmt.Errorf("not the answer to %s: %q", id, answer)
	}
	return "", nil
}

func main() {
	flag.Parse()
	result := wire.NewReport("go-http")
	ctx, cancel := context.WithCancel(context.Background())
	var clients []*client
	for number := range transports {
		major := 2
		if *folder != "" {
			major -= number % 2
		}
		clients = append(clients, newClient(major, *mutual))
		if *mutual {
			if _, err := exchange(newClient(major, false), "stranger", 0); err == nil {
				result.Call("stranger", errors.New("an answer to a client without a certificate"))
			}
		}
	}
	try := func(task, number int) {
		code, err := exchange(clients[task%transports], fmt.Sprintf("go-%d-%d", task, number), number)
		result.Call(code, err)
	}
	// One after the other: requests that find no connection each dial one, all but one of these are given up, and those
	// that are kept might all lead to the pod that stays.
	for task := range transports {
		try(task, 0)
	}
	var running, ready sync.WaitGroup
	for task := range tasks {
		ready.Add(1)
		running.Go(func() {
			for number := 1; ctx.Err() == nil; number++ {
				try(task, number)
				if number == 1 {
					ready.Done()
				}
				time.Sleep(*pace)
			}
		})
	}
	result.Finish(&running, &ready, cancel)
}
