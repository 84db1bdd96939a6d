package wire

import (
	"context"
	"fmt"
	"io"
	"strings"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/protobuf/types/known/wrapperspb"
)

// App is the gRPC service as the pods run it.
type App struct {
	Pod      string
	Work     time.Duration
	Interval time.Duration
	Journal  Journal
}

// Description stands in for generated code.
var Description = grpc.ServiceDesc{
	ServiceName: Service,
	HandlerType: (*any)(nil),
	Methods:     []grpc.MethodDesc{{MethodName: "Unary", Handler: unary}},
	Streams: []grpc.StreamDesc{
		{StreamName: "Server", Handler: server, ServerStreams: true},
		{StreamName: "Bidi", Handler: bidi, ServerStreams: true, ClientStreams: true},
	},
}

// unary answers "POD ID" to "ID" after some work.
func unary(app any, ctx context.Context, decode func(any) error, _ grpc.UnaryServerInterceptor) (any, error) {
	self := app.(*App)
	var request wrapperspb.BytesValue
	if err := decode(&request); err != nil {
		return nil, err
	}
	id := string(request.GetValue())
	defer self.Journal.Begin(id)()
	time.Sleep(self.Work)
	return wrapperspb.Bytes(fmt.Appendf(nil, "%s %s", self.Pod, id)), nil
}

// server sends a chunk every interval, for ever.
func server(app any, stream grpc.ServerStream) error {
	self := app.(*App)
	var request wrapperspb.BytesValue
	if err := stream.RecvMsg(&request); err != nil {
		return err
	}
	defer self.Journal.Begin("")()
	tick := time.NewTicker(self.Interval)
	defer tick.Stop()
	for seq := uint64(1); ; seq++ {
		if err := stream.SendMsg(wrapperspb.Bytes(Chunk(seq, self.Pod))); err != nil {
			return err
		}
		select {
		case <-stream.Context().Done():
			return stream.Context().Err()
		case <-tick.C:
		}
	}
}

// bidi answers every message "N" with chunk N.
func bidi(app any, stream grpc.ServerStream) error {
	self := app.(*App)
	defer self.Journal.Begin("")()
	for {
		var request wrapperspb.BytesValue
		if err := stream.RecvMsg(&request); err == io.EOF {
			return nil
		} else if err != nil {
			return err
		}
		var seq uint64
		if _, err := fmt.Fscan(strings.NewReader(string(request.GetValue())), &seq); err != nil {
			return err
		}
		if err := stream.SendMsg(wrapperspb.Bytes(Chunk(seq, self.Pod))); err != nil {
			return err
		}
	}
}
