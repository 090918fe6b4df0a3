package work

import (
	"context"
	"strings"

	"github.com/jackc/pgx/v5"

	"github.com/dibs-go/dibs/consumer"
	"github.com/dibs-go/dibs/messagestore"
	"github.com/dibs-go/dibs/soak/crew"
)

// The failpoints. A client passes each of them many times; see [crew.Death].
const (
	Send     crew.Point = "postgres/send"     // before a statement that writes, or a commit, is sent
	Sent     crew.Point = "postgres/sent"     // after its reply has been read
	Handle   crew.Point = "consumer/handle"   // before a handler is called
	Handled  crew.Point = "consumer/handled"  // after it has returned
	Record   crew.Point = "consumer/record"   // before a consumer writes its checkpoint
	Recorded crew.Point = "consumer/recorded" // after it has written its checkpoint
)

// Points returns the failpoints that a client passes.
func (r Role) Points() []crew.Point {
	switch r {
	case Reader:
		return nil // it writes nothing
	case Consumer, Handler:
		return []crew.Point{Send, Sent, Handle, Handled, Record, Recorded}
	}
	return []crew.Point{Send, Sent}
}

// A doomedTracer passes [Send] and [Sent] around each statement that writes.
type doomedTracer struct{ *crew.Doom }

type writesKey struct{}

// TraceQueryStart implements [pgx.QueryTracer].
func (d doomedTracer) TraceQueryStart(ctx context.Context, _ *pgx.Conn, data pgx.TraceQueryStartData) context.Context {
	if data.SQL != "commit" && !strings.Contains(data.SQL, ".append") {
		return ctx
	}
	d.Pass(Send)
	return context.WithValue(ctx, writesKey{}, true)
}

// TraceQueryEnd implements [pgx.QueryTracer].
func (d doomedTracer) TraceQueryEnd(ctx context.Context, _ *pgx.Conn, _ pgx.TraceQueryEndData) {
	if ctx.Value(writesKey{}) != nil {
		d.Pass(Sent)
	}
}

// A doomedHandler passes [Handle] and [Handled] around each call of a handler.
type doomedHandler struct {
	*crew.Doom
	next consumer.Handler
}

// Handle implements [consumer.Handler].
func (h doomedHandler) Handle(ctx context.Context, m *messagestore.Message) error {
	h.Pass(Handle)
	err := h.next.Handle(ctx, m)
	h.Pass(Handled)
	return err
}
