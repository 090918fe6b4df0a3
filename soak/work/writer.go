package work

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/dibs-go/dibs/internal/testkit"
	"github.com/dibs-go/dibs/messagestore"
	"github.com/dibs-go/dibs/messagestore/postgres"
	"github.com/dibs-go/dibs/soak/history"
)

// How long a write may take. Some have hardly any time, so that their outcome is unknown
// when they meet a fault, and the others enough to go through one.
const (
	Patience      = 4 * time.Second
	shortPatience = 400 * time.Millisecond
	resolveWithin = 15 * time.Second
	askAgain      = 300 * time.Millisecond
	holdBack      = 100 * time.Millisecond
)

// A caller is one goroutine of a writer. It has one user.
type caller struct {
	*client
	random  *rand.Rand
	zipf    *rand.Zipf
	content content

	versions map[messagestore.StreamName]messagestore.Version // as far as this caller knows
	fresh    uint64                                           // streams that no other writer writes to
	recent   []messagestore.StreamWrite                       // that were written
	keys     []command
}

// A command was sent under a key, and may be sent again.
type command struct {
	category messagestore.Category
	stream   messagestore.StreamName
	body     messagestore.Raw
}

// write writes until ctx is done, by several callers at once that share a driver, while another
// resolves the outcomes that the process before it left unknown.
func (c *client) write(ctx context.Context) error {
	errs := make([]error, c.task.Load.Goroutines)
	var inherited error
	var all sync.WaitGroup
	all.Go(func() { c.keepPace(ctx) })
	all.Go(func() { inherited = c.newCaller(len(errs)).inherit() })
	for i := range errs {
		all.Go(func() { errs[i] = c.newCaller(i).loop(ctx) })
	}
	all.Wait()
	return errors.Join(append(errs, inherited)...)
}

func (c *client) newCaller(i int) *caller {
	random := rand.New(rand.NewPCG(c.task.Seed, uint64(i)))
	own, store := *c, *c.store
	store.failed = &atomic.Bool{} // a caller waits after its own failure
	own.store = &store
	return &caller{
		client: &own, random: random,
		zipf:     rand.NewZipf(random, c.task.Load.Skew, 1, uint64(c.task.Load.Streams-1)),
		content:  content{random: random, prefix: c.task.number()<<40 | uint64(i)<<32, max: c.task.Load.MaxBytes},
		versions: map[messagestore.StreamName]messagestore.Version{},
	}
}

func (w *caller) loop(ctx context.Context) error {
	for ctx.Err() == nil {
		if err := w.next(); err != nil {
			return err
		}
		w.pause(ctx)
	}
	return nil
}

// pause waits between two calls, and after a failed call until the store answers. If consumers lag
// far behind, it pauses longer, and mostly asks or is late: a long lag tests nothing, and they have
// to catch up in the end.
func (w *caller) pause(ctx context.Context) {
	most := time.Duration(2*w.task.Load.Pause+1) * time.Millisecond
	switch {
	case w.store.failed.Swap(false):
		if w.gate != nil {
			w.gate.wait(ctx, time.Now())
		}
	case w.behind.Load():
		most = holdBack
	}
	pause := time.NewTimer(time.Duration(w.random.Int64N(int64(most))))
	defer pause.Stop()
	select {
	case <-pause.C:
	case <-ctx.Done():
	}
}

// next makes one call. An error is an error of the harness, and ends the process.
func (w *caller) next() error {
	most := Patience
	if w.random.IntN(5) == 0 {
		most = time.Millisecond + time.Duration(w.random.Int64N(int64(shortPatience)))
	}
	ctx, cancel := context.WithTimeout(context.Background(), most)
	defer cancel()
	if w.behind.Load() && w.random.IntN(3) > 0 {
		if w.random.IntN(2) == 0 {
			return w.writeLate(ctx)
		}
		return w.asks(ctx)
	}
	mix := &w.task.Load.Mix
	kinds := []struct {
		part int
		call func(context.Context) error
	}{
		{mix.Ask, w.asks},
		{mix.Read, w.reads},
		{mix.Send, w.send},
		{mix.Repeat, w.repeat},
		{mix.ReuseID, w.reuseID},
		{mix.Streams, w.writeStreams},
		{mix.Tx, w.writeInTransaction},
		{mix.Write, w.writeOne},
	}
	total := 0
	for _, k := range kinds {
		total += k.part
	}
	n := w.random.IntN(total)
	for _, k := range kinds {
		if n -= k.part; n < 0 {
			return k.call(ctx)
		}
	}
	panic("the parts are more than their sum")
}

func (w *caller) asks(ctx context.Context) error {
	w.ask(ctx, w.stream())
	return nil
}

func (w *caller) reads(ctx context.Context) error {
	w.read(ctx)
	return nil
}

func (w *caller) stream() messagestore.StreamName {
	category := Events(w.random.IntN(w.task.Load.Categories))
	return name(category, w.zipf.Uint64())
}

// freshStream returns an empty stream.
func (w *caller) freshStream() messagestore.StreamName {
	return w.freshIn(w.random.IntN(w.task.Load.Categories))
}

func (w *caller) freshIn(category int) messagestore.StreamName {
	w.fresh++
	return Events(category).Stream("fresh").With(strconv.FormatUint(w.content.prefix|w.fresh, 10))
}

// some chooses a stream, an expected version and messages: 30 in 90 at the version that
// this caller knows of, 20 at none, 40 at any, and of all 10 in 100 a batch.
func (w *caller) some(stream messagestore.StreamName) messagestore.StreamWrite {
	write := messagestore.StreamWrite{Stream: stream, Expected: messagestore.AnyVersion}
	switch n := w.random.IntN(90); {
	case n < 30:
		version, known := w.versions[stream]
		if !known {
			version = messagestore.NoStream
		}
		write.Expected = version
	case n < 50:
		write.Expected = messagestore.NoStream
		if w.random.IntN(2) == 0 {
			write.Stream = w.freshStream()
		}
	}
	count := 1
	if w.random.IntN(10) == 0 {
		count += w.random.IntN(50)
	}
	for range count {
		m := messagestore.Envelope{ID: newID(), Body: w.content.body()}
		if w.random.IntN(8) == 0 {
			m.Metadata.Properties = messagestore.Properties{"trace": "a-" + strconv.Itoa(count), "n": count}
		}
		write.Bodies = append(write.Bodies, m)
	}
	return w.bounded(write)
}

// bounded drops the messages that are too many for one write.
func (w *caller) bounded(write messagestore.StreamWrite) messagestore.StreamWrite {
	bytes := 0
	for i, body := range write.Bodies {
		bytes += len(body.(messagestore.Envelope).Body.(messagestore.Raw).Data) //nolint:errcheck // it was made so
		if bytes > 4<<20 {
			write.Bodies = write.Bodies[:max(i, 1)]
			break
		}
	}
	return write
}

func (w *caller) writeOne(ctx context.Context) error {
	write := w.some(w.stream())
	written, err := w.store.Write(ctx, write.Stream, write.Expected, write.Bodies...)
	return w.after([]messagestore.StreamWrite{write}, []messagestore.Written{written}, err)
}

// writeLate writes where another writer nearly always was before, which adds nothing.
func (w *caller) writeLate(ctx context.Context) error {
	body := messagestore.Envelope{ID: newID(), Body: w.content.body()}
	write := messagestore.StreamWrite{Stream: w.stream(), Expected: messagestore.NoStream, Bodies: []messagestore.Body{body}}
	written, err := w.store.Write(ctx, write.Stream, write.Expected, write.Bodies...)
	return w.after([]messagestore.StreamWrite{write}, []messagestore.Written{written}, err)
}

func (w *caller) writeStreams(ctx context.Context) error {
	var writes []messagestore.StreamWrite
	for range 2 + w.random.IntN(3) {
		write := w.some(w.stream())
		if !slices.ContainsFunc(writes, func(other messagestore.StreamWrite) bool { return other.Stream == write.Stream }) {
			writes = append(writes, write)
		}
	}
	written, err := w.store.WriteStreams(ctx, writes...)
	return w.after(writes, written, err)
}

// after learns from the reply to a write, and resolves a write without one.
func (w *caller) after(writes []messagestore.StreamWrite, written []messagestore.Written, err error) error {
	if err == nil {
		for i := range writes {
			w.versions[writes[i].Stream] = written[i].Version
		}
		w.remember(writes)
		return nil
	}
	if conflict, ok := errors.AsType[*messagestore.VersionConflictError](err); ok {
		w.versions[conflict.Stream] = conflict.Actual
	}
	if u, ok := errors.AsType[*unknown](err); ok {
		return w.resolve(u, writes)
	}
	return nil
}

// remember keeps a few writes to be repeated.
func (w *caller) remember(writes []messagestore.StreamWrite) {
	if len(writes) > 1 || len(writes[0].Bodies) > 5 {
		return
	}
	if len(w.recent) < 32 {
		w.recent = append(w.recent, writes[0])
		return
	}
	w.recent[w.random.IntN(len(w.recent))] = writes[0]
}

// resolve asks until the outcome of a write is known, or the harness has lost patience.
func (w *caller) resolve(u *unknown, writes []messagestore.StreamWrite) error {
	ask := func(ctx context.Context) ([]messagestore.Written, error) { return w.store.Resolve(ctx, u.err) }
	return w.resolveBy(w.store.question(u.op, writes), ask)
}

func (w *caller) resolveBy(question *history.Event, ask func(context.Context) ([]messagestore.Written, error)) error {
	for deadline := time.Now().Add(10 * resolveWithin); time.Now().Before(deadline); {
		asked := w.history.begin(question)
		ctx, cancel := context.WithTimeout(context.Background(), resolveWithin)
		written, err := ask(ctx)
		cancel()
		end, answer := &history.Event{}, history.Written
		switch {
		case err == nil:
			end.Appends = appends(written)
			for i := range written {
				w.versions[written[i].Stream] = written[i].Version
			}
		case errors.Is(err, messagestore.ErrNotWritten):
			answer = history.NotWritten
		case errors.Is(err, messagestore.ErrIDConflict):
			answer = history.IDConflict
		default:
			end.Note, answer = shorten(err.Error()), history.Unknown
		}
		w.history.end(asked, answer, end)
		if answer != history.Unknown {
			return nil
		}
		if w.gate != nil {
			w.gate.wait(context.Background(), time.Now())
		}
		<-time.After(time.Duration(w.random.Int64N(int64(askAgain))))
	}
	return fmt.Errorf("%s could not be resolved for %s", question.Ref, 10*resolveWithin)
}

// repeat writes the same messages again, under the same ids.
func (w *caller) repeat(ctx context.Context) error {
	if len(w.recent) == 0 {
		return nil
	}
	write := w.recent[w.random.IntN(len(w.recent))]
	if w.random.IntN(2) == 0 {
		write.Expected = messagestore.AnyVersion
	}
	_, err := w.store.Write(ctx, write.Stream, write.Expected, write.Bodies...)
	if u, ok := errors.AsType[*unknown](err); ok {
		return w.resolve(u, []messagestore.StreamWrite{write})
	}
	return nil
}

// reuseID writes something else under an id that is taken.
func (w *caller) reuseID(ctx context.Context) error {
	if len(w.recent) == 0 {
		return nil
	}
	write := w.recent[w.random.IntN(len(w.recent))]
	first := write.Bodies[0].(messagestore.Envelope) //nolint:errcheck // it was made so
	other := messagestore.Envelope{ID: first.ID, Body: w.content.body()}
	write.Bodies, write.Expected = []messagestore.Body{other}, messagestore.AnyVersion
	_, err := w.store.Write(ctx, write.Stream, write.Expected, write.Bodies...)
	if u, ok := errors.AsType[*unknown](err); ok {
		return w.resolve(u, []messagestore.StreamWrite{write})
	}
	return nil
}

func (w *caller) ask(ctx context.Context, stream messagestore.StreamName) {
	if version, err := w.store.Version(ctx, stream); err == nil {
		w.versions[stream] = version
	}
}

// read reads the end of a stream, and asks where that is if it does not know.
func (w *caller) read(ctx context.Context) {
	stream := w.stream()
	version, known := w.versions[stream]
	if !known {
		w.ask(ctx, stream)
		return
	}
	from := max(0, version-10)
	call := w.history.begin(&history.Event{Call: history.Read, Appends: []history.Append{{Stream: stream, Expected: from}}})
	seen := history.Append{Stream: stream}
	for m, err := range w.store.ReadStream(ctx, stream, from) {
		var known history.Message
		if err == nil {
			known, err = recordedOf(m)
		}
		if err != nil {
			w.store.failed.Store(true)
			w.history.end(call, history.Failed, &history.Event{Note: shorten(err.Error())})
			return
		}
		seen.Messages = append(seen.Messages, known)
	}
	w.history.end(call, history.OK, &history.Event{Appends: []history.Append{seen}})
}

// send sends a command under an idempotence key: a new command, or an earlier command, unchanged
// or, seldom, with other content.
func (w *caller) send(ctx context.Context) error {
	var sent command
	switch n := w.random.IntN(100); {
	case len(w.keys) > 0 && n < 60:
		sent = w.keys[w.random.IntN(len(w.keys))]
	case len(w.keys) > 0 && n < 66:
		sent = w.keys[w.random.IntN(len(w.keys))]
		key, err := keyOf(sent.body.Data)
		if err != nil {
			return err
		}
		sent.body = newCommand(w.content.value(), key, w.random.IntN(1000))
	default:
		sent = w.newKey()
	}
	write := messagestore.StreamWrite{Stream: sent.stream, Expected: messagestore.AnyVersion, Bodies: []messagestore.Body{messagestore.Envelope{ID: newID(), Body: sent.body}}}
	_, err := w.store.Write(ctx, write.Stream, write.Expected, write.Bodies...)
	if u, ok := errors.AsType[*unknown](err); ok {
		return w.resolve(u, []messagestore.StreamWrite{write})
	}
	return nil
}

func (w *caller) newKey() command {
	value := w.content.value()
	c := command{category: Orders}
	if w.random.IntN(2) == 0 {
		c.category = Payments
	}
	key := strconv.FormatUint(value, 36)
	if w.random.IntN(10) == 0 {
		key += "+-: é'%s" // a key is any text
	}
	c.stream = c.category.Stream(strconv.Itoa(w.random.IntN(50)))
	c.body = newCommand(value, key, w.random.IntN(1000))
	w.keys = append(w.keys, c)
	if len(w.keys) > 20 {
		w.keys = slices.Delete(w.keys, 0, 1)
	}
	return c
}

// writeInTransaction writes in a caller's transaction that has written something before, so that it
// has an early number, and rolls back one in three.
func (w *caller) writeInTransaction(ctx context.Context) error {
	if w.pool == nil { // on SQLite there are none
		return w.writeOne(ctx)
	}
	var writes []messagestore.StreamWrite
	for range 1 + w.random.IntN(2) {
		write := w.some(w.stream())
		if !slices.ContainsFunc(writes, func(other messagestore.StreamWrite) bool { return other.Stream == write.Stream }) {
			writes = append(writes, write)
		}
	}
	call, err := w.store.begin(history.WriteTx, writes...)
	if err != nil {
		return err
	}
	return w.endTransaction(ctx, call, writes, w.random.IntN(3) == 0)
}

// endTransaction carries out the transaction of call and resolves its outcome.
func (w *caller) endTransaction(ctx context.Context, call history.Event, writes []messagestore.StreamWrite, rollBack bool) error {
	written, committing, err := w.transaction(ctx, writes, rollBack)
	if committing && !definite(err) {
		err = errors.Join(err, messagestore.ErrOutcomeUnknown)
	}
	err = w.store.end(call, written, err)
	u, ok := errors.AsType[*unknown](err)
	if !ok {
		return w.after(writes, written, err)
	}
	sent, err := appendsOf(writes)
	if err != nil {
		return err
	}
	return w.resolveBy(w.store.question(u.op, writes), func(ctx context.Context) ([]messagestore.Written, error) { return w.find(ctx, sent) })
}

var errRolledBack = errors.New("rolled back by its own will")

// transaction reports whether COMMIT may have been sent.
func (w *caller) transaction(ctx context.Context, writes []messagestore.StreamWrite, rollBack bool) (written []messagestore.Written, committing bool, err error) {
	tx, err := w.pool.Begin(ctx)
	if err != nil {
		return nil, false, err
	}
	defer func() { _ = tx.Rollback(context.WithoutCancel(ctx)) }() // after a commit it does nothing
	if _, err := tx.Exec(ctx, "select pg_current_xact_id()"); err != nil {
		return nil, false, err
	}
	<-time.After(time.Duration(w.random.Int64N(int64(5 * time.Millisecond))))
	store := testkit.Must(messagestore.New(testkit.Must(postgres.New(tx, nil)), nil))
	for _, write := range writes {
		one, err := store.Write(ctx, write.Stream, write.Expected, write.Bodies...)
		if err != nil {
			return nil, false, err
		}
		written = append(written, one)
	}
	if rollBack {
		return nil, false, errRolledBack
	}
	return written, true, tx.Commit(ctx)
}

// definite reports whether it is known how a COMMIT ended.
func definite(err error) bool {
	_, answered := errors.AsType[*pgconn.PgError](err)
	return err == nil || answered && !terminated(err) || errors.Is(err, pgx.ErrTxCommitRollback)
}

// terminated reports whether the server ended the session, before or after the commit.
func terminated(err error) bool {
	e, ok := errors.AsType[*pgconn.PgError](err)
	return ok && (e.Code[:2] == "57" || e.Code[:2] == "08" || e.Code[:2] == "25")
}
