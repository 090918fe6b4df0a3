package check_test

import (
	"maps"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/dibs-go/dibs/messagestore"
	"github.com/dibs-go/dibs/soak/check"
	"github.com/dibs-go/dibs/soak/history"
	"github.com/dibs-go/dibs/soak/promise"
)

// commands is a consumer of account:command that reserves a key for each.
type commands struct {
	w *world
	l *life
}

func (w *world) commands() *commands {
	return w.commandsOf("consumer-1", 5, 1000)
}

func (w *world) commandsOf(proc string, from, to int64) *commands {
	l := w.consume(proc, "deposits", from, to, 10, 10)
	l.run.invoke.Category, l.base.Category = "account:command", "account:command"
	return &commands{w, l}
}

// send writes a command, which says value.
func (c *commands) send(at int64, value uint64) *check.Row {
	return c.sendTo("account:command-1", at, value)
}

func (c *commands) sendTo(stream messagestore.StreamName, at int64, value uint64) *check.Row {
	a := c.w.write(at, at+5, stream, anyVersion, 1)
	a.invoke.Appends[0].Messages[0].Value = value
	r := c.w.row(a, 0)
	r.Value = value
	return r
}

// reserve tries to reserve a key for a command.
func (c *commands) reserve(at int64, key string, command *check.Row, answer string) {
	e := c.l.base
	e.Call, e.Key, e.Value = history.Reserve, key, command.Value
	e.Appends = []history.Append{{Stream: reservation(key), Messages: []history.Message{{ID: command.ID}}}}
	c.w.do("consumer-1", at+2, at+3, answer, e, history.Event{})
}

// win puts the reservation and the effect into the table.
func (c *commands) win(key string, command *check.Row) {
	m := c.w.message()
	m.Value = command.Value
	c.w.commit(reservation(key), m)
	c.effect(key)
	c.w.do("consumer-1", 0, 990, history.OK, history.Event{Call: history.Effect, Key: key}, history.Event{Key: key})
}

func (c *commands) effect(key string) {
	c.w.commit("effect-1", c.w.message())
	c.w.rows[len(c.w.rows)-1].Effect = key
}

// handle handles a command, or gives up on it.
func (c *commands) handle(at int64, key string, command *check.Row, answer string) {
	a := c.l.handle(at, at+5, command)
	a.invoke.Key, a.end.Answer = key, answer
	if answer == history.Failed {
		c.l.park(at+6, at+7, command)
	}
}

func reservation(key string) messagestore.StreamName {
	return messagestore.StreamName("reservation-" + key)
}

func TestEachPlantedBugOfReservationsIsFound(t *testing.T) {
	t.Parallel()
	for _, planted := range []struct {
		name   string
		broken promise.Rule
		plant  func(c *commands)
	}{
		{"a timeout taken for a duplicate", "R2", func(c *commands) {
			a := c.send(10, 77)
			c.handle(20, "k", a, history.OK)
			c.reserve(20, "k", a, history.Unknown)
		}},
		{"a key that was reserved twice", "R1a", func(c *commands) {
			a := c.send(10, 77)
			c.handle(20, "k", a, history.OK)
			c.reserve(20, "k", a, history.Won)
			c.win("k", a)
			c.w.commit(reservation("k"), c.w.message())
		}},
		{"a winner that nobody sent", "R1b", func(c *commands) {
			a := c.send(10, 77)
			c.handle(20, "k", a, history.OK)
			c.reserve(20, "k", a, history.Won)
			c.win("k", a)
			c.w.rows[1].Value = 78
		}},
		{"an effect that happened twice", "R4a", func(c *commands) {
			a := c.send(10, 77)
			c.handle(20, "k", a, history.OK)
			c.reserve(20, "k", a, history.Won)
			c.win("k", a)
			c.effect("k")
		}},
		{"an effect outside that did not happen", "R4b", func(c *commands) {
			for i, key := range []string{"k", "l"} {
				at := 10 + 20*int64(i)
				a := c.send(at, 77)
				c.handle(at+10, key, a, history.OK)
				c.reserve(at+10, key, a, history.Won)
				c.win(key, a)
			}
			last := c.w.acts[len(c.w.acts)-1]
			last.invoke.Key = "k"
		}},
		{"an effect for a key that nobody reserved", "R4a", func(c *commands) {
			a := c.send(10, 77)
			c.handle(20, "k", a, history.OK)
			c.reserve(20, "k", a, history.Won)
			c.win("k", a)
			c.effect("l")
		}},
		{"other content taken for a duplicate", "R5", func(c *commands) {
			a, b := c.send(10, 77), c.send(16, 78)
			c.handle(30, "k", a, history.OK)
			c.reserve(30, "k", a, history.Won)
			c.handle(40, "k", b, history.OK)
			c.reserve(40, "k", b, history.Duplicate)
			c.win("k", a)
		}},
		{"other content that was acknowledged in the end", "R3", func(c *commands) {
			a, b := c.send(10, 77), c.send(16, 78)
			c.handle(30, "k", a, history.OK)
			c.reserve(30, "k", a, history.Won)
			c.handle(40, "k", b, history.OK)
			c.reserve(40, "k", b, history.KeyReused)
			c.win("k", a)
		}},
	} {
		t.Run(planted.name, func(t *testing.T) {
			t.Parallel()
			w := &world{}
			planted.plant(w.commands())
			v := w.verdict(t, unrecordedEffects...)
			require.Equal(t, []promise.Rule{planted.broken}, slices.Sorted(maps.Keys(v.Broken)), "%v", v)
			require.Equal(t, 1, v.Broken[planted.broken], "%v", v)
		})
	}
}

func TestReservationsThatWentWellPass(t *testing.T) {
	t.Parallel()
	w := &world{}
	c := w.commands()
	one, again, different, late := c.send(10, 77), c.send(16, 77), c.send(22, 78), c.send(28, 79)
	c.reserve(40, "k", one, history.Unknown)
	c.handle(40, "k", one, history.OK)
	c.reserve(50, "k", again, history.Duplicate)
	c.handle(50, "k", again, history.OK)
	c.reserve(60, "k", different, history.KeyReused)
	c.handle(60, "k", different, history.Failed)
	c.reserve(70, "l", late, "busy")
	c.handle(70, "l", late, history.Failed)
	c.win("k", one)
	v := w.verdict(t, unrecordedEffects...)
	require.True(t, v.Passed(), "%v", v)
}

var unrecordedEffects = []messagestore.Category{"reservation", "effect"}
