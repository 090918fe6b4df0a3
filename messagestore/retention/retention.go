// Package retention has the options and results of removing messages from a store and of verifying
// it, with messagestore/postgres/admin and messagestore/sqlite.
package retention

import (
	"errors"
	"fmt"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/dibs-go/dibs/internal/removal"
	"github.com/dibs-go/dibs/messagestore"
)

// ErrOpenItem is returned when a stream cannot be deleted because a queue has not finished one of
// its messages.
var ErrOpenItem = errors.New("a message of the stream is an open item of a queue")

// AnyAge is a [TrimOptions.MinAge] that removes messages of any age.
const AnyAge time.Duration = -1

// TrimOptions choose the messages to remove. Set Keep, Before or Below; with several, a message is
// removed only if all of them allow it.
type TrimOptions struct {
	// Keep is how many messages at the end of the stream stay: at least 1.
	//
	// Defaults to 1 if Before or Below is set.
	Keep int64

	// Before is a time: messages written then or later stay.
	//
	// Defaults to none.
	Before time.Time

	// Below is a global position, such as the checkpoint of a consumer: messages there or later
	// stay.
	//
	// Defaults to 0: it does not matter.
	Below messagestore.GlobalPosition

	// MinAge keeps younger messages. It is at most 100 years. The id of a removed message is
	// forgotten: if you then resolve or repeat a write of unknown outcome, it counts as not
	// written. [AnyAge] is for streams to which nobody writes, and for positions.
	//
	// Defaults to 15 minutes.
	MinAge time.Duration

	// Reason is recorded: up to 255 bytes of visible text.
	//
	// Defaults to none.
	Reason string

	// DryRun removes nothing, and returns the result of a trim.
	//
	// Defaults to false.
	DryRun bool

	// OnProgress is called after each transaction of a stream with the number of messages that it
	// removed, at most 10,000.
	//
	// Defaults to nothing.
	OnProgress func(removed int64)
}

// Validate returns nil or an [*messagestore.InvalidError].
func (o *TrimOptions) Validate() error {
	switch {
	case o == nil || o.Keep == 0 && o.Before.IsZero() && o.Below == 0:
		return messagestore.NewInvalidError("trim", nil, "must say how many messages to keep, or a time or a position before which they go")
	case o.Keep < 0:
		return messagestore.NewInvalidError("keep", o.Keep, "must be at least 1")
	case o.Below < 0:
		return messagestore.NewInvalidError("below", int64(o.Below), "must be at least 0")
	case o.MinAge < 0 && o.MinAge != AnyAge:
		return messagestore.NewInvalidError("minimum age", o.MinAge, "must be at least 0")
	case o.MinAge > 100*365*24*time.Hour:
		return messagestore.NewInvalidError("minimum age", o.MinAge, "must be at most 100 years")
	case o.Before.Year() < 1 || o.Before.Year() > 9999:
		return messagestore.NewInvalidError("before", o.Before, "must be in a year from 1 to 9999")
	}
	return removal.CheckReason(o.Reason)
}

// Trimmed is the result of a trim of one stream.
type Trimmed struct {
	Stream  messagestore.StreamName
	Removed int64 // how many messages went, or would go

	// First is the position of the first message now, and Version of the last, which has not
	// changed. Both are NoStream if the stream is empty.
	First, Version messagestore.Version

	// Recent is set if messages stayed only because they are younger than MinAge.
	Recent bool

	// Reservation is set if nothing was removed because the stream's first message makes a
	// reservation: its key would be free again. Delete the stream instead.
	Reservation bool

	// Queue is the name of the queue that has not finished the message at First, or keeps it as a
	// parked message: the messages from there on stay. It is empty if no queue kept any.
	Queue string
}

// DeleteOptions change how a stream is deleted. nil means the defaults.
type DeleteOptions struct {
	// EraseName replaces the stream's name by a hash, because a name may be personal data too. It
	// also removes the records of the stream's trims.
	//
	// Defaults to false.
	EraseName bool

	// Reason is recorded in the tombstone: up to 255 bytes of visible text. It stays, so it must
	// not contain the data that you want forgotten.
	//
	// Defaults to none.
	Reason string

	// DryRun deletes nothing, and returns the result of a deletion.
	//
	// Defaults to false.
	DryRun bool

	// OnProgress is called after each transaction except the last. Each has removed at most 10,000
	// messages.
	//
	// Defaults to nothing.
	OnProgress func()
}

// Deleted is the result of a deletion.
type Deleted struct {
	Stream   messagestore.StreamName
	Messages int64                // how many the stream had
	Version  messagestore.Version // of the tombstone, and so of the stream

	// Tombstone is the stream of the tombstone: Stream, or with EraseName a stream of the same
	// category, named by the SHA-256 of Stream's name.
	Tombstone messagestore.StreamName

	// Already is set if the stream had been deleted before, and nothing was changed.
	Already bool
}

// ForgetOptions change how keys are forgotten. nil means the defaults.
type ForgetOptions struct {
	// Reason is recorded: up to 255 bytes of visible text. It stays, so it must not contain the
	// data that you want forgotten.
	//
	// Defaults to none.
	Reason string

	// DryRun removes nothing, and returns the result of a removal.
	//
	// Defaults to false.
	DryRun bool

	// OnProgress is called after each transaction with the number of messages that it removed: at
	// most 10,000, or all messages of one key.
	//
	// Defaults to nothing.
	OnProgress func(removed int64)
}

// Validate returns an [*messagestore.InvalidError] if the options are invalid, or if the category's
// name shows that keys of this age must not be forgotten.
func (o *ForgetOptions) Validate(category messagestore.Category, age time.Duration) error {
	err := category.Validate()
	switch {
	case err != nil:
		return err
	case age <= 0:
		return messagestore.NewInvalidError("age", age, "must be more than 0")
	case removal.IsInbox(category) && age < removal.InboxKeyLife:
		return removal.InsideKeyLife(age, removal.InboxKeyLife)
	case age > 100*365*24*time.Hour:
		return messagestore.NewInvalidError("age", age, "must be at most 100 years")
	}
	return removal.CheckReason(o.Reason)
}

// Forgotten is the result of a removal of keys.
type Forgotten struct {
	Keys     int64 // how many were removed, or would be
	Messages int64 // how many messages they had

	// Unhandled, for a category of reservations, is the time of the first command that a consumer
	// has yet to pass. All reservations stay that were made later than the age before it. It is
	// zero if there is no such command.
	Unhandled time.Time
}

// VerifyConfig configures a verification. nil means the defaults.
type VerifyConfig struct {
	// Categories are the categories to verify. A category without messages is an error.
	//
	// Defaults to all of them.
	Categories []messagestore.Category

	// MaxViolations is how many violations of one rule are listed for each category: 1 to 100,000.
	//
	// Defaults to 100.
	MaxViolations int

	// Amcheck also checks the indexes, with PostgreSQL's extension of that name: that each is in
	// order and has every row of the table.
	//
	// Defaults to false.
	Amcheck bool

	// OnProgress is called before each part of the work, with the next category, or "" for the
	// table, and with the numbers of messages checked and to check. Every message is checked twice:
	// in the table, and in its category. The total is PostgreSQL's estimate until the table has
	// been read.
	//
	// Defaults to nothing.
	OnProgress func(category messagestore.Category, done, total int64)
}

// A Verification is the result of a verification.
type Verification struct {
	Checked    Checked
	Violations []Violation
	More       bool // whether there are more violations of some rule than are listed

	// NotChecked lists, in sentences, the checks that were not made.
	NotChecked []string
}

// Checked is how many of each kind were checked. If a count is 0, the rules about that kind were
// not tested.
type Checked struct {
	Categories   int64 `json:"categories"`
	Streams      int64 `json:"streams"`
	Messages     int64 `json:"messages"`
	Consumers    int64 `json:"consumers"`    // that have a ledger of generations
	Positions    int64 `json:"positions"`    // that consumers recorded
	Reservations int64 `json:"reservations"` // copies of commands, made for a key
	Queues       int64 `json:"queues"`       // that were taken from
	Erased       int64 `json:"erased"`       // streams that were deleted with their names
	Sagas        int64 `json:"sagas"`        // by saga.Operator.Verify
}

// A Violation is a place where the store breaks a rule.
type Violation struct {
	// Rule is the name of the violated rule:
	//
	//	dense        the positions of a stream are 0, 1, 2 …, or go on from what was removed
	//	order        later positions of a stream have later global positions
	//	json         data and metadata can be cast to jsonb, as message-db's clients read them
	//	unique       ids, global positions and positions in a stream are of one message
	//	indexes      the unique indexes are there, and have what the table has
	//	derived      category, group hash and correlation are what they are derived from
	//	sequence     the sequence is ahead of every global position, and goes on by 1
	//	erased       a stream that was erased has no message, and a tombstone
	//	reservation  a key has one winner: the first in its stream, with the id of its command
	//	ledger       a consumer's generations skip nothing, and positions are of one of them
	//	consumer     a consumer's positions are not ahead of its category, and only grow
	//	queue        an open item is as its queue's cursor, its message, its session and its log have it
	//	saga         a saga's messages are what its runners write, and its item is open until it ends: see saga.Operator.Verify
	Rule string

	Category       messagestore.Category       // empty for a violation of the whole store
	Stream         messagestore.StreamName     // empty for a violation of the category
	Position       messagestore.Version        // in Stream
	GlobalPosition messagestore.GlobalPosition // 0 if it is not about a message
	Expected       string
	Found          string
}

// String returns the violation and its place.
func (v Violation) String() string {
	var where string
	switch {
	case v.Stream != "":
		where = fmt.Sprintf("%s@%d ", v.Stream, v.Position)
	case v.Category != "":
		where = string(v.Category) + " "
	}
	if v.GlobalPosition > 0 {
		where += fmt.Sprintf("(%d)", v.GlobalPosition)
	}
	if where = strings.TrimSuffix(where, " "); where != "" {
		where += ": "
	}
	return fmt.Sprintf("%s: %sexpected %s, found %s", v.Rule, where, v.Expected, v.Found)
}

// Validate returns nil or an [*messagestore.InvalidError].
func (c *VerifyConfig) Validate() error {
	if c == nil {
		return nil
	}
	for _, category := range c.Categories {
		// Clients of message-db may use names that this module does not allow.
		if rule := categoryRule(string(category)); rule != "" {
			return messagestore.NewInvalidError("category", string(category), rule)
		}
	}
	if c.MaxViolations < 0 || c.MaxViolations > 100_000 {
		return messagestore.NewInvalidError("max violations", fmt.Sprint(c.MaxViolations), "must be between 1 and 100000")
	}
	return nil
}

// categoryRule returns the rule that a category of any client breaks, or "".
func categoryRule(category string) string {
	switch {
	case category == "":
		return "must not be empty"
	case !utf8.ValidString(category) || strings.ContainsRune(category, 0):
		return "must be valid UTF-8 without U+0000"
	case strings.Contains(category, "-"):
		return "must be a category, without a dash, and is the name of a stream"
	}
	return ""
}

// Most returns MaxViolations or its default.
func (c *VerifyConfig) Most() int {
	if c == nil || c.MaxViolations == 0 {
		return 100
	}
	return c.MaxViolations
}
