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

// ForgetOptions change how intents are forgotten. A nil *ForgetOptions is a good one.
type ForgetOptions struct {
	// Reason is recorded: up to 255 bytes of visible text. It stays, so it must not contain the
	// data that is to be forgotten.
	//
	// Defaults to none.
	Reason string

	// DryRun removes nothing, and returns the result that a removal would have.
	//
	// Defaults to false.
	DryRun bool

	// OnProgress is called after each transaction with the number of messages that it removed, at
	// most 10,000, or those of one intent.
	//
	// Defaults to nothing.
	OnProgress func(removed int64)
}

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
	err := validateForget(category, before, options)
	for more, next := true, int64(0); more && err == nil; {
		more, err = a.forget(ctx, category, before, options, &forgotten, &next)
	}
	if err != nil {
		return forgotten, fmt.Errorf("forget intents of %.80q: %w", string(category), err)
	}
	return forgotten, nil
}

func validateForget(category messagestore.Category, before time.Time, o *ForgetOptions) error {
	if err := category.Validate(); err != nil {
		return err
	}
	if before.Year() < 1 || before.Year() > 9999 || before.IsZero() {
		return messagestore.NewInvalidError("before", before, "it is of a year from 1 to 9999")
	}
	return retention.CheckReason(o.Reason)
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
		return false, messagestore.NewInvalidError("category", string(category), "its first manager declared no life of the keys, so they stay for ever")
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
