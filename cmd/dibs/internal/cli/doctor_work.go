package cli

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"strings"

	"github.com/dibs-go/dibs/consumer/operate"
	"github.com/dibs-go/dibs/internal/text"
	"github.com/dibs-go/dibs/messagestore"
	"github.com/dibs-go/dibs/queue"
)

// aboutConsumers reports each consumer, whether a process runs it, and the messages that fail. Consumers that cannot be read
// are left out as queues are, but not those that take too long.
func aboutConsumers(ctx context.Context, store *messagestore.Store) (found []Finding) {
	all, err := statuses(ctx, store, "")
	for _, s := range all {
		if !s.Foreign {
			found = append(found, aboutConsumer(s)...)
		}
	}
	if errors.Is(err, context.DeadlineExceeded) {
		found = append(found, judged("consumers", "consumers", fmt.Sprintf("not all consumers were looked at within %s", checkTimeout), true, VerdictHidden, "dibs consumers looks at all"))
	}
	return found
}

func aboutConsumer(s operate.Status) []Finding {
	named := text.Word(visible(string(s.Category))) + " " + text.Word(visible(s.Name))
	f := judged("consumers", s.Name, "", false, "", "")
	var says, advice []string
	add := func(verdict Verdict, says1, advice1 string) {
		if f.Verdict != VerdictFail {
			f.Verdict = verdict
		}
		says = append(says, says1)
		if advice1 != "" {
			advice = append(advice, advice1)
		}
	}
	lag := fmt.Sprintf("%s behind it", text.Number(s.Lag, "message is|messages are"))
	if s.AtLeast {
		lag = "more than " + lag
	}
	gone := 0
	for _, r := range s.Replicas {
		if r.Gone {
			gone++
		}
	}
	switch err := cmp.Or(s.Err, s.PositionErr); {
	case err != nil:
		add(VerdictFail, "cannot go on: "+err.Error(), "")
	case !s.PausedAt.IsZero():
		add(VerdictWarn, "is paused since "+text.Time(s.PausedAt), fmt.Sprintf("dibs consumers resume %s ends the pause", named))
	case len(s.Replicas) == 0 && s.Lag > 0:
		add(VerdictWarn, "has stopped: no process runs it, and "+lag, "its log says why; start it again")
	case len(s.Replicas) == 0:
		says = append(says, "has handled all, and no process runs it")
	case gone == len(s.Replicas):
		add(VerdictWarn, fmt.Sprintf("is run by no process any more: %s, and %s", text.Number(gone, "replica is gone|replicas are gone"), lag), "start one again: it goes on at the checkpoint when their lease is over")
	default:
		says = append(says, fmt.Sprintf("is run by %s, and %s", text.Number(len(s.Replicas)-gone, "process|processes"), lag))
	}
	if s.Parked > 0 {
		add(VerdictWarn, fmt.Sprintf("has parked %s", text.Number(s.Parked, "message")), fmt.Sprintf("see them with dibs parked list %s", named))
	}
	if n := len(s.Failing) + s.MoreFailing; n > 0 {
		add(VerdictWarn, text.Number(n, "message fails|messages fail"), "")
	}
	f.Says = fmt.Sprintf("consumer %s of %s %s", visible(s.Name), visible(string(s.Category)), strings.Join(says, "; "))
	f.Advice = strings.Join(advice, "; ")
	found := []Finding{f}
	for _, m := range s.Failing {
		found = append(found, Finding{
			Group: "consumers", Name: s.Name, Verdict: VerdictWarn,
			Says:   fmt.Sprintf("consumer %s of %s %s", s.Name, s.Category, failingText(m, text.Cut(200, visible(m.Error)))),
			Advice: fmt.Sprintf("mend the cause; or have it parked: dibs consumers park %s --position %d --reason TEXT", named, m.GlobalPosition),
		})
	}
	return found
}

// looked is how many later items of a queue are looked at for failures.
const looked = 100

// outAfter is how many different items have failed when the sink of a relay counts as out.
const outAfter = 8

// aboutFailing tells of the items of a queue that were tried and wait for another attempt, or is empty.
func aboutFailing(ctx context.Context, store *messagestore.Store, s queue.Status) string {
	if s.Later == 0 || s.Streams { // a saga waits there for its next turn
		return ""
	}
	q, err := queueOf(store, s)
	if err != nil {
		return ""
	}
	later, err := q.Items(ctx, queue.Later, 0, looked)
	if err != nil {
		return ""
	}
	tried, failed := int64(0), (*queue.Item)(nil)
	for i := range later {
		if later[i].Version == 0 {
			continue // it has a date
		}
		tried++
		if failed == nil && later[i].Failures > 0 {
			failed = &later[i]
		}
	}
	if failed == nil {
		return ""
	}
	says := fmt.Sprintf("%s for another attempt, such as %d: %s", text.Number(tried, "item waits|items wait"), failed.Position, text.Cut(200, visible(failed.Error)))
	if tried >= outAfter {
		says += "; if it is a relay, its sink is out"
	}
	return says
}
