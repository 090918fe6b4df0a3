package reservation

import (
	"cmp"
	"context"

	"github.com/dibs-go/dibs/handler"
	"github.com/dibs-go/dibs/messagestore"
)

// Copy returns a function that handles each key's command once, with next.
//
// A command is copied to the stream of its key: "account:command-123" with AAA gives
// "account:command-123+AAA". When the copy arrives, next is called with it. A command
// that comes second is a duplicate and that was all; one with other content is a
// [*KeyReusedError]. Commands are compared by [Contenter], or whole.
//
// The copy is delivered at least once, as every message is; see the package comment
// for what next has to do about that.
//
// Two consumers of one category that both reserve need names: see [Config.Name].
// Without, a consumer that uses Copy stops with an [*OtherConsumerError] at a command
// that an [Inline] of another one was first with. The copies of reservers with other
// names are passed over.
//
// With [Config.Category], the copies arrive at the second consumer, of that category:
// see [NewPair].
func Copy[T messagestore.Body](r *Reserver, key func(T) string, next handler.Func[T]) handler.Func[T] {
	if r == nil || key == nil || next == nil {
		return nil // the mux refuses it
	}
	return func(ctx context.Context, m handler.Message[T]) error {
		if r.passesOver(m.Message) {
			return nil
		}
		if r.isCopy(m.Message) {
			if isHandled(m.Message) { // by Inline, before this took its place
				return r.elsewhere(ctx, m.Message)
			}
			return next(ctx, m)
		}
		result, err := r.reserve(ctx, m.Message, key(m.Body), digestOf[T])
		if err != nil {
			return err
		}
		return cmp.Or(result.err(), r.elsewhere(ctx, result.Winner))
	}
}
