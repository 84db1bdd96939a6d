package wire

import (
	"maps"
	"slices"
	"sync"
)

// Journal counts the calls that reached one app process. It proves that none came after SIGTERM.
type Journal struct {
	mutex   sync.Mutex
	calls   int
	open    int
	late    int
	twice   int
	stopped bool
	seen    map[string]bool
}

// Begin notes a call and returns what must run at its end. The id may be empty.
func (journal *Journal) Begin(id string) (end func()) {
	journal.mutex.Lock()
	defer journal.mutex.Unlock()
	journal.calls++
	journal.open++
	if journal.stopped {
		journal.late++
	}
	if id != "" {
		if journal.seen == nil {
			journal.seen = map[string]bool{}
		}
		if journal.seen[id] {
			journal.twice++
		}
		journal.seen[id] = true
	}
	return func() {
		journal.mutex.Lock()
		defer journal.mutex.Unlock()
		journal.open--
	}
}

// Stop notes SIGTERM and says what was open at that moment.
func (journal *Journal) Stop() {
	journal.mutex.Lock()
	defer journal.mutex.Unlock()
	journal.stopped = true
	Say(map[string]any{"event": "sigterm", "at_ms": Now(), "calls": journal.calls, "open": journal.open})
}

// Exit says what came in all. With the ids the runner sees whether a call was executed by two pods.
func (journal *Journal) Exit() {
	journal.mutex.Lock()
	defer journal.mutex.Unlock()
	Say(map[string]any{
		"event": "exit", "at_ms": Now(), "calls": journal.calls, "late": journal.late, "twice": journal.twice,
		"ids": slices.Collect(maps.Keys(journal.seen)),
	})
}
