package cli

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/dibs-go/dibs/internal/text"
	"github.com/dibs-go/dibs/messagestore"
	"github.com/dibs-go/dibs/operate"
)

// aboutWork reports how consumers, queues, sagas and schedules are doing. What cannot be read is left out, for the check of the
// store says why, but not what takes too long.
func aboutWork(ctx context.Context, store *messagestore.Store) (found []Finding) {
	all, err := operate.Healths(ctx, store)
	for _, group := range []string{"consumers", "queues", "schedules"} {
		for _, h := range all {
			if groupOf[h.Kind] == group {
				found = append(found, aboutHealth(group, h)...)
			}
		}
	}
	if errors.Is(err, context.DeadlineExceeded) {
		found = append(found, judged("consumers", "consumers", fmt.Sprintf("not all consumers and queues were looked at within %s", checkTimeout), true, VerdictHidden, "dibs consumers and dibs queue look at all"))
	}
	return found
}

var groupOf = map[operate.Kind]string{operate.AConsumer: "consumers", operate.AQueue: "queues", operate.Runner: "queues", operate.ASchedule: "schedules"}

func aboutHealth(group string, h operate.Health) []Finding {
	name := strings.TrimSuffix(group, "s") + " " + visible(h.Name)
	if h.Kind == operate.AConsumer || h.Kind == operate.ASchedule {
		name += " of " + visible(string(h.Category))
	}
	f := Finding{Group: group, Name: h.Name, Verdict: VerdictOK}
	says, advice := []string{h.Says}, []string{}
	var more []Finding
	for _, c := range h.Causes {
		says, advice = append(says, visible(c.Says)), append(advice, visible(c.Advice))
		switch {
		case c.Fails:
			f.Verdict = VerdictFail
		case f.Verdict == VerdictOK:
			f.Verdict = VerdictWarn
		}
		if c.What != "failing" {
			f.Groups = append(f.Groups, groupsOf(c)...)
			continue
		}
		for _, m := range h.Consumer.Failing {
			more = append(more, Finding{
				Group: group, Name: h.Name, Verdict: VerdictWarn, Says: name + " " + failingText(m, visible(m.Error)),
				Advice: fmt.Sprintf("mend the cause; or have it parked: dibs consumers park %s %s --position %d --reason TEXT", text.Word(visible(string(h.Category))), text.Word(visible(h.Name)), m.GlobalPosition),
			})
		}
	}
	none := func(s string) bool { return s == "" }
	f.Says = name + " " + strings.Join(slices.DeleteFunc(says, none), "; ")
	f.Advice = strings.Join(slices.DeleteFunc(advice, none), "; ")
	return append([]Finding{f}, more...)
}

// fewGroups is how many groups of one cause are printed.
const fewGroups = 5

// groupsOf are the largest groups of a cause, each with the first act that mends it.
func groupsOf(c operate.Cause) (all []FindingGroup) {
	for _, g := range c.Groups[:min(fewGroups, len(c.Groups))] {
		one := FindingGroup{Group: g}
		if len(c.Acts) > 0 {
			one.Command = c.Acts[0].For(g).Command("TEXT")
		}
		all = append(all, one)
	}
	return all
}
