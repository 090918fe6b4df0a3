package mutants

import (
	"time"

	"github.com/dibs-go/dibs/soak/intents"
)

// holders are clients of intents, in runs of package intents.
type holders struct {
	clock bool // of the server, that jumps
}

// Scenes of intents.
var (
	leased = &Scene{Name: "holders", holders: &holders{}}
	jumped = &Scene{Name: "holders and jumps", holders: &holders{clock: true}}
)

// OfIntents reports whether runs of the scene are those of package intents.
func (s *Scene) OfIntents() bool { return s.holders != nil }

// leaseTime is that of the first run of a scene of intents, enough for some leases to be lost.
const leaseTime = 8 * time.Second

// IntentOptions are those of a run of a scene of intents.
func (s *Scene) IntentOptions(m *Mutant, seed uint64, round int) intents.Options {
	o := intents.Options{Seed: seed + uint64(round), Duration: leaseTime << round, Processes: 4, Goroutines: 5, Clock: s.holders.clock}
	if m != nil {
		o.Plant = &m.Plant
	}
	return o
}

// leases are bugs of intents.
func leases() []*Mutant {
	const in = "reservation/intent"
	broken := func(rules ...Promise) []Promise { return rules }
	return []*Mutant{
		{Name: "token-of-the-clock", Says: "a fencing token is the time of its grant, and looks at no token before it", Plant: code(
			edit(in, "return max(r.After+1, written.UnixMicro())", "return written.UnixMicro()"),
		), Scene: jumped, Breaks: broken(intents.Tokens, intents.Steps, intents.Fence)},
		{Name: "token-that-counts", Says: "a fencing token is one more than the one before, so it falls when the store has lost a grant", Plant: code(
			edit(in, "return max(r.After+1, written.UnixMicro())", "return r.After + 1"),
		), Scene: leased, Breaks: broken(intents.Tokens, intents.Steps, intents.Fence)},
		{Name: "step-any-version", Says: "a lease is extended, confirmed and released at any version", Plant: code(
			edit(in, "all = append(all, messagestore.To(p.at.Stream, p.at.Position, m))", "all = append(all, messagestore.To(p.at.Stream, messagestore.AnyVersion, m))"),
		), Scene: leased, Breaks: broken(intents.Steps, intents.Confirmed)},
		{Name: "taken-early", Says: "a lease is taken when half of its time is left", Plant: code(
			edit(in, "|| !now.Before(s.mayTake(session, turn))", "|| !now.Before(s.mayTake(session, turn).Add(-s.ttl()/2))"),
		), Scene: leased, Breaks: broken(intents.Early)},
		{Name: "confirmed-is-free", Says: "an intent that was confirmed a second ago is free", Plant: code(
			edit(in, "case s.done(): outcome = Done", "case s.done() && now.Sub(s.at.Time) < time.Second: outcome = Done"),
		), Scene: leased, Breaks: broken(intents.Steps, intents.Confirmed)},
		{Name: "intent-any-content", Says: "a request with other content is told held or done", Plant: code(
			edit(in, "case s.Content != a.content && !s.released:", "case false:"),
		), Scene: leased, Breaks: broken(intents.Answers, intents.Steps)},
		{Name: "lease-any-session", Says: "a lease is given to any session that asks for it", Plant: code(
			edit(in, "return met.Session == a.request.Session && !met.released && !met.lapsed", "return !met.released && !met.lapsed"),
		), Scene: leased, Breaks: broken(intents.Answers)},
		{Name: "out-of-turn", Says: "a session that does not stand in the line takes the first turn", Plant: code(
			edit(in, "return i } return len(s.Line)", "return i }; return 0"),
		), Scene: leased, Breaks: broken(intents.Line)},
		{Name: "commit-past-a-grant", Says: "a transaction confirms a lease that was taken over", Plant: code(
			edit(in, "var past = []string{TypeExtended, TypeWaiting}", "var past = []string{TypeExtended, TypeWaiting, TypeReserved}"),
		), Scene: leased, Breaks: broken(intents.Steps, intents.Confirmed)},
		{Name: "unknown-is-confirmed", Says: "a confirmation whose answer was lost counts as done", Plant: code(
			edit(in, "case err != nil: return l.failed(err) case met == nil: l.took(", `case err != nil && bodies[0].MessageType() == TypeConfirmed && errors.Is(err, messagestore.ErrOutcomeUnknown):
				return nil
			case err != nil:
				return l.failed(err)
			case met == nil:
				l.took(`),
		), Scene: leased, Breaks: broken(intents.Confirmed)},
	}
}
