package saga_test

import (
	"context"
	"database/sql"
	"fmt"
	"math/rand/v2"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/dibs-go/dibs/internal/queuing"
	"github.com/dibs-go/dibs/internal/testkit"
	"github.com/dibs-go/dibs/messagestore"
	"github.com/dibs-go/dibs/messagestore/retention"
	"github.com/dibs-go/dibs/messagestore/sqlite"
	"github.com/dibs-go/dibs/saga"
)

// A damaged is a store in a file that a test damages.
type damaged struct {
	*messagestore.Store

	driver *sqlite.Driver
	db     *sql.DB
}

func newDamaged(t *testing.T) *damaged {
	t.Helper()
	path := filepath.Join(t.TempDir(), "sagas.db")
	driver := testkit.Must(sqlite.Open(t.Context(), path, nil))
	t.Cleanup(func() { require.NoError(t, driver.Close()) })
	db, err := sql.Open("sqlite", path)
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, db.Close()) })
	return &damaged{testkit.Must(messagestore.New(driver, nil)), driver, db}
}

// damage changes the file as no client does.
func (d *damaged) damage(t *testing.T, statement string, args ...any) {
	t.Helper()
	result, err := d.db.ExecContext(t.Context(), statement, args...)
	require.NoError(t, err, statement)
	n, err := result.RowsAffected()
	require.NoError(t, err)
	require.Positive(t, n, statement)
}

// verified returns the violations, each with its place.
func verified(t require.TestingT, store saga.Store) (all []string) {
	o, err := saga.NewOperatorOver(store, "booking:saga", "ann")
	require.NoError(t, err)
	found, err := o.Verify(context.Background(), nil)
	require.NoError(t, err)
	for _, v := range found.Violations {
		all = append(all, v.String())
	}
	return all
}

// histories are sagas with each message that there is: one that completes, one that is undone, and one that a person ends.
var histories = map[string][]string{
	"a": {
		`Started {"definition":"booking","version":1,"input":1}`,
		`Valued {"name":"fee","value":7}`,
		`Waiting {"name":"night","until":1}`,
		`Began {"step":"flight","attempt":1,"input":1}`,
		`Failed {"step":"flight","attempt":1,"error":"down","retryAt":1}`,
		`Began {"step":"flight","attempt":2}`,
		`Done {"step":"flight","output":1}`,
		`Waiting {"name":"approved","until":1,"signal":true}`,
		`Signalled {"name":"approved","value":1}`,
		`Received {"name":"approved"}`,
		`Began {"step":"paid","attempt":1,"kind":"ask"}`,
		`Replied {"step":"paid","output":1}`,
		`Completed {"output":1}`,
	},
	"b": {
		`Started {"definition":"booking","version":1,"input":1}`,
		`Began {"step":"flight","attempt":1,"input":1}`,
		`Done {"step":"flight","output":1}`,
		`Began {"step":"hotel","attempt":1,"input":1,"kind":"tx"}`,
		`Failed {"step":"hotel","attempt":1,"error":"full","refused":true}`,
		`Compensating {"reason":"full"}`,
		`UndoFailed {"step":"hotel","attempt":1,"error":"down","retryAt":1}`,
		`Undone {"step":"hotel"}`,
		`Undone {"step":"flight"}`,
		`Compensated {}`,
		`Signalled {"name":"approved","value":1}`,
		`CancelRequested {}`,
	},
	"c": {
		`Started {"definition":"booking","version":1,"input":1}`,
		`Began {"step":"paid","attempt":1,"input":1,"pivot":true}`,
		`Done {"step":"paid","output":1}`,
		`Suspended {"why":"failed","reason":"no letter"}`,
		`Resolved {"reason":"by hand","by":"ann"}`,
		`Resumed {}`,
	},
}

func TestVerifyNamesTheMessageThatNoRunnerWrites(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		at, by, want string // by: in place of the message
	}{
		"no beginning":                {"c@0", `Began {"step":"paid","attempt":1}`, "c@0: a message of a saga, Began booking:saga-c@0: a saga's stream begins with Started, and has no other"},
		"two beginnings":              {"c@2", `Started {"definition":"booking","version":1}`, "c@2: a message of a saga, Started booking:saga-c@2: a saga's stream begins with Started, and has no other"},
		"no body":                     {"c@2", `Done {"step":7}`, "c@2: a message of a saga, "},
		"two ends":                    {"b@10", `Completed {"output":1}`, "b@10: nothing of a runner behind the end, by which the saga is compensated, Completed"},
		"a step behind the end":       {"a@8", `Completed {}`, "a@9: nothing of a runner behind the end, by which the saga is completed, Received of approved"},
		"compensation behind the end": {"b@10", `Compensating {"reason":"late"}`, "b@10: nothing of a runner behind the end, by which the saga is compensated, Compensating"},
		"a resolution, and an end":    {"c@5", `Completed {}`, "c@5: nothing of a runner behind the end, by which the saga is resolved, Completed"},
		"a step while suspended":      {"c@4", `Began {"step":"letter","attempt":1}`, "c@4: nothing of a runner while the saga is suspended, Began of letter, attempt 1"},
		"done, not begun":             {"a@6", `Done {"step":"hotel","output":1}`, "a@6: an attempt at step hotel without an outcome, Done of hotel"},
		"done, not begun again":       {"a@5", `Done {"step":"flight","output":1}`, "a@5: an attempt at step flight without an outcome, Done of flight"},
		"done twice":                  {"a@7", `Done {"step":"flight","output":2}`, "a@7: an attempt at step flight without an outcome, Done of flight"},
		"begun again when done":       {"a@7", `Began {"step":"flight","attempt":3}`, "a@7: no attempt at step flight, which has its outcome, Began of flight, attempt 3"},
		"an attempt left out":         {"a@5", `Began {"step":"flight","attempt":3}`, "a@5: attempt 2, Began of flight, attempt 3"},
		"another attempt failed":      {"a@4", `Failed {"step":"flight","attempt":2,"error":"down","retryAt":1}`, "a@4: attempt 2 at step flight without an outcome, Failed of flight, attempt 2"},
		"failed when done":            {"a@7", `Failed {"step":"flight","attempt":2,"error":"down"}`, "a@7: attempt 2 at step flight without an outcome, Failed of flight, attempt 2"},
		"failed, not begun":           {"a@3", `Failed {"step":"hotel","attempt":1,"error":"down","retryAt":1}`, "a@3: attempt 1 at step hotel without an outcome, Failed of hotel, attempt 1"},
		"failed twice":                {"a@5", `Failed {"step":"flight","attempt":1,"error":"again","retryAt":2}`, "a@5: attempt 1 at step flight without an outcome, Failed of flight, attempt 1"},
		"one message twice":           {"b@7", `UndoFailed {"step":"hotel","attempt":1,"error":"down","retryAt":1}`, "b@7: no message twice in a row, UndoFailed of hotel"},
		"suspended twice":             {"c@4", `Suspended {"why":"failed","reason":"no paper"}`, "c@4: nothing of a runner while the saga is suspended, Suspended"},
		"completed while suspended":   {"c@4", `Completed {}`, "c@4: nothing of a runner while the saga is suspended, Completed"},
		"two waits for a signal":      {"a@8", `Waiting {"name":"approved","until":2,"signal":true}`, "a@8: one wait of a name, Waiting of approved"},
		"a signal before the first":   {"a@9", `Received {"name":"approved","index":-1}`, "a@9: signal 0 of the name, which has come, Received of approved"},
		"two compensations":           {"b@6", `Compensating {"reason":"again"}`, "b@6: undos alone once the compensation has begun, Compensating"},
		"completed while undone":      {"b@9", `Completed {"output":1}`, "b@9: undos alone once the compensation has begun, Completed"},
		"a value while undone":        {"b@6", `Valued {"name":"fee","value":8}`, "b@6: undos alone once the compensation has begun, Valued of fee"},
		"an undo failed of none":      {"b@7", `UndoFailed {"step":"car","attempt":1,"error":"down","retryAt":1}`, "b@7: the undo of step hotel, the last that began, UndoFailed of car"},
		"an undo failed too many":     {"b@9", `UndoFailed {"step":"flight","attempt":1,"error":"down","retryAt":1}`, "b@9: no undo, for each step that began is undone, UndoFailed of flight"},
		"an undo, and no way back":    {"a@10", `Undone {"step":"flight"}`, "a@10: a compensation that has begun, Undone of flight"},
		"two values":                  {"a@2", `Valued {"name":"fee","value":8}`, "a@2: one value of a name, Valued of fee"},
		"two sleeps":                  {"a@7", `Waiting {"name":"night","until":2}`, "a@7: one wait of a name, Waiting of night"},
		"a signal taken twice":        {"a@10", `Received {"name":"approved"}`, "a@10: a signal that is taken once, Received of approved"},
		"a signal that never came":    {"a@9", `Received {"name":"approved","index":1}`, "a@9: signal 2 of the name, which has come, Received of approved"},
		"completed without a reply":   {"a@11", `Resumed {}`, "a@12: an outcome of step paid, Completed"},
		"an undo before compensation": {"b@5", `Resumed {}`, "b@6: a compensation that has begun, UndoFailed of hotel"},
		"an undo of none":             {"b@7", `Undone {"step":"car"}`, "b@7: the undo of step hotel, the last that began, Undone of car"},
		"an undo before its turn":     {"b@7", `Undone {"step":"flight"}`, "b@7: the undo of step hotel, the last that began, Undone of flight"},
		"an undo twice":               {"b@8", `Undone {"step":"hotel"}`, "b@8: the undo of step flight, the last that began, Undone of hotel"},
		"an undo too many":            {"b@9", `Undone {"step":"flight"}`, "b@9: no undo, for each step that began is undone, Undone of flight"},
		"a step left":                 {"b@8", `UndoFailed {"step":"flight","attempt":1,"error":"down","retryAt":1}`, "b@9: step flight to be undone, Compensated"},
		"a step while undone":         {"b@6", `Began {"step":"car","attempt":1}`, "b@6: undos alone once the compensation has begun, Began of car, attempt 1"},
		"compensated, not undone":     {"c@3", `Compensated {}`, "c@3: a compensation that has begun, Compensated"},
		"undone behind a pivot":       {"c@3", `Compensating {"reason":"full"}`, "c@3: no way back behind a pivot that is done, Compensating"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			d := newDamaged(t)
			for id, events := range histories {
				for _, event := range events {
					messageType, data, _ := strings.Cut(event, " ")
					_, err := d.Write(t.Context(), messagestore.Category("booking:saga").Stream(id), messagestore.AnyVersion, messagestore.Raw{Type: messageType, Data: []byte(data)})
					require.NoError(t, err)
				}
			}
			require.Empty(t, verified(t, d.Store))

			messageType, data, _ := strings.Cut(c.by, " ")
			stream, position, _ := strings.Cut("booking:saga-"+c.at, "@")
			d.damage(t, "UPDATE dibs_messages SET type = ?, data = ? WHERE stream_name = ? AND position = ?", messageType, data, stream, position)

			place, rule, _ := strings.Cut(c.want, ": ")
			found := verified(t, d.Store)
			require.Len(t, found, 1)
			require.Regexp(t, `^saga: booking:saga-`+place+` \(\d+\): expected `, found[0])
			_, found[0], _ = strings.Cut(found[0], "): expected ")
			require.Contains(t, strings.ReplaceAll(found[0], ", found ", ", "), rule)
		})
	}
}

// What a later release wrote, what was trimmed or deleted, and what came late from outside breaks no rule.
func TestVerifyPassesOverWhatItCannotKnow(t *testing.T) {
	t.Parallel()
	d := newDamaged(t)
	for id, events := range map[string][]string{
		"later": append([]string{histories["c"][0], `Delegated {}`}, histories["c"][2:]...), "other": {`Opened {}`, `Done {}`},
		"trimmed": histories["b"], "deleted": histories["c"], "outside": slices.Concat(histories["a"], histories["b"][10:]),
		"early": {histories["c"][0], `Replied {"step":"paid","output":1}`, `Began {"step":"paid","attempt":1,"kind":"ask"}`, `Failed {"step":"paid","attempt":1,"error":"not sent","retryAt":1}`, `Completed {}`},
	} {
		for _, event := range events {
			messageType, data, _ := strings.Cut(event, " ")
			_, err := d.Write(t.Context(), messagestore.Category("booking:saga").Stream(id), messagestore.AnyVersion, messagestore.Raw{Type: messageType, Data: []byte(data)})
			require.NoError(t, err)
		}
	}
	_, err := d.driver.Trim(t.Context(), "booking:saga-trimmed", &retention.TrimOptions{Keep: 4, MinAge: retention.AnyAge})
	require.NoError(t, err)
	_, err = d.driver.Delete(t.Context(), "booking:saga-deleted", messagestore.AnyVersion, nil)
	require.NoError(t, err)

	found, err := operator(t, d.Store).Verify(t.Context(), nil)

	require.NoError(t, err)
	require.Empty(t, found.Violations)
	require.EqualValues(t, 6, found.Checked.Sagas)
}

// sagasAndItems is a store with a saga that waits for a reply, one that is suspended and one that has ended.
func sagasAndItems(t *testing.T) (d *damaged, s *saga.Saga[trip, itinerary], positions map[string]messagestore.GlobalPosition) {
	t.Helper()
	d = newDamaged(t)
	w := newWorld()
	w.fails("book flight", 1, puzzle("what flight?"))
	s = travel(t, d.Store, w, nil)
	stop := running(t, s)
	defer stop()
	positions = map[string]messagestore.GlobalPosition{}
	for _, id := range []string{"suspended", "ended", "waiting"} {
		if id == "waiting" {
			w.on("book hotel", func(context.Context, int) error { return errDown })
		}
		begin(t, s, id, trip{"LIS"})
		testkit.Await(t, "the saga has had its turn", func() (bool, any) {
			status, err := s.Status(t.Context(), id)
			require.NoError(t, err)
			return status.State == saga.StateSuspended || status.IsOver() || status.Waits != "", status
		})
		m, err := d.Last(t.Context(), messagestore.Category("booking:saga").Stream(id))
		require.NoError(t, err)
		positions[id] = m.Metadata.CausationGlobalPosition
		testkit.Await(t, "the turn is over", func() (bool, any) {
			item, err := d.driver.QueueItem(t.Context(), queuing.Queue{Name: "booking:saga", Category: "booking:saga"}, positions[id])
			require.NoError(t, err)
			return item.State != queuing.Out, item
		})
	}
	return d, s, positions
}

func TestVerifyNamesASagaThatHasNoOtherTurn(t *testing.T) {
	t.Parallel()
	booking := queuing.Queue{Name: "booking:saga", Category: "booking:saga"}
	change := func(t *testing.T, d *damaged, action queuing.Action, position messagestore.GlobalPosition) {
		t.Helper()
		changed, err := d.driver.QueueChange(t.Context(), queuing.Change{Queue: booking, Action: action, Positions: []messagestore.GlobalPosition{position}, Reason: "by mistake"})
		require.NoError(t, err)
		require.Len(t, changed, 1)
	}
	for name, c := range map[string]struct {
		damage func(t *testing.T, d *damaged, s *saga.Saga[trip, itinerary], at map[string]messagestore.GlobalPosition)
		want   []string
	}{
		"its item is gone": {func(t *testing.T, d *damaged, _ *saga.Saga[trip, itinerary], at map[string]messagestore.GlobalPosition) {
			d.damage(t, "DELETE FROM dibs_queue_open WHERE position = ?", at["suspended"])
		}, []string{"suspended: an open item, since the saga is suspended, an item that is finished"}},
		"its item was dropped": {func(t *testing.T, d *damaged, _ *saga.Saga[trip, itinerary], at map[string]messagestore.GlobalPosition) {
			change(t, d, queuing.Drop, at["suspended"])
		}, []string{"suspended: an open item, since the saga is suspended, an item that is finished: dropped, by mistake"}},
		"its item was cancelled": {func(t *testing.T, d *damaged, _ *saga.Saga[trip, itinerary], at map[string]messagestore.GlobalPosition) {
			change(t, d, queuing.Cancel, at["waiting"])
		}, []string{"waiting: an open item, since the saga is running, an item that is finished: cancelled, by mistake"}},
		"its wake-up was lost": {func(t *testing.T, d *damaged, s *saga.Saga[trip, itinerary], _ map[string]messagestore.GlobalPosition) {
			_, err := s.Resume(t.Context(), "suspended", "mended")
			require.NoError(t, err)
			require.Empty(t, verified(t, d.Store), "no runner has met it")
			d.damage(t, "UPDATE dibs_queues SET cursor = (SELECT max(global_position) FROM dibs_messages)")
		}, []string{"suspended: another turn, since the saga waits for nothing, an item that no message wakes, and that is suspended"}},
		"it is due in ninety years": {func(t *testing.T, d *damaged, s *saga.Saga[trip, itinerary], at map[string]messagestore.GlobalPosition) {
			_, err := s.Resume(t.Context(), "suspended", "mended")
			require.NoError(t, err)
			d.damage(t, "UPDATE dibs_queue_open SET place = 'l', due = ? WHERE position = ?", time.Now().AddDate(90, 0, 0).UnixMicro(), at["suspended"])
			d.damage(t, "UPDATE dibs_queues SET cursor = (SELECT max(global_position) FROM dibs_messages)")
		}, []string{"suspended: another turn, since the saga waits for nothing, an item that no message wakes, and that is later"}},
		"it waits, and its item is suspended": {func(t *testing.T, d *damaged, _ *saga.Saga[trip, itinerary], at map[string]messagestore.GlobalPosition) {
			d.damage(t, "UPDATE dibs_queue_open SET place = 's', due = 0 WHERE position = ?", at["waiting"])
		}, []string{"waiting: another turn, since the saga waits for nothing, an item that no message wakes, and that is suspended"}},
		"it has ended, and its item is suspended": {func(t *testing.T, d *damaged, _ *saga.Saga[trip, itinerary], at map[string]messagestore.GlobalPosition) {
			d.damage(t, "UPDATE dibs_queue_open SET position = ? WHERE position = ?", at["ended"], at["suspended"])
		}, []string{
			"ended: a finished item, since the saga is completed, an item that is suspended",
			"suspended: an open item, since the saga is suspended, an item that is finished",
		}},
		"it has ended, and its item is dead": {func(t *testing.T, d *damaged, _ *saga.Saga[trip, itinerary], at map[string]messagestore.GlobalPosition) {
			d.damage(t, "UPDATE dibs_queue_open SET position = ?, place = 'd', due = 0 WHERE position = ?", at["ended"], at["suspended"])
		}, []string{
			"ended: a finished item, since the saga is completed, an item that is dead",
			"suspended: an open item, since the saga is suspended, an item that is finished",
		}},
		"its item is dead, and no runner has met its end": {func(t *testing.T, d *damaged, _ *saga.Saga[trip, itinerary], at map[string]messagestore.GlobalPosition) {
			d.damage(t, "UPDATE dibs_queue_open SET position = ?, place = 'd', due = 0 WHERE position = ?", at["ended"], at["suspended"])
			d.damage(t, "UPDATE dibs_queues SET cursor = ?", at["ended"]+1)
		}, []string{
			"ended: a finished item, since the saga is completed, an item that is dead",
			"suspended: an open item, since the saga is suspended, an item that is finished",
		}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			d, s, at := sagasAndItems(t)
			require.Empty(t, verified(t, d.Store))

			c.damage(t, d, s, at)

			var found []string
			for _, v := range verified(t, d.Store) {
				stream, rule, _ := strings.Cut(strings.TrimPrefix(v, "saga: booking:saga-"), "@0 (")
				_, rule, _ = strings.Cut(rule, "): expected ")
				found = append(found, stream+": "+strings.Replace(rule, ", found ", ", ", 1))
			}
			require.ElementsMatch(t, c.want, found)
		})
	}
}

// Runners, operators, signals and replies go on meanwhile.
func TestVerifyRaisesNoAlarmBesideRunners(t *testing.T) {
	t.Parallel()
	for name, open := range map[string]func(t *testing.T) *messagestore.Store{
		"memory": func(*testing.T) *messagestore.Store { return newStore() }, "PostgreSQL": onPostgres,
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			store := open(t)
			w := newWorld()
			for _, what := range []string{"book flight", "book hotel", "book car", "cancel flight", "cancel hotel", "cancel car"} {
				w.on(what, func(context.Context, int) error {
					switch rand.IntN(12) {
					case 0:
						return errDown
					case 1:
						return refusal("full")
					case 2:
						return puzzle("what?")
					}
					return nil
				})
			}
			config := *soon
			flight, hotel, car := w.step("flight", &config), w.step("hotel", &config), w.step("car", &config)
			paid := saga.NewAsk[int, int]("paid", func(context.Context, int) (messagestore.StreamWrite, error) { return messagestore.StreamWrite{}, nil }, nil, &saga.StepConfig{Timeout: 50 * time.Millisecond})
			book := func(r *saga.Run, in trip) (string, error) {
				a, b := flight.Go(r, in), hotel.Go(r, in)
				if err := r.Join(); err != nil {
					return "", err
				}
				if err := r.Sleep("night", time.Millisecond); err != nil {
					return "", err
				}
				if _, err := saga.Receive[int](r, "approved", 50*time.Millisecond); err != nil {
					return "", err
				}
				if _, err := paid.Do(r, 1); err != nil {
					return "", err
				}
				_, err := car.Do(r, in)
				return a.Out().Reference + b.Out().Reference, err
			}
			steps := saga.Steps{flight, hotel, car, paid}
			s, other := newSaga(t, store, book, steps, nil), newSaga(t, store, book, steps, nil)
			o := operator(t, store)
			defer running(t, s)()
			defer running(t, other)()
			ctx, stop := context.WithTimeout(t.Context(), 3*time.Second)
			defer stop()
			var load sync.WaitGroup
			for n := range 8 {
				load.Go(func() {
					for i := 0; ctx.Err() == nil; i++ {
						id := fmt.Sprintf("%d.%d", n, i)
						if _, err := s.Begin(ctx, id, trip{"LIS"}); err != nil {
							continue
						}
						for range 3 + rand.IntN(5) {
							disturb(ctx, store, s, o, id)
						}
					}
				})
			}

			rounds := 0
			for ; ctx.Err() == nil; rounds++ {
				require.Empty(t, verified(t, store))
			}

			load.Wait()
			require.Greater(t, rounds, 1)
			require.Empty(t, verified(t, store))
		})
	}
}

// disturb does one of the things that may come from outside. Most errors are refusals.
func disturb(ctx context.Context, store *messagestore.Store, s *saga.Saga[trip, string], o *saga.Operator, id string) {
	switch rand.IntN(8) {
	case 0, 1:
		_, _ = store.WriteStreams(ctx, s.Signal(id, "approved", 1))
	case 2, 3:
		_, _ = store.WriteStreams(ctx, s.Reply(id, "paid", 1))
	case 4:
		_, _ = o.Suspend(ctx, id, "wait")
	case 5:
		_, _ = o.Resume(ctx, id, "go")
	case 6:
		_, _ = s.Cancel(ctx, id, "not wanted")
	case 7:
		_, _ = s.Wait(ctx, id)
	}
}
