package sqlite

import (
	"context"
	"encoding/json"
	"fmt"
	"math"
	"strconv"
	"strings"
	"time"

	"github.com/dibs-go/dibs/internal/removal"
	"github.com/dibs-go/dibs/messagestore"
	"github.com/dibs-go/dibs/messagestore/retention"
)

// Forgets implements [messagestore.Driver]: see Forget.
func (*Driver) Forgets() bool { return true }

// maxForgotten is how many keys one transaction looks at, at most.
const maxForgotten = 5000

// A forgetRecord is the data of a message of type dibs:Forgotten.
type forgetRecord struct {
	Before         time.Time `json:"before"`
	Streams        int64     `json:"streams"`
	Messages       int64     `json:"messages"`
	KeyLifeSeconds int64     `json:"keyLifeSeconds"`
	Reason         string    `json:"reason,omitempty"`
}

// Forget removes the keys of a category that are older than age, with all their messages, like
// package messagestore/postgres/admin. The keys are the requests of an inbox, the items of a
// category that queues read, or the intents or reservations of a category whose first manager or
// reserver had a KeyLife. Forget leaves no tombstone, and the keys are free. The age is at least
// the KeyLife, and at least a day for an inbox and for items; a lower age, or any other category,
// is a [*messagestore.InvalidError].
//
// The key with the last message of its category stays. So do streams that were deleted or end with
// another message, streams with a message that a queue has not finished, or that a consumer of the
// items has yet to pass or has parked, and reservations that may still be needed: see package
// admin. Each transaction removes at most 10,000 messages, or one key with more, and writers wait
// meanwhile. It records itself by a message of type dibs:Forgotten, with numbers and no names; for
// payment:intent the stream is payment:intent+forgotten-1. If Forget returns an error, a part may
// be done; it is safe to call it again.
func (d *Driver) Forget(
	ctx context.Context, category messagestore.Category, age time.Duration, options *retention.ForgetOptions,
) (retention.Forgotten, error) {
	if options == nil {
		options = &retention.ForgetOptions{}
	}
	var forgotten retention.Forgotten
	err := options.Validate(category, age)
	for more, from := true, messagestore.GlobalPosition(0); more && err == nil; {
		var batch retention.Forgotten
		var next messagestore.GlobalPosition
		err = d.change(ctx, "forget keys", func(ctx context.Context, db queryer) (err error) {
			batch, next, more, err = forget(ctx, db, category, from, age, options)
			return err
		})
		if err != nil {
			break
		}
		from = next
		forgotten.Keys += batch.Keys
		forgotten.Messages += batch.Messages
		forgotten.Unhandled = batch.Unhandled
		if options.OnProgress != nil && batch.Messages > 0 && !options.DryRun {
			options.OnProgress(batch.Messages)
		}
	}
	if err != nil {
		return forgotten, fmt.Errorf("forget keys of %.80q: %w", string(category), err)
	}
	return forgotten, nil
}

// forget is one transaction of Forget. It returns where the next begins, if there is more to do.
func forget(
	ctx context.Context, db queryer, category messagestore.Category, from messagestore.GlobalPosition, age time.Duration, o *retention.ForgetOptions,
) (batch retention.Forgotten, next messagestore.GlobalPosition, more bool, err error) {
	needed, err := neededOf(ctx, db, category)
	if err != nil {
		return batch, from, false, err
	}
	life, err := keyLife(ctx, db, category, needed)
	switch {
	case err != nil:
		return batch, from, false, err
	case life == 0:
		return batch, from, false, removal.NoKeyLife(category)
	case age < life:
		return batch, from, false, removal.InsideKeyLife(age, life)
	}
	before := clock(nil).now()
	if batch.Unhandled = needed.unhandled; !needed.unhandled.IsZero() && needed.unhandled.Before(before) {
		before = needed.unhandled
	}
	before = before.Add(-age)
	found, err := query(ctx, db, forgettableSQL, string(category), int64(from), before.UnixMicro(), maxForgotten)
	if err != nil {
		return batch, from, false, err
	}
	next, more = from, len(found) == maxForgotten
	for _, last := range found {
		if !needed.ends(last) {
			next = last.GlobalPosition.Next()
			continue
		}
		first, _, _, err := endsOf(ctx, db, last.Stream)
		if err != nil {
			return batch, next, false, err
		}
		if open, err := needed.isOpen(ctx, db, last.Message, first); err != nil {
			return batch, next, false, err
		} else if open {
			next = last.GlobalPosition.Next()
			continue
		}
		messages := int64(last.Position-first) + 1
		if batch.Messages > 0 && batch.Messages+messages > maxRemoved {
			more = true
			break
		}
		batch.Keys++
		batch.Messages += messages
		next = last.GlobalPosition.Next()
		if o.DryRun {
			continue
		}
		if needed.queued {
			if _, err := db.ExecContext(ctx, queueForgetSQL, string(last.Stream), string(category)); err != nil {
				return batch, next, false, err
			}
		}
		for _, name := range []messagestore.StreamName{last.Stream, retentionStream(last.Stream)} {
			if _, err := removeBelow(ctx, db, name, math.MaxInt64); err != nil {
				return batch, next, false, err
			}
		}
	}
	if o.DryRun || batch.Keys == 0 {
		return batch, next, more, nil
	}
	data, err := json.Marshal(forgetRecord{before.UTC().Truncate(time.Microsecond), batch.Keys, batch.Messages, int64(life / time.Second), o.Reason})
	if err != nil {
		return batch, next, false, err
	}
	return batch, next, more, appendOwn(ctx, db, category.WithType("forgotten").Stream("1"), "dibs:Forgotten", data, nil)
}

// keyLife returns the least time for which the keys of a category live, 0 for ever. It ignores a
// life that was declared after the first key, or that cannot be read.
func keyLife(ctx context.Context, db queryer, category messagestore.Category, n needed) (time.Duration, error) {
	if n.inbox || n.items() {
		return removal.InboxKeyLife, nil
	}
	declared, err := query(ctx, db, streamSQL, string(removal.KeyLifeStream(category)), 0, 1)
	if err != nil || len(declared) == 0 {
		return 0, err
	}
	first, err := query(ctx, db, categorySQL, string(category), 0, 1)
	if err != nil {
		return 0, err
	}
	var key *messagestore.Message
	if len(first) > 0 {
		key = first[0].Message
	}
	life, err := removal.KeyLifeOf(declared[0].Message, key)
	if err != nil {
		return 0, nil //nolint:nilerr // as told above
	}
	return life, nil
}

// A needed knows which keys of a category may still be needed.
type needed struct {
	inbox, reserves, queued bool

	// For reservations and items:
	passed   messagestore.GlobalPosition // by the consumers of the copies, or of the items
	consumed bool                        // there is a consumer

	// For reservations:
	unhandled time.Time // when the first command was written that a consumer has yet to pass
}

// items reports whether the keys are only items.
func (n needed) items() bool { return n.queued && !n.inbox && !n.reserves }

func neededOf(ctx context.Context, db queryer, category messagestore.Category) (n needed, err error) {
	commands, reserves := removal.CommandsOf(category)
	n.inbox, n.reserves = removal.IsInbox(category), reserves
	if n.queued, err = hasQueue(ctx, db, category); err != nil {
		return n, err
	}
	if n.queued || reserves {
		if n.passed, n.consumed, err = passed(ctx, db, category); err != nil {
			return n, err
		}
	}
	if n.items() || !reserves {
		return n, nil
	}
	if read, any, err := passed(ctx, db, commands); err != nil {
		return n, err
	} else if any {
		first, err := query(ctx, db, categorySQL, string(commands), int64(read), 1)
		if err != nil {
			return n, err
		}
		if len(first) > 0 {
			n.unhandled = first[0].Time
		}
	}
	return n, nil
}

// isOpen reports whether any queue, also one of parked messages, has not finished a message of the
// key's stream or of the stream of a reservation's command.
func (n needed) isOpen(ctx context.Context, db queryer, last *messagestore.Message, first messagestore.Version) (bool, error) {
	if !n.queued && !n.reserves {
		return false, nil
	}
	_, queue, err := openItem(ctx, db, last.Stream, first, last.Position+1, false)
	if err == nil && queue == "" && n.reserves {
		_, queue, err = openItem(ctx, db, last.Metadata.CausationStream, 0, math.MaxInt64, false)
	}
	return queue != "", err
}

// ends reports whether the key may be removed, judging by last, the last message of its stream.
func (n needed) ends(last message) bool {
	switch {
	case n.inbox:
		return last.Type == "Received" || last.Type == "Undone"
	case n.items():
		return !strings.HasPrefix(last.Type, "dibs:") && (!n.consumed || last.GlobalPosition < n.passed)
	case !n.reserves:
		return last.Type == "Confirmed"
	case last.Position != 0 || last.IsTombstone():
		return false
	}
	kept := reservationOf(last.metadata)
	return kept != nil && (string(kept["reservedHandled"]) != "false" || last.GlobalPosition < n.passed)
}

// passed returns the lowest global position from which any consumer of a category has yet to read,
// and whether the category has consumers. A checkpoint that cannot be read counts as 0. A consumer
// does not count if its ledger was deleted.
func passed(ctx context.Context, db queryer, category messagestore.Category) (lowest messagestore.GlobalPosition, any bool, err error) {
	lasts, err := query(ctx, db, lastsSQL, string(category.WithType("position")))
	if err != nil {
		return 0, false, err
	}
	checkpoints := map[messagestore.StreamName]message{}
	for _, m := range lasts {
		checkpoints[m.Stream] = m
	}
	lower := func(at messagestore.GlobalPosition) {
		if !any || at < lowest {
			lowest, any = at, true
		}
	}
	for _, m := range lasts {
		if strings.Contains(m.Stream.ID(), "+") {
			continue // checkpoints
		}
		var ledger struct {
			Start    messagestore.GlobalPosition `json:"start"`
			Of       *messagestore.Version       `json:"of"`
			Position messagestore.GlobalPosition `json:"position"` // of the last message that another client handled
		}
		switch wrong := json.Unmarshal(m.Data, &ledger); {
		case m.Type != "Started" && m.Type != removal.CheckpointType: // a tombstone, or another client's
			continue
		case wrong != nil:
			lower(0)
			continue
		case m.Type == removal.CheckpointType:
			lower(ledger.Position.Next())
			continue
		}
		generation, at := m.Position, ledger.Start
		if ledger.Of != nil {
			generation = *ledger.Of
		}
		if checkpoint, ok := checkpoints[m.Stream.With(strconv.FormatInt(int64(generation), 10))]; ok {
			var body struct {
				Position messagestore.GlobalPosition `json:"position"`
			}
			if checkpoint.Type == removal.CheckpointType {
				_ = json.Unmarshal(checkpoint.Data, &body) // 0 if it cannot be read
			}
			at = body.Position
		}
		lower(at)
	}
	return lowest, any, nil
}
