package mutants

import (
	"github.com/dibs-go/dibs/soak/plant"
	"github.com/dibs-go/dibs/soak/promise"
)

// queued are bugs of queues.
func queued() []*Mutant {
	const take = "queue_take"
	mutant := func(name, says string, breaks []promise.Rule, edits ...[3]string) *Mutant {
		m := &Mutant{Name: name, Says: says, Scene: worked, Breaks: breaks}
		for _, e := range edits {
			m.Plant.SQL = append(m.Plant.SQL, edit(e[0], e[1], e[2]))
		}
		return m
	}
	// Those of the state machine that SQLite and memory share are of runs over a file.
	inFile := func(name, says string, breaks []promise.Rule, edits ...plant.Edit) *Mutant {
		return &Mutant{Name: name, Says: says, Scene: filed, Breaks: breaks, Plant: code(edits...)}
	}
	const state = "internal/queuestate"
	return []*Mutant{
		inFile("file-complete-any", "over a file, a completion finishes its item under whatever version that is out", broken("Q2d", "Q2a"),
			edit(state, "if row == nil || !row.isOut(f.Delivery, f.Session) || f.Kind == queuing.Committed {", "if row == nil || row.Place != Out || f.Kind == queuing.Committed {")),
		inFile("file-same-version", "over a file, an item whose session is over is offered again under the same version", broken("Q2b", "Q2d", "Q6b"),
			edit(state, `s.giveBack(&row, alone && row.Failures >= policy.MaxFailures, policy, delay)`, `s.giveBack(&row, alone && row.Failures >= policy.MaxFailures, policy, delay); row.Version--`)),
		inFile("file-key-not-held", "over a file, an item is offered though the one before it of its key is open", broken("Q3"),
			edit(state, "case !opens(open):", "case !opens(open) && false:")),
		inFile("file-never-over", "over a file, the end of a session is not met", broken("Q1b"),
			edit(state, "over, err := s.Over(s.now)", "over, err := s.Over(s.now.Add(-time.Hour))")),
		inFile("file-date-not-heeded", "over a file, an item is offered before its date", broken("Q9"),
			edit(state, "due.After(s.now) { row.Place, row.Session, row.Due =", "due.After(s.now.Add(time.Hour)) {\n\t\trow.Place, row.Session, row.Due =")),
		inFile("file-not-counted", "over a file, a failed delivery is no failure", broken("Q6a"),
			edit(state, "if f.Kind == queuing.Retry || f.Kind == queuing.Bury { row.Failures =", "if false {\n\t\trow.Failures =")),
		{Name: "name-free-early", Says: "a unique name is free as soon as its item is out, also until that is finished", Plant: code(
			edit("queue", "return state != Finished && state != Dead", "return state != Finished && state != Dead && state != Out"),
		), Scene: filed, Breaks: broken("Q10c")},
		{Name: "name-kept", Says: "a unique name is taken until its item is finished, also until that is delivered", Plant: code(
			edit("queue", "return state == Waiting || state == Later || state == Held", "return state != Finished && state != Dead"),
		), Scene: filed, Breaks: broken("Q10c")},
		{Name: "name-any-version", Says: "of two callers that saw a unique name free, both insert", Plant: code(
			// The moment in which it matters is made longer.
			edit("queue", "w.Expected = last.Position", "time.Sleep(20 * time.Millisecond)\n\t\t\tw.Expected = messagestore.AnyVersion"),
		), Scene: filed, Breaks: broken("Q10c")},
		mutant("complete-any-version", "a completion finishes its item under whatever version that is out", broken("Q2d", "Q2a", "Q1a"),
			[3]string{
				take, "select z.ctid from dibs.queue_open z where z.queue = q and z.position = u.position and z.version = u.version and z.state = 'o' and z.session = coalesce(u.session, me)",
				"select z.ctid from dibs.queue_open z where z.queue = q and z.position = u.position and z.state = 'o'",
			},
			[3]string{take, "where g.position = u.position and g.version = u.version) then 'd'", "where g.position = u.position) then 'd'"}),
		mutant("late-is-done", "a completion that comes late is told done", broken("Q2d", "Q2a"),
			[3]string{"queue_ended", "return case when found.what::text = kind then 'd' else 'l' end;", "return 'd';"}),
		mutant("over-same-version", "an item whose session is over is offered again under the same version", broken("Q2b", "Q2d", "Q6b"),
			[3]string{take, "set version = x.version + 1, session = null, failures = case when y.alone", "set session = null, failures = case when y.alone"}),
		mutant("session-never-over", "the end of a session is not met", broken("Q1b"),
			[3]string{take, "and x.until <= now returning x.session", "and x.until <= now - interval '1 hour' returning x.session"}),
		mutant("queue-no-lock", "takes of a queue do not wait for each other, and of two heads one is kept", broken("Q2b", "Q6b", "Q1a", "Q2a"),
			[3]string{"queue_lock", "done := pg_advisory_xact_lock(1684631857, found.id) is null;", ""},
			[3]string{take, "insert into dibs.queue_heads select h.*;", "insert into dibs.queue_heads select h.* on conflict do nothing;"}),
		{
			Name: "cursor-past-writers", Says: "the cursor goes past positions of transactions that are open", Plant: sql(
				edit(take, "total := total + newer; if total > 0 and wakes is null then if exists (select from dibs.fences x where x.category = of_category and x.shared) then up_to := dibs.readable(of_category);",
					"total := total + newer; if total > 0 and wakes is null then if exists (select from dibs.fences x where x.category = of_category and x.shared) then up_to := end_of_time;"),
			), Scene: opened, Breaks: broken("Q1a"),
		},
		mutant("cursor-too-far", "the cursor is one beyond the last message of a page", broken("Q1a"),
			[3]string{take, "h.cursor := high;", "h.cursor := high + 1;"}),
		mutant("key-not-held", "an item is offered though the one before it of its key is open", broken("Q3"),
			[3]string{take, "where x.position > 0 and z.stream_name = x.stream_name", "where x.position > 1000000 and z.stream_name = x.stream_name"}),
		mutant("key-not-held-in-page", "an item is offered beside the one before it of its key, if both are in one page", broken("Q3"),
			[3]string{take, "and (z.global_position > low or exists (", "and (exists ("}),
		mutant("unreported-holds", "what is held behind a completion that was committed and not reported stays held", broken("Q1b"),
			[3]string{take, "if h.held > 0 and total > 0 and h.checked <= now - dibs.queue_pause(h.held) then", "if false then"}),
		mutant("dead-holds", "a dead item holds its key, also where it is to go on", broken("Q1b"),
			[3]string{take, "case when hold then 'k' else 'd' end", "'k'"}),
		mutant("dead-ticket-kept", "a caller in line that does not come is waited for", broken("Q1b"),
			[3]string{take, "if soon < now - patience then", "if false then"}),
		mutant("trim-of-open", "a trim removes items that are open, but dead ones", broken("Q1c"),
			[3]string{"open_item", "and o.state <> 'z'", "and o.state in ('d', 'k')"}),
		mutant("report-counted-again", "an end that was done already is counted again", broken("Q6b"),
			[3]string{take, "changed := gone is not null;", "changed := gone is not null; h.returned := h.returned + cardinality(ended_positions) - coalesce(cardinality(gone), 0);"}),
		mutant("date-not-heeded", "an item is offered before its date", broken("Q9"),
			[3]string{take, "then dibs.queue_due(x.metadata) end as due", "then null::timestamptz end as due"}),
		mutant("pause-not-heeded", "items are reserved though the queue is paused", broken("Q9"),
			[3]string{take, "if h.paused then total := 0;", "if false then total := 0;"}),
		mutant("failures-not-counted", "a failed delivery is no failure", broken("Q6a"),
			[3]string{take, "else least(x.failures + case when y.kind in ('r', 'x') then 1 else 0 end, 32767) end,", "else x.failures end,"}),
		mutant("deferred-without-line", "a deferred delivery has no line in its item's log", broken("Q6b"),
			[3]string{take, "select q, y.position, y.version, y.kind::\"char\", now, y.session, y.error from back y where y.kind not in ('w', 's')", "select q, y.position, y.version, y.kind::\"char\", now, y.session, y.error from back y where y.kind not in ('w', 's', 'f')"}),
		mutant("staged-early", "a staged item is appended at once, and not in COMMIT", broken("Q10b"),
			[3]string{"stage", "insert into dibs.staged (xact,", `perform dibs.append_shared(stage.stream, stage.expected, message_id, stage.type, stage.data, stage.metadata);
				return; insert into dibs.staged (xact,`}),
		mutant("staged-backwards", "the staged items of a transaction come in the opposite order", broken("Q10b"),
			[3]string{"append_staged", "order by x.n loop perform", "order by x.n desc loop perform"}),
		mutant("staged-left-out", "COMMIT leaves out an item whose id has another content", broken("Q10a"),
			[3]string{"append_staged", "if answer in ('written', 'duplicate') then", "if true then"}),
		mutant("staged-all-left-out", "COMMIT appends nothing where one of its items is there already", broken("Q10a"),
			[3]string{"append_staged", "when sqlstate 'DB003' or unique_violation then", `when sqlstate 'DB003' or unique_violation then
				delete from dibs.staged x where x.xact = new.xact; return null;`}),
		mutant("staged-name-not-heeded", "COMMIT does not look whether a unique name is taken", broken("Q10a"),
			[3]string{"append_staged", "perform dibs.append_shared(s.stream, s.expected,", "perform dibs.append_shared(s.stream, -2,"}),
		{Name: "staged-outside", Says: "a staged item is inserted beside the transaction", Plant: code(
			edit("queue", "err := over.Stage(ctx, w.Stream, w.Expected, w.Bodies[0])", "_, err := q.store.Write(ctx, w.Stream, w.Expected, w.Bodies[0])"),
		), Scene: worked, Breaks: broken("Q10a")},
		{Name: "clock-never-back", Says: "the time of a queue never goes back, also when the server's clock was ahead for a moment", Plant: sql(
			edit(take, "if now < h.at - interval '1 s' then", "if false then"),
		), Scene: jumping, Breaks: broken("Q9", "Q1b")},
		{Name: "page-of-free-places", Says: "a take looks at eight times as many messages as it has places, and at no more", Plant: sql(
			edit(take, "greatest(total, case round when 4 then 200 when 5 then 1000 else 2500 end)", "total"),
		), Scene: heated, Breaks: broken("Q7")},
		{Name: "company-is-blamed", Says: "the end of a session is a failure of each item that it had out", Plant: sql(
			edit(take, "count(*) over (partition by x.session) = 1 as alone", "true as alone"),
		), Scene: poisoned, Breaks: broken("Q6a")},
		{Name: "company-is-kept", Says: "the same, and what was out when two sessions ended is delivered beside others", Plant: sql(
			edit(take, "count(*) over (partition by x.session) = 1 as alone", "true as alone"),
			edit(take, "after = case when x.after is not null then x.after when x.ends > 0 and not y.dies then 0 end", "after = x.after"),
			edit(take, "h.suspects or coalesce(bool_or(y.ends > 1), false)", "false"),
		), Scene: poisoned, Breaks: broken("Q6c")},
		{Name: "ending-handler-lives", Says: "the context of a handler that waits for the answer to its completion outlives its session", Plant: code(
			edit("internal/work", "if !alive || f.early != nil && slices.Contains(w.pending, f.early) {", "if false && slices.Contains(w.pending, f.early) {"),
		), Scene: stalled, Breaks: broken("Q4")},
		{Name: "commit-not-asked-for", Says: "an item whose completion was rolled back is completed", Plant: code(
			edit("internal/work", "e.Kind = queuing.Committed return e", "e.Kind = queuing.Complete\n\treturn e"),
		), Scene: worked, Breaks: broken("Q5")},
	}
}
