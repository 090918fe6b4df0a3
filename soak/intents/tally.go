package intents

import (
	"context"
	"encoding/json"
	"errors"
	"os"
	"path/filepath"
	"time"

	"github.com/dibs-go/dibs/messagestore"
	"github.com/dibs-go/dibs/soak/crew"
	"github.com/dibs-go/dibs/soak/history"
)

// A tally counts along with a run, from the lines written since it last looked. The verdict counts anew.
type tally struct {
	dir   string
	store *messagestore.Store
	next  messagestore.GlobalPosition
	c     *checker // of the messages
	tail  history.Tail
	open  map[string]map[int64]*Call // by file
	had   map[string]int64           // by session: the token that it was given last
	kills []*Call
	calls Counts
	late  int // writes that the resource refused
}

func newTally(dir string, store *messagestore.Store) *tally {
	return &tally{dir: dir, store: store, c: newChecker(&Inputs{}), tail: history.Tail{}, open: map[string]map[int64]*Call{}, had: map[string]int64{}}
}

// counts returns the counts up to now, or up to before if the server does not answer.
func (t *tally) counts(ctx context.Context) (*Counts, error) {
	if err := crew.Calls(t.tail, t.dir, t.call); err != nil {
		return nil, err
	}
	err := t.tail.Lines(filepath.Join(t.dir, resourceFile), func(line []byte) error {
		var w Write
		err := json.Unmarshal(line, &w)
		if err == nil && !w.Accepted {
			t.late++
		}
		return err
	})
	if err != nil && !errors.Is(err, os.ErrNotExist) {
		return nil, err
	}
	t.messages(ctx)
	n := t.calls
	n.LateWrites, n.Takeovers, n.Turns = t.late, t.c.Counts.Takeovers, t.c.Counts.Turns
	t.c.Counts.Kills = 0
	for _, call := range t.kills {
		t.c.kill(call)
	}
	n.Kills = t.c.Counts.Kills
	return &n, nil
}

// call counts calls once they have their answer.
func (t *tally) call(path string, r *Record) {
	open := t.open[path]
	if open == nil {
		open = map[int64]*Call{}
		t.open[path] = open
	}
	call := open[r.Op]
	switch {
	case r.Call == Kill:
		call = &Call{Record: *r, End: crew.Never}
		t.kills = append(t.kills, call)
		t.calls.count(call)
		return
	case call == nil:
		open[r.Op] = &Call{Record: *r, End: crew.Never}
		return
	}
	delete(open, r.Op)
	call.Answer, call.End = *r, r.At
	t.calls.count(call)
	switch a := r; {
	case call.Call == Work && a.Answer == OK:
		t.calls.Work++
	case call.Call == Force && a.Answer == OK:
		t.calls.Forced++
	case call.Call == Await && (a.Answer == Done || a.Answer == Free):
		t.calls.Awaits++
	case call.Call == Reserve && a.Answer == Reserved:
		if len(a.With) > 0 {
			t.calls.Several++
		}
		if t.had[call.Session] == a.Token {
			t.calls.Reentrant++
		}
		t.had[call.Session] = a.Token
	}
}

// messages folds the new messages, as far as the server answers.
func (t *tally) messages(ctx context.Context) {
	ctx, cancel := context.WithTimeout(ctx, 5*time.Second)
	defer cancel()
	for m, err := range t.store.ReadCategory(ctx, Category, t.next, messagestore.Filter{}) {
		if err != nil {
			return
		}
		t.c.add(message(m))
		t.next = m.GlobalPosition.Next()
	}
}
