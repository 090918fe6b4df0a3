package work

import (
	"context"
	"fmt"
	"os"
	"strings"
	"sync/atomic"

	"github.com/jackc/pgx/v5"

	"github.com/dibs-go/dibs/consumer"
	"github.com/dibs-go/dibs/messagestore"
)

// A Point is a moment of a call at which a client can be told to die.
type Point string

// The failpoints. A client passes each of them many times; see [Death].
const (
	Send     Point = "postgres/send"     // before a statement that writes, or a commit, is sent
	Sent     Point = "postgres/sent"     // after its reply has been read
	Handle   Point = "consumer/handle"   // before a handler is called
	Handled  Point = "consumer/handled"  // after it has returned
	Record   Point = "consumer/record"   // before a consumer writes its checkpoint
	Recorded Point = "consumer/recorded" // after it has written its checkpoint
)

// Points returns the failpoints that a client passes.
func (r Role) Points() []Point {
	switch r {
	case Reader:
		return nil // it writes nothing
	case Consumer, Handler:
		return []Point{Send, Sent, Handle, Handled, Record, Recorded}
	}
	return []Point{Send, Sent}
}

// A Death is a SIGKILL that a client sends to itself, when it passes Point for the Turn-th time.
type Death struct {
	Point Point
	Turn  int64
}

// KilledAt begins the line that a client writes to standard error before it dies, and the point ends it.
const KilledAt = "failpoint: killed at "

// A Doom kills this process at the moment that its [Death] names. It is safe for concurrent use.
type Doom struct {
	Death
	passed atomic.Int64
	lifted atomic.Bool
}

// Lift lets the process live.
func (d *Doom) Lift() { d.lifted.Store(true) }

// due reports whether the moment of the death is now.
func (d *Doom) due(p Point) bool {
	return p == d.Point && d.passed.Add(1) == d.Turn && !d.lifted.Load()
}

// Pass dies if this is the moment.
func (d *Doom) Pass(p Point) {
	if !d.due(p) {
		return
	}
	fmt.Fprintln(os.Stderr, KilledAt+string(p))
	self, err := os.FindProcess(os.Getpid())
	if err == nil {
		err = self.Kill()
	}
	if err != nil {
		panic(err)
	}
	select {} // until the signal is here
}

// A doomedTracer passes [Send] and [Sent] around each statement that writes.
type doomedTracer struct{ *Doom }

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
	*Doom
	next consumer.Handler
}

// Handle implements [consumer.Handler].
func (h doomedHandler) Handle(ctx context.Context, m *messagestore.Message) error {
	h.Pass(Handle)
	err := h.next.Handle(ctx, m)
	h.Pass(Handled)
	return err
}
