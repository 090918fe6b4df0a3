package keys

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"

	"github.com/dibs-go/dibs/internal/exactjson"
	"github.com/dibs-go/dibs/messagestore"
)

// ErrTaken is returned by [Key.Begin] if there is nothing to do: it ends the transaction, and
// [Key.Met] returns the result.
var ErrTaken = errors.New("the key is taken")

// A Key is a key to take or to give back, with results of type R. Its methods do not change it,
// because a transaction may be tried several times.
type Key[R any] interface {
	// Stream returns the stream of the key.
	Stream() messagestore.StreamName

	// Begin returns how the attempt starts on a stream that begins with first, which is nil for a
	// free key.
	Begin(ctx context.Context, first *messagestore.Message) (Start, error)

	// Compose returns all writes of the attempt. The first of them is to the stream of the key.
	Compose(start Start, answer json.RawMessage, writes []messagestore.StreamWrite) ([]messagestore.StreamWrite, error)

	// Won returns the result of an attempt that was committed.
	Won(ctx context.Context, a Attempt) R

	// Met returns the result for a stream that begins with first. Without an error, decided is
	// false if the stream does not decide it.
	Met(ctx context.Context, first *messagestore.Message) (result R, decided bool, err error)
}

// A Start says how an attempt starts.
type Start struct {
	Calls   bool                 // the caller's function is called
	Version messagestore.Version // expected of the stream of the key
}

// Free is the Begin of a key that the first message of its stream takes.
func Free(first *messagestore.Message) (Start, error) {
	if first != nil {
		return Start{}, ErrTaken
	}
	return Start{Calls: true, Version: messagestore.NoStream}, nil
}

// An Attempt is one run of a transaction. Each run has a new Attempt.
type Attempt struct {
	First   *messagestore.Message      // the first message of the key's stream, or nil
	Answer  json.RawMessage            // nil if there is no answer
	Writes  []messagestore.StreamWrite // all writes of the transaction, the key's first
	Written messagestore.Written       // the committed write of the key
}

// Transact calls f in a transaction and commits it with the message of the key, if the key asks for
// that. After an error it still reads the key's stream to find the result: another transaction may
// have been first while this one failed.
func Transact[Tx, R any](
	ctx context.Context, txs *messagestore.TxStore[Tx], key Key[R], f func(ctx context.Context, tx Tx) ([]messagestore.StreamWrite, error),
) (R, error) {
	var none R
	var last Attempt
	written, err := txs.TransactFrom(ctx, key.Stream(), func(ctx context.Context, tx Tx, first *messagestore.Message) ([]messagestore.StreamWrite, error) {
		last = Attempt{First: first}
		a, err := try(ctx, tx, key, first, f)
		if err != nil {
			return nil, err
		}
		last = a
		return a.Writes, nil
	})
	if err == nil && !written[0].Duplicate {
		last.Written = written[0]
		return key.Won(ctx, last), nil
	}
	first := last.First
	if first == nil {
		for m, readErr := range txs.ReadStream(ctx, key.Stream(), 0) {
			if readErr == nil {
				first = m
			}
			break
		}
	}
	if first == nil {
		return none, err
	}
	result, decided, metErr := key.Met(ctx, first)
	switch {
	case metErr != nil && errors.Is(err, messagestore.ErrOutcomeUnknown):
		return none, errors.Join(err, metErr)
	case metErr != nil:
		return none, metErr
	case !decided:
		return none, err
	}
	return result, nil
}

// try returns the attempt of one transaction.
func try[Tx, R any](
	ctx context.Context, tx Tx, key Key[R], first *messagestore.Message, f func(ctx context.Context, tx Tx) ([]messagestore.StreamWrite, error),
) (Attempt, error) {
	start, err := key.Begin(ctx, first)
	if err != nil {
		return Attempt{}, err
	}
	var writes []messagestore.StreamWrite
	if start.Calls {
		if writes, err = f(ctx, tx); err != nil {
			return Attempt{}, err
		}
	}
	answer, writes, err := Split(writes)
	if err != nil {
		return Attempt{}, err
	}
	all, err := key.Compose(start, answer, writes)
	return Attempt{First: first, Answer: answer, Writes: all}, err
}

// Answer returns a value for the writes of a function. It writes no message.
func Answer(v any) messagestore.StreamWrite {
	return messagestore.StreamWrite{Bodies: []messagestore.Body{answerBody{v}}}
}

// An answerBody is the only body of a write that [Answer] returned.
type answerBody struct{ value any }

// MessageType returns a type that is never written.
func (answerBody) MessageType() string { return "answer" }

// Split returns the [Answer] among the writes of a function as JSON, or nil, and the other writes.
func Split(writes []messagestore.StreamWrite) (answer json.RawMessage, rest []messagestore.StreamWrite, err error) {
	for _, w := range writes {
		if w.Stream != "" || len(w.Bodies) != 1 {
			rest = append(rest, w)
			continue
		}
		a, ok := w.Bodies[0].(answerBody)
		switch {
		case !ok:
			rest = append(rest, w)
			continue
		case answer != nil:
			return nil, nil, messagestore.NewInvalidError("answer", nil, "must be the only one")
		}
		if answer, err = exactjson.Marshal(a.value); err != nil {
			return nil, nil, messagestore.NewInvalidError("answer", nil, fmt.Sprintf("must encode as JSON: %v", err))
		}
	}
	return answer, rest, nil
}
