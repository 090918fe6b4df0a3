package queuetest

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"github.com/dibs-go/dibs/internal/queuing"
	"github.com/dibs-go/dibs/internal/testkit"
	"github.com/dibs-go/dibs/messagestore"
	"github.com/dibs-go/dibs/messagestore/memory"
)

// The tests by random calls: the driver and the driver in memory must give the same answers.
var modelTests = []test{
	{"Model/AnswersRandomCallsAsInMemory", busy | clock, func(t *testing.T, f *fixture) { answersAsInMemory(t, f, nil, false) }},
	{"Model/AnswersRandomCallsOfStreamsAsInMemory", busy | clock, func(t *testing.T, f *fixture) { answersAsInMemory(t, f, []string{signal}, false) }},
	{"Model/AnswersRandomCallsAsInMemoryWhileTheClockJumps", busy | clock, func(t *testing.T, f *fixture) {
		answersAsInMemory(t, f, nil, true)
		answersAsInMemory(t, f, []string{signal}, true)
	}},
}

// Each side is a store; both get the same calls. Items are identified by numbers.
type side struct {
	*fixture

	at     []messagestore.GlobalPosition // by number
	number map[messagestore.GlobalPosition]int
}

func (s *side) insert(t require.TestingT, stream string, due time.Time) {
	s.add(s.insertAt(t, stream, due))
}

func (s *side) add(at messagestore.GlobalPosition) {
	s.number[at] = len(s.at)
	s.at = append(s.at, at)
}

// taken returns the answer to a take, with numbers instead of positions.
func (s *side) taken(taken queuing.Taken) string {
	text := fmt.Appendf(nil, "%c", taken.Endings)
	for _, item := range taken.Items {
		text = fmt.Appendf(text, " %d.%d/%d", s.number[item.Message.GlobalPosition], item.Version, item.Failures)
	}
	if s.wakes != nil {
		text = fmt.Appendf(text, " more %v", taken.More)
	}
	return string(text)
}

func (s *side) numbers(at []messagestore.GlobalPosition) (all []int) {
	for _, p := range at {
		all = append(all, s.number[p])
	}
	return all
}

// state returns the states of all items.
func (s *side) state(t require.TestingT) (all []string) {
	finished := int64(0)
	offered := map[messagestore.StreamName]int{} // what is out, or offered at some time
	for n, at := range s.at {
		item, err := s.driver.QueueItem(context.Background(), s.of, at)
		if s.wakes != nil && errors.Is(err, messagestore.ErrNotFound) {
			all = append(all, fmt.Sprintf("%d: no item", n))
			continue
		}
		require.NoError(t, err)
		text := fmt.Appendf(nil, "%d: %s", n, describe(item))
		if item.State == queuing.Finished {
			finished++
		}
		if item.State == queuing.Out || item.State == queuing.Later {
			offered[item.Message.Stream]++
			require.Equal(t, 1, offered[item.Message.Stream], "items of %s that are out or later", item.Message.Stream)
		}
		if item.State == queuing.Held {
			text = fmt.Appendf(text, " behind %d", s.number[item.Behind])
		}
		if item.Closed {
			text = append(text, " closed"...)
		}
		text = fmt.Appendf(text, " %q", item.Note)
		for _, e := range item.Log {
			text = fmt.Appendf(text, " %d%c", e.Version, e.What)
		}
		all = append(all, string(text))
	}
	if status := s.status(t); status != nil {
		one := testkit.Do(s.driver.QueueStatus(context.Background(), s.of))(t)
		one.Time = status.Time
		require.Equal(t, *status, one, "the queue by itself")
		all = append(all, fmt.Sprintf("taken %d, finished %d, back %d, buried %d", status.Taken, status.Finished, status.Back, status.Buried))
		require.Equal(t, finished, status.Finished, "each finished item is counted once")
	}
	return all
}

// The driver and the memory driver answer the same calls alike, and leave the same state. This
// finds a rule that one of them lacks, unless the other lacks it too. Both clocks move only when
// the test moves them, so the speed of the machine does not matter.
func answersAsInMemory(t *testing.T, f *fixture, wakes []string, jumps bool) {
	begun := time.Now()
	rapid.Check(t, func(rt *rapid.T) {
		of := newFixture(f.driver, f.options).of
		var sides []*side
		var passed, wrong time.Duration // of both clocks
		show := func() { f.ahead(passed + wrong) }
		show()
		inMemory := memory.NewWithClock(func() time.Time { return begun.Add(passed + wrong) })
		for _, driver := range []queuing.Driver{f.driver, inMemory} {
			sides = append(sides, &side{fixture: &fixture{driver: driver, of: of, wakes: wakes}, number: map[messagestore.GlobalPosition]int{}})
		}
		policy := queuing.Policy{MaxFailures: rapid.IntRange(1, 3).Draw(rt, "max failures"), Hold: rapid.Bool().Draw(rt, "hold"), MaxOut: rapid.SampledFrom([]int{0, 0, 3}).Draw(rt, "max out")}
		var versions [][2]int // number and version of each delivery
		each := func(what string, f func(s *side) string) {
			first, want := f(sides[0]), f(sides[1])
			require.Equal(rt, want, first, what)
			require.Equal(rt, sides[1].state(rt), sides[0].state(rt), "after %s", what)
		}
		delivery := func(s *side, d [2]int) queuing.Delivery {
			return queuing.Delivery{Position: s.at[d[0]], Version: d[1]}
		}
		pass := func(by time.Duration) {
			passed += by
			show()
			each(fmt.Sprintf("%v passed", by), func(*side) string { return "" })
		}
		kinds := []queuing.Kind{'c', 'c', 'r', 'f', 'u', 'x', 't'}
		if wakes != nil {
			kinds = append(kinds, 'w', 'w', 's', 's')
			each("take of none", func(s *side) string { return s.taken(s.take(t, queuing.Take{})) })
		}
		// guess returns 0 for the session that has the delivery, or another number.
		guess := func() int64 { return rapid.SampledFrom([]int64{0, 0, 0, 0, 0, 0, 0, 1}).Draw(rt, "guessed session") }
		session := func() int64 { return rapid.Int64Range(1, 3).Draw(rt, "session") }
		take := func(want int, lease time.Duration) {
			var finishes [][5]any
			if len(versions) > 0 {
				for range rapid.IntRange(0, 3).Draw(rt, "finishes") {
					finishes = append(finishes, [5]any{
						rapid.SampledFrom(versions).Draw(rt, "delivery"), rapid.SampledFrom(kinds).Draw(rt, "kind"),
						rapid.SampledFrom([]time.Duration{0, 24 * time.Hour}).Draw(rt, "delay"), rapid.IntRange(0, len(sides[0].at)-1).Draw(rt, "seen"),
						guess(),
					})
				}
			}
			var behind []int // completed while they were held, in order
			if wakes == nil && len(finishes) > 0 && rapid.Bool().Draw(rt, "behind") {
				behind = rapid.SliceOfNDistinct(rapid.IntRange(0, len(sides[0].at)-1), 1, min(3, len(sides[0].at)), rapid.ID).Draw(rt, "items behind")
				slices.Sort(behind)
			}
			me := session()
			if lease < time.Second {
				me += 10 // sessions that end
			}
			var resume []int64
			if wakes == nil && rapid.IntRange(0, 3).Draw(rt, "resumes") == 0 {
				resume = slices.DeleteFunc(rapid.SliceOfNDistinct(rapid.SampledFrom([]int64{1, 2, 3, 11, 12, 13}), 1, 3, rapid.ID).Draw(rt, "earlier sessions"), func(s int64) bool { return s == me })
			}
			var others []queuing.Other
			if want > 0 && wakes == nil && len(resume) == 0 && rapid.Bool().Draw(rt, "shared") {
				for range rapid.IntRange(1, 2).Draw(rt, "others") {
					others = append(others, queuing.Other{Session: me + rapid.Int64Range(1, 2).Draw(rt, "other session"), Want: rapid.IntRange(1, 2).Draw(rt, "other want")})
				}
			}
			each(fmt.Sprintf("take of %d by %d after %v and of others %v, ending %v, and behind them %v", want, me, resume, others, finishes, behind), func(s *side) string {
				q := queuing.Take{Queue: of, Policy: policy, Wakes: wakes, Session: me, Lease: lease, Want: want, Resume: resume, Others: others}
				ended := map[int]bool{} // one item twice in a call is told by each in its own order
				for _, f := range finishes {
					d := f[0].([2]int) //nolint:errcheck // as made
					if ended[d[0]] {
						continue
					}
					ended[d[0]] = true
					finish := queuing.Finish{Delivery: delivery(s, d), Kind: f[1].(queuing.Kind), Error: "no"} //nolint:errcheck // as made
					finish.Session = cmp.Or(f[4].(int64), s.sessionOf(finish.Delivery, me))                    //nolint:errcheck // as made
					if strings.ContainsRune("rfws", rune(finish.Kind)) {
						finish.Delay = f[2].(time.Duration) //nolint:errcheck // as made
						finish.Seen = s.at[f[3].(int)]      //nolint:errcheck // as made
					}
					q.Finishes = append(q.Finishes, finish)
				}
				for _, n := range behind {
					if !ended[n] {
						q.Finishes = append(q.Finishes, queuing.Finish{Delivery: queuing.Delivery{Position: s.at[n]}, Kind: queuing.Behind})
					}
				}
				taken := testkit.Do(s.driver.QueueTake(context.Background(), q))(rt)
				s.took(q, taken)
				if s == sides[0] {
					for _, item := range taken.Items {
						versions = append(versions, [2]int{s.number[item.Message.GlobalPosition], item.Version})
					}
				}
				return s.taken(taken)
			})
		}
		actions := map[string]func(*rapid.T){
			"insert": func(*rapid.T) {
				stream := rapid.SampledFrom([]string{"a", "b", uuid.NewString()}).Draw(rt, "stream")
				dated := rapid.IntRange(0, 5).Draw(rt, "dated") == 0
				each("insert into "+stream, func(s *side) string {
					var due time.Time
					if dated {
						due = s.now(t).Add(24 * time.Hour)
					}
					s.insert(rt, stream, due)
					return ""
				})
			},
			"signal": func(*rapid.T) {
				if wakes == nil {
					rt.Skip("nothing wakes an item")
				}
				stream := rapid.SampledFrom([]string{"a", "b", "c"}).Draw(rt, "stream")
				each("signal to "+stream, func(s *side) string { s.add(s.write(rt, stream, signal, 1)); return "" })
			},
			"take":   func(*rapid.T) { take(rapid.IntRange(1, 4).Draw(rt, "want"), 24*time.Hour) },
			"finish": func(*rapid.T) { take(0, 24*time.Hour) },
			"take under a lease that is over by then": func(*rapid.T) {
				take(rapid.IntRange(1, 4).Draw(rt, "want"), queuing.MinLease)
				pass(queuing.MinLease + queuing.MinLease/2)
			},
			"time": func(*rapid.T) {
				pass(rapid.SampledFrom([]time.Duration{
					time.Microsecond, queuing.MinLease, time.Second - time.Microsecond, time.Second, 2 * time.Second, 10 * time.Second, time.Hour, 24 * time.Hour,
				}).Draw(rt, "passes"))
			},
			"finish apart": func(*rapid.T) {
				if len(versions) == 0 || wakes != nil {
					rt.Skip("nothing was delivered, or a take ends it")
				}
				d := rapid.SampledFrom(versions).Draw(rt, "delivery")
				by := guess()
				each(fmt.Sprintf("finish of %v by %d, reported", d, by), func(s *side) string {
					endings := testkit.Do(s.driver.QueueFinish(context.Background(), of, cmp.Or(by, s.sessionOf(delivery(s, d), 1)), []queuing.Delivery{delivery(s, d)}))(rt)
					reported := testkit.Do(s.driver.QueueTake(context.Background(), queuing.Take{
						Queue: of, Policy: policy, Session: 1, Lease: 24 * time.Hour, Finishes: []queuing.Finish{{Delivery: delivery(s, d), Kind: queuing.Committed}},
					}))(rt)
					return fmt.Sprintf("%c", append(endings, reported.Endings...))
				})
			},
			"leave": func(*rapid.T) {
				me, next := session(), int64(0)
				var keep [][2]int
				if rapid.Bool().Draw(rt, "next") && len(versions) > 0 {
					next = me%3 + 1
					keep = rapid.SliceOfN(rapid.SampledFrom(versions), 0, 2).Draw(rt, "keep")
				}
				each(fmt.Sprintf("leave of %d for %d with %v", me, next, keep), func(s *side) string {
					l := queuing.Leave{Queue: of, Session: me, Next: next, Lease: 24 * time.Hour}
					for _, d := range keep {
						l.Keep = append(l.Keep, delivery(s, d))
					}
					require.NoError(rt, s.driver.QueueLeave(context.Background(), l))
					s.moved(l)
					return ""
				})
			},
			"extend": func(*rapid.T) {
				if len(versions) == 0 {
					rt.Skip("nothing was delivered")
				}
				me, d := session(), rapid.SampledFrom(versions).Draw(rt, "delivery")
				noted := rapid.SliceOfN(rapid.SampledFrom(versions), 0, 3).Draw(rt, "noted")
				none := rapid.Bool().Draw(rt, "no notes")
				var others []int64
				if rapid.Bool().Draw(rt, "others") {
					others = []int64{session(), session()}
				}
				each(fmt.Sprintf("extend of %d with %v, notes of %v (none: %v), and of %v", me, d, noted, none, others), func(s *side) string {
					e := queuing.Extension{Queue: of, Session: me, Lease: 24 * time.Hour, Deliveries: []queuing.Delivery{delivery(s, d)}}
					if others != nil { // the second is of no item
						e.Deliveries, e.Sessions = append(e.Deliveries, queuing.Delivery{Position: 1 << 50}), others
					}
					if !none {
						e.Notes = queuing.Notes{}
						for i, n := range noted {
							e.Notes[delivery(s, n)] = fmt.Sprint("half of it, \"", i)
						}
					}
					lost := testkit.Do(s.driver.QueueExtend(context.Background(), e))(rt)
					return fmt.Sprint(len(lost))
				})
			},
			"change": func(*rapid.T) {
				if len(sides[0].at) == 0 {
					rt.Skip("nothing was inserted")
				}
				action := rapid.SampledFrom([]queuing.Action{queuing.RetryNow, queuing.Drop, queuing.Cancel, queuing.Pause, queuing.Resume}).Draw(rt, "action")
				var numbers []int
				if action != queuing.Pause && action != queuing.Resume {
					numbers = rapid.SliceOfNDistinct(rapid.IntRange(0, len(sides[0].at)-1), 1, min(3, len(sides[0].at)), rapid.ID).Draw(rt, "numbers")
				}
				each(fmt.Sprintf("%s of %v", action, numbers), func(s *side) string {
					c := queuing.Change{Queue: of, Action: action}
					for _, n := range numbers {
						c.Positions = append(c.Positions, s.at[n])
					}
					changed := testkit.Do(s.driver.QueueChange(context.Background(), c))(rt)
					return fmt.Sprint(s.numbers(changed))
				})
			},
			"": func(*rapid.T) {
				for _, state := range []queuing.State{queuing.Waiting, queuing.Out, queuing.Later, queuing.Suspended, queuing.Held, queuing.Dead} {
					var lists []string
					for _, s := range sides {
						items := testkit.Do(s.driver.QueueItems(context.Background(), queuing.List{Queue: of, State: state, Limit: 1000}))(rt)
						var listed []messagestore.GlobalPosition
						for _, item := range items {
							listed = append(listed, item.Position)
						}
						lists = append(lists, fmt.Sprint(s.numbers(listed)))
					}
					require.Equal(rt, lists[1], lists[0], "the items that are %s", state)
				}
			},
		}
		if jumps {
			actions["clock"] = func(*rapid.T) {
				// A driver may keep the time of a take that changes nothing, or not. Both keep that of a pause.
				each("pause and resume", func(s *side) string {
					actions := []queuing.Action{queuing.Pause, queuing.Resume}
					if status := s.status(rt); status != nil && status.Paused {
						slices.Reverse(actions)
					}
					for _, action := range actions {
						s.change(t, action)
					}
					return ""
				})
				wrong = rapid.SampledFrom([]time.Duration{0, queuing.ClockTolerance, 25 * time.Hour, 50 * time.Hour, -25 * time.Hour}).Draw(rt, "ahead")
				show()
				each(fmt.Sprintf("take of none, ahead by %v", wrong), func(s *side) string { return s.taken(s.take(t, queuing.Take{Policy: policy})) })
			}
		}
		rt.Repeat(actions)
	})
}
