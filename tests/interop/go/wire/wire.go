// Package wire has what the app servers and the Go clients agree on. Every message is a protobuf message with one bytes
// field, so that no language needs generated stubs.
package wire

import (
	"bytes"
	"encoding/json"
	"fmt"
	"os"
	"strconv"
	"strings"
	"sync"
	"time"
)

// Service is the full name of the gRPC service; its methods are Unary, Server and Bidi.
const Service = "interop.Echo"

// ChunkSize is the length of every streamed message: more than one TCP segment on most links, so that a cut shows.
const ChunkSize = 3072

// Chunk is one streamed message: "SEQ POD " and then a pattern that depends on the sequence number and the position.
func Chunk(seq uint64, pod string) []byte {
	chunk := make([]byte, 0, ChunkSize)
	chunk = fmt.Appendf(chunk, "%d %s ", seq, pod)
	for at := uint64(len(chunk)); at < ChunkSize; at++ {
		chunk = append(chunk, byte('a'+(seq+at)%26))
	}
	return chunk
}

// Check takes a chunk apart; whole is false if a single byte is missing or wrong.
func Check(chunk []byte) (seq uint64, pod string, whole bool) {
	parts := strings.SplitN(string(chunk[:min(len(chunk), 64)]), " ", 3)
	if len(parts) != 3 {
		return 0, "", false
	}
	seq, err := strconv.ParseUint(parts[0], 10, 64)
	if err != nil {
		return 0, "", false
	}
	return seq, parts[1], bytes.Equal(chunk, Chunk(seq, parts[1]))
}

var printing sync.Mutex

// Say prints one JSON object as a line; the runner reads them.
func Say(fields any) {
	line, err := json.Marshal(fields)
	if err != nil {
		panic(err)
	}
	printing.Lock()
	defer printing.Unlock()
	os.Stdout.Write(append(line, '\n'))
}

// Now is the wall clock in milliseconds, the time that the runner compares between processes.
func Now() int64 {
	return time.Now().UnixMilli()
}
