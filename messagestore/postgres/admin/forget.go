package admin

import (
	"context"
	"fmt"
	"math"
	"time"

	"github.com/jackc/pgx/v5/pgtype"

	"github.com/dibs-go/dibs/internal/pglink"
	"github.com/dibs-go/dibs/internal/removal"
	"github.com/dibs-go/dibs/messagestore"
	"github.com/dibs-go/dibs/messagestore/retention"
)

// Forget removes the keys of a category that are older than age, by the server's clock, with all
// their messages. It leaves no tombstone, and the keys are free: a later request for such a key is
// carried out again. It removes
//
//   - the requests of an inbox, such as payments:inbox, if their last message is older;
//   - the items of a category that queues read: streams with an older last message, if every queue
//     has finished all of their messages, and every consumer has passed them;
//   - the intents of a category whose first manager had a KeyLife (intent.Config), that were
//     confirmed before;
//   - the reservations in a category of a reserver that had a KeyLife (reservation.Config), unless
//     a consumer of the commands has still to pass a command that is less than age younger: see
//     [Forgotten.Unhandled]. A copy that was not delivered yet stays, and so does a reservation
//     while its copy, or a message of its command's stream, is parked or an open item of another
//     queue.
//
// The age is at least the KeyLife, and at least a day for an inbox and for items. A lower age, or
// any other category, is a [*messagestore.InvalidError].
//
// The key with the last message of its category stays, because a consumer that has read it would
// otherwise be ahead of the category. Streams that were deleted, or that end with another message,
// stay too.
//
// Each transaction removes at most 10,000 messages, or one key with more, and holds up the
// category's writers meanwhile. It records itself by a message of type dibs:Forgotten, with numbers
// and no names; for payment:intent the stream is payment:intent+forgotten-1. If Forget returns an
// error, a part may be done; it is safe to call it again.
func (a *Admin) Forget(ctx context.Context, category messagestore.Category, age time.Duration, options *retention.ForgetOptions) (retention.Forgotten, error) {
	if options == nil {
		options = &retention.ForgetOptions{}
	}
	var forgotten retention.Forgotten
	err := options.Validate(category, age)
	for more, next := true, int64(0); more && err == nil; {
		more, err = a.forget(ctx, category, age, options, &forgotten, &next)
	}
	if err != nil {
		return forgotten, fmt.Errorf("forget keys of %.80q: %w", string(category), err)
	}
	return forgotten, nil
}

// forget is one transaction of Forget. It begins at a global position, and sets the position to go
// on from.
func (a *Admin) forget(ctx context.Context, category messagestore.Category, age time.Duration, o *retention.ForgetOptions, forgotten *retention.Forgotten, next *int64) (more bool, err error) {
	var outcome string
	var keys, messages int64
	var life pgtype.Interval
	var unhandled *time.Time
	args := []any{
		string(category), pgtype.Interval{Microseconds: age.Microseconds(), Valid: true}, pglink.OrNull(o.Reason), *next, maxRemoved, o.DryRun,
	}
	if err := a.change(ctx, a.queries.forget, args, &outcome, &keys, &messages, next, &more, &life, &unhandled); err != nil {
		return false, err
	}
	switch outcome {
	case "no_key_life":
		return false, removal.NoKeyLife(category)
	case "inside_key_life":
		return false, removal.InsideKeyLife(age, time.Duration(min(life.Microseconds, math.MaxInt64/2000))*time.Microsecond+time.Duration(life.Days)*24*time.Hour)
	}
	if unhandled != nil {
		forgotten.Unhandled = *unhandled
	}
	forgotten.Keys += keys
	forgotten.Messages += messages
	if o.OnProgress != nil && messages > 0 && !o.DryRun {
		o.OnProgress(messages)
	}
	return more, nil
}
