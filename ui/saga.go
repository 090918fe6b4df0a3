package ui

import (
	"context"
	"fmt"
	"html/template"
	"net/url"
	"slices"
	"strings"
	"time"

	"github.com/dibs-go/dibs/messagestore"
	"github.com/dibs-go/dibs/operate"
	"github.com/dibs-go/dibs/saga"
)

type sagaView struct {
	Category messagestore.Category
	Saga     operate.Saga
	Text     string // why it is where it is
	Now      time.Time
	Tracks   []track
	Entries  []saga.Entry
	More     bool
	Acts     []operate.Act
}

// A track is a step of a saga: what was done, and how it was undone beside it.
type track struct {
	saga.StepStatus

	Did    []saga.Entry
	Undid  []saga.Entry
	Bars   []bar
	opened *bar // the attempt that is under way
}

// A bar is a span of the saga's time, as thousandths of it.
type bar struct {
	Class string // did, failed, waits, undid or undoFailed
	Title string
	from  time.Time
	until time.Time
	X, W  int
}

// Vain reports whether a message changes nothing.
func vain(e saga.Entry) bool {
	return e.Malformed || strings.HasSuffix(e.Text, "it changes nothing")
}

func (p *Page) saga(ctx context.Context, q url.Values) (any, error) {
	v := sagaView{Category: messagestore.Category(q.Get("category"))}
	o, err := saga.NewOperator(p.store, v.Category, "the page")
	if err != nil {
		return nil, err
	}
	if v.Saga, err = o.Status(ctx, q.Get("id")); err != nil {
		return nil, err
	}
	v.Text = operate.SagaText(v.Saga)
	if v.Now, err = p.store.Now(ctx); err != nil {
		return nil, err
	}
	for e, err := range o.History(ctx, v.Saga.ID) {
		if err != nil {
			return nil, err
		}
		if v.More = len(v.Entries) == events; v.More {
			break
		}
		v.Entries = append(v.Entries, e)
	}
	end := v.Now
	if v.Saga.IsOver() {
		end = v.Saga.Changed
	}
	v.Tracks = tracksOf(v.Saga, v.Entries, end)
	if !v.Saga.IsOver() {
		v.Acts = sagaActs(v.Category, v.Saga)
	}
	return v, nil
}

// sagaActs are what a person may do with a saga that has not ended.
func sagaActs(category messagestore.Category, s operate.Saga) (acts []operate.Act) {
	verbs := []string{"cancel", "suspend"}
	if s.State == saga.StateSuspended {
		verbs = []string{"resume", "cancel"}
	}
	for _, do := range verbs {
		acts = append(acts, operate.Act{Do: do, On: operate.OnSaga, Category: category, ID: s.ID})
	}
	return acts
}

// tracksOf sorts the messages of a saga by their steps. A step is under way from its beginning, or its
// last failure, until its end; an undo from the message before it.
func tracksOf(s operate.Saga, entries []saga.Entry, end time.Time) []track {
	tracks := make([]track, 0, len(s.Steps))
	for _, step := range s.Steps {
		tracks = append(tracks, track{StepStatus: step})
	}
	var before time.Time // of the message before that is no step's beginning
	for _, e := range entries {
		at := e.Message.Time
		i := slices.IndexFunc(tracks, func(t track) bool { return t.Step == e.Step })
		if e.Step == "" || i < 0 {
			if e.Message.Type != "Signalled" {
				before = at
			}
			continue
		}
		tracks[i].take(e, before)
		before = at
	}
	for i := range tracks {
		t := &tracks[i]
		if t.opened != nil && (t.opened.Class != "waits" || !t.Next.IsZero()) {
			t.close(t.opened.Class, "", end)
		}
		for n := range t.Bars {
			t.Bars[n].place(s.Started, end)
		}
	}
	return tracks
}

func (t *track) take(e saga.Entry, before time.Time) {
	at := e.Message.Time
	switch e.Message.Type {
	case "Undone", "UndoFailed":
		class := map[string]string{"Undone": "undid", "UndoFailed": "undoFailed"}[e.Message.Type]
		t.opened = nil
		t.Undid = append(t.Undid, e)
		t.Bars = append(t.Bars, bar{Class: class, Title: e.Text, from: before, until: at})
		return
	case "Began":
		t.close("waits", "it waits for its next attempt", at)
		t.opened = &bar{Class: "did", Title: e.Text, from: at}
	case "Done":
		t.close("did", e.Text, at)
	case "Failed":
		t.close("failed", e.Text, at)
		t.opened = &bar{Class: "waits", Title: "it waits for its next attempt", from: at}
	}
	t.Did = append(t.Did, e)
}

// close ends what is under way.
func (t *track) close(class, title string, at time.Time) {
	if t.opened == nil {
		return
	}
	b := *t.opened
	t.opened = nil
	if b.Class, b.until = class, at; title != "" {
		b.Title = title
	}
	t.Bars = append(t.Bars, b)
}

// place gives a bar its place in the time of a saga. It is at least as wide as can be seen.
func (b *bar) place(start, end time.Time) {
	const whole, least = 1000, 6
	all := max(end.Sub(start), time.Microsecond)
	at := func(t time.Time) int { return int(min(max(t.Sub(start), 0), all) * whole / all) }
	b.X = min(at(b.from), whole-least)
	b.W = max(at(b.until)-b.X, least)
}

func sagaLink(category messagestore.Category, id string) template.URL {
	return link("saga", "category", category, "id", id)
}

// took is how long a saga went on.
func (v sagaView) Took() string {
	if !v.Saga.IsOver() {
		return "for " + operate.Age(v.Now, v.Saga.Started)
	}
	return fmt.Sprint("in ", v.Saga.Changed.Sub(v.Saga.Started).Round(time.Millisecond))
}
