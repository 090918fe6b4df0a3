// Package removal has the rules of trims, deletions and forgotten keys that the drivers, their
// options and the command share. A category may declare a minimum life for its keys: see [KeyLife].
package removal

import (
	"fmt"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/dibs-go/dibs/internal/text"
	"github.com/dibs-go/dibs/messagestore"
)

// CheckpointType is the type of a consumer's messages that are trimmed as checkpoints. No other
// type is.
const CheckpointType = "Recorded"

// NotCheckpoints is the error for a stream with a message of another type among the checkpoints to
// remove.
func NotCheckpoints(stream messagestore.StreamName) error {
	return messagestore.NewInvalidError("stream", string(stream), "must have only checkpoints")
}

// TombstoneType is the message type of a [Tombstone].
const TombstoneType = text.OwnTypes + "Tombstone"

// A Tombstone is the body of the only message left in a deleted stream: see
// [messagestore.Message.IsTombstone].
type Tombstone struct {
	Messages   int64                `json:"messages"`         // how many there were
	UpTo       messagestore.Version `json:"upTo"`             // the position of the last of them
	NameErased bool                 `json:"nameErased"`       // the stream's name is gone too
	By         string               `json:"by"`               // the database user
	Reason     string               `json:"reason,omitempty"` // in the user's words
}

// MessageType returns [TombstoneType].
func (Tombstone) MessageType() string { return TombstoneType }

// DefaultMinAge is the least age of a message that a trim removes, unless its options say
// otherwise.
const DefaultMinAge = 15 * time.Minute

// InboxKeyLife is the least age of an inbox request that may be forgotten.
const InboxKeyLife = 24 * time.Hour

// NoKeyLife is the error for a category with keys that stay for ever.
func NoKeyLife(category messagestore.Category) error {
	return messagestore.NewInvalidError("category", string(category), "must be an inbox, be read by a queue, or have had a KeyLife declared before its first key: the keys of others stay for ever")
}

// InsideKeyLife is the error for an age that is less than the life of keys.
func InsideKeyLife(age, life time.Duration) error {
	return messagestore.NewInvalidError("age", age, fmt.Sprintf("must be at least %v, the life of the keys: a request with a forgotten key is carried out again", life))
}

// CommandsOf returns the category of the commands for which a reserver reserves keys in category:
// account:command for account:command+reservation+accounts. It returns false if category does not
// belong to a reserver.
func CommandsOf(category messagestore.Category) (commands messagestore.Category, ok bool) {
	name := string(category)
	last := strings.LastIndexAny(name, ":+")
	if last < 0 || last == len(name)-1 {
		return "", false
	}
	for _, mark := range []string{":reservation", "+reservation"} {
		if commands, ok := strings.CutSuffix(name[:last], mark); ok && commands != "" && name[last] == '+' {
			return messagestore.Category(commands), true
		}
	}
	return "", false
}

// IsInbox reports whether category is an inbox, such as payments:inbox.
func IsInbox(category messagestore.Category) bool {
	types := category.Types()
	_, reserves := CommandsOf(category)
	return !reserves && len(types) > 0 && types[len(types)-1] == "inbox"
}

const maxReasonBytes = 255

// CheckName refuses an impossible stream name. It accepts names that other clients may have
// written and that [messagestore.StreamName.Validate] refuses.
func CheckName(stream messagestore.StreamName) error {
	var rule string
	switch {
	case stream == "":
		rule = "must not be empty"
	case strings.HasPrefix(string(stream), "-"):
		rule = "the category must not be empty"
	case !utf8.ValidString(string(stream)) || strings.ContainsRune(string(stream), 0):
		rule = "must be valid UTF-8 without U+0000"
	default:
		return nil
	}
	return messagestore.NewInvalidError("stream name", string(stream), rule)
}

// CheckReason refuses a reason that cannot be recorded.
func CheckReason(reason string) error {
	if reason != "" && text.TypeRule("x"+reason+"x") != "" || len(reason) > maxReasonBytes ||
		strings.TrimSpace(reason) != reason {
		return messagestore.NewInvalidError("reason", reason, "must be at most 255 bytes of visible text, without white space at either end")
	}
	return nil
}
