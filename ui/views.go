package ui

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"html/template"
	"iter"
	"net/url"
	"slices"
	"strconv"
	"time"

	consumers "github.com/dibs-go/dibs/consumer/operate"
	"github.com/dibs-go/dibs/intent"
	"github.com/dibs-go/dibs/internal/text"
	"github.com/dibs-go/dibs/logger"
	"github.com/dibs-go/dibs/messagestore"
	"github.com/dibs-go/dibs/operate"
	"github.com/dibs-go/dibs/queue"
	"github.com/dibs-go/dibs/queue/cron"
	"github.com/dibs-go/dibs/saga"
)

// rows is how many lines a list shows at once.
const rows = 100

// functions are those of the templates. Only data shows what messages hold.
func (p *Page) functions() template.FuncMap {
	return template.FuncMap{
		"data": func(raw json.RawMessage) string {
			switch {
			case len(raw) == 0:
				return ""
			case p.config.HideData:
				return "hidden"
			}
			return string(raw)
		},
		"hides":    func() bool { return p.config.HideData },
		"operates": func() bool { return p.config.Operate },
		"short":    func(s any) string { return text.Cut(120, fmt.Sprint(s)) },
		"time":     stamp,
		"age":      operate.Age,
		"number":   number,
		"link":     link,
		"act":      actLink,
		"actFor":   func(a operate.Act, g operate.Group) template.URL { return actLink(a.For(g)) },
		"lane":     laneOf,
		"lanes":    func() []string { return []string{"sender", "reservation", "step", "undo", "effect", "delivery"} },
		"links": func() []string {
			return []string{"", "running", "compensating", "suspended", "completed", "compensated"}
		},
		"intentState": func(i intent.Intent) string {
			switch {
			case i.Status != intent.Free:
				return i.Status.String()
			case i.Released:
				return "released"
			}
			return "lapsed"
		},
		"itemText":  operate.ItemText,
		"sagaText":  operate.SagaText,
		"delivered": operate.DeliveryText,
		"stories":   storyLink,
		"vain":      vain,
		"changed": func(change string) string {
			return map[string]string{operate.CardRaised: "raised", operate.CardGotWorse: "got worse", operate.CardResolved: "resolved"}[change]
		},
		"sagaOf": sagaLink,
	}
}

// stamp is a time as a person reads it, "" for none.
func stamp(t time.Time) string {
	if t.IsZero() {
		return ""
	}
	return t.UTC().Format("2006-01-02 15:04:05.000")
}

// number is a count with its thousands apart.
func number(n any) string {
	s := fmt.Sprint(n)
	for i := len(s) - 3; i > 0 && s[i-1] != '-'; i -= 3 {
		s = s[:i] + " " + s[i:]
	}
	return s
}

// link is the URL of a view with names and values by turns, of which empty values are left out.
func link(name string, pairs ...any) template.URL {
	q := url.Values{}
	for i := 0; i+1 < len(pairs); i += 2 {
		if value := fmt.Sprint(pairs[i+1]); value != "" && value != "0" {
			q.Set(fmt.Sprint(pairs[i]), value)
		}
	}
	if len(q) == 0 {
		return template.URL("./" + name) //nolint:gosec // it is made of escaped parts
	}
	return template.URL("./" + name + "?" + q.Encode()) //nolint:gosec // it is made of escaped parts
}

func storyLink(stream messagestore.StreamName) template.URL { return link("story", "id", stream) }

// A health is what home and the lists show of one.
type health struct {
	operate.Health

	Now  time.Time
	Plot *plot
}

type homeView struct {
	Now    time.Time
	Wrong  []health
	Well   []health
	Failed string // why not all was read

	Changes []operate.CardChange // of home alone, the newest first
}

func (p *Page) home(ctx context.Context, _ url.Values) (any, error) {
	v, err := p.healths(ctx, func(operate.Health) bool { return true })
	if err == nil {
		v.Changes, err = operate.CardHistory(ctx, p.store, 20)
	}
	return v, err
}

func (p *Page) healths(ctx context.Context, choose func(operate.Health) bool) (*homeView, error) {
	now, err := p.store.Now(ctx)
	if err != nil {
		return nil, err
	}
	all, err := operate.Healths(ctx, p.store)
	v := &homeView{Now: now}
	if err != nil {
		v.Failed = err.Error()
	}
	for _, h := range all {
		switch one := (health{h, now, p.ring.plot(h)}); {
		case !choose(h):
		case len(h.Causes) > 0:
			v.Wrong = append(v.Wrong, one)
		default:
			v.Well = append(v.Well, one)
		}
	}
	return v, nil
}

// Where is the page of what the health is of.
func (h health) Where() template.URL {
	switch h.Kind {
	case operate.AConsumer:
		return link("consumers", "category", h.Category)
	case operate.Runner:
		return link("sagas", "category", h.Category)
	case operate.ASchedule:
		return link("schedules")
	}
	return link("queue", "name", h.Name, "category", h.Category)
}

// Of is where a group's example is shown.
func (h health) Of(c operate.Cause, g operate.Group) template.URL {
	switch {
	case g.ID != "":
		return sagaLink(h.Category, g.ID)
	case h.Kind == operate.AConsumer && c.What == "parked":
		return link("item", "parked", h.Name, "category", h.Category, "position", g.Position)
	case h.Kind == operate.AConsumer:
		return link("category", "name", h.Category, "from", g.Position)
	}
	return link("item", "queue", h.Name, "category", h.Category, "position", g.Position)
}

type storyView struct {
	Question operate.Question
	Events   []operate.Event
	More     bool
}

// events is how many events of a story are shown.
const events = 1000

func (p *Page) story(ctx context.Context, q url.Values) (any, error) {
	v := storyView{Question: operate.Question{
		ID: q.Get("id"), Category: messagestore.Category(q.Get("category")), Scope: q.Get("scope"),
	}}
	for _, in := range q["in"] {
		if in != "" {
			v.Question.In = append(v.Question.In, messagestore.Category(in))
		}
	}
	if v.Question.ID == "" {
		return v, nil
	}
	for e, err := range operate.Story(ctx, p.store, v.Question) {
		if err != nil {
			return nil, err
		}
		if v.More = len(v.Events) == events; v.More {
			break
		}
		v.Events = append(v.Events, e)
	}
	return v, nil
}

// laneOf is the column of an event in a story.
func laneOf(e operate.Event) string {
	switch e.Role {
	case operate.CausedBy, operate.Winner, operate.Duplicate, operate.SameKey, operate.Unreserved:
		return "sender"
	case operate.FirstWrite, operate.Lapsed, operate.Extended, "reserved", "takenOver", "waiting", "released", "confirmed", "received", operate.Inserted:
		return "reservation"
	case operate.Delivery, operate.AnItem:
		return "delivery"
	case operate.Followed, operate.Wrote:
		return "effect"
	case "undone", "undoFailed", "compensating", "compensated", "cancelRequested":
		return "undo"
	case operate.Title, operate.Note:
		return "note"
	}
	return "step"
}

func (p *Page) consumers(ctx context.Context, q url.Values) (any, error) {
	category := messagestore.Category(q.Get("category"))
	return p.healths(ctx, func(h operate.Health) bool {
		return h.Kind == operate.AConsumer && (category == "" || h.Category == category)
	})
}

func (p *Page) queues(ctx context.Context, _ url.Values) (any, error) {
	all, err := p.healths(ctx, func(h operate.Health) bool { return h.Kind == operate.AQueue })
	if err != nil {
		return nil, err
	}
	v := queuesView{homeView: all}
	for _, h := range slices.Concat(all.Wrong, all.Well) {
		if h.Name == string(h.Category) {
			v.Plain = append(v.Plain, h)
		} else {
			v.Named = append(v.Named, h)
		}
	}
	return v, nil
}

// A queuesView has the queues by their names: the store does not know which of them a relay works on,
// but a relay's has a name of its own.
type queuesView struct {
	*homeView

	Plain []health // with the name of their category
	Named []health
}

func (p *Page) schedules(ctx context.Context, _ url.Values) (any, error) {
	return p.healths(ctx, func(h operate.Health) bool { return h.Kind == operate.ASchedule })
}

type queueView struct {
	Status queue.Status
	Filter operate.Filter
	State  string
	States []queue.State
	Items  []queue.Item
	More   messagestore.GlobalPosition // where the next page begins, 0 for none
	Looked int
	Acts   []operate.Act
}

// queueOf returns the queue that a URL names: by name and category, or a consumer's queue of parked messages.
func (p *Page) queueOf(q url.Values) (*queue.Queue, error) {
	category := messagestore.Category(q.Get("category"))
	if consumer := q.Get("parked"); consumer != "" {
		return consumers.Consumer(p.store, category, consumer).Parked()
	}
	return queue.New(p.store, category, &queue.Config{Name: cmp.Or(q.Get("name"), q.Get("queue")), Logger: logger.Silent()})
}

// positionOf is a position of a URL, 0 for none.
func positionOf(q url.Values, name string) (messagestore.GlobalPosition, error) {
	s := q.Get(name)
	if s == "" {
		return 0, nil
	}
	n, err := strconv.ParseInt(s, 10, 64)
	if err != nil || n < 0 {
		return 0, messagestore.NewInvalidError(name, text.Cut(40, s), "must be a position")
	}
	return messagestore.GlobalPosition(n), nil
}

var states = []queue.State{queue.Dead, queue.Suspended, queue.Out, queue.Later, queue.Held, queue.Waiting}

// lookedAt is how many items are looked at for those that match.
const lookedAt = 10_000

func (p *Page) queue(ctx context.Context, q url.Values) (any, error) {
	kept, err := p.queueOf(q)
	if err != nil {
		return nil, err
	}
	v := queueView{States: states, State: q.Get("state"), Filter: operate.Filter{Error: q.Get("error"), Type: q.Get("type"), Key: q.Get("key")}}
	if v.Status, err = kept.Status(ctx); err != nil {
		return nil, err
	}
	from, err := positionOf(q, "from")
	if err != nil {
		return nil, err
	}
	v.Filter.State = queue.State(cmp.Or(v.State, string(queue.Dead)))
	for item, err := range p.items(ctx, kept, v.Filter, from) {
		if err != nil {
			return nil, err
		}
		if v.Looked++; v.Looked > lookedAt || len(v.Items) == rows {
			v.More = item.Position
			break
		}
		if v.Filter.Matches(kept, item, v.Status.Time) {
			v.Items = append(v.Items, item)
		}
	}
	v.State = string(v.Filter.State)
	act := func(do string) operate.Act {
		return operate.Act{Do: do, On: operate.OnQueue, Category: v.Status.Category, Name: v.Status.Name}
	}
	v.Acts = []operate.Act{act("pause")}
	if v.Status.Paused {
		v.Acts = []operate.Act{act("resume")}
	}
	return v, nil
}

// items yields the items in a state, from a position on.
func (p *Page) items(ctx context.Context, q *queue.Queue, f operate.Filter, from messagestore.GlobalPosition) iter.Seq2[queue.Item, error] {
	return func(yield func(queue.Item, error) bool) {
		for {
			page, err := q.Items(ctx, f.State, from, 200)
			if err != nil {
				yield(queue.Item{}, err)
				return
			}
			for _, item := range page {
				if from = item.Position + 1; !yield(item, nil) {
					return
				}
			}
			if len(page) == 0 {
				return
			}
		}
	}
}

type itemView struct {
	Name string
	Item queue.Item
	Acts []operate.Act
}

func (p *Page) item(ctx context.Context, q url.Values) (any, error) {
	kept, err := p.queueOf(q)
	if err != nil {
		return nil, err
	}
	at, err := positionOf(q, "position")
	if err != nil {
		return nil, err
	}
	v := itemView{Name: kept.Name()}
	if v.Item, err = kept.Item(ctx, at); err != nil {
		return nil, err
	}
	act := operate.Act{On: operate.OnQueue, Category: kept.Category(), Name: kept.Name(), Position: at}
	verbs := []string{"retry", "drop", "cancel"}
	if consumer := q.Get("parked"); consumer != "" {
		act.On, act.Name, verbs = operate.OnParked, consumer, []string{"redrive", "drop"}
	}
	for _, act.Do = range verbs {
		if v.Item.State != queue.Finished {
			v.Acts = append(v.Acts, act)
		}
	}
	return v, nil
}

type sagasView struct {
	Now      time.Time
	Category messagestore.Category
	State    string
	Others   []messagestore.Category
	Sagas    []operate.Saga
	More     bool
	Wrong    []string // what is no saga
	Acts     func(operate.Saga) []operate.Act
}

func (p *Page) sagas(ctx context.Context, q url.Values) (any, error) {
	v := sagasView{Category: messagestore.Category(q.Get("category")), State: q.Get("state")}
	var err error
	if v.Others, err = p.categoriesOf(ctx, "saga"); err != nil {
		return nil, err
	}
	if v.Now, err = p.store.Now(ctx); err != nil {
		return nil, err
	}
	if v.Category == "" && len(v.Others) > 0 {
		v.Category = v.Others[0]
	}
	if v.Category == "" {
		return v, nil
	}
	o, err := saga.NewOperator(p.store, v.Category, "the page")
	if err != nil {
		return nil, err
	}
	for s, err := range operate.Sagas(ctx, o, operate.SagaFilter{State: saga.State(v.State)}) {
		switch {
		case ctx.Err() != nil:
			return nil, ctx.Err()
		case err != nil && len(v.Wrong) < 10:
			v.Wrong = append(v.Wrong, err.Error())
			continue
		case err != nil:
			continue
		}
		if v.More = len(v.Sagas) == rows; v.More {
			break
		}
		v.Sagas = append(v.Sagas, s)
	}
	v.Acts = func(s operate.Saga) []operate.Act {
		if s.IsOver() {
			return nil
		}
		return sagaActs(v.Category, s)
	}
	return v, nil
}

// categoriesOf returns the categories whose last type is one.
func (p *Page) categoriesOf(ctx context.Context, kind string) ([]messagestore.Category, error) {
	all, err := p.store.Categories(ctx, kind)
	return slices.DeleteFunc(all, func(c messagestore.Category) bool {
		types := c.Types()
		return c.Validate() != nil || len(types) == 0 || types[len(types)-1] != kind
	}), err
}

type intentsView struct {
	Now      time.Time
	Category messagestore.Category
	Others   []messagestore.Category
	Intents  []intent.Intent
	More     messagestore.GlobalPosition
	Wrong    string
}

func (p *Page) intents(ctx context.Context, q url.Values) (any, error) {
	v := intentsView{Category: messagestore.Category(q.Get("category"))}
	var err error
	if v.Others, err = p.categoriesOf(ctx, "intent"); err != nil {
		return nil, err
	}
	if v.Now, err = p.store.Now(ctx); err != nil {
		return nil, err
	}
	if v.Category == "" && len(v.Others) > 0 {
		v.Category = v.Others[0]
	}
	if v.Category == "" {
		return v, nil
	}
	from, err := positionOf(q, "from")
	if err != nil {
		return nil, err
	}
	m, err := intent.New(p.store, v.Category, &intent.Config{Logger: logger.Silent()})
	if err != nil {
		return nil, err
	}
	page, err := m.ListPage(ctx, intent.Filter{}, from, rows)
	if errors.Is(err, intent.ErrCorrupt) {
		v.Wrong, err = err.Error(), nil
	}
	if page.More {
		v.More = page.Next
	}
	v.Intents = page.Intents
	return v, err
}

type streamsView struct {
	Categories []messagestore.Category
	Containing string
	More       bool
}

func (p *Page) streams(ctx context.Context, q url.Values) (any, error) {
	v := streamsView{Containing: q.Get("containing")}
	var err error
	v.Categories, err = p.store.Categories(ctx, v.Containing)
	slices.Sort(v.Categories)
	if v.More = len(v.Categories) > 10*rows; v.More {
		v.Categories = v.Categories[:10*rows]
	}
	return v, err
}

type messagesView struct {
	Name     string
	Stream   bool
	Messages []*messagestore.Message
	Next     int64 // where the next page begins, 0 for none
}

func (p *Page) category(ctx context.Context, q url.Values) (any, error) {
	v := messagesView{Name: q.Get("name")}
	from, err := positionOf(q, "from")
	if err != nil {
		return nil, err
	}
	page, err := p.store.ReadCategoryPage(ctx, messagestore.CategoryQuery{Category: messagestore.Category(v.Name), From: from, Limit: rows})
	if err != nil {
		return nil, err
	}
	if v.Messages = page.Messages; page.More && len(v.Messages) > 0 {
		v.Next = int64(v.Messages[len(v.Messages)-1].GlobalPosition) + 1
	}
	if len(v.Messages) == 0 && from == 0 {
		return v, operate.RequireCategory(ctx, p.store, messagestore.Category(v.Name))
	}
	return v, nil
}

func (p *Page) stream(ctx context.Context, q url.Values) (any, error) {
	v := messagesView{Name: q.Get("name"), Stream: true}
	from, err := positionOf(q, "from")
	if err != nil {
		return nil, err
	}
	for m, err := range p.store.ReadStream(ctx, messagestore.StreamName(v.Name), messagestore.Version(from)) {
		if err != nil {
			return nil, err
		}
		if len(v.Messages) == rows {
			v.Next = int64(m.Position)
			break
		}
		v.Messages = append(v.Messages, m)
	}
	if len(v.Messages) == 0 && from == 0 {
		return nil, &operate.NotFoundError{Text: fmt.Sprintf("the stream %s has no message", text.Cut(120, v.Name))}
	}
	return v, nil
}

// Ticks are the next five ticks of a schedule.
func (h health) Ticks() []time.Time {
	s := h.Schedule
	if s.Next.IsZero() {
		return nil
	}
	more, _ := cron.Next(s.Spec, s.Zone, s.Next, 4) // it was valid when it was set
	return append([]time.Time{s.Next}, more...)
}
