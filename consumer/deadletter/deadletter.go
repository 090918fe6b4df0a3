// Package deadletter lists the messages that a consumer has parked, asks for their redrive,
// drops them, and asks for a message to be parked. A dead letter refers to a message: it has the message's id, type and place, and
// the last error, but no data.
//
//	letters := deadletter.Of(store, "account:command", "accounts")
//	for letter, err := range letters.All(ctx) {
//		...
//	}
//	requests, err := letters.RequestRedrive(ctx) // of all of them
//
// The consumer itself redrives: it finds the request within its RedriveInterval, or when
// it is started next. In a test or a job, RequestRedrive and then CatchUp do it at once.
//
// The dead letters of consumer accounts of category account:command are in category
// account:command+deadLetter, a stream for each message. The stream accounts+requests of
// that category has the requests.
package deadletter

import (
	"context"
	"iter"
	"time"

	"github.com/google/uuid"

	"github.com/dibs-go/dibs/consumer/internal/letters"
	"github.com/dibs-go/dibs/messagestore"
)

// Entries are the dead letters of one consumer. Its methods are safe for concurrent use.
type Entries struct{ letters *letters.Letters }

// Of returns the dead letters of the consumer of category with a name. It reads nothing,
// and the methods report a store that is nil, and a wrong category or name.
func Of(store *messagestore.Store, category messagestore.Category, consumer string) *Entries {
	return &Entries{letters.Of(store, category, consumer)}
}

// An Entry refers to a message that is parked.
type Entry struct {
	ID             uuid.UUID
	Type           string
	Stream         messagestore.StreamName
	Position       messagestore.Version
	GlobalPosition messagestore.GlobalPosition

	Error         string    // the last failure, shortened
	Stack         string    // of the last failure, if it was a panic, shortened
	Reason        string    // of the operator that had the message parked ([Entries.RequestPark])
	Attempts      int       // how often the message was delivered
	FirstFailedAt time.Time // by the consumer's clock
	ParkedAt      time.Time // for the last time, by the store's clock

	DeadLetter messagestore.StreamName // where the letter is stored
	Requested  bool                    // a redrive was requested and has not happened
}

// entry returns a letter as operators know it.
func entry(l *letters.Letter) *Entry {
	if l == nil {
		return nil
	}
	return (*Entry)(&l.Entry)
}

func entries(all []*letters.Letter) (of []*Entry) {
	for _, l := range all {
		of = append(of, entry(l))
	}
	return of
}

// A NotParkedError says that a message is not parked. It has the message's ID, and the Category and the name of the
// Consumer.
type NotParkedError = letters.NotParkedError

// ErrCorrupt is matched by the error for a dead letter that cannot be read. [Entries.Drop] closes it all the same.
var ErrCorrupt = letters.ErrCorrupt

// A CorruptError names a stored message that is no dead letter, though its stream is one's: the Stream, the Position in it and
// the Reason. It matches [ErrCorrupt].
type CorruptError = letters.CorruptError

// All yields the open letters in order of their messages' positions, and behind them a [*CorruptError] for each that
// cannot be read. After another error it yields nothing more. It first looks through all dead letters of the category, so it is
// for operators and jobs, not for a handler.
func (l *Entries) All(ctx context.Context) iter.Seq2[*Entry, error] {
	return func(yield func(*Entry, error) bool) {
		for p, err := range l.letters.All(ctx) {
			if !yield(entry(p), err) {
				return
			}
		}
	}
}

// Get returns the open letter for the message with an id, or a [*NotParkedError].
func (l *Entries) Get(ctx context.Context, id uuid.UUID) (*Entry, error) {
	p, err := l.letters.Get(ctx, id)
	return entry(p), err
}

// Message reads the message that a letter refers to. The error matches
// [messagestore.ErrNotFound] if the message was removed.
func (l *Entries) Message(ctx context.Context, p *Entry) (*messagestore.Message, error) {
	return l.letters.Message(ctx, (*letters.Entry)(p))
}

// Counts returns the number of open letters of each consumer of category that has any.
func Counts(ctx context.Context, store *messagestore.Store, category messagestore.Category) (map[string]int, error) {
	return letters.Counts(ctx, store, category)
}

// Drop closes the open letter for the message with an id: the message is not handled, and will
// not be redriven. The letter's stream keeps the reason, and a trim may then remove the message.
// It returns the letter as it was.
//
// The error is a [*NotParkedError] if there is no open letter, and matches
// [messagestore.ErrInvalid] for a reason that is empty, longer than 1024 bytes or not UTF-8. Then
// nothing is changed. A redrive that has begun goes on, and the first outcome stands.
func (l *Entries) Drop(ctx context.Context, id uuid.UUID, reason string) (*Entry, error) {
	p, err := l.letters.Drop(ctx, id, reason)
	return entry(p), err
}

// RequestPark asks the consumer to park a message, with a reason that the dead letter keeps. It is
// for the message at which a consumer is stuck.
//
// The request is stored beside the dead letters. The consumer that has the message's part of the
// category carries it out. A running consumer parks the message in place of the next retry, once
// it has found the request, which takes at most its RedriveInterval. A stopped consumer parks the
// message at its next start, without delivering it. A handler that has the message is not
// interrupted. If the message is handled before, nothing is parked, and the consumer logs that.
//
// It reports false if the message is parked already. The error matches [messagestore.ErrInvalid]
// for a message of another category, and for a reason that is empty, longer than 1024 bytes or not
// one line of UTF-8.
func (l *Entries) RequestPark(ctx context.Context, m *messagestore.Message, reason string) (requested bool, err error) {
	return l.letters.RequestPark(ctx, m, reason)
}

// CheckReason returns nil, or an error that matches [messagestore.ErrInvalid] if [Entries.Drop] and
// [Entries.RequestPark] would refuse the reason.
func CheckReason(reason string) error { return letters.CheckReason(reason) }

// Requests are the letters that [Entries.RequestRedrive] chose, in order of their
// messages' positions.
type Requests struct {
	Requested []*Entry // by this call
	Before    []*Entry // by an earlier one
}

func requests(r *letters.Requests, err error) (*Requests, error) {
	if err != nil {
		return nil, err
	}
	return &Requests{entries(r.Requested), entries(r.Before)}, nil
}

// RequestRedrive asks the consumer to deliver parked messages again: those with the ids, or
// all if there are none.
//
// The request is stored beside the dead letters. The consumer finds it within its
// RedriveInterval, wherever it runs, or when it is started next; in a group the member that
// the message's stream belongs to. It delivers the message in its turn: never together with
// another of its cardinal id. A request is for one delivery of a message as it is parked
// now, however often it is made. It is settled by success, by a failure, after which the
// message stays parked with the new error, or by a redrive of another process. A consumer
// that is killed during the delivery redrives the message when it is started again, and two
// processes with one identity may both redrive it.
//
// The message is not written to its category a second time: other consumers of the category
// would get it again, and the stream would have two events where one happened.
//
// For an id that is not parked the error is a [*NotParkedError], and nothing is requested.
func (l *Entries) RequestRedrive(ctx context.Context, ids ...uuid.UUID) (*Requests, error) {
	return requests(l.letters.RequestRedrive(ctx, ids...))
}

// PreviewRedrive returns the result of [Entries.RequestRedrive], and requests nothing.
func (l *Entries) PreviewRedrive(ctx context.Context, ids ...uuid.UUID) (*Requests, error) {
	return requests(l.letters.PreviewRedrive(ctx, ids...))
}
