package operate

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"iter"
	"slices"
	"strconv"
	"strings"
	"time"

	consumers "github.com/dibs-go/dibs/consumer/operate"
	"github.com/dibs-go/dibs/internal/text"
	"github.com/dibs-go/dibs/messagestore"
	"github.com/dibs-go/dibs/queue"
	"github.com/dibs-go/dibs/saga"
)

// A Target is what an [Act] changes.
type Target string

// The targets.
const (
	OnQueue    Target = "queue"     // retry, drop, cancel items; pause, resume
	OnConsumer Target = "consumers" // pause, resume; park a message
	OnParked   Target = "parked"    // redrive, drop parked messages of a consumer
	OnSaga     Target = "saga"      // resume, retry, cancel, suspend, resolve
	OnSchedule Target = "schedule"  // run: an item now, beside those of its ticks
)

// An Act is a change that an operator can make, as the command dibs has it.
type Act struct {
	Do       string // the verb, such as retry
	On       Target
	Category messagestore.Category
	Name     string // of a queue, a consumer or a schedule

	// For items, parked messages and sagas: those in the state, of all actions' states if it is "",
	// whose error is like another. One item, message or saga has its Position or ID.
	State     queue.State
	SagaState saga.State
	Like      string
	Position  messagestore.GlobalPosition
	ID        string
}

// For returns the act for the items or sagas of a group alone.
func (a Act) For(g Group) Act {
	switch {
	case a.Do == "park":
		a.Position = g.Position
	case a.Many():
		a.Like = g.Error
	}
	return a
}

// Many reports whether the act changes all items, messages or sagas that match.
func (a Act) Many() bool {
	return a.Position == 0 && a.ID == "" && (a.On == OnSaga || a.On == OnParked || a.On == OnQueue && a.Do != "pause" && a.Do != "resume")
}

// Command returns the command line that does the same, "" if there is none: a schedule is run by an
// act alone. The reason is left out if it is "".
func (a Act) Command(reason string) string {
	if a.On == OnSchedule {
		return ""
	}
	words := []string{"dibs", string(a.On), a.Do}
	switch a.On {
	case OnQueue:
		words = append(words, text.Word(a.Name))
	case OnConsumer, OnParked:
		words = append(words, text.Word(string(a.Category)), text.Word(a.Name))
	case OnSaga:
		words = append(words, text.Word(string(a.Category)))
	}
	switch {
	case a.ID != "":
		words = append(words, text.Word(a.ID))
	case a.Position != 0 && a.On == OnConsumer:
		words = append(words, "--position", strconv.FormatInt(int64(a.Position), 10))
	case a.Position != 0:
		words = append(words, strconv.FormatInt(int64(a.Position), 10))
	case a.Many() && a.Like != "":
		words = append(words, "--like", text.Word(a.Like))
	case a.Many():
		words = append(words, "--all")
	}
	if state := string(a.State) + string(a.SagaState); a.Many() && state != "" {
		words = append(words, "--state", state)
	}
	if reason != "" && (a.Many() || a.Position != 0 || a.ID != "") {
		words = append(words, "--reason", text.Word(reason))
	}
	return strings.Join(words, " ")
}

// A Preview says what an act would change.
type Preview struct {
	Count   int     // of items, messages or sagas
	AtLeast bool    // there are more than Count
	Groups  []Group // the first 1,000 of them

	// Seen is made of the first 1,000 and their versions: if it is another later, they have changed.
	// Of a schedule it is the version of its items, for the act's ID.
	Seen string
}

// Preview returns what the act would change now. It counts at most 10,000.
func (a Act) Preview(ctx context.Context, store *messagestore.Store) (Preview, error) {
	p, hash := Preview{}, sha256.New()
	see := func(name string, version int64) bool {
		if p.Count == 10_000 {
			p.AtLeast = true
			return false
		}
		if p.Count++; p.Count <= looked {
			fmt.Fprintf(hash, "%q %d\n", name, version)
		}
		return true
	}
	var err error
	switch {
	case a.On == OnSaga:
		p.Groups, err = SagaGroups(a.seenSagas(ctx, store, see))
	case a.Many() || a.Position != 0 && a.On != OnConsumer:
		p.Groups, err = Groups(a.seenItems(ctx, store, see))
	case a.On == OnSchedule:
		var version messagestore.Version
		if _, version, err = a.schedule(ctx, store); err == nil {
			see("", int64(version))
			p.Seen = strconv.FormatInt(int64(version), 10)
			return p, nil
		}
	default:
		var state string
		state, err = a.state(ctx, store)
		see(state, 0)
	}
	p.Seen = hex.EncodeToString(hash.Sum(nil)[:16])
	return p, err
}

// seenItems yields the items that the act would change, until see returns false; no more than are grouped.
func (a Act) seenItems(ctx context.Context, store *messagestore.Store, see func(string, int64) bool) iter.Seq2[queue.Item, error] {
	return func(yield func(queue.Item, error) bool) {
		q, err := a.queue(store)
		if err != nil {
			yield(queue.Item{}, err)
			return
		}
		n := 0
		for item, err := range a.items(ctx, q) {
			if err == nil && !see(strconv.FormatInt(int64(item.Position), 10), int64(item.Version)) {
				return
			}
			if n++; (err != nil || n <= looked) && !yield(item, err) {
				return
			}
		}
	}
}

func (a Act) seenSagas(ctx context.Context, store *messagestore.Store, see func(string, int64) bool) iter.Seq2[Saga, error] {
	return func(yield func(Saga, error) bool) {
		o, err := saga.NewOperator(store, a.Category, "operate")
		if err != nil {
			yield(Saga{}, err)
			return
		}
		n := 0
		for s, err := range a.sagas(ctx, o) {
			if err == nil && !see(s.ID, int64(s.Version)) {
				return
			}
			if n++; (err != nil || n <= looked) && !yield(s, err) {
				return
			}
		}
	}
}

// state is that of a queue or a consumer, as far as an act on it changes it.
func (a Act) state(ctx context.Context, store *messagestore.Store) (string, error) {
	if a.On == OnQueue {
		q, err := a.queue(store)
		if err != nil {
			return "", err
		}
		s, err := q.Status(ctx)
		return fmt.Sprint("paused: ", s.Paused), err
	}
	s, err := a.consumer(ctx, store)
	return fmt.Sprint("paused: ", s.PausedAt, " generation: ", s.Generation), err
}

func (a Act) consumer(ctx context.Context, store *messagestore.Store) (consumers.Status, error) {
	all, err := consumers.Consumers(ctx, store, a.Category)
	i := slices.IndexFunc(all, func(s consumers.Status) bool { return s.Name == a.Name && !s.Foreign })
	if err == nil && i < 0 {
		err = &consumers.UnknownConsumerError{Category: a.Category, Name: a.Name}
	}
	if err != nil {
		return consumers.Status{}, err
	}
	return all[i], nil
}

func (a Act) queue(store *messagestore.Store) (*queue.Queue, error) {
	if a.On == OnParked {
		return consumers.Consumer(store, a.Category, a.Name).Parked()
	}
	return queueOf(store, queue.Status{Category: a.Category, Name: a.Name})
}

// action is the change of items that the act makes.
func (a Act) action() Action {
	if a.Do == "redrive" {
		return Retry
	}
	return Action(a.Do)
}

func (a Act) filter() Filter { return Filter{State: a.State, Like: a.Like} }

// items yields the items that the act would change.
func (a Act) items(ctx context.Context, q *queue.Queue) iter.Seq2[queue.Item, error] {
	if a.Position == 0 {
		return Items(ctx, q, a.action(), a.filter())
	}
	return func(yield func(queue.Item, error) bool) {
		item, err := q.Item(ctx, a.Position)
		if err != nil || slices.Contains(actions[a.action()].states, item.State) {
			yield(item, err)
		}
	}
}

func (a Act) sagas(ctx context.Context, o *saga.Operator) iter.Seq2[Saga, error] {
	if a.ID == "" {
		return Sagas(ctx, o, SagaFilter{State: a.SagaState, Like: a.Like})
	}
	return func(yield func(Saga, error) bool) { yield(o.Status(ctx, a.ID)) }
}

var sagaChanges = map[string]func(o *saga.Operator, ctx context.Context, id, reason string) (Saga, error){
	"cancel": (*saga.Operator).Cancel, "resume": (*saga.Operator).Resume, "retry": (*saga.Operator).Retry, "suspend": (*saga.Operator).Suspend,
	"resolve": (*saga.Operator).Resolve,
}

// Check returns an error that matches [messagestore.ErrInvalid] for a verb that the target does not
// have.
func (a Act) Check() error {
	verbs := map[Target][]string{
		OnQueue: {"retry", "drop", "cancel", "pause", "resume"}, OnConsumer: {"pause", "resume", "park"}, OnParked: {"redrive", "drop"},
		OnSaga: {"resume", "retry", "cancel", "suspend", "resolve"}, OnSchedule: {"run"},
	}[a.On]
	switch {
	case verbs == nil:
		return messagestore.NewInvalidError("On", string(a.On), "must be queue, consumers, parked, saga or schedule")
	case !slices.Contains(verbs, a.Do):
		return messagestore.NewInvalidError("Do", a.Do, fmt.Sprintf("must be one of %v for %s", verbs, a.On))
	case a.Do == "park" && a.Position <= 0:
		return messagestore.NewInvalidError("Position", int64(a.Position), "must be that of a message")
	}
	return a.Category.Validate()
}

// Run makes the change, and returns how many items, messages or sagas it has changed, also with an
// error. By is who makes it: it is in each saga, and in front of the reason of the others. A queue
// or a consumer that is paused or resumed counts as one; it keeps no reason.
func (a Act) Run(ctx context.Context, store *messagestore.Store, by string, opts *ChangeOpts) (changed int, err error) {
	if opts, err = opts.checked(); err != nil {
		return 0, err
	}
	if err := a.Check(); err != nil {
		return 0, err
	}
	switch a.On {
	case OnSaga:
		return a.runSagas(ctx, store, by, opts)
	case OnConsumer:
		return 1, a.runConsumer(ctx, store, reasonOf(by, opts.Reason))
	case OnSchedule:
		if err := a.runSchedule(ctx, store, reasonOf(by, opts.Reason)); err != nil {
			return 0, err
		}
		return 1, nil
	}
	q, err := a.queue(store)
	if err != nil {
		return 0, err
	}
	with := *opts
	with.Reason = reasonOf(by, opts.Reason)
	switch {
	case a.Do == "pause":
		return 1, q.Pause(ctx)
	case a.Do == "resume":
		return 1, q.Resume(ctx)
	case a.Position == 0:
		return Change(ctx, q, a.action(), a.filter(), &with)
	}
	done, err := actions[a.action()].does(q, ctx, with.Reason, a.Position)
	return len(done), err
}

func reasonOf(by, reason string) string {
	if by == "" {
		return reason
	}
	return strings.TrimSuffix(by+": "+reason, ": ")
}

func (a Act) runSagas(ctx context.Context, store *messagestore.Store, by string, opts *ChangeOpts) (int, error) {
	o, err := saga.NewOperator(store, a.Category, by)
	if err != nil {
		return 0, err
	}
	if a.ID == "" {
		return ChangeSagas(ctx, o, sagaChanges[a.Do], SagaFilter{State: a.SagaState, Like: a.Like}, opts)
	}
	if _, err := sagaChanges[a.Do](o, ctx, a.ID, opts.Reason); err != nil {
		return 0, err
	}
	return 1, nil
}

func (a Act) runConsumer(ctx context.Context, store *messagestore.Store, reason string) error {
	if _, err := a.consumer(ctx, store); err != nil {
		return err
	}
	target := consumers.Consumer(store, a.Category, a.Name)
	switch a.Do {
	case "pause":
		_, err := target.Pause(ctx)
		return err
	case "resume":
		_, err := target.Resume(ctx)
		return err
	}
	page, err := store.ReadCategoryPage(ctx, messagestore.CategoryQuery{Category: a.Category, From: a.Position, Limit: 1})
	if err != nil {
		return err
	}
	if len(page.Messages) == 0 || page.Messages[0].GlobalPosition != a.Position {
		return &NotFoundError{Text: fmt.Sprintf("category %s has no message at position %d", a.Category, a.Position)}
	}
	_, err = target.Park(ctx, page.Messages[0], reason)
	return err
}

// Age returns how long ago a time was, with a precision for a person: 45s, 12m, 3h, 5d.
func Age(now, t time.Time) string {
	if t.IsZero() {
		return ""
	}
	d := max(now.Sub(t), 0)
	switch {
	case d < time.Minute:
		return fmt.Sprintf("%ds", int(d.Seconds()))
	case d < time.Hour:
		return fmt.Sprintf("%dm", int(d.Minutes()))
	case d < 48*time.Hour:
		return fmt.Sprintf("%dh", int(d.Hours()))
	}
	return fmt.Sprintf("%dd", int(d.Hours()/24))
}
