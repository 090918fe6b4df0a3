package consumer

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/google/uuid"

	"github.com/dibs-go/dibs/messagestore"
)

// MaxLag is up to where [Positions] counts the messages that a member has before it.
const MaxLag = 100_000

// A Status is where one consumer of a category is.
type Status struct {
	Category messagestore.Category
	Name     string

	// Foreign says that another client's positions are meant, of Eventide or another
	// client of message-db: a stream of the position category with messages of type
	// Recorded. Its Name is the identifier of that stream, "" for none; it has one
	// member, no generation, and nothing parked.
	Foreign bool

	// Generation is the position, in the stream of group sizes, of the entry that says
	// how many members there are and where they started. [Reset] starts a new one.
	Generation messagestore.Version
	Size       int       // how many members there are
	StartedAt  time.Time // when the generation began

	Members []Member
	Parked  int // messages it gave up on, see [Consumer.Parked]

	// Err says what is wrong with what is recorded, if the rest could not be told.
	Err error
}

// A Member is where one member of a group is, or a consumer without a group.
type Member struct {
	Member int // from 0

	// Position is the next to read: everything before it is finished.
	Position messagestore.GlobalPosition

	// RecordedAt is when it was recorded. Zero says that this member has recorded
	// nothing since the generation began, and Position is where that starts.
	RecordedAt time.Time

	// Lag is how many messages of the category there are from Position on that are
	// this member's; of more than [MaxLag], AtLeast is set. A consumer that reads only
	// some types, which nobody but itself knows, may have less to do.
	Lag     int64
	AtLeast bool

	// Oldest is when the first of them was written, by the store's clock, and zero for
	// none.
	Oldest time.Time

	// Err is [ErrPositionAhead] or [ErrPositionCorrupt], or nil.
	Err error
}

// Positions tells where every consumer of category is that has ever recorded a
// position, by name, those of other clients last. It reads how many messages wait but
// not the messages, and it may be called while the consumers run: each number is of
// the moment at which it was read.
//
// It is at its best with a store that can count, as every [messagestore.Store] of this
// module can; with another it reads all of the category of positions.
func Positions(ctx context.Context, store Store, category messagestore.Category) ([]Status, error) {
	if err := category.Validate(); err != nil {
		return nil, fmt.Errorf("positions: %w", err)
	}
	all, err := positionsOf(ctx, store, category)
	if err != nil {
		return nil, fmt.Errorf("positions of the consumers of %s: %w", category, err)
	}
	return all, nil
}

func positionsOf(ctx context.Context, store Store, category messagestore.Category) ([]Status, error) {
	positions := category.WithType("position")
	if positions.Validate() != nil {
		return nil, nil //nolint:nilerr // too long a name to have any
	}
	streams, err := tails(ctx, store, positions, nil)
	if err != nil {
		return nil, err
	}
	parked, err := parkedCounts(ctx, store, category)
	if err != nil {
		return nil, err
	}
	var ours, foreign []Status
	for stream, types := range streams {
		ids := stream.IDs()
		if len(ids) == 1 && hasType(types, resized{}) {
			s, err := statusOf(ctx, store, category, ids[0])
			if err != nil {
				return nil, err
			}
			s.Parked = parked[ids[0]]
			ours = append(ours, s)
			continue
		}
		last, ok := types[recorded{}.MessageType()]
		if len(ids) == 3 && hasType(streams[positions.Stream(ids[0])], resized{}) || !ok {
			continue
		}
		s, err := foreignStatus(ctx, store, category, stream, last)
		if err != nil {
			return nil, err
		}
		foreign = append(foreign, s)
	}
	byName := func(a, b Status) int { return cmp.Compare(a.Name, b.Name) }
	slices.SortFunc(ours, byName)
	slices.SortFunc(foreign, byName)
	return append(ours, foreign...), nil
}

func hasType(types map[string]tail, body messagestore.Body) bool {
	_, ok := types[body.MessageType()]
	return ok
}

// inspect returns the consumer of a name as one has it who looks at what it left
// behind: without a handler, so it does not run.
func inspect(store Store, category messagestore.Category, name string) (*Consumer, error) {
	c := &Consumer{store: store, category: category, name: name, config: (*Config)(nil).withDefaults()}
	if isNil(store) {
		return nil, invalid("store", nil, "there is none")
	}
	if err := category.Validate(); err != nil {
		return nil, err
	}
	if rule := c.nameRule(); rule != "" {
		return nil, invalid("consumer name", name, rule)
	}
	return c, nil
}

func statusOf(ctx context.Context, store Store, category messagestore.Category, name string) (Status, error) {
	s := Status{Category: category, Name: name, Generation: messagestore.NoStream}
	c, err := inspect(store, category, name)
	if err != nil { // written by hand
		s.Err = err
		return s, nil //nolint:nilerr // it is in the status
	}
	current, err := c.lastGeneration(ctx)
	if errors.Is(err, ErrPositionCorrupt) {
		s.Err = err
		return s, nil
	}
	if err != nil {
		return s, err
	}
	s.Generation, s.Size, s.StartedAt = current.version, current.Size, current.at
	for member := range current.Size {
		m, err := c.memberOf(ctx, current, member)
		if err != nil {
			return s, err
		}
		s.Members = append(s.Members, m)
	}
	return s, nil
}

func (c *Consumer) memberOf(ctx context.Context, of generation, member int) (Member, error) {
	stream := c.positionStream(of.version, member)
	m, at := Member{Member: member, Position: of.Start}, of.begin()
	last, err := c.store.Last(ctx, stream)
	switch {
	case errors.Is(err, messagestore.ErrNotFound):
	case err != nil:
		return m, err
	default:
		m.RecordedAt = last.Time
		if at, m.Err = decodeRecorded(last); m.Err != nil {
			return m, nil //nolint:nilerr // it is in the status
		}
		m.Position = at.Position
	}
	return m, c.measure(ctx, &m, stream, at.After, messagestore.Filter{GroupSize: of.Size, GroupMember: member})
}

// measure fills in how far m is behind.
func (c *Consumer) measure(ctx context.Context, m *Member, stream messagestore.StreamName, after uuid.UUID, filter messagestore.Filter) error {
	_, err := c.recall(ctx, stream, recorded{m.Position, after})
	if errors.Is(err, ErrPositionAhead) {
		m.Err = err
		return nil
	}
	if err != nil {
		return err
	}
	q := messagestore.CategoryQuery{Category: c.category, From: m.Position, Filter: filter}
	oldest, err := first(ctx, c.store, q)
	if err != nil || oldest == nil {
		return err
	}
	m.Oldest = oldest.Time
	q.Limit = MaxLag + 1
	if m.Lag, err = count(ctx, c.store, q); err != nil {
		return err
	}
	if m.AtLeast = m.Lag > MaxLag; m.AtLeast {
		m.Lag = MaxLag
	}
	return nil
}

// foreignStatus tells where a consumer of another client is. What that has recorded
// is, by Eventide's rule, the global position of the last message it handled.
func foreignStatus(ctx context.Context, store Store, category messagestore.Category, stream messagestore.StreamName, last tail) (Status, error) {
	s := Status{Category: category, Name: stream.ID(), Foreign: true, Generation: messagestore.NoStream, Size: 1, StartedAt: last.at}
	m := Member{RecordedAt: last.at}
	// Its stream may have a name that ours may not, so it is read in its category.
	page, err := store.ReadCategoryPage(ctx, messagestore.CategoryQuery{Category: stream.Category(), From: last.global, Limit: 1})
	if err != nil {
		return s, err
	}
	if len(page.Messages) == 1 && page.Messages[0].Stream == stream {
		var handled recorded
		if handled, m.Err = decodeRecorded(page.Messages[0]); m.Err == nil {
			c := &Consumer{store: store, category: category}
			m.Position = messagestore.NextAfter(handled.Position)
			if err := c.measure(ctx, &m, stream, uuid.Nil, messagestore.Filter{}); err != nil {
				return s, err
			}
		}
	}
	s.Members = []Member{m}
	return s, nil
}

func decodeRecorded(m *messagestore.Message) (recorded, error) {
	var body struct {
		Position *messagestore.GlobalPosition `json:"position"`
		After    uuid.UUID                    `json:"after"`
	}
	var wrong *PositionCorruptError
	switch err := decodePosition(m, recorded{}.MessageType(), &body); {
	case errors.As(err, &wrong) && m.Type == (recorded{}).MessageType():
		return recorded{}, corrupt(m, `it is not like {"position": 3}`) // what Go calls it is nothing for an operator
	case err != nil:
		return recorded{}, err
	case body.Position == nil:
		return recorded{}, corrupt(m, "it has no position")
	case *body.Position < 0:
		return recorded{}, corrupt(m, fmt.Sprintf("position %d is less than 0", *body.Position))
	}
	return recorded{*body.Position, body.After}, nil
}

// A counter is a store that can count what it holds, as a [messagestore.Store] does.
type counter interface {
	Report(ctx context.Context, q messagestore.ReportQuery) (messagestore.Report, error)
	Count(ctx context.Context, q messagestore.CategoryQuery) (int64, error)
}

// count returns how many messages there are for q, up to q.Limit.
func count(ctx context.Context, store Store, q messagestore.CategoryQuery) (int64, error) {
	if s, ok := store.(counter); ok {
		n, err := s.Count(ctx, q)
		if !errors.Is(err, messagestore.ErrNotSupported) {
			return n, err
		}
	}
	most := int64(q.Limit)
	var n int64
	for more := true; more && n < most; {
		q.Limit = int(min(most-n, 1000))
		page, err := store.ReadCategoryPage(ctx, q)
		if err != nil {
			return 0, err
		}
		n += int64(len(page.Messages))
		q.From, more = page.Next, page.More
	}
	return n, nil
}

// first returns the first message for q, nil if there is none.
func first(ctx context.Context, store Store, q messagestore.CategoryQuery) (*messagestore.Message, error) {
	q.Limit = 1
	for {
		page, err := store.ReadCategoryPage(ctx, q)
		switch {
		case err != nil:
			return nil, err
		case len(page.Messages) > 0:
			return page.Messages[0], nil
		case !page.More:
			return nil, nil
		}
		q.From = page.Next
	}
}

// A tail is the last message of one type in one stream.
type tail struct {
	position messagestore.Version
	global   messagestore.GlobalPosition
	at       time.Time
}

// tails returns what every stream of category ends with, by type: all types or those
// named, which a store that cannot count reads no others of.
func tails(ctx context.Context, store Store, category messagestore.Category, types []string) (map[messagestore.StreamName]map[string]tail, error) {
	all := map[messagestore.StreamName]map[string]tail{}
	note := func(stream messagestore.StreamName, messageType string, t tail) {
		if all[stream] == nil {
			all[stream] = map[string]tail{}
		}
		all[stream][messageType] = t
	}
	if s, ok := store.(counter); ok {
		report, err := s.Report(ctx, messagestore.ReportQuery{By: []messagestore.ReportKey{messagestore.ReportStream, messagestore.ReportType}, Category: category})
		for _, row := range report.Rows {
			note(messagestore.StreamName(row.Names[0]), row.Names[1], tail{row.LastPosition, row.LastGlobalPosition, row.Last})
		}
		if !errors.Is(err, messagestore.ErrNotSupported) {
			return all, err
		}
	}
	q := messagestore.CategoryQuery{Category: category, Limit: 100, Filter: messagestore.Filter{Types: types}} // they may be large
	for more := true; more; {
		page, err := store.ReadCategoryPage(ctx, q)
		if err != nil {
			return nil, err
		}
		for _, m := range page.Messages {
			note(m.Stream, m.Type, tail{m.Position, m.GlobalPosition, m.Time})
		}
		q.From, more = page.Next, page.More
	}
	return all, nil
}

// ErrUnknownConsumer says that no consumer of that name has ever started.
var ErrUnknownConsumer = errors.New("unknown consumer")

// An UnknownConsumerError says which consumer there is not, and which there are.
type UnknownConsumerError struct {
	Category messagestore.Category
	Name     string
	Known    []string // of the category, in order
}

// Error names them.
func (e *UnknownConsumerError) Error() string {
	quoted := make([]string, len(e.Known))
	for i, name := range e.Known {
		quoted[i] = shorten(name)
	}
	known := "there are " + strings.Join(quoted, ", ")
	switch len(e.Known) {
	case 0:
		known = "there is none"
	case 1:
		known = "there is " + quoted[0]
	}
	return fmt.Sprintf("unknown consumer %s of %s: %s", shorten(e.Name), shorten(string(e.Category)), known)
}

// Is reports whether target is [ErrUnknownConsumer].
func (e *UnknownConsumerError) Is(target error) bool { return target == ErrUnknownConsumer }

// A BeyondEndError says that a position asked for is beyond the end of the category.
type BeyondEndError struct {
	Category messagestore.Category
	Position messagestore.GlobalPosition // that was asked for
	End      messagestore.GlobalPosition // the highest there is: behind the last message
}

// Error names the positions.
func (e *BeyondEndError) Error() string {
	return fmt.Sprintf("position %d is ahead of the store: category %s ends before %d", e.Position, e.Category, e.End)
}

// Is reports whether target is [ErrPositionAhead].
func (e *BeyondEndError) Is(target error) bool { return target == ErrPositionAhead }

// Reset has the consumer of category with the name go on from position, all members
// of its group, and returns the number of the new generation that begins there.
//
// What is before position is not handed over again, and what is from there on is,
// whatever was handled before. The name's history stays; the last reset counts.
//
// A consumer that runs meanwhile is fenced: it stops with [ErrConsumerFenced] when it
// next records a position, or after at most 10 s if it records none, and goes on
// from position when it is started again. What it has handled until then was handled
// from its old position on; nothing that it records from now on counts.
//
// The error matches [ErrUnknownConsumer] if no consumer of the name has started yet,
// [ErrPositionAhead] for a position beyond the end ([BeyondEndError]) and
// [messagestore.ErrInvalid] for one below 0; then nothing is changed.
func Reset(ctx context.Context, store Store, category messagestore.Category, name string, position messagestore.GlobalPosition) (messagestore.Version, error) {
	c, err := inspect(store, category, name)
	if err != nil {
		return 0, fmt.Errorf("reset: %w", err)
	}
	if position < 0 {
		return 0, c.wrap(fmt.Errorf("reset: %w",
			messagestore.NewInvalidError("position", int64(position), "it is at least 0")))
	}
	generation, err := c.reset(ctx, position)
	if err != nil {
		return 0, c.wrap(fmt.Errorf("reset: %w", err))
	}
	return generation, nil
}

func (c *Consumer) reset(ctx context.Context, position messagestore.GlobalPosition) (messagestore.Version, error) {
	_, err := c.recall(ctx, c.ledger(), recorded{Position: position})
	if errors.Is(err, ErrPositionAhead) {
		end, endErr := End(ctx, c.store, c.category)
		return 0, cmp.Or[error](endErr, &BeyondEndError{Category: c.category, Position: position, End: end})
	}
	if err != nil {
		return 0, err
	}
	for {
		current, err := c.lastGeneration(ctx)
		if err != nil {
			return 0, err
		}
		if current.Size == 0 {
			return 0, c.unknown(ctx)
		}
		written, err := c.store.Write(ctx, c.ledger(), current.version, resized{Size: current.Size, Start: position, Reset: true})
		if errors.Is(err, messagestore.ErrVersionConflict) {
			continue // the group was resized meanwhile: its new size stays
		}
		return written.Version, err
	}
}

func (c *Consumer) unknown(ctx context.Context) error {
	unknown := &UnknownConsumerError{Category: c.category, Name: c.name}
	streams, err := tails(ctx, c.store, c.category.WithType("position"), []string{resized{}.MessageType()})
	if err != nil {
		return err
	}
	for stream, types := range streams {
		if hasType(types, resized{}) {
			unknown.Known = append(unknown.Known, stream.ID())
		}
	}
	slices.Sort(unknown.Known)
	return unknown
}

// At returns the position at which the messages of category begin that were written
// at t or later, by the store's clock, and the end if there are none: where to [Reset]
// a consumer to that has to do everything since t once more.
//
// Times within a category follow the positions but for a little: clocks are put back,
// and clients of message-db date a message with the beginning of their transaction.
// So At goes back from what it found for as long as it meets messages of t or later,
// and stops after 100 in a row that are before t: the position may be earlier than
// need be, and hardly later.
func At(ctx context.Context, store Store, category messagestore.Category, t time.Time) (messagestore.GlobalPosition, error) {
	end, err := End(ctx, store, category)
	if err != nil {
		return 0, err
	}
	var low messagestore.GlobalPosition
	for high := end; low < high; {
		middle := low + (high-low)/2
		m, err := first(ctx, store, messagestore.CategoryQuery{Category: category, From: middle})
		switch {
		case err != nil:
			return 0, err
		case m == nil || !m.Time.Before(t):
			high = middle
		default:
			low = messagestore.NextAfter(m.GlobalPosition)
		}
	}
	at, err := stepBack(ctx, store, category, low, t)
	if err != nil || at >= end {
		return at, err
	}
	m, err := first(ctx, store, messagestore.CategoryQuery{Category: category, From: at})
	if err != nil || m == nil {
		return at, err
	}
	return m.GlobalPosition, nil
}

// calmBefore is how many messages in a row before the time make sure that there are
// none of it before them.
const calmBefore = 100

// stepBack returns the first position before at where a message is of t or later,
// with fewer than calmBefore in a row between it and the next such.
func stepBack(ctx context.Context, store Store, category messagestore.Category, at messagestore.GlobalPosition, t time.Time) (messagestore.GlobalPosition, error) {
	width := messagestore.GlobalPosition(calmBefore)
	for at > 0 {
		from := max(0, at-width)
		var calm int
		found := messagestore.GlobalPosition(-1)
		q := messagestore.CategoryQuery{Category: category, From: from, Limit: calmBefore}
	window:
		for more := true; more; {
			page, err := store.ReadCategoryPage(ctx, q)
			if err != nil {
				return 0, err
			}
			for _, m := range page.Messages {
				if m.GlobalPosition >= at {
					break window
				}
				if !m.Time.Before(t) {
					found = m.GlobalPosition
					break window
				}
				calm++
			}
			q.From, more = page.Next, page.More
		}
		switch {
		case found >= 0:
			at, width = found, calmBefore
		case calm >= calmBefore || from == 0:
			return at, nil
		default:
			width *= 2
		}
	}
	return at, nil
}

// End returns the position behind the last message of category, 0 if it has none, in
// some fifty reads of one message: it feels its way forward in growing steps, and then
// halves the gap between the last message it met and the first emptiness.
func End(ctx context.Context, store Store, category messagestore.Category) (messagestore.GlobalPosition, error) {
	next := func(from messagestore.GlobalPosition) (messagestore.GlobalPosition, bool, error) {
		page, err := store.ReadCategoryPage(ctx, messagestore.CategoryQuery{Category: category, From: from, Limit: 1})
		if err != nil || len(page.Messages) == 0 {
			return 0, false, err
		}
		return page.Messages[0].GlobalPosition, true, nil
	}
	last, found, err := next(0)
	if err != nil || !found {
		return 0, err
	}
	const far = messagestore.GlobalPosition(1) << 62
	empty, step := far, messagestore.GlobalPosition(1)
	for last+1 < empty {
		// In steps until there is an emptiness, then in halves.
		probe := last + step
		if empty < far || probe >= far || probe < last {
			probe = last + (empty-last)/2
		}
		at, found, err := next(probe)
		switch {
		case err != nil:
			return 0, err
		case found:
			last, step = at, step*2
		default:
			empty = probe
		}
	}
	return last + 1, nil
}
