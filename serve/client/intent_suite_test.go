package client_test

import (
	"sync"
	"testing"

	"github.com/dibs-go/dibs/intent"
	"github.com/dibs-go/dibs/intent/intenttest"
	"github.com/dibs-go/dibs/internal/testkit"
	"github.com/dibs-go/dibs/messagestore"
)

// A manager over a server keeps the promises of intents, as far as they need no store.
func TestIntentsOverAServer(t *testing.T) {
	testkit.NeedsLong(t)
	t.Parallel()
	var mu sync.Mutex
	urls := map[*messagestore.Store]string{}
	intenttest.Run(t, intenttest.Options{
		Skip: map[string]string{
			"ForceRelease/FencesTheHolder":           "the server is the operator",
			"State/EveryStepFromEveryState":          "a lease comes without the line",
			"L5/ConfirmedIsNeverGrantedAgain":        "a slow machine has one extension more",
			"Wait/DeadWaiterCostsATurn":              "the server has turns of its own",
			"Wait/CallersThatLeaveKeepNobodyWaiting": "a server is one process, of which eight stand in the line",
		},
		Open: func(t *testing.T) intent.Store { return open(t) },
		Over: func(t *testing.T, store intent.Store, category messagestore.Category, config *intent.Config) (*intent.Manager, error) {
			served, ok := store.(*messagestore.Store)
			if !ok {
				t.Skip("not applicable: a server has no such store")
			}
			mu.Lock()
			defer mu.Unlock()
			if urls[served] == "" {
				urls[served] = serving(t, served, nil).url
			}
			asks := *quiet(config)
			asks.Turn = 0
			return dial(t, urls[served]).IntentManager(category, &asks)
		},
	})
}
