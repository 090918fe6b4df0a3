package ui

import (
	"context"
	"errors"
	"fmt"
	"html/template"
	"net/http"
	"net/url"
	"strconv"
	"time"

	"github.com/dibs-go/dibs/internal/text"
	"github.com/dibs-go/dibs/messagestore"
	"github.com/dibs-go/dibs/operate"
	"github.com/dibs-go/dibs/queue"
	"github.com/dibs-go/dibs/saga"
)

// actLink is the URL of the preview of an act.
func actLink(a operate.Act) template.URL {
	return link("act", "do", a.Do, "on", a.On, "category", a.Category, "name", a.Name, "state", string(a.State)+string(a.SagaState),
		"like", a.Like, "position", int64(a.Position), "id", a.ID)
}

func actOf(q url.Values) (operate.Act, error) {
	a := operate.Act{
		Do: q.Get("do"), On: operate.Target(q.Get("on")), Category: messagestore.Category(q.Get("category")), Name: q.Get("name"),
		Like: q.Get("like"), ID: q.Get("id"),
	}
	if a.On == operate.OnSaga {
		a.SagaState = saga.State(q.Get("state"))
	} else {
		a.State = queue.State(q.Get("state"))
	}
	var err error
	if a.Position, err = positionOf(q, "position"); err != nil {
		return a, err
	}
	return a, a.Check()
}

// longest is how long an act may go on before it says how far it came.
const longest = 20 * time.Second

// errReadOnly is of a page without [Config.Operate].
var errReadOnly = errors.New("this page only reads: run dibs ui --operate, or set Config.Operate")

const movedOn = "Nothing was done: what this would change is not as it was when you were asked. This is how it is now."

// An actView is an act before it is made, and after.
type actView struct {
	Act     operate.Act
	Preview operate.Preview
	Fields  url.Values // of the form
	Command string
	Problem string // why it was not made
	Done    string // what was done
	Now     time.Time
}

// preview shows what an act would change, and asks for a reason.
func (p *Page) preview(w http.ResponseWriter, r *http.Request) {
	a, err := actOf(r.URL.Query())
	if err != nil {
		p.fail(w, r, 0, err)
		return
	}
	p.ask(w, r, http.StatusOK, actView{Act: a, Fields: r.URL.Query()})
}

func (p *Page) ask(w http.ResponseWriter, r *http.Request, status int, v actView) {
	ctx, cancel := context.WithTimeout(r.Context(), p.config.Timeout)
	defer cancel()
	var err error
	if v.Preview, err = v.Act.Preview(ctx, p.store); err == nil {
		v.Now, err = p.store.Now(ctx)
	}
	if err != nil {
		p.fail(w, r, 0, err)
		return
	}
	v.Command = v.Act.Command("TEXT")
	v.Fields.Del("seen")
	v.Fields.Del("reason")
	p.showAct(w, r, status, v)
}

func (p *Page) showAct(w http.ResponseWriter, r *http.Request, status int, v actView) {
	body, err := p.render("act", v)
	if err != nil {
		p.fail(w, r, 0, err)
		return
	}
	p.write(w, status, document{Title: v.Act.Do + "?", Body: template.HTML(body)}) //nolint:gosec // it is made by html/template
}

// act makes an act, if what it changes is as the preview has shown it.
func (p *Page) act(w http.ResponseWriter, r *http.Request) {
	if !p.config.Operate {
		p.fail(w, r, http.StatusForbidden, errReadOnly)
		return
	}
	r.Body = http.MaxBytesReader(w, r.Body, 64<<10)
	if err := r.ParseForm(); err != nil {
		p.fail(w, r, http.StatusBadRequest, err)
		return
	}
	a, err := actOf(r.PostForm)
	if err != nil {
		p.fail(w, r, 0, err)
		return
	}
	v := actView{Act: a, Fields: r.PostForm}
	reason, seen := r.PostForm.Get("reason"), r.PostForm.Get("seen")
	if reason == "" {
		v.Problem = "Give a reason: it stays in the log of what is changed."
		p.ask(w, r, http.StatusBadRequest, v)
		return
	}
	ctx, cancel := context.WithTimeout(r.Context(), longest)
	defer cancel()
	now, err := a.Preview(ctx, p.store)
	if err != nil {
		p.fail(w, r, 0, err)
		return
	}
	if now.Seen != seen {
		v.Problem = movedOn
		p.ask(w, r, http.StatusConflict, v)
		return
	}
	if a.On == operate.OnSchedule {
		a.ID = seen // a second click is the same act
	}
	changed, err := a.Run(ctx, p.store, p.config.User(r), &operate.ChangeOpts{Reason: reason})
	if changed == 0 && errors.Is(err, messagestore.ErrVersionConflict) { // it moved on between the two
		v.Problem = movedOn
		p.ask(w, r, http.StatusConflict, v)
		return
	}
	if err != nil {
		v.Problem = fmt.Sprintf("%s changed, and then it failed: %v. You may do it again for the others.", text.Number(changed, "one was|were"), err)
		if changed == 0 {
			v.Problem = "Nothing is known to be done: " + err.Error()
		}
		p.config.Logger.Error().Str("error", text.Log(err)).Str("act", a.Command("")).Int("changed", changed).Msg("an act of the page failed")
		p.ask(w, r, http.StatusServiceUnavailable, v)
		return
	}
	p.config.Logger.Info().Str("act", a.Command("")).Str("by", p.config.User(r)).Str("reason", reason).Int("changed", changed).Msg("an act of the page")
	v.Done, v.Command = doneText(a, changed), a.Command(reason)
	p.showAct(w, r, http.StatusOK, v)
}

func doneText(a operate.Act, changed int) string {
	switch {
	case a.Do == "pause":
		return "It is paused."
	case a.Do == "resume" && a.On != operate.OnSaga:
		return "It goes on."
	case a.Do == "run":
		return "An item is written now. The ticks come as before."
	case a.Do == "park":
		return "The consumer is asked to park the message."
	case a.On == operate.OnSaga:
		return a.Do + " is recorded for " + text.Number(changed, "saga") + "."
	}
	return a.Do + ": " + strconv.Itoa(changed) + " changed."
}
