package consumer

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"iter"
	"slices"
	"time"

	"github.com/google/uuid"

	"github.com/dibs-go/dibs/messagestore"
)

// redriveClaim is how long one Redrive has for one message, before another may take
// it over. The handler's context ends with it.
const redriveClaim = time.Minute

// redriving claims a parked message: a second redrive leaves it alone.
type redriving struct {
	Attempts int `json:"attempts"`
}

func (redriving) MessageType() string { return "Redriving" }

// claimFound is written to see what time it is when a claim was found.
type claimFound struct{}

func (claimFound) MessageType() string { return "ClaimFound" }

// redriven ends a dead-letter stream, until the message is parked again.
type redriven struct {
	Attempts int  `json:"attempts"`
	Deleted  bool `json:"deleted,omitempty"` // the message was, so nothing was done
}

func (redriven) MessageType() string { return "Redriven" }

// A ParkedMessage is one that the consumer gave up on.
type ParkedMessage struct {
	// Recorded is the message as it was handed over. Its data and metadata are
	// missing if Omitted.
	*messagestore.Message

	// Omitted says that the message was too large to be kept in the dead-letter
	// stream. Its own stream still has it.
	Omitted bool

	DeadLetter    messagestore.StreamName // where it is parked
	Error         string                  // the last failure, shortened
	Attempts      int                     // how often the handler was called for it
	FirstFailedAt time.Time
	ParkedAt      time.Time // for the last time

	// Requested says that the consumer was asked to redrive it, with [RequestRedrive],
	// and has not done so yet. Redriving is when a redrive took it in hand, by the
	// store's clock, and zero if none has: see [Consumer.Redrive].
	Requested bool
	Redriving time.Time

	outcome messagestore.Version // see deadLetter
}

// Parked yields the messages that are parked, in order of their positions. After an
// error it yields nothing more. It looks through the whole category of dead letters
// first, so it is for people and for jobs, not for a handler.
func (c *Consumer) Parked(ctx context.Context) iter.Seq2[*ParkedMessage, error] {
	return func(yield func(*ParkedMessage, error) bool) {
		for p, err := range c.parkedAs(ctx, nil) {
			if err != nil {
				err = c.wrap(err)
			}
			if !yield(p, err) {
				return
			}
		}
	}
}

// parkedAs yields the messages that are parked, or those of them with one of the ids.
func (c *Consumer) parkedAs(ctx context.Context, ids []uuid.UUID) iter.Seq2[*ParkedMessage, error] {
	return func(yield func(*ParkedMessage, error) bool) {
		asked, _, err := c.asked(ctx)
		var letters []letter
		if err == nil {
			letters, err = c.letters(ctx, ids)
		}
		if err != nil {
			yield(nil, err)
			return
		}
		for _, l := range letters {
			p, err := c.readLetter(ctx, l.stream)
			if err != nil {
				yield(nil, err)
				return
			}
			if !p.open {
				continue // redriven meanwhile
			}
			m := &ParkedMessage{
				Message:       p.recorded(),
				Omitted:       p.Omitted,
				DeadLetter:    l.stream,
				Error:         p.Error,
				Attempts:      p.Attempts,
				FirstFailedAt: p.FirstFailedAt,
				ParkedAt:      p.at,
				Redriving:     p.claimedAt,
				outcome:       p.outcome,
			}
			requested, ok := asked[p.MessageID]
			m.Requested = ok && requested == p.outcome
			if !yield(m, nil) {
				return
			}
		}
	}
}

// Redrive hands every parked message to the handler again, once, in order of their
// positions, and returns how many it succeeded for. The others stay parked, with one
// attempt more. The handler gets the message as it was: its id, stream, positions
// and metadata.
//
// The message has given up its place, though: later ones of its stream were handled
// before it. A handler that takes what is not above the highest position it has seen
// for an old message ignores a redriven one and returns nil, so that it counts as
// handled and is lost. See [Park].
//
// It may be called while the consumer runs, here or elsewhere, and from several
// processes: each message is claimed first, so that one of them does it. It does not
// wait for the consumer, which may have a later message of the same stream in hand. A
// claim ends after a minute by the store's clock, and so does the handler's context;
// what a process claimed that was killed can be redriven then. What came of a message is
// recorded, if the store is away, as soon as it is back, until the claim ends. A handler that
// goes on for [Config.Grace] after its context is done is [ErrGraceExceeded].
//
// A message whose stream was deleted since is not handed over. It is not parked any
// longer, and counts as a tombstone in [Stats].
func (c *Consumer) Redrive(ctx context.Context) (succeeded int, err error) {
	if ctx == nil {
		return 0, c.wrap(invalid("context", nil, "there is none"))
	}
	letters, err := c.letters(ctx, nil)
	if err != nil {
		return 0, c.wrap(err)
	}
	for _, l := range letters {
		if ctx.Err() != nil {
			return succeeded, c.wrap(ctx.Err())
		}
		ok, err := c.redrive(ctx, l.stream)
		if err != nil {
			return succeeded, c.wrap(err)
		}
		if ok {
			succeeded++
		}
	}
	return succeeded, nil
}

// redrive claims the message of one dead-letter stream, handles it and records what
// came of it, each at the version of the step before.
func (c *Consumer) redrive(ctx context.Context, stream messagestore.StreamName) (succeeded bool, err error) {
	p, err := c.readLetter(ctx, stream)
	if err != nil || !p.open {
		return false, err
	}
	return c.redriveLetter(ctx, stream, p, stopTimeout)
}

// redriveLetter is redrive for what was read already. Last is for record.
func (c *Consumer) redriveLetter(ctx context.Context, stream messagestore.StreamName, p *deadLetter, last time.Duration) (succeeded bool, err error) {
	before, cancel := context.WithTimeout(ctx, storeTimeout)
	defer cancel()
	if p.claimed {
		now, err := c.storeTime(before)
		if err != nil || now.Sub(p.claimedAt) < redriveClaim {
			return false, err
		}
	}
	m := p.recorded()
	var missing error
	if p.Omitted {
		original, err := c.original(before, p)
		switch {
		case errors.Is(err, messagestore.ErrNotFound):
			missing = err
		case err != nil:
			return false, err
		default:
			m = original
		}
	}
	claimEnds := time.Now().Add(redriveClaim) // no later than for those who see the claim
	claim, err := c.store.Write(before, stream, p.version, redriving{p.Attempts + 1})
	if errors.Is(err, messagestore.ErrVersionConflict) {
		return false, nil // another redrive was first
	}
	if err != nil {
		return false, fmt.Errorf("redrive: %w", err)
	}

	gone, unread := c.deleted(before, m)
	failure, interrupted, left := missing, false, false
	switch {
	case unread != nil: // whether it was: so the claim is given back
		failure, interrupted = unread, true
	case gone:
		failure = nil
	case missing == nil:
		interrupted, left, failure = c.handleOnce(ctx, m, claimEnds)
	}

	err = c.record(ctx, claimEnds, last, func(ctx context.Context) error {
		var err error
		if failure == nil {
			done := redriven{Attempts: p.Attempts + 1, Deleted: gone}
			err = c.writeLetter(ctx, claim.Version, m, causedBy(m, done), messagestore.Envelope{Body: done})
		} else {
			again := p.parked
			if again.Interrupted = interrupted; !interrupted {
				again.Attempts, again.Error = p.Attempts+1, errorText(failure)
			}
			err = c.writeParked(ctx, claim.Version, m, again)
		}
		if !errors.Is(err, messagestore.ErrVersionConflict) {
			return err
		}
		ours, readErr := c.hasOutcome(ctx, stream, claim.Version)
		if ours || readErr != nil {
			return readErr
		}
		return err
	})
	switch {
	case left: // whatever became of the outcome
		return false, failure
	case unread != nil:
		return false, fmt.Errorf("redrive: %w", unread)
	case errors.Is(err, messagestore.ErrVersionConflict):
		return false, nil // it took longer than the claim, and another has it
	case err != nil:
		return false, fmt.Errorf("redrive: %w", err)
	case interrupted:
		return false, ctx.Err()
	}
	if gone {
		c.count(func(s *Stats) { s.Tombstones++ })
		return false, nil
	}
	c.count(func(s *Stats) {
		s.Retried++
		if failure != nil {
			s.Failed++
		} else {
			s.Handled++
		}
	})
	return failure == nil, nil
}

// record writes the outcome of a redrive, even if ctx is done by now, or the claim would
// stand. While the store fails it tries again, as long as the claim does: what was
// handled is not to be handed over again because the store was away for a moment. Once
// ctx is done, it tries for so long as last.
func (c *Consumer) record(ctx context.Context, claimEnds time.Time, last time.Duration, write func(context.Context) error) error {
	if least := time.Now().Add(stopTimeout); claimEnds.Before(least) {
		claimEnds = least
	}
	tries, cancel := context.WithDeadline(context.WithoutCancel(ctx), claimEnds)
	defer cancel()
	defer context.AfterFunc(ctx, func() { time.AfterFunc(last, cancel) })()
	for failures := 1; ; failures++ {
		try, cancelTry := context.WithTimeout(tries, storeTimeout)
		err := write(try)
		cancelTry()
		if err == nil || errors.Is(err, messagestore.ErrVersionConflict) || !heals(err) || tries.Err() != nil {
			return err
		}
		wait := time.NewTimer(c.storeFailed(err, failures))
		select {
		case <-tries.Done():
			wait.Stop()
			return err
		case <-wait.C:
		}
	}
}

// hasOutcome reports whether the outcome of a redrive is right behind its claim: the
// write happened though the store did not say so. Another redrive would have claimed
// the message there.
func (c *Consumer) hasOutcome(ctx context.Context, stream messagestore.StreamName, claim messagestore.Version) (bool, error) {
	for m, err := range c.store.ReadStream(ctx, stream, claim+1) {
		if err != nil {
			return false, err
		}
		return m.Position == claim+1 && (m.Type == parked{}.MessageType() || m.Type == redriven{}.MessageType()), nil
	}
	return false, nil
}

// storeTime returns the time by the clock that claims are dated with, which this
// process' clock may differ from: that of a message written for the purpose.
func (c *Consumer) storeTime(ctx context.Context) (time.Time, error) {
	stream := c.deadLetters().Stream(c.name)
	written, err := c.store.Write(ctx, stream, messagestore.AnyVersion, claimFound{})
	if err != nil {
		return time.Time{}, fmt.Errorf("redrive: %w", err)
	}
	for m, err := range c.store.ReadStream(ctx, stream, written.Version) {
		if err != nil {
			return time.Time{}, fmt.Errorf("redrive: %w", err)
		}
		return m.Time, nil
	}
	return time.Time{}, fmt.Errorf("redrive: read %s@%v: %w", stream, written.Version, messagestore.ErrNotFound)
}

// deleted reports whether the stream of a parked message was deleted since: then the
// message is not to be handled any more. One that was trimmed is.
func (c *Consumer) deleted(ctx context.Context, m *messagestore.Message) (bool, error) {
	last, err := c.store.Last(ctx, m.Stream)
	switch {
	case errors.Is(err, messagestore.ErrNotFound), errors.Is(err, messagestore.ErrInvalid):
		return false, nil // the name is one that another client gave it
	case err != nil:
		return false, err
	case last.IsTombstone():
		return last.Position > m.Position, nil
	}
	// It may have been written to again. If the message is there it was not deleted, and what
	// is behind it, which may be much, need not be read.
	switch _, err := c.find(ctx, m.GlobalPosition, m.ID); {
	case err == nil:
		return false, nil
	case !errors.Is(err, messagestore.ErrNotFound):
		return false, err
	}
	for next, err := range c.store.ReadStream(ctx, m.Stream, m.Position) {
		return err == nil && next.IsTombstone(), err
	}
	return false, nil
}

// handleOnce calls the handler in a goroutine of its own. Interrupted says that it
// failed because ctx is done, and left that it would not stop and was left behind: it is
// in hand until it returns.
func (c *Consumer) handleOnce(ctx context.Context, m *messagestore.Message, claimEnds time.Time) (interrupted, left bool, failure error) {
	work, cancel := context.WithDeadline(ctx, claimEnds)
	defer cancel()
	ended := make(chan error, 1)
	go func() {
		failure := ErrHandlerExited
		defer func() {
			if v := recover(); v != nil {
				failure = recovered(v)
			}
			ended <- failure
		}()
		failure = c.handler.Handle(c.named(work), m)
	}()
	select {
	case failure = <-ended:
	case <-work.Done():
		grace := time.NewTimer(c.config.Grace)
		defer grace.Stop()
		select {
		case failure = <-ended:
		case <-grace.C:
			c.leaveBehind(ended)
			failure = &GraceExceededError{Grace: c.config.Grace, Messages: []string{m.String()}}
			left = true
		}
	}
	return failure != nil && ctx.Err() != nil, left, failure
}

// leaveBehind counts a handler as in hand until it has ended.
func (c *Consumer) leaveBehind(ended <-chan error) {
	c.mu.Lock()
	c.inHand++
	c.mu.Unlock()
	go func() {
		<-ended //nolint:errcheck // how it ended nobody asks any more
		c.mu.Lock()
		c.inHand--
		c.mu.Unlock()
	}()
}

// A letter is a dead-letter stream whose message is still parked.
type letter struct {
	stream   messagestore.StreamName
	position messagestore.GlobalPosition // of the message that is parked
}

// letters returns the streams of the messages that are still parked, or of those with
// one of the ids, in order of the messages' positions.
func (c *Consumer) letters(ctx context.Context, ids []uuid.UUID) ([]letter, error) {
	var streams []messagestore.StreamName
	for _, id := range ids {
		streams = append(streams, c.deadLetter(id))
	}
	if len(ids) == 0 {
		open, err := openLetters(ctx, c.store, c.category)
		if err != nil {
			return nil, err
		}
		streams = slices.DeleteFunc(open, func(s messagestore.StreamName) bool { return s.CardinalID() != c.name })
	}
	var letters []letter
	for _, stream := range streams {
		p, err := c.readLetter(ctx, stream)
		if err != nil {
			return nil, err
		}
		if p.open {
			letters = append(letters, letter{stream, p.GlobalPosition})
		}
	}
	slices.SortFunc(letters, func(a, b letter) int { return cmp.Compare(a.position, b.position) })
	return slices.CompactFunc(letters, func(a, b letter) bool { return a.stream == b.stream }), nil
}

// A deadLetter is a dead-letter stream as it was read.
type deadLetter struct {
	parked
	open      bool                 // the message is parked, not redriven
	at        time.Time            // when it was parked for the last time
	version   messagestore.Version // of the stream
	claimed   bool                 // by a redrive that has not recorded what came of it
	claimedAt time.Time            // by the store's clock

	// outcome is the position of the last message that parked or redrove it, but for
	// one that only gave a claim back.
	outcome messagestore.Version
}

// readLetter returns what is, or was, parked in a dead-letter stream.
func (c *Consumer) readLetter(ctx context.Context, stream messagestore.StreamName) (*deadLetter, error) {
	l := &deadLetter{version: messagestore.NoStream, outcome: messagestore.NoStream}
	for m, err := range c.store.ReadStream(ctx, stream, 0) {
		if err != nil {
			return nil, err
		}
		switch m.Type {
		case parked{}.MessageType():
			p, err := decodeParked(m)
			if err != nil {
				return nil, err
			}
			outcome := m.Position
			if p.Interrupted && l.open {
				outcome = l.outcome
			}
			if p.Omitted && l.MessageID == p.MessageID { // an earlier one may have had room for them, with a shorter error
				p.Data, p.Metadata, p.Omitted = l.Data, l.Metadata, l.Omitted
			}
			l = &deadLetter{parked: p, open: true, at: m.Time, outcome: outcome}
		case redriving{}.MessageType():
			l.claimed, l.claimedAt = true, m.Time
		case redriven{}.MessageType():
			l.open, l.claimed, l.claimedAt = false, false, time.Time{}
			l.outcome = m.Position
			l.Attempts++ // the one that succeeded
		}
		l.version = m.Position
	}
	return l, nil
}

func decodeParked(m *messagestore.Message) (parked, error) {
	var p parked
	if err := json.Unmarshal(m.Data, &p); err != nil {
		return p, fmt.Errorf("decode %s: %w", m, err)
	}
	return p, nil
}

// original reads a message that was too large to be kept among the dead letters.
func (c *Consumer) original(ctx context.Context, p *deadLetter) (*messagestore.Message, error) {
	m, err := c.find(ctx, p.GlobalPosition, p.MessageID)
	if errors.Is(err, messagestore.ErrNotFound) {
		return nil, fmt.Errorf("%s %s@%d, which was too large to be parked with its data: %w", p.Type, p.Stream, p.Position, err)
	}
	return m, err
}

// find returns the message with an id from its place in the category, or
// [messagestore.ErrNotFound].
func (c *Consumer) find(ctx context.Context, at messagestore.GlobalPosition, id uuid.UUID) (*messagestore.Message, error) {
	page, err := c.store.ReadCategoryPage(ctx, messagestore.CategoryQuery{Category: c.category, From: at, Limit: 1})
	if err != nil {
		return nil, err
	}
	if len(page.Messages) == 0 || page.Messages[0].ID != id {
		return nil, messagestore.ErrNotFound
	}
	return page.Messages[0], nil
}
