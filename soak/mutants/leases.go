package mutants

// leases are bugs of intents.
func leases() []*Mutant {
	const in, state = "intent", "internal/intentlog"
	return []*Mutant{
		{Name: "token-of-the-clock", Says: "a fencing token is the time of its grant, and looks at no token before it", Plant: code(
			edit(state, "return max(r.After+1, written.UnixMicro())", "return written.UnixMicro()"),
		), Scene: jumped, Breaks: broken("L1", "L3a", "L4a")},
		{Name: "token-that-counts", Says: "a fencing token is one more than the one before, so it falls when the store has lost a grant", Plant: code(
			edit(state, "return max(r.After+1, written.UnixMicro())", "return r.After + 1"),
		), Scene: leased, Breaks: broken("L1", "L3a", "L4a")},
		{Name: "step-any-version", Says: "a lease is extended, confirmed and released at any version", Plant: code(
			edit(in, "all = append(all, messagestore.To(p.Place.Stream, p.Place.Position, m))", "all = append(all, messagestore.To(p.Place.Stream, messagestore.AnyVersion, m))"),
		), Scene: leased, Breaks: broken("L3a", "L5")},
		{Name: "taken-early", Says: "a lease is taken when half of its time is left", Plant: code(
			edit(state, "|| !now.Before(s.MayTake(session, turn))", "|| !now.Before(s.MayTake(session, turn).Add(-s.Lasts()/2))"),
		), Scene: leased, Breaks: broken("L2a")},
		{Name: "confirmed-is-free", Says: "an intent that was confirmed a second ago is free", Plant: code(
			edit(in, "case s.Done(): outcome = Done", "case s.Done() && now.Sub(s.Place.Time) < time.Second: outcome = Done"),
		), Scene: leased, Breaks: broken("L3a", "L5")},
		{Name: "intent-any-content", Says: "a request with other content is told held or done", Plant: code(
			edit(in, "case s.Content != a.content && !s.Released:", "case false:"),
		), Scene: leased, Breaks: broken("L2b", "L3a")},
		{Name: "lease-any-session", Says: "a lease is given to any session that asks for it", Plant: code(
			edit(in, "return met.Session == a.request.Session && !met.Released && !met.Lapsed", "return !met.Released && !met.Lapsed"),
		), Scene: leased, Breaks: broken("L2b")},
		{Name: "any-end-is-ones-own", Says: "a call takes the end of its lease by another call of the session for its own, and says that its result is confirmed", Plant: code(
			edit(in, "return l.byItself", "return l.over != nil && l.over.By != nil && l.over.By.Token == l.over.Token && l.over.By.Status != Held"),
		), Scene: leased, Breaks: broken("L5")},
		{Name: "out-of-turn", Says: "a session that does not stand in the line takes the first turn", Plant: code(
			edit(state, "return i } return len(s.Line)", "return i }; return 0"),
		), Scene: leased, Breaks: broken("waiters")},
		{Name: "begin-lost", Says: "a transaction's first statement is sent without BEGIN", Plant: code(
			edit("messagestore/postgres", "with = []string{beginSQL, markSQL}", "with = []string{markSQL}"),
		), Scene: leased, Breaks: broken("L4b")},
		{Name: "commit-past-a-grant", Says: "a transaction confirms a lease that was taken over", Plant: code(
			edit(in, "var past = []string{intentlog.TypeExtended, intentlog.TypeWaiting}", "var past = []string{intentlog.TypeExtended, intentlog.TypeWaiting, intentlog.TypeReserved}"),
		), Scene: leased, Breaks: broken("L3a", "L5")},
		{Name: "unknown-is-confirmed", Says: "a confirmation whose answer was lost counts as done", Plant: code(
			edit(in, "case err != nil: return l.failed(err) case met == nil: l.took(", `case err != nil && bodies[0].MessageType() == intentlog.TypeConfirmed && errors.Is(err, messagestore.ErrOutcomeUnknown):
				return nil
			case err != nil:
				return l.failed(err)
			case met == nil:
				l.took(`),
		), Scene: leased, Breaks: broken("L5")},
		{Name: "beats-leave-context", Says: "work goes on though no extension has reached the store", Plant: code(
			edit(in, "running.Go(func() { l.expire(beating, cancel) })", ""),
		), Scene: silent, Breaks: broken("L7")},
		{Name: "first-key-only", Says: "of a lease of several keys, only the first is extended, confirmed and released", Plant: code(
			edit(in, "parts := l.snapshot() all := make([]messagestore.StreamWrite, 0, len(parts)+len(writes)) bodies", `parts := l.snapshot()[:1]
				all := make([]messagestore.StreamWrite, 0, len(parts)+len(writes))
				bodies`),
		), Scene: leased, Breaks: broken("L3c")},
		{Name: "time-of-transaction", Says: "a message has the time at which its transaction began, and not that of its lock", Plant: sql(
			edit("append_one", "into dibs.messages as m (category,", `into dibs.messages as m ("time", category,`),
			edit("append_one", "values (stream_category,", "values (now(), stream_category,"),
			edit("append_each", "into dibs.messages as m (category,", `into dibs.messages as m ("time", category,`),
			edit("append_each", "select split_part(names[p.n], '-', 1), coalesce(", "select now(), split_part(names[p.n], '-', 1), coalesce("),
			edit("append", "into dibs.messages as m "+columns+" values (one_category,", `into dibs.messages as m ("time", `+columns[1:]+" values (now(), one_category,"),
			edit("append", "into dibs.messages as m "+columns+" select dibs.category(s.name),", `into dibs.messages as m ("time", `+columns[1:]+" select now(), dibs.category(s.name),"),
		), Scene: slow, Breaks: broken("L3a", "L2b")},
		// The moment in which it matters is made longer.
		{Name: "met-before-lock", Says: "a write by itself is told what was there before it had its lock", Plant: sql(
			edit("append_one", "fence_found bigint;", "fence_found bigint; early record;"),
			edit("append_one", "if not pg_try_advisory_xact_lock(", `
				select l.* into early from dibs.last_met(stream) l;
				perform pg_sleep(0.02);
				if not pg_try_advisory_xact_lock(`),
			edit("append_one", `select l.global_position, l.id, l.time, l.type, l.data, l.metadata
				into global_position, id, time, met_type, met_data, met_metadata
				from dibs.last_met(stream) l;`, `
				global_position := early.global_position; id := early.id; time := early.time;
				met_type := early.type; met_data := early.data; met_metadata := early.metadata;`),
		), Scene: leased, Breaks: broken("L3a", "L1", "L2b", "L3b")},
		{Name: "met-not-in-group", Says: "a write is not told of what another of its group has written", Plant: sql(
			edit("append_each", "left join lateral dibs.last_met(w.name) l on true", `
				left join lateral dibs.last_met(w.name) l on l.global_position <> all (coalesce(global_positions, '{}'))`),
		), Scene: crowded, Breaks: broken("L3b", "L2b")},
	}
}
