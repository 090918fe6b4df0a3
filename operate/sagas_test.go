package operate_test

import (
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/dibs-go/dibs/internal/testkit"
	"github.com/dibs-go/dibs/messagestore"
	"github.com/dibs-go/dibs/messagestore/memory"
	"github.com/dibs-go/dibs/operate"
	"github.com/dibs-go/dibs/saga"
)

// trips returns an operator of two sagas whose step fails, of one that has just begun, of one that
// is past a pivot, and of a stream that is none.
func trips(t *testing.T) *saga.Operator {
	t.Helper()
	store := testkit.Must(messagestore.New(memory.New(), nil))
	event := func(name, data string) messagestore.Raw { return messagestore.Raw{Type: name, Data: []byte(data)} }
	started := event("Started", `{"definition":"trip","version":1,"input":{}}`)
	write := func(id string, events ...messagestore.Body) {
		testkit.Do(store.Write(t.Context(), messagestore.Category("trip:saga").Stream(id), messagestore.NoStream, events...))(t)
	}
	for n := range 2 {
		write(fmt.Sprint("away", n), started, event("Began", `{"step":"flight","attempt":1}`),
			event("Failed", fmt.Sprintf(`{"step":"flight","attempt":1,"error":"no answer in %d ms","retryAt":9000000000000000}`, n)))
	}
	time.Sleep(time.Minute)
	write("new", event("Started", `{"definition":"tour","version":1,"input":{}}`))
	write("none", event("Else", `{}`))
	return testkit.Must(saga.NewOperator(store, "trip:saga", "ann"))
}

func TestManySagasAreChangedOnceEach(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		o := trips(t)
		failing := operate.SagaFilter{Error: "no answer"}
		groups, err := operate.SagaGroups(func(yield func(operate.Saga, error) bool) {
			for s, err := range operate.Sagas(t.Context(), o, failing) {
				if err == nil && !yield(s, nil) {
					return
				}
			}
		})
		require.NoError(t, err)
		require.Len(t, groups, 1)
		require.Equal(t, 2, groups[0].Count)
		require.Equal(t, "away1", groups[0].ID)

		began := time.Now()
		n, err := operate.ChangeSagas(t.Context(), o, (*saga.Operator).Cancel, operate.SagaFilter{StartedBefore: time.Now()}, &operate.ChangeOpts{Reason: "a strike", Rate: 1})
		require.ErrorContains(t, err, "trip:saga-none", "what is no saga is told")
		require.Equal(t, 2, n)
		require.Equal(t, time.Second, time.Since(began))
		n, err = operate.ChangeSagas(t.Context(), o, (*saga.Operator).Cancel, operate.SagaFilter{Definition: "trip"}, &operate.ChangeOpts{Reason: "a strike"})
		require.ErrorContains(t, err, "trip:saga-none")
		require.Zero(t, n, "they are cancelled already")
		_, err = operate.ChangeSagas(t.Context(), o, (*saga.Operator).Cancel, operate.SagaFilter{Definition: "tour"}, nil)
		require.ErrorIs(t, err, messagestore.ErrInvalid, "a saga needs a reason")
	})
}
