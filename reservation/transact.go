package reservation

import (
	"context"
	"encoding/json"
	"errors"

	"github.com/dibs-go/dibs/handler"
	"github.com/dibs-go/dibs/internal/calling"
	"github.com/dibs-go/dibs/internal/keys"
	"github.com/dibs-go/dibs/messagestore"
)

// ErrStale says that a row has changed since it was read. If a function of [Transact] or package
// inbox returns it, the transaction is rolled back, and the function is called again in a new one,
// up to five times. ErrStale may be wrapped.
var ErrStale error = &calling.RetryableError{Cause: errors.New("a row has changed since it was read")}

// Transact returns a handler that handles each key's command once, by calling f in a transaction of
// the store txs. The reservation, the SQL of f and the writes that f returns are committed
// together, or not at all. The reserver must be over the same store. The writes may include an
// [Answer]. The reservation is the same as that made by [Inline]: a handler may change from one to
// the other.
//
// f is not called if the key is taken. An error of f rolls back and is returned, unless another
// command has taken the key by then. If the key was reused, the error is a [*KeyReusedError]. f may
// be called more than once, each time in a new transaction, because another stream or a row may
// have changed. So effects of f outside of tx may happen more than once.
func Transact[Tx any, T messagestore.Body](
	txs *messagestore.TxStore[Tx], r *Reserver, key func(T) string,
	f func(ctx context.Context, tx Tx, m handler.Message[T]) ([]messagestore.StreamWrite, error),
) handler.Handler[T] {
	err := missing("Transact", r, key == nil, "function", f == nil)
	switch {
	case txs == nil || txs.Store == nil:
		err = errors.Join(messagestore.NewInvalidError("Transact's store", nil, "must not be nil"), err)
	case r != nil && r.store != nil && r.store != Store(txs.Store) && r.store != Store(txs):
		err = errors.Join(err, messagestore.NewInvalidError("Transact's reserver", nil, "must be over the same store as the transactions"))
	}
	return handler.NewHandler(func(ctx context.Context, m handler.Message[T]) error {
		c, todo, err := claimOf(ctx, r, m, key)
		if !todo || err != nil {
			return err
		}
		result, err := keys.Transact(ctx, txs, transacted{r, c}, func(ctx context.Context, tx Tx) ([]messagestore.StreamWrite, error) {
			return f(ctx, tx, m)
		})
		if err != nil {
			return err
		}
		return result.Err()
	}, r.check, err)
}

// transacted is the keys.Key of a claim.
type transacted struct {
	reserver *Reserver
	claim    claim
}

var _ keys.Key[Result] = transacted{}

func (t transacted) Stream() messagestore.StreamName { return t.claim.stream }

func (t transacted) Begin(_ context.Context, first *messagestore.Message) (keys.Start, error) {
	return keys.Free(first)
}

func (t transacted) Compose(_ keys.Start, answer json.RawMessage, writes []messagestore.StreamWrite) ([]messagestore.StreamWrite, error) {
	return append([]messagestore.StreamWrite{t.claim.with(answer, writes).write()}, writes...), nil
}

func (t transacted) Won(ctx context.Context, a keys.Attempt) Result {
	return t.reserver.won(ctx, t.claim.with(a.Answer, a.Writes[1:]), a.Written)
}

func (t transacted) Met(ctx context.Context, first *messagestore.Message) (Result, bool, error) {
	result, err := t.reserver.compare(ctx, t.claim, first)
	return result, err == nil, err
}
