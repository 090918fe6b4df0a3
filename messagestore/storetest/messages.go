package storetest

import (
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"sync"
	"testing"

	"github.com/google/uuid"
	"github.com/stretchr/testify/require"

	"github.com/dibs-go/dibs/internal/testkit"
	"github.com/dibs-go/dibs/messagestore"
)

// Opened is a message for tests.
type Opened struct {
	Name string `json:"name"`
}

// MessageType implements [messagestore.Body].
func (Opened) MessageType() string { return "Opened" }

// Deposited is a message for tests, of another type.
type deposited struct {
	Amount int64 `json:"amount"`
}

// MessageType implements [messagestore.Body].
func (deposited) MessageType() string { return "Deposited" }

// opened returns n messages named from 0 on.
func opened(n int) []messagestore.Body {
	bodies := make([]messagestore.Body, n)
	for i := range bodies {
		bodies[i] = Opened{Name: fmt.Sprint(i)}
	}
	return bodies
}

// raw returns a message with a new id, of the given type and data.
func raw(messageType, data string) messagestore.Envelope {
	return messagestore.Envelope{
		ID:   uuid.Must(uuid.NewV7()),
		Body: messagestore.Raw{Type: messageType, Data: json.RawMessage(data)},
	}
}

// record is a message as a driver gets it, also a message that the store would refuse.
func record(messageType, data string) messagestore.Encoded {
	return messagestore.Encoded{ID: uuid.Must(uuid.NewV7()), Type: messageType, Data: json.RawMessage(data)}
}

// write is a write that must succeed.
func (f *fixture) write(t *testing.T, stream messagestore.StreamName, expected messagestore.Version, bodies ...messagestore.Body) messagestore.Written {
	t.Helper()
	return testkit.Do(f.store.Write(t.Context(), stream, expected, bodies...))(t)
}

// fill writes n messages to stream, one at a time.
func (f *fixture) fill(t *testing.T, stream messagestore.StreamName, n int) {
	t.Helper()
	for _, body := range opened(n) {
		f.write(t, stream, messagestore.AnyVersion, body)
	}
}

// read returns all of a stream.
func (f *fixture) read(t *testing.T, stream messagestore.StreamName) []*messagestore.Message {
	t.Helper()
	var all []*messagestore.Message
	for {
		page := testkit.Do(f.driver.ReadStream(t.Context(), messagestore.StreamQuery{Stream: stream, From: messagestore.Version(len(all)), Limit: 1000}))(t)
		if all = append(all, page...); len(page) < 1000 {
			return all
		}
	}
}

// readCategory returns all of a category that the filter lets through.
func (f *fixture) readCategory(t *testing.T, category messagestore.Category, filter messagestore.Filter) []*messagestore.Message {
	t.Helper()
	all, _ := f.readFrom(t, messagestore.CategoryQuery{Category: category, Limit: 1000, Filter: filter})
	return all
}

// readFrom returns a category's messages from q on, page by page, and the position at which the
// last page ends.
func (f *fixture) readFrom(t *testing.T, q messagestore.CategoryQuery) ([]*messagestore.Message, messagestore.GlobalPosition) {
	t.Helper()
	var all []*messagestore.Message
	for {
		page := testkit.Do(f.driver.ReadCategory(t.Context(), q))(t)
		all = append(all, page.Messages...)
		requireHonest(t, q, page)
		if !page.More {
			return all, page.Next
		}
		q.From = page.Next
	}
}

// requireHonest checks the promises of every page.
func requireHonest(t *testing.T, q messagestore.CategoryQuery, page messagestore.CategoryPage) {
	t.Helper()
	require.NoError(t, honest(q, page))
}

func honest(q messagestore.CategoryQuery, page messagestore.CategoryPage) error {
	if len(page.Messages) > q.Limit {
		return fmt.Errorf("a page of %d has %d messages", q.Limit, len(page.Messages))
	}
	if page.Next < q.From {
		return fmt.Errorf("read from %d, the next page is from %d", q.From, page.Next)
	}
	if page.More && page.Next == q.From {
		return fmt.Errorf("read from %d, there is more, and the next page is from there too", q.From)
	}
	from := q.From
	for _, m := range page.Messages {
		if m.GlobalPosition < from {
			return fmt.Errorf("%s has global position %d, after %d was due", m, m.GlobalPosition, from)
		}
		from = m.GlobalPosition.Next()
	}
	if page.Next < from {
		return fmt.Errorf("the last message is at %d and the next page from %d", from-1, page.Next)
	}
	return nil
}

// requireDense holds a stream to its positions: 0, 1, 2 and so on, in the order of
// their global positions.
func requireDense(t *testing.T, messages []*messagestore.Message) {
	t.Helper()
	var global messagestore.GlobalPosition
	for i, m := range messages {
		require.Equal(t, messagestore.Version(i), m.Position)
		require.Greater(t, m.GlobalPosition, global, "the global positions of a stream grow")
		global = m.GlobalPosition
	}
}

// conflict returns the facts of a version conflict.
func conflict(t *testing.T, err error) messagestore.VersionConflictError {
	t.Helper()
	require.ErrorIs(t, err, messagestore.ErrVersionConflict)
	facts := testkit.As[*messagestore.VersionConflictError](t, err)
	return *facts
}

// idConflict returns the facts of an id conflict.
func idConflict(t *testing.T, err error) messagestore.IDConflictError {
	t.Helper()
	require.ErrorIs(t, err, messagestore.ErrIDConflict)
	facts := testkit.As[*messagestore.IDConflictError](t, err)
	return *facts
}

func ids(messages []*messagestore.Message) []uuid.UUID {
	all := make([]uuid.UUID, len(messages))
	for i, m := range messages {
		all[i] = m.ID
	}
	return all
}

func names(t *testing.T, messages []*messagestore.Message) []string {
	t.Helper()
	all := make([]string, len(messages))
	for i, m := range messages {
		body := testkit.Do(messagestore.Decode[Opened](m))(t)
		all[i] = body.Name
	}
	return all
}

func byPosition(a, b *messagestore.Message) int { return cmp.Compare(a.Position, b.Position) }

// numbers returns the digits from first up, or down, to last.
func numbers(first, last int) []string {
	all := []string{}
	step := 1
	if last < first {
		step = -1
	}
	for i := first; ; i += step {
		all = append(all, fmt.Sprint(i))
		if i == last {
			return all
		}
	}
}

// race runs f for 0 to n-1 at once, released together, waits for all, and fails
// the test with the errors they return.
func race(t *testing.T, n int, f func(i int) error) {
	t.Helper()
	errs := make([]error, n)
	start := make(chan struct{})
	var wg sync.WaitGroup
	for i := range n {
		wg.Go(func() {
			<-start
			errs[i] = f(i)
		})
	}
	close(start)
	wg.Wait()
	require.NoError(t, errors.Join(errs...))
}

const farAway = messagestore.GlobalPosition(math.MaxInt64)
