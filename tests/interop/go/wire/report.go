package wire

import (
	"context"
	"io"
	"os"
	"sync"
)

// Report is what a client says at its end; Streams holds one entry for each stream, if the client has any.
type Report struct {
	mutex   sync.Mutex
	Client  string         `json:"client"`
	Ok      int            `json:"ok"`
	Failed  int            `json:"failed"`
	Codes   map[string]int `json:"codes"`
	Errors  []string       `json:"errors"`
	Streams []any          `json:"streams"`
}

// NewReport is a report of nothing so far.
func NewReport(client string) *Report {
	return &Report{Client: client, Codes: map[string]int{}, Errors: []string{}, Streams: []any{}}
}

// Call counts one call; code is only looked at if there is an error.
func (report *Report) Call(code string, err error) {
	report.mutex.Lock()
	defer report.mutex.Unlock()
	if err == nil {
		report.Ok++
		return
	}
	report.Failed++
	report.Codes[code]++
	if len(report.Errors) < 5 {
		report.Errors = append(report.Errors, err.Error())
	}
}

// Stream adds what became of one stream.
func (report *Report) Stream(one any) {
	report.mutex.Lock()
	defer report.mutex.Unlock()
	report.Streams = append(report.Streams, one)
}

// Finish says when all are ready, cancels when standard input ends, waits for the tasks and says the report.
func (report *Report) Finish(tasks, ready *sync.WaitGroup, cancel context.CancelFunc) {
	go func() {
		ready.Wait()
		Say(map[string]any{"event": "ready"})
	}()
	go func() {
		_, _ = io.Copy(io.Discard, os.Stdin)
		cancel()
	}()
	tasks.Wait()
	Say(report)
}
