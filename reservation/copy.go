package reservation

import (
	"context"
	"errors"

	"github.com/dibs-go/dibs/handler"
	"github.com/dibs-go/dibs/messagestore"
)

// Copy returns a function that handles each key's command once, with next.
//
// A command is copied to the stream of its key: a reserver named "accounts" copies a
// command with key AAA in "account:command-123" to "account:command-123+accounts+AAA".
// When the copy arrives, next is called with it. A second command with the same key is a
// duplicate and needs no handling; one with other content is a [*KeyReusedError].
// Commands are compared by [Contenter], or whole.
//
// The copy is delivered at least once, as every message is; the package comment says how
// next makes its effect repeatable.
//
// The copies of reservers with other names are passed over. With [Config.Category], the
// copies arrive at the consumer of that category, which has the same mux.
func Copy[T messagestore.Body](r *Reserver, key func(T) string, next handler.Func[T]) handler.Func[T] {
	if err := missing("Copy", r, key == nil, "function", next == nil); err != nil {
		return handler.Invalid[T](err) // a mistake that the mux reports
	}
	return handler.Checked(func(ctx context.Context, m handler.Message[T]) error {
		if err := r.serves(ctx, m.Message); err != nil || r.passesOver(m.Message) {
			return err
		}
		if r.isCopy(m.Message) {
			if isHandled(m.Message) { // by Inline, before Copy took its place
				return r.ofOther(ctx, m.Message)
			}
			return next(ctx, m)
		}
		result, err := r.reserve(ctx, m.Message, key(m.Body), digestOf(m))
		if err != nil {
			return err
		}
		r.readBy(ctx)
		return result.Err()
	}, r.Check)
}

// missing returns which argument of a function that makes handlers is nil or wrong, or nil.
func missing(name string, r *Reserver, noKey bool, function string, noFunction bool) error {
	var wrong []error
	add := func(field string) { wrong = append(wrong, messagestore.NewInvalidError(field, nil, "it is nil")) }
	if r == nil {
		add(name + "'s reserver")
	} else if r.wrong != nil {
		wrong = append(wrong, r.wrong)
	}
	if noKey {
		add(name + "'s key")
	}
	if noFunction {
		add(name + "'s " + function)
	}
	return errors.Join(wrong...)
}
