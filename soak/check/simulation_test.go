package check_test

import (
	"math/rand/v2"
	"slices"
	"strconv"
	"testing"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"github.com/dibs-go/dibs/messagestore"
	"github.com/dibs-go/dibs/soak/check"
	"github.com/dibs-go/dibs/soak/history"
)

// A simulation is a store, its writers and its consumers that keep every promise, with faults. It
// does one thing after the other, and each was begun a while before and is answered a while after.
type simulation struct {
	*world
	rng      *rand.Rand
	now      int64
	versions map[messagestore.StreamName]messagestore.Version
	accounts []*check.Row
	written  []*act // acknowledged
	late     []*act // of unknown outcome, and still to happen
	unknown  []*act // of unknown outcome, and it did or did not happen

	life     *life
	lives    int
	next     int // of accounts to handle
	recorded int
	stored   int
	commands *commands
	keys     map[string]uint64
}

func simulate(rng *rand.Rand, steps int) *simulation {
	s := &simulation{world: &world{}, rng: rng, now: 1000, versions: map[messagestore.StreamName]messagestore.Version{}, keys: map[string]uint64{}}
	s.commands = s.world.commands()
	s.commands.l.run.end.At = never - 1
	for range steps {
		s.now += 100
		switch n := rng.IntN(100); {
		case n < 35:
			s.write()
		case n < 45:
			s.conflicting()
		case n < 53:
			s.unknownOutcome()
		case n < 58:
			s.happen()
		case n < 62:
			s.findOut()
		case n < 67:
			s.repeat()
		case n < 72:
			s.rollBack()
		case n < 78:
			stream := s.stream()
			s.ask(s.before(), s.after(), stream, s.version(stream))
		case n < 82:
			s.readSome()
		case n < 96:
			s.consumeSome()
		default:
			s.command()
		}
	}
	for len(s.late) > 0 && rng.IntN(2) == 0 {
		s.now += 100
		s.happen()
	}
	for s.next < len(s.accounts) {
		s.now += 100
		s.consumeSome()
	}
	return s
}

func (s *simulation) before() int64 { return s.now - s.rng.Int64N(300) }
func (s *simulation) after() int64  { return s.now + 1 + s.rng.Int64N(300) }

func (s *simulation) stream() messagestore.StreamName {
	return messagestore.StreamName("account-" + strconv.Itoa(s.rng.IntN(6)*s.rng.IntN(6)))
}

// version is quicker than the world's.
func (s *simulation) version(stream messagestore.StreamName) messagestore.Version {
	if v, known := s.versions[stream]; known {
		return v
	}
	return noStream
}

func (s *simulation) commit(stream messagestore.StreamName, messages ...history.Message) history.Append {
	a := history.Append{Stream: stream, Version: s.version(stream)}
	for _, m := range messages {
		s.global++
		a.Version++
		a.Global = s.global
		r := &check.Row{Stream: stream, Position: a.Version, Global: a.Global, ID: m.ID, Value: m.Value, Hash: m.Hash}
		s.add(r)
		s.accounts = append(s.accounts, r)
	}
	s.versions[stream] = a.Version
	return a
}

// appends are the appends of one write: a message, a batch, or some for two streams.
func (s *simulation) appends() []history.Append {
	one := func(stream messagestore.StreamName) history.Append {
		a := history.Append{Stream: stream, Expected: anyVersion, Messages: s.messages(1)}
		if s.rng.IntN(5) == 0 {
			a.Messages = s.messages(1 + s.rng.IntN(5))
		}
		if s.rng.IntN(2) == 0 {
			a.Expected = s.version(stream)
		}
		return a
	}
	all := []history.Append{one(s.stream())}
	if s.rng.IntN(10) == 0 {
		if other := s.stream(); other != all[0].Stream {
			all = append(all, one(other))
		}
	}
	return all
}

func (s *simulation) proc() string { return "writer-" + strconv.Itoa(1+s.rng.IntN(4)) }

func (s *simulation) fn() string {
	if s.rng.IntN(4) == 0 {
		return history.WriteTx
	}
	return history.Write
}

func (s *simulation) write() {
	appends := s.appends()
	var answers []history.Append
	for _, a := range appends {
		answers = append(answers, s.commit(a.Stream, a.Messages...))
	}
	s.written = append(s.written, s.do(s.proc(), s.before(), s.after(), history.OK,
		history.Event{Call: s.fn(), Appends: appends}, history.Event{Appends: answers}))
}

func (s *simulation) conflicting() {
	appends := s.appends()
	bad := &appends[s.rng.IntN(len(appends))]
	at := s.version(bad.Stream)
	bad.Expected = at + 1 + messagestore.Version(s.rng.IntN(3))
	if at > noStream && s.rng.IntN(2) == 0 {
		bad.Expected = noStream
	}
	s.do(s.proc(), s.before(), s.after(), history.Conflict, history.Event{Call: s.fn(), Appends: appends},
		history.Event{Actual: at, Appends: []history.Append{{Stream: bad.Stream}}})
}

// unknownOutcome happened, or will, or never does; its writer says so or is killed.
func (s *simulation) unknownOutcome() {
	a := s.do(s.proc(), s.before(), s.after(), history.Unknown, history.Event{Call: s.fn(), Appends: s.appends()}, history.Event{})
	switch s.rng.IntN(3) {
	case 0:
		for _, x := range a.invoke.Appends {
			s.commit(x.Stream, x.Messages...)
		}
		s.unknown = append(s.unknown, a)
	case 1:
		for i := range a.invoke.Appends {
			a.invoke.Appends[i].Expected = anyVersion
		}
		s.late = append(s.late, a)
	default:
		s.unknown = append(s.unknown, a)
	}
	if s.rng.IntN(3) == 0 {
		a.end = nil
	}
}

func (s *simulation) happen() {
	if len(s.late) == 0 {
		return
	}
	a := s.late[0]
	s.late = s.late[1:]
	for _, x := range a.invoke.Appends {
		s.commit(x.Stream, x.Messages...)
	}
	s.unknown = append(s.unknown, a)
}

// findOut resolves a write of unknown outcome, and perhaps writes it again.
func (s *simulation) findOut() {
	if len(s.unknown) == 0 {
		return
	}
	a := s.unknown[0]
	s.unknown = s.unknown[1:]
	if len(a.invoke.Appends) > 1 {
		return
	}
	s.now += 1000 // it waits for writes that are under way
	class, wanted := history.NotWritten, a.invoke.Appends[0]
	if s.byID[wanted.Messages[0].ID] != nil {
		class = history.Written
	}
	s.resolve(s.now, s.after(), a, class)
	if class == history.NotWritten {
		wanted.Expected = anyVersion
		s.now += 1000
		s.written = append(s.written, s.do("writer-5", s.now, s.after(), history.OK, history.Event{Call: history.Write, Appends: []history.Append{wanted}},
			history.Event{Appends: []history.Append{s.commit(wanted.Stream, wanted.Messages...)}}))
	}
}

func (s *simulation) repeat() {
	if len(s.written) == 0 {
		return
	}
	a := s.written[s.rng.IntN(len(s.written))]
	again := slices.Clone(a.end.Appends)
	for i := range again {
		again[i].Duplicate = true
	}
	s.do(s.proc(), s.before(), s.after(), history.OK, *a.invoke, history.Event{Appends: again})
}

func (s *simulation) rollBack() {
	s.do(s.proc(), s.before(), s.after(), history.RolledBack, history.Event{Call: history.WriteTx, Appends: s.appends()}, history.Event{})
}

func (s *simulation) readSome() {
	var what []history.Append
	for range min(3, len(s.accounts)) {
		what = append(what, seen(s.accounts[s.rng.IntN(len(s.accounts))]))
	}
	s.read(s.before(), s.after(), what...)
}

// consumeSome handles some messages and records how far it came, and is killed now and then.
func (s *simulation) consumeSome() {
	if s.life == nil {
		s.lives++ // several in one file, which a real process has for itself
		s.life = s.consume("consumer-"+strconv.Itoa(s.lives%8), "audit", s.now, 0, 5, 5)
		s.life.run.end = nil
		s.next, s.recorded = s.stored, s.stored
	}
	for range 1 + s.rng.IntN(8) {
		if s.next == len(s.accounts) {
			break
		}
		if s.next-s.recorded == 5 {
			s.recordPosition()
		}
		r := s.accounts[s.next]
		s.now += 10
		a := s.life.handle(s.now, s.now+5, r)
		switch s.rng.IntN(20) {
		case 0:
			a.end, s.life = nil, nil
			return
		case 1:
			a.end.Answer = history.Failed
			s.now += 10
			s.life.handle(s.now, s.now+5, r).invoke.Attempt = 2
		case 2:
			a.end.Answer = history.Failed
			s.now += 10
			s.life.park(s.now, s.now+5, r)
		}
		s.next++
	}
	s.recordPosition()
}

func (s *simulation) recordPosition() {
	if s.next == 0 {
		return
	}
	s.now += 10
	a := s.life.record(s.now, s.now+5, s.accounts[s.next-1].Global+1)
	s.recorded, s.stored = s.next, s.next
	if s.rng.IntN(10) == 0 {
		a.end = nil
	}
}

// command is sent once or more, and perhaps for something else under the same key.
func (s *simulation) command() {
	key := "k" + strconv.Itoa(s.rng.IntN(20))
	winner, taken := s.keys[key]
	value := winner
	if !taken || s.rng.IntN(3) == 0 {
		s.serial++
		value = 1_000_000 + s.serial
	}
	s.now += 100
	command := s.commands.send(s.now, value)
	s.now += 100
	switch {
	case !taken:
		s.keys[key] = value
		s.commands.reserve(s.now, key, command, history.Won)
		s.commands.handle(s.now, key, command, history.OK)
		s.commands.win(key, command)
		s.acts[len(s.acts)-1].end.At = s.now + 5
	case value == winner:
		s.commands.reserve(s.now, key, command, history.Duplicate)
		s.commands.handle(s.now, key, command, history.OK)
	default:
		s.commands.reserve(s.now, key, command, history.KeyReused)
		s.commands.handle(s.now, key, command, history.Failed)
	}
}

func TestWhateverHappensToAStoreThatKeepsItsPromisesPasses(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		s := simulate(rand.New(rand.NewPCG(1, rapid.Uint64().Draw(t, "seed"))), rapid.IntRange(1, 300).Draw(t, "steps"))
		v := s.verdict(t, unrecordedEffects...)
		require.True(t, v.Passed(), "%v", v)
	})
}
