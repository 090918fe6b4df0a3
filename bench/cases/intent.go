package cases

import (
	"context"
	"crypto/sha256"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"strings"

	"github.com/dibs-go/dibs/bench/measure"
	"github.com/dibs-go/dibs/messagestore"
)

// The category of the cases of intents, and how many callers they have.
const (
	intentCategory messagestore.Category = "payment:intent"

	intentCallers = 64
)

// The names of the ways to keep intents.
const (
	redisOneScript    = "Redis, one script, appendfsync always"
	redisScriptMemory = "Redis, one script, no persistence"
)

// The outcomes of a request for an intent.
const (
	intentGranted = "granted"
	intentHeld    = "held"
	intentDone    = "done"
)

// An intentStore keeps intents in one way.
type intentStore interface {
	reserve(ctx context.Context, key, session string) (*reply, error)
	extend(ctx context.Context, granted *reply) error
	confirm(ctx context.Context, granted *reply) error

	// intents returns how many intents there are, or how many that are confirmed.
	intents(ctx context.Context, confirmed bool) (int64, error)
	close()
}

// A reply is the answer to a request, with all that a later step on it needs.
type reply struct {
	outcome string
	holder  string // of held, if the way tells it
	result  []byte // of done
	key     string
	session string
	lease   any // of granted, as the way has it
}

type openIntents func(ctx context.Context, cell *measure.Cell) (intentStore, error)

// A payment is the content of a request.
type payment struct {
	Method string `json:"method"`
	Path   string `json:"path"`
	Key    string `json:"key"`
	Amount int    `json:"amount"`
}

func paymentOf(key string) payment { return payment{"POST", "/payments", key, 245_200} }

// digestOf does for the others the work that package intent does with a request's content.
func digestOf(key string) (string, error) {
	encoded, err := json.Marshal(paymentOf(key))
	return digest(encoded), err
}

func digest(content []byte) string {
	sum := sha256.Sum256(content)
	return base64.RawURLEncoding.EncodeToString(sum[:])
}

// storedResponse is the result of a finished intent: 150 bytes of JSON.
var storedResponse = json.RawMessage(`{"status":201,"header":{"Content-Type":"application/json","Location":"/payments/29401"},"body":"{\"id\":29401,\"amount\":\"2452.00\",\"currency\":\"CZK\"}"}`)

// Intent returns the cases of intents.
func Intent() []measure.Case {
	var all []measure.Case
	for _, callers := range []int{intentCallers, 1} {
		for _, work := range intentWorks {
			all = append(all, work.measured(callers))
		}
	}
	return all
}

// An intentWork is done by callers again and again.
type intentWork struct {
	name, shows string
	many        []measure.Goal // with 64 callers

	// before is the outcome that each key has before.
	before string

	// turn does the work once. The key, and the reply that granted it, belong to an intent that
	// existed before.
	turn func(ctx context.Context, s intentStore, session string, k intentKey) error
}

// An intentKey is an intent that was there before.
type intentKey struct {
	key     string
	granted *reply
}

var intentWorks = []intentWork{{
	name: "new", shows: "Reserve a free intent",
	many: []measure.Goal{
		{Metric: measure.Rate, Of: dibs, To: redisOneScript, AtLeast: 0.55},
	},
	turn: func(ctx context.Context, s intentStore, session string, _ intentKey) error {
		return reserveAs(ctx, s, newID().String(), session, intentGranted)
	},
}, {
	name: "held", shows: "Ask for an intent that is held, and learn its holder and until when", before: intentHeld,
	many: []measure.Goal{
		{Metric: measure.Rate, Of: dibs, To: redisOneScript, AtLeast: 0.45},
	},
	turn: func(ctx context.Context, s intentStore, session string, k intentKey) error {
		return reserveAs(ctx, s, k.key, session, intentHeld)
	},
}, {
	name: "done", shows: "Ask for an intent that is done, and get its result", before: intentDone,
	many: []measure.Goal{
		{Metric: measure.Rate, Of: dibs, To: redisOneScript, AtLeast: 0.45},
	},
	turn: func(ctx context.Context, s intentStore, session string, k intentKey) error {
		return reserveAs(ctx, s, k.key, session, intentDone)
	},
}, {
	name: "cycle", shows: "Reserve an intent and confirm it with a result",
	many: []measure.Goal{
		{Metric: measure.Rate, Of: dibs, To: redisOneScript, AtLeast: 0.5},
		{Metric: measure.Stored, Of: dibs, AtMost: 1300},
	},
	turn: func(ctx context.Context, s intentStore, session string, _ intentKey) error {
		granted, err := s.reserve(ctx, newID().String(), session)
		if err != nil {
			return err
		}
		return s.confirm(ctx, granted)
	},
}, {
	name: "extend", shows: "Extend a lease", before: intentHeld,
	many: []measure.Goal{
		{Metric: measure.Rate, Of: dibs, To: redisOneScript, AtLeast: 0.35},
	},
	turn: func(ctx context.Context, s intentStore, _ string, k intentKey) error {
		return s.extend(ctx, k.granted)
	},
}}

// reserveAs reserves a key, and fails unless the outcome is that one, with all that belongs to it.
func reserveAs(ctx context.Context, s intentStore, key, session, outcome string) error {
	r, err := s.reserve(ctx, key, session)
	if err != nil {
		return err
	}
	switch {
	case r.outcome != outcome:
		return fmt.Errorf("intent %s: %s, and it is %s", key, r.outcome, outcome)
	case outcome == intentHeld && r.holder != intentHolder:
		return fmt.Errorf("intent %s: held by %q", key, r.holder)
	case outcome == intentDone && len(r.result) != len(storedResponse):
		return fmt.Errorf("intent %s: the result is %q", key, r.result)
	}
	return nil
}

// intentHolder is the session that has the intents that were there before.
const intentHolder = "holder"

func (w intentWork) measured(callers int) measure.Case {
	run := func(open openIntents) func(context.Context, *measure.Cell) error {
		return func(ctx context.Context, cell *measure.Cell) error { return w.run(ctx, cell, open, callers) }
	}
	c := measure.Case{
		Name:  fmt.Sprintf("intent/%s/%s", w.name, strings.ReplaceAll(plural(callers, "caller"), " ", "-")),
		Shows: fmt.Sprintf("%s, %s", w.shows, plural(callers, "caller")),
		Contenders: []measure.Contender{
			{Name: dibs, Run: run(openDibsIntents)},
			{Name: redisOneScript, Run: run(openRedisIntents("always"))},
			{Name: redisScriptMemory, Run: run(openRedisIntents(""))},
		},
		Goals: w.many,
	}
	if callers == 1 {
		c.Goals = nil
	}
	return c
}

func (w intentWork) run(ctx context.Context, cell *measure.Cell, open openIntents, callers int) error {
	s, err := open(ctx, cell)
	if err != nil {
		return err
	}
	defer s.close()
	keys, err := w.prepare(ctx, cell, s)
	if err != nil {
		return err
	}
	if s, ok := s.(*servedIntents); ok {
		if err := s.mark(); err != nil {
			return err
		}
	}
	random, turns := randoms(cell, callers), make([]int, callers)
	session := func(caller int) string { return fmt.Sprint("caller", caller) }
	done, err := cell.Callers(ctx, callers, func(ctx context.Context, caller int) (int, error) {
		var k intentKey
		switch {
		case w.name == "extend": // each has leases of its own
			share := len(keys) / callers
			k = keys[caller*share+turns[caller]%share]
			turns[caller]++
		case len(keys) > 0:
			k = keys[random[caller].IntN(len(keys))]
		}
		return 1, w.turn(ctx, s, session(caller), k)
	})
	if err != nil {
		return err
	}
	return w.check(ctx, cell, s, int64(len(keys)), done)
}

// prepare makes the intents that are there before.
func (w intentWork) prepare(ctx context.Context, cell *measure.Cell, s intentStore) ([]intentKey, error) {
	if w.before == "" {
		return nil, nil
	}
	keys := make([]intentKey, size(cell, 200, 2000, 10_000))
	return keys, atOnce(intentCallers, len(keys), func(i int) error {
		key := newID().String()
		granted, err := s.reserve(ctx, key, intentHolder)
		if err != nil {
			return err
		}
		keys[i] = intentKey{key, granted}
		if w.before == intentDone {
			return s.confirm(ctx, granted)
		}
		return nil
	})
}

// check counts the work in the store.
func (w intentWork) check(ctx context.Context, cell *measure.Cell, s intentStore, before, done int64) error {
	confirmed := w.before == intentDone || w.name == "cycle"
	intents, err := s.intents(ctx, confirmed)
	if err != nil {
		return err
	}
	want := before
	if before == 0 {
		want = done
	}
	err = cell.Check("intents", intents, want)
	if s, ok := s.(*servedIntents); ok {
		return errors.Join(err, s.spent(done))
	}
	d, ok := s.(*dibsIntents)
	switch {
	case ok && w.name == "extend":
		messages, countErr := d.count(ctx)
		err = errors.Join(err, countErr, cell.Check("messages", messages, before+done))
	case ok && w.name == "cycle":
		stored, sizeErr := d.size(ctx)
		err = errors.Join(err, sizeErr)
		cell.Set(measure.Stored, float64(stored)/float64(done))
	}
	return err
}
