// Package operate is for people who run a store: what dibs prints is made of it.
//
// [Story] tells what the store knows of one stream or key. [Items] and [Sagas] find items of queues
// and sagas by what is wrong with them, and [Change] and [ChangeSagas] change many in one call. The
// items of a queue of parked messages are the messages that a consumer gave up on.
//
//	all := operate.Filter{Error: "connection refused"}
//	groups, err := operate.Groups(operate.Items(ctx, mail, operate.Retry, all))
//	...
//	changed, err := operate.Change(ctx, mail, operate.Retry, all, &operate.ChangeOpts{Reason: "it is back", Rate: 50})
//
// All functions may be called by several goroutines.
package operate

import (
	"context"
	"fmt"
	"iter"
	"math"
	"slices"
	"strings"
	"time"

	"github.com/dibs-go/dibs/internal/outage"
	"github.com/dibs-go/dibs/internal/queuing"
	"github.com/dibs-go/dibs/messagestore"
	"github.com/dibs-go/dibs/queue"
)

// An Action is a change of items.
type Action string

// The actions.
const (
	Retry  Action = "retry"  // [queue.Queue.Retry]: of later, suspended and dead items
	Drop   Action = "drop"   // [queue.Queue.Drop]: of later, suspended, held and dead items
	Cancel Action = "cancel" // [queue.Queue.Cancel]: of all that are not finished
)

var actions = map[Action]struct {
	does   func(*queue.Queue, context.Context, string, ...messagestore.GlobalPosition) ([]messagestore.GlobalPosition, error)
	states []queue.State
}{
	Retry:  {(*queue.Queue).Retry, []queue.State{queue.Later, queue.Suspended, queue.Dead}},
	Drop:   {(*queue.Queue).Drop, []queue.State{queue.Later, queue.Suspended, queue.Held, queue.Dead}},
	Cancel: {(*queue.Queue).Cancel, []queue.State{queue.Waiting, queue.Out, queue.Later, queue.Suspended, queue.Held, queue.Dead}},
}

// A Filter chooses items that are not finished. An item has to match each field that is set.
type Filter struct {
	// State is the state of the items.
	//
	// Defaults to all in which the action can change them, of which most are dead.
	State queue.State

	Error string // a part of the item's error
	Like  string // an error: that of the item is in the same [Group]
	Type  string // the type of its message
	Key   string // the key with which it was inserted

	// OlderThan is for how long its message has been in the store, by the store's clock.
	OlderThan time.Duration
}

// Matches reports whether an item of a queue matches. Now is the time of the queue's store.
func (f Filter) Matches(q *queue.Queue, item queue.Item, now time.Time) bool {
	if !strings.Contains(item.Error, f.Error) || f.Like != "" && kindOf(item.Error) != kindOf(f.Like) {
		return false
	}
	m := item.Message
	if m == nil { // it was removed from the store
		return f.Type == "" && f.Key == "" && f.OlderThan == 0
	}
	return (f.Type == "" || m.Type == f.Type) && (f.Key == "" || m.Stream == q.Category().Stream(f.Key)) && (f.OlderThan == 0 || now.Sub(m.Time) >= f.OlderThan)
}

// Items returns the items that match and that the action can change, by state and then in order of
// position. It reads them in pages, so it may miss an item whose state changes during the call.
func Items(ctx context.Context, q *queue.Queue, action Action, f Filter) iter.Seq2[queue.Item, error] {
	return func(yield func(queue.Item, error) bool) {
		states, err := f.states(action)
		var status queue.Status
		if err == nil && f.OlderThan > 0 {
			status, err = q.Status(ctx) // for the time of the store
		}
		if err != nil {
			yield(queue.Item{}, err)
			return
		}
		for _, state := range states {
			for from := messagestore.GlobalPosition(0); ; {
				page, err := q.Items(ctx, state, from, queuing.MaxItems)
				if err != nil {
					yield(queue.Item{}, err)
					return
				}
				for _, item := range page {
					if from = item.Position + 1; f.Matches(q, item, status.Time) && !yield(item, nil) {
						return
					}
				}
				if len(page) == 0 {
					break
				}
			}
		}
	}
}

func (f Filter) states(action Action) ([]queue.State, error) {
	known, ok := actions[action]
	switch {
	case !ok:
		return nil, messagestore.NewInvalidError("action", string(action), "must be retry, drop or cancel")
	case f.OlderThan < 0:
		return nil, messagestore.NewInvalidError("OlderThan", f.OlderThan, "must not be negative")
	case f.State == "":
		return known.states, nil
	case !slices.Contains(known.states, f.State):
		return nil, messagestore.NewInvalidError("State", string(f.State), fmt.Sprintf("must be one of %v for %s", known.states, action))
	}
	return []queue.State{f.State}, nil
}

// ChangeOpts are for [Change] and [ChangeSagas]. Nil means the defaults.
type ChangeOpts struct {
	// Reason is for the log of each item, at most 255 bytes. A saga needs one, of 1 to 500 bytes.
	Reason string

	// Rate is how many are changed in a second.
	//
	// Defaults to 0: as fast as the store does it.
	Rate float64

	// Progress is called after each step of up to 1,000 items, or each saga, with how many were
	// changed so far.
	//
	// Defaults to nil.
	Progress func(changed int)
}

func (o *ChangeOpts) checked() (*ChangeOpts, error) {
	if o == nil {
		return &ChangeOpts{}, nil
	}
	if o.Rate < 0 || math.IsNaN(o.Rate) {
		return nil, messagestore.NewInvalidError("Rate", o.Rate, "must not be negative")
	}
	return o, nil
}

// A pacer keeps a rate.
type pacer struct {
	rate  float64
	began time.Time
	n     int
}

// wait waits until the next n may be changed.
func (p *pacer) wait(ctx context.Context, n int) error {
	if p.rate > 0 {
		if err := outage.Wait(ctx, time.Until(p.began.Add(time.Duration(float64(p.n)/p.rate*float64(time.Second))))); err != nil {
			return err
		}
	}
	p.n += n
	return nil
}

// Change changes the items that match, in steps, and returns how many it has changed, also with an
// error: you may call it again for the others. It changes each item once, also one that fails again
// while the call lasts.
func Change(ctx context.Context, q *queue.Queue, action Action, f Filter, opts *ChangeOpts) (changed int, err error) {
	if opts, err = opts.checked(); err != nil {
		return 0, err
	}
	most := queuing.MaxItems
	if opts.Rate > 0 && opts.Rate < float64(most) {
		most = max(1, int(opts.Rate))
	}
	pace := pacer{opts.Rate, time.Now(), 0}
	step := make([]messagestore.GlobalPosition, 0, most)
	flush := func() error {
		if len(step) == 0 {
			return nil
		}
		if err := pace.wait(ctx, len(step)); err != nil {
			return err
		}
		done, err := actions[action].does(q, ctx, opts.Reason, step...)
		if err != nil {
			return err
		}
		changed += len(done)
		step = step[:0]
		if opts.Progress != nil {
			opts.Progress(changed)
		}
		return nil
	}
	seen := map[messagestore.GlobalPosition]bool{} // a retried item may be met in another state
	for item, err := range Items(ctx, q, action, f) {
		if err != nil {
			return changed, err
		}
		if seen[item.Position] {
			continue
		}
		seen[item.Position] = true
		if step = append(step, item.Position); len(step) == most {
			if err := flush(); err != nil {
				return changed, err
			}
		}
	}
	err = flush()
	return changed, err
}
