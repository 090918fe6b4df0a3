package admin

import (
	"context"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5/pgtype"

	"github.com/dibs-go/dibs/internal/pglink"
	"github.com/dibs-go/dibs/messagestore"
	"github.com/dibs-go/dibs/messagestore/retention"
)

// Forgotten is the result of [Admin.ForgetIntents].
type Forgotten struct {
	Intents  int64 // how many went, or would go
	Messages int64 // how many messages they had
}

// ForgetIntents removes the intents of a category that were confirmed before a time, key and all:
// no tombstone is left, and their keys are free. It is for categories whose first manager declared
// how long its keys live (intent.Config.KeyLife). Another category is refused, and so is a time
// that is less than the keys' life ago, by the server's clock: with a [*messagestore.InvalidError].
//
// The intent that has the last message of its category stays, since a consumer that has read it
// would be ahead of the category. Intents that are free, or were deleted, stay too.
//
// It removes at most 10,000 messages in one transaction, or one intent, and holds up the writers of
// the category no longer than that. Each is recorded by a message of type dibs:Forgotten in
// payment:intent+life-forgotten, for payment:intent, with numbers and no names. If it ends with an
// error, some of it may be done; to call it again is safe.
func (a *Admin) ForgetIntents(ctx context.Context, category messagestore.Category, before time.Time, options *ForgetOptions) (Forgotten, error) {
	if options == nil {
		options = &ForgetOptions{}
	}
	var forgotten Forgotten
	err := category.Validate()
	if err == nil && (before.Year() < 1 || before.Year() > 9999 || before.IsZero()) {
		err = messagestore.NewInvalidError("before", before, "it is of a year from 1 to 9999")
	}
	if err == nil {
		err = retention.CheckReason(options.Reason)
	}
	for more, next := true, int64(0); more && err == nil; {
		more, err = a.forget(ctx, category, before, options, &forgotten, &next)
	}
	if err != nil {
		return forgotten, fmt.Errorf("forget intents of %.80q: %w", string(category), err)
	}
	return forgotten, nil
}

// forget is one transaction of ForgetIntents. It begins at a global position, and sets the one to
// go on from.
func (a *Admin) forget(ctx context.Context, category messagestore.Category, before time.Time, o *ForgetOptions, forgotten *Forgotten, next *int64) (more bool, err error) {
	var outcome string
	var intents, messages int64
	var life pgtype.Interval
	args := []any{string(category), before, pglink.OrNull(o.Reason), *next, maxRemoved, o.DryRun}
	if err := a.change(ctx, a.queries.forgetIntents, args, &outcome, &intents, &messages, next, &more, &life); err != nil {
		return false, err
	}
	switch outcome {
	case "no_key_life":
		return false, messagestore.NewInvalidError("category", string(category), "its first manager declared no life of the keys, or had an intent before it did, so they stay for ever")
	case "inside_key_life":
		keys := time.Duration(life.Microseconds)*time.Microsecond + time.Duration(life.Days)*24*time.Hour
		return false, messagestore.NewInvalidError("before", before, fmt.Sprintf("the keys live %v, so it is at least that long ago", keys))
	}
	forgotten.Intents += intents
	forgotten.Messages += messages
	if o.OnProgress != nil && messages > 0 && !o.DryRun {
		o.OnProgress(messages)
	}
	return more, nil
}

// ForgetInbox removes the requests of an inbox, such as payments:inbox, that were received and undone
// longer ago than an age, by the server's clock, key and all: no tombstone is left, and their keys are
// free. So the age is the window of deduplication: a copy of a request that comes later is carried
// out again. A category whose last type is not inbox is refused, and so is an age of less than
// [retention.MinForgetAge]: with a [*messagestore.InvalidError], before anything is sent.
//
// The request that has the last message of its category stays, since a consumer that has read it
// would be ahead of the category. Streams that were deleted, or that end with another message, stay too.
//
// It removes at most 10,000 messages in one transaction, and holds up the writers of the inbox no
// longer than that. Each is recorded by a message of type dibs:Forgotten in payments:inbox+forgotten-1,
// with numbers and no names. If it ends with an error, some of it may be done; to call it again is safe.
func (a *Admin) ForgetInbox(ctx context.Context, category messagestore.Category, age time.Duration, options *ForgetOptions) (retention.ForgottenRequests, error) {
	if options == nil {
		options = &ForgetOptions{}
	}
	var forgotten retention.ForgottenRequests
	err := options.ValidateInbox(category, age)
	for more, next := true, int64(0); more && err == nil; {
		var outcome string
		var requests, messages int64
		args := []any{
			string(category), pgtype.Interval{Microseconds: age.Microseconds(), Valid: true}, pglink.OrNull(options.Reason), next, maxRemoved, options.DryRun,
		}
		if err = a.change(ctx, a.queries.forgetInbox, args, &outcome, &requests, &messages, &next, &more); err != nil {
			break
		}
		forgotten.Requests += requests
		forgotten.Messages += messages
		if options.OnProgress != nil && messages > 0 && !options.DryRun {
			options.OnProgress(messages)
		}
	}
	if err != nil {
		return forgotten, fmt.Errorf("forget requests of %.80q: %w", string(category), err)
	}
	return forgotten, nil
}
