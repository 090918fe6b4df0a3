package mutants

import (
	"github.com/dibs-go/dibs/soak/plant"
	"github.com/dibs-go/dibs/soak/promise"
)

// ofSagas are bugs of sagas, timers and relays.
func ofSagas() []*Mutant {
	const in = "saga"
	mutant := func(name, says string, breaks []promise.Rule, edits ...plant.Edit) *Mutant {
		return &Mutant{Name: name, Says: says, Scene: ran, Breaks: breaks, Plant: code(edits...)}
	}
	return []*Mutant{
		mutant("turn-saw-all", "a turn ends as if it had seen what came meanwhile", broken("G8b", "G8a", "G3"),
			edit(in, "Delay: queuing.MaxDelay, Seen: l.seen}", "Delay: queuing.MaxDelay, Seen: l.seen + 1000}")),
		{Name: "wake-up-forgotten", Says: "a message that came during a turn has no other follow", Plant: sql(
			edit("queue_take", "case when y.turned and x.woken > coalesce(y.seen, 0) then 0 else greatest(y.delay, 0) end * interval", "greatest(y.delay, 0) * interval"),
		), Scene: quiet, Breaks: broken("G8b", "G8a", "G3")},
		mutant("no-time-to-go-on", "a saga that waits has no time at which it goes on", broken("G8b", "G8a", "G3"),
			edit(in, "finish.Delay = l.pause()", "_ = l.pause()")),
		mutant("no-due-for-deadline", "a saga that waits has no turn at its deadline", broken("G8a", "G3"),
			edit(in, "return l.over(ctx, l.deadline)", `next := l.next
				is, err := l.over(ctx, l.deadline)
				if !is {
					l.next = next
				}
				return is, err`)),
		// The moment in which it matters is made longer.
		mutant("record-beside-transaction", "a step in a transaction is recorded beside it", broken("G1b"),
			edit(in, "return at.writes(events, beside)", `writes, err := at.writes(events, beside)
				if err != nil {
					return nil, err
				}
				apart, err := at.store.WriteStreams(ctx, writes...)
				if err != nil {
					return nil, err
				}
				written = apart[0]
				time.Sleep(20 * time.Millisecond)
				return nil, nil`),
			edit(in, "return all[0], events, nil", "_ = all\n\t\treturn written, events, nil")),
		mutant("reply-to-any-attempt", "the reply to an earlier attempt is taken for that to the present one", broken("G5b"),
			edit(in, "!s.again && (r.Attempt == 0 || r.Attempt == s.attempts)", "!s.again")),
		mutant("saga-any-version", "a runner writes to a saga at any version", broken("G8a", "G2", "G1a", "G5a", "G3", "G6"),
			edit(in, "Expected: l.version, Bodies: all, Final: true", "Expected: messagestore.AnyVersion, Bodies: all, Final: true")),
		mutant("undone-forwards", "steps are undone in the order in which they began", broken("G6"),
			edit(in, "for _, began := range slices.Backward(l.steps) {", "for _, began := range slices.All(l.steps) {")),
		mutant("cancel-not-heeded", "a cancel has no saga undone", broken("G8a", "G8b"),
			edit(in, "case s.cancel != nil && s.cancel.Reason != \"\":", "case s.cancel != nil && s.cancel.Reason != \"\" && s.compensating != nil:"),
			edit(in, "case s.cancel != nil: return \"cancelled\"", "case s.cancel != nil && s.compensating != nil:\n\t\treturn \"cancelled\"")),
		mutant("sleep-ends-early", "a time has come a fifth of a second early", broken("G10"),
			edit(in, "if l.clock != nil && !l.clock.earliest().Before(t) {", "if l.clock != nil && !l.clock.earliest().Add(200*time.Millisecond).Before(t) {")),
		{Name: "flood-suspends-for-ever", Says: "signals take the room of their saga, which is suspended again and again when it is cancelled", Plant: code(
			edit(in, "if l.own+len(events) > most && !isSuspended {", "if int(l.version)+1+len(all) > most && !isSuspended {"),
			edit(in, "if l.suspended != nil { l.waits = true return nil } log := l.config.Logger", "log := l.config.Logger"),
		), Scene: flooded, Breaks: broken("G2", "G3")},
		{Name: "saga-clock-never-back", Says: "a saga waits for a time that was computed while the clock was ahead, for as long as it was", Plant: code(
			edit(in, `if now == nil || l.ended != "" || l.next.IsZero() ||`, `if true || now == nil || l.ended != "" || l.next.IsZero() ||`),
		), Scene: shifted, Breaks: broken("G3", "G8a", "G8b")},
		{Name: "timer-early", Says: "a timer rings a fifth of a second early", Plant: sql(
			edit("queue_take", "then dibs.queue_due(x.metadata) end as due", "then dibs.queue_due(x.metadata) - interval '0.2 s' end as due"),
		), Scene: ran, Breaks: broken("Q9")},
		mutant("sent-before-answer", "a relay has done with a message before its sink has answered", broken("O1", "O3"),
			edit("outbox", "return r.sink.Send(ctx, m)", `go func() { _ = panics.Call(func() error { return r.sink.Send(context.WithoutCancel(ctx), m) }) }()
				return nil`)),
		mutant("relay-skips-key", "a relay passes over the messages of a key", broken("O1"),
			edit("outbox", "func (r *Relay) passesOver(m *messagestore.Message) bool {", "func (r *Relay) passesOver(m *messagestore.Message) bool {\n\tif m.Stream.ID() == \"7\" {\n\t\treturn true\n\t}")),
	}
}
