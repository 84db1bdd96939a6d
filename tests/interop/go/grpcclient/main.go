// Command grpcclient is the grpc-go client: unary calls, server streams and bidi streams until standard input ends.
package main

import (
	"context"
	"flag"
	"fmt"
	"io"
	"sync"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/wrapperspb"

	"interop/wire"
)

var (
	target = flag.String("target", "", "address of the service")
	pace   = flag.Duration("pace", 20*time.Millisecond, "pause between the unary calls of a task")
	folder = flag.String("tls", "", "folder of certificates: speak TLS")
)

const (
	channels     = 2
	unaryTasks   = 4
	serverTasks  = 4
	bidiTasks    = 4
	bidiInterval = 50 * time.Millisecond
)

// ended is what is told of one stream.
type ended struct {
	Kind       string `json:"kind"`
	Pod        string `json:"pod"`
	Code       int    `json:"code"`
	Message    string `json:"message"`
	Messages   uint64 `json:"messages"`
	Contiguous bool   `json:"contiguous"`
	Whole      bool   `json:"whole"`
	ByClient   bool   `json:"by_client"`
	EndMs      int64  `json:"end_ms"`
}

// call makes one unary call and looks whether the answer is its own; every tenth is one to the standard health service.
func call(channel *grpc.ClientConn, id string, number int) error {
	bounded, cancel := context.WithTimeout(context.Background(), 10*time.Second)
	defer cancel()
	if number%10 == 9 {
		health := grpc_health_v1.NewHealthClient(channel)
		answer, err := health.Check(bounded, &grpc_health_v1.HealthCheckRequest{})
		if err == nil && answer.GetStatus() != grpc_health_v1.HealthCheckResponse_SERVING {
			err = status.Errorf(codes.DataLoss, "the app's health is %s", answer.GetStatus())
		}
		return err
	}
	var answer wrapperspb.BytesValue
	if err := channel.Invoke(bounded, "/"+wire.Service+"/Unary", wrapperspb.Bytes([]byte(id)), &answer); err != nil {
		return err
	}
	var pod, echoed string
	if _, err := fmt.Sscan(string(answer.GetValue()), &pod, &echoed); err != nil || echoed != id {
		return status.Error(codes.DataLoss, "not the answer to this call")
	}
	return nil
}

// receive reads a stream to its end. The first message releases the start of the deletion.
func receive(ctx context.Context, stream grpc.ClientStream, kind string, first func()) ended {
	one := ended{Kind: kind, Contiguous: true, Whole: true}
	for {
		var message wrapperspb.BytesValue
		if err := stream.RecvMsg(&message); err != nil {
			if err != io.EOF {
				one.Code, one.Message = int(status.Code(err)), status.Convert(err).Message()
			}
			one.EndMs, one.ByClient = wire.Now(), ctx.Err() != nil
			return one
		}
		seq, pod, whole := wire.Check(message.GetValue())
		one.Messages++
		one.Pod = pod
		one.Whole = one.Whole && whole
		one.Contiguous = one.Contiguous && seq == one.Messages
		first()
	}
}

func open(ctx context.Context, channel *grpc.ClientConn, kind string, first func()) ended {
	method := map[string]string{"server": "Server", "bidi": "Bidi"}[kind]
	description := grpc.StreamDesc{StreamName: method, ServerStreams: true, ClientStreams: kind == "bidi"}
	scope, cancel := context.WithCancel(ctx)
	defer cancel()
	stream, err := channel.NewStream(scope, &description, "/"+wire.Service+"/"+method)
	if err != nil {
		return ended{
			Kind: kind, Code: int(status.Code(err)), Message: status.Convert(err).Message(),
			Contiguous: true, Whole: true, EndMs: wire.Now(), ByClient: ctx.Err() != nil,
		}
	}
	if kind == "server" {
		// A failed send is told by the receiving side, with its status.
		_ = stream.SendMsg(wrapperspb.Bytes([]byte("go")))
		_ = stream.CloseSend()
	} else {
		go func() {
			for seq := 1; scope.Err() == nil; seq++ {
				if stream.SendMsg(wrapperspb.Bytes(fmt.Append(nil, seq))) != nil {
					return
				}
				time.Sleep(bidiInterval)
			}
		}()
	}
	return receive(ctx, stream, kind, first)
}

func main() {
	flag.Parse()
	result := wire.NewReport("grpc-go")
	ctx, cancel := context.WithCancel(context.Background())
	transport := insecure.NewCredentials()
	if *folder != "" {
		transport = credentials.NewTLS(wire.ClientTLS(*folder, false))
	}
	var pool []*grpc.ClientConn
	for range channels {
		channel, err := grpc.NewClient(*target, grpc.WithTransportCredentials(transport),
			grpc.WithDisableRetry(), grpc.WithNoProxy())
		if err != nil {
			panic(err)
		}
		channel.Connect()
		pool = append(pool, channel)
	}
	var tasks, ready sync.WaitGroup
	start := func(number int, task func(channel *grpc.ClientConn, first func())) {
		ready.Add(1)
		tasks.Go(func() { task(pool[number%channels], sync.OnceFunc(ready.Done)) })
	}
	for number := range unaryTasks {
		start(number, func(channel *grpc.ClientConn, first func()) {
			for count := 0; ctx.Err() == nil; count++ {
				err := call(channel, fmt.Sprintf("go-%d-%d", number, count), count)
				result.Call(fmt.Sprint(int(status.Code(err))), err)
				first()
				time.Sleep(*pace)
			}
		})
	}
	for kind, count := range map[string]int{"server": serverTasks, "bidi": bidiTasks} {
		for number := range count {
			start(number, func(channel *grpc.ClientConn, first func()) {
				for ctx.Err() == nil {
					result.Stream(open(ctx, channel, kind, first))
					// A client that comes back at once would hammer a service that is down.
					time.Sleep(100 * time.Millisecond)
				}
			})
		}
	}
	result.Finish(&tasks, &ready, cancel)
}
