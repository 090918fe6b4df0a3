package intent_test

import (
	"strconv"
	"testing"
	"time"

	"github.com/dibs-go/dibs/intent"
	"github.com/dibs-go/dibs/internal/testkit"
	"github.com/dibs-go/dibs/messagestore"
	"github.com/dibs-go/dibs/messagestore/memory"
)

// What a request costs this process, in time and allocations, over a store that costs little.
func BenchmarkReserve(b *testing.B) {
	type payment struct {
		Method string `json:"method"`
		Path   string `json:"path"`
		Key    string `json:"key"`
		Amount int    `json:"amount"`
	}
	request := func(key, session string) intent.Request {
		return intent.Request{Key: key, Session: session, Content: payment{"POST", "/payments", key, 245_200}}
	}
	const held, done = "0193a2b4-5c6d-7e8f-9a0b-1c2d3e4f5a6b", "0193a2b4-5c6d-7e8f-9a0b-1c2d3e4f5a6c"
	m, err := intent.New(testkit.Must(messagestore.New(memory.New(), nil)), "payment:intent", &intent.Config{TTL: time.Hour})
	if err != nil {
		b.Fatal(err)
	}
	reserve := func(b *testing.B, key, session string, outcome intent.Outcome) *intent.Lease {
		a, err := m.Reserve(b.Context(), request(key, session))
		if err != nil || a.Outcome != outcome {
			b.Fatal(a.Outcome, err)
		}
		return a.Lease
	}
	reserve(b, held, "a", intent.Reserved)
	if err := reserve(b, done, "a", intent.Reserved).Confirm(b.Context(), map[string]any{"status": 201, "body": "{\"id\":29401}"}); err != nil {
		b.Fatal(err)
	}
	n := 0
	for name, run := range map[string]func(b *testing.B){
		"new":  func(b *testing.B) { n++; reserve(b, strconv.Itoa(n), "b", intent.Reserved) },
		"held": func(b *testing.B) { reserve(b, held, "b", intent.Held) },
		"done": func(b *testing.B) { reserve(b, done, "b", intent.Done) },
	} {
		b.Run(name, func(b *testing.B) {
			b.ReportAllocs()
			for b.Loop() {
				run(b)
			}
		})
	}
}
