package serve_test

import (
	"context"
	"fmt"
	"maps"
	"math"
	"math/rand/v2"
	"reflect"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"connectrpc.com/connect"
	"github.com/anishathalye/porcupine"
	"github.com/google/uuid"
	"github.com/stretchr/testify/require"
	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/dibs-go/dibs"
	"github.com/dibs-go/dibs/internal/pgtest"
	"github.com/dibs-go/dibs/logger"
	"github.com/dibs-go/dibs/messagestore"
	v1 "github.com/dibs-go/dibs/serve/gen/dibs/v1"
	"github.com/dibs-go/dibs/serve/servetest"
)

// What a client of a queue did.
const (
	produce  = "produce"
	receive  = "receive"
	complete = "complete"
	retry    = "retry"
)

// A step is a call of a client, with its answer.
type step struct {
	what      string
	item      int // 0: none came
	delivery  int // how many deliveries the item had before: which of them is ended
	done      bool
	visible   int64 // nanoseconds
	call, ret int64
}

// A modelQueue is a queue without time: fresh items, items that are offered again, and items that
// are out, with the time in which their visibility ends at the earliest and at the latest.
type modelQueue struct {
	fresh, again []int
	out          map[int]modelDelivery
	completed    map[int]int // by which of its deliveries an item was completed
	returned     map[int]int // by which it was last given back
}

type modelDelivery struct {
	number           int
	earliest, latest int64
}

// queueModel refuses a history in which an item is lost, comes twice at a time, comes before an
// earlier one that nobody has met, or before an earlier one that was given back; in which an end is
// done twice, or done for a delivery that is another's by now; and in which a caller gets nothing
// although something is there.
var queueModel = porcupine.Model{
	Init: func() any {
		return modelQueue{out: map[int]modelDelivery{}, completed: map[int]int{}, returned: map[int]int{}}
	},
	Equal: func(a, b any) bool { return reflect.DeepEqual(a, b) },
	Step: func(state, input, _ any) (bool, any) {
		s, ok := input.(step)
		q, is := state.(modelQueue)
		if !ok || !is {
			return false, state
		}
		return q.after(s)
	},
	DescribeOperation: func(input, _ any) string { return fmt.Sprintf("%+v", input) },
}

func (q modelQueue) after(s step) (possible bool, next modelQueue) {
	q.out, q.completed, q.returned = maps.Clone(q.out), maps.Clone(q.completed), maps.Clone(q.returned)
	switch s.what {
	case produce:
		q.fresh = append(slices.Clone(q.fresh), s.item)
		return true, q
	case receive:
		return q.received(s)
	}
	ends := q.completed
	if s.what == retry {
		ends = q.returned
	}
	if by, is := ends[s.item]; is && by == s.delivery { // again
		return s.done, q
	}
	d, out := q.out[s.item]
	held := out && d.number == s.delivery
	if !s.done {
		return !held || d.earliest <= s.ret, q
	}
	delete(q.out, s.item)
	ends[s.item] = s.delivery
	if s.what == retry {
		q.again = append(slices.Clone(q.again), s.item)
	}
	return held, q
}

func (q modelQueue) received(s step) (possible bool, next modelQueue) {
	if s.item == 0 {
		for _, d := range q.out {
			if d.latest < s.call {
				return false, q // it was offered again
			}
		}
		return len(q.fresh)+len(q.again) == 0, q
	}
	d, out := q.out[s.item]
	switch {
	case out && d.earliest > s.ret:
		return false, q
	case out:
	case len(q.again) > 0 && q.again[0] == s.item:
		q.again = q.again[1:]
	case len(q.fresh) > 0 && q.fresh[0] == s.item:
		q.fresh = q.fresh[1:]
	default:
		return false, q
	}
	d = modelDelivery{s.delivery, s.call + s.visible, s.ret + s.visible}
	if s.delivery > 0 { // it may wait for some seconds after its end
		d.latest = math.MaxInt64
	}
	q.out[s.item] = d
	return true, q
}

func TestHistoriesFitTheModelOfAQueueOnSQLite(t *testing.T) {
	t.Parallel()
	testModel(t, start(t, open(t), nil))
}

func TestHistoriesOfTwoServersFitTheModelOfAQueue(t *testing.T) {
	t.Parallel()
	where := pgtest.Migrated(t)
	var urls []string
	for range 2 {
		store, err := dibs.Open(t.Context(), where, &messagestore.Config{Logger: logger.Silent()})
		require.NoError(t, err)
		t.Cleanup(func() { require.NoError(t, store.Close()) })
		urls = append(urls, start(t, store, nil))
	}
	testModel(t, urls...)
}

func testModel(t *testing.T, urls ...string) {
	for round := range 2 {
		var history []porcupine.Operation
		for seed := uint64(round); len(history) == 0; seed += 2 { //nolint:gosec // a few
			if seed > 20 {
				t.Skip("the machine is too busy: each time a call took longer than what it received was visible")
			}
			history = historyOf(t, seed, urls)
		}
		result, found := porcupine.CheckOperationsVerbose(queueModel, history, time.Minute)
		require.Equal(t, porcupine.Ok, result, "seed %d: %s", round, explained(history, found))
		for name, changed := range corruptions(history) {
			require.Equal(t, porcupine.Illegal, porcupine.CheckOperationsTimeout(queueModel, changed, time.Minute), "seed %d: %s was not seen", round, name)
		}
	}
}

// explained returns the longest order of calls that fits the model, and the calls that do not.
func explained(history []porcupine.Operation, found porcupine.LinearizationInfo) string {
	var longest []porcupine.Operation
	for _, some := range found.PartialLinearizationsOperations()[0] {
		if len(some) > len(longest) {
			longest = some
		}
	}
	var text strings.Builder
	for _, o := range longest {
		fmt.Fprintf(&text, "\n%d %+v", o.ClientId, o.Input)
	}
	text.WriteString("\nand then:")
	for _, o := range history {
		if !slices.ContainsFunc(longest, func(in porcupine.Operation) bool { return in.Input == o.Input }) {
			fmt.Fprintf(&text, "\n%d %+v", o.ClientId, o.Input)
		}
	}
	return text.String()
}

// short is a visibility that some clients oversleep.
const short = 300 * time.Millisecond

// historyOf has some clients use a queue at once. It returns nil if a call of Receive took so long
// that what it reserved was over before its answer, which then has nothing.
func historyOf(t *testing.T, seed uint64, urls []string) []porcupine.Operation {
	queue := &v1.QueueName{Category: "q" + uuid.NewString()[:8]}
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	var (
		mu      sync.Mutex
		history []porcupine.Operation
		items   = map[string]int{}
		clients sync.WaitGroup
	)
	began := time.Now()
	for client := range 5 {
		to := servetest.Connect(h2c(t), urls[client%len(urls)], connect.WithGRPC())
		draw := rand.New(rand.NewPCG(seed, uint64(client))) //nolint:gosec // a few
		clients.Go(func() {
			did := func(s step, f func(s *step) error) {
				s.call = time.Since(began).Nanoseconds()
				err := f(&s)
				s.ret = time.Since(began).Nanoseconds()
				if err != nil {
					t.Errorf("%+v: %v", s, err)
					return
				}
				mu.Lock()
				defer mu.Unlock()
				history = append(history, porcupine.Operation{ClientId: client, Input: s, Call: s.call, Return: s.ret})
			}
			ends := func(what, id string, item, delivery int) {
				settlement := &v1.Settlement{DeliveryId: id, Action: &v1.Settlement_Complete_{}}
				if what == retry {
					settlement.Action = &v1.Settlement_Retry_{}
				}
				did(step{what: what, item: item, delivery: delivery}, func(s *step) error {
					r, err := to.Queues.Settle(ctx, &v1.SettleRequest{Queue: queue, Settlements: []*v1.Settlement{settlement}})
					s.done = r != nil && r.GetOutcomes()[0] == v1.SettlementOutcome_SETTLEMENT_OUTCOME_DONE
					return err
				})
			}
			for range 12 {
				if draw.IntN(3) == 0 {
					id := uuid.NewString()
					mu.Lock()
					items[id] = len(items) + 1
					n := items[id]
					mu.Unlock()
					did(step{what: produce, item: n}, func(*step) error {
						_, err := to.Queues.Produce(ctx, &v1.ProduceRequest{Queue: queue, Items: []*v1.NewItem{{Id: id, Type: "Send", DataJson: "{}"}}})
						return err
					})
					continue
				}
				visible := time.Hour
				if draw.IntN(5) == 0 {
					visible = short
				}
				var got *v1.Delivery
				var item int
				did(step{what: receive, visible: int64(visible)}, func(s *step) error {
					r, err := to.Queues.Receive(ctx, &v1.ReceiveRequest{Queue: queue, ReceiveId: uuid.NewString(), MaxItems: 1, VisibilityTimeout: durationpb.New(visible)})
					if len(r.GetDeliveries()) == 1 {
						got = r.GetDeliveries()[0]
						mu.Lock()
						item = items[got.GetItem().GetId()]
						mu.Unlock()
						s.item, s.delivery = item, int(got.GetDeliveries())
					}
					return err
				})
				if got == nil {
					continue
				}
				if visible < time.Hour && draw.IntN(2) == 0 {
					time.Sleep(visible * time.Duration(90+draw.IntN(30)) / 100)
				}
				for range 1 + draw.IntN(2) { // often again, as if the answer had been lost
					ends([]string{complete, complete, retry}[draw.IntN(3)], got.GetDeliveryId(), item, int(got.GetDeliveries()))
				}
			}
		})
	}
	clients.Wait()
	require.False(t, t.Failed())
	if slices.ContainsFunc(history, func(o porcupine.Operation) bool {
		s, ok := o.Input.(step)
		return ok && s.what == receive && s.ret-s.call > s.visible
	}) {
		return nil
	}
	return history
}

// corruptions are histories that no queue has: a check that takes one sees nothing.
func corruptions(history []porcupine.Operation) map[string][]porcupine.Operation {
	all := map[string][]porcupine.Operation{}
	change := func(name string, fits func(s step) bool, change func(s *step)) {
		for i := range history {
			if s, ok := history[i].Input.(step); ok && fits(s) {
				change(&s)
				changed := slices.Clone(history)
				changed[i].Input = s
				all[name] = changed
				return
			}
		}
	}
	change("an item that nobody has produced", func(s step) bool { return s.what == receive && s.item > 0 }, func(s *step) { s.item = 1 << 20 })
	change("a completion that was done and is told as lost", func(s step) bool { return s.what == complete && s.done }, func(s *step) { s.done = false })
	for _, o := range slices.Backward(history) { // one that is out for an hour comes again
		if s, ok := o.Input.(step); ok && s.what == receive && s.item > 0 && s.visible == int64(time.Hour) {
			s.call, s.ret = s.ret+1, s.ret+2
			again := porcupine.Operation{ClientId: o.ClientId, Input: s, Call: s.call, Return: s.ret}
			all["an item that comes twice"] = append(slices.Clone(history), again)
			break
		}
	}
	end := int64(0)
	for _, o := range history {
		end = max(end, o.Return)
	}
	lost := step{what: produce, item: 1 << 20, call: end + 1, ret: end + 2}
	nothing := step{what: receive, call: end + 3, ret: end + 4}
	all["an item that is lost"] = append(slices.Clone(history), porcupine.Operation{Input: lost, Call: lost.call, Return: lost.ret}, porcupine.Operation{Input: nothing, Call: nothing.call, Return: nothing.ret})
	return all
}
