// Package brokertest tests the promises of the sinks and the receivers in the modules of brokers.
// Each module runs [Sinks] and [Receivers] with its broker, which is killed, delivers again, and in
// another order.
//
// The suites depend only on outbox.Sink, outbox.BatchSink and package inbox.
package brokertest

import (
	"context"
	"fmt"
	"net/url"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/dibs-go/dibs/internal/testkit"
	"github.com/dibs-go/dibs/messagestore"
	"github.com/dibs-go/dibs/messagestore/memory"
	"github.com/dibs-go/dibs/outbox"
)

// Outgoing is the category of the messages to send.
const Outgoing messagestore.Category = "payments:outgoing"

// Keys are keys of hostile text.
var Keys = []string{
	"a.b", "*", ">", "#", "a b", "%", "%2E", "ä€😀", "$JS", "-", "+", "a+b", "..", ".", "_", "a:b", "a/b", "{a}", "a\nb", strings.Repeat("ü", 100), "\"'\\",
}

// A Message is a message in a broker.
type Message struct {
	ID      string // "" for none
	Key     string // the key of its order
	Headers map[string]string
	Data    string
}

type paid struct {
	Amount int    `json:"amount"`
	Text   string `json:"text,omitempty"`
}

func (paid) MessageType() string { return "Paid" }

// An outgoingStore is the store of a test, with the messages to send.
type outgoingStore struct{ *messagestore.Store }

func newStore() outgoingStore {
	return outgoingStore{testkit.Must(messagestore.New(memory.New(), nil))}
}

// write adds messages with the amounts from..to-1 to the stream of each key, in turns.
func (s outgoingStore) write(t testing.TB, keys []string, from, to int) {
	t.Helper()
	for i := from; i < to; i++ {
		for _, key := range keys {
			_, err := s.Write(context.Background(), Outgoing.Stream(key), messagestore.AnyVersion, paid{Amount: i})
			require.NoError(t, err)
		}
	}
}

// messages returns the messages to send, in their order.
func (s outgoingStore) messages(t testing.TB) (all []*outbox.Message) {
	t.Helper()
	for m, err := range s.ReadCategory(context.Background(), Outgoing, 0, messagestore.Filter{}) {
		require.NoError(t, err)
		all = append(all, &outbox.Message{Message: m, Topic: string(Outgoing)})
	}
	return all
}

func keys(n int) (all []string) {
	for i := range n {
		all = append(all, fmt.Sprint("k", i))
	}
	return all
}

// KeyOf returns the key in the headers of a message.
func KeyOf(t testing.TB, headers map[string]string) string {
	t.Helper()
	name, err := url.PathUnescape(headers[outbox.HeaderStream])
	require.NoError(t, err)
	return messagestore.StreamName(name).ID()
}
