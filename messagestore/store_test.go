package messagestore_test

import (
	"bytes"
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/uuid"
	"github.com/rs/zerolog"
	"github.com/stretchr/testify/require"

	"github.com/dibs-go/dibs/internal/testkit"
	"github.com/dibs-go/dibs/logger"
	"github.com/dibs-go/dibs/messagestore"
	"github.com/dibs-go/dibs/messagestore/memory"
)

var errLost = errors.New("connection reset")

// A scripted driver answers its calls to append by a script: it writes, or not, and then reports
// the truth, or an unknown outcome.
type scripted struct {
	*memory.Driver
	script  []step
	appends int
	find    func() error // fails Find if it is set and returns an error
	finds   int
}

type step struct {
	writes bool
	err    error // nil: the result of the write
}

func (d *scripted) next() (step, error) {
	s := d.script[d.appends]
	d.appends++
	if !errors.Is(s.err, errLost) {
		return s, s.err
	}
	return s, &messagestore.OutcomeUnknownError{Cause: s.err}
}

func (d *scripted) Append(ctx context.Context, a messagestore.Append) (messagestore.Written, error) {
	written, err := d.AppendAll(ctx, []messagestore.Append{a})
	if err != nil {
		return messagestore.Written{}, err
	}
	return written[0], nil
}

func (d *scripted) AppendAll(ctx context.Context, appends []messagestore.Append) ([]messagestore.Written, error) {
	s, answer := d.next()
	if !s.writes {
		return nil, answer
	}
	written, err := d.Driver.AppendAll(context.WithoutCancel(ctx), appends)
	if answer != nil || err != nil {
		return nil, errors.Join(answer, err)
	}
	return written, nil
}

func (d *scripted) TryAppend(ctx context.Context, appends []messagestore.Append) ([]messagestore.Written, *messagestore.Conflict, error) {
	s, answer := d.next()
	if !s.writes {
		return nil, nil, answer
	}
	written, met, err := d.Driver.TryAppend(context.WithoutCancel(ctx), appends)
	if answer != nil || err != nil {
		return nil, nil, errors.Join(answer, err)
	}
	return written, met, nil
}

func (d *scripted) Find(ctx context.Context, stream messagestore.StreamName, ids []uuid.UUID) ([]*messagestore.Message, error) {
	d.finds++
	if d.find != nil {
		if err := d.find(); err != nil {
			return nil, err
		}
	}
	return d.Driver.Find(ctx, stream, ids)
}

func script(steps ...step) (*scripted, *messagestore.Store) {
	d := &scripted{Driver: memory.New(), script: steps}
	return d, testkit.Must(messagestore.New(d, nil))
}

func requireMessages(t *testing.T, store *messagestore.Store, stream messagestore.StreamName, want int) {
	t.Helper()
	got := 0
	for _, err := range store.ReadStream(t.Context(), stream, 0) {
		require.NoError(t, err)
		got++
	}
	require.Equal(t, want, got)
}

func TestLostAnswerOfAWriteThatHappenedIsFound(t *testing.T) {
	driver, store := script(step{true, nil}, step{true, errLost})
	testkit.Do(store.Write(t.Context(), stream, messagestore.NoStream, opened{"before"}))(t)

	written := testkit.Do(store.Write(t.Context(), stream, 0, opened{"a"}, opened{"b"}))(t)

	require.Equal(t, messagestore.Version(2), written.Version)
	require.Equal(t, messagestore.GlobalPosition(3), written.GlobalPosition)
	require.Len(t, written.IDs, 2)
	require.Equal(t, stream, written.Stream)
	require.Equal(t, 2, driver.appends, "it is not written again")
	requireMessages(t, store, stream, 3)
}

func TestLostWriteThatDidNotHappenIsWrittenOnceMore(t *testing.T) {
	driver, store := script(step{false, errLost}, step{true, nil})

	written := testkit.Do(store.Write(t.Context(), stream, messagestore.NoStream, opened{"a"}))(t)

	require.Equal(t, messagestore.Version(0), written.Version)
	require.False(t, written.Duplicate)
	require.Equal(t, 2, driver.appends)
	requireMessages(t, store, stream, 1)
}

func TestLostWriteCanMeetAConflictWhenItIsWrittenOnceMore(t *testing.T) {
	driver, store := script(step{false, errLost}, step{true, nil})
	driver.find = func() error { // somebody else is first
		_, err := driver.Driver.Append(t.Context(), messagestore.Append{Stream: stream, Expected: messagestore.NoStream, Records: []messagestore.Encoded{{ID: uuid.New(), Type: "Other", Data: []byte(`{}`)}}})
		return err
	}

	require.False(t, testkit.Do(store.WriteInitial(t.Context(), stream, opened{"a"}))(t))
	requireMessages(t, store, stream, 1)
}

func TestWriteThatIsLostAgainAndAgainIsNotWritten(t *testing.T) {
	driver, store := script(step{false, errLost}, step{false, errLost}, step{false, errLost})

	_, err := store.Write(t.Context(), stream, messagestore.NoStream, opened{"a"})

	require.ErrorIs(t, err, messagestore.ErrNotWritten)
	require.ErrorIs(t, err, errLost)
	require.NotErrorIs(t, err, messagestore.ErrOutcomeUnknown, "that it was not written is known")
	require.EqualError(t, err, "write account-1: not written after 3 attempts: connection reset")
	require.Equal(t, 3, driver.appends)
	requireMessages(t, store, stream, 0)
}

func TestOutcomeThatCannotBeFoundOutIsUnknown(t *testing.T) {
	driver, store := script(step{true, errLost})
	driver.find = func() error { return errors.New("database is gone") }

	_, err := store.Write(t.Context(), stream, messagestore.NoStream, opened{"a"})

	require.ErrorIs(t, err, messagestore.ErrOutcomeUnknown)
	require.ErrorIs(t, err, errLost)
	require.EqualError(t, err, "write account-1: outcome unknown: connection reset")
	require.Equal(t, 1, driver.appends, "what may have happened is not done again")

	_, resolveErr := store.Resolve(t.Context(), err)
	require.EqualError(t, resolveErr, "resolve account-1: database is gone")
	require.NotErrorIs(t, resolveErr, messagestore.ErrNotWritten)

	driver.find = nil
	written, resolveErr := testkit.Must(messagestore.New(driver, nil)).Resolve(t.Context(), err)
	require.NoError(t, resolveErr)
	require.Len(t, written, 1)
	require.Equal(t, messagestore.Version(0), written[0].Version)
	require.Equal(t, stream, written[0].Stream)
	require.Len(t, written[0].IDs, 1)
}

func TestOutcomeIsUnknownAtOnceWhenTheContextIsDone(t *testing.T) {
	for _, happened := range []bool{true, false} {
		driver, store := script(step{happened, errLost})
		ctx, cancel := context.WithCancel(t.Context())
		cancel()

		_, err := store.Write(ctx, stream, messagestore.NoStream, opened{"a"})
		require.ErrorIs(t, err, messagestore.ErrOutcomeUnknown)
		require.Equal(t, 1, driver.appends)
		require.Zero(t, driver.finds)

		written, err := store.Resolve(t.Context(), err)
		if happened {
			require.NoError(t, err)
			require.Equal(t, messagestore.GlobalPosition(1), written[0].GlobalPosition)
		} else {
			require.ErrorIs(t, err, messagestore.ErrNotWritten)
			require.EqualError(t, err, "resolve account-1: not written")
		}
	}
}

func TestLostWriteOfSeveralStreamsIsFoundWhole(t *testing.T) {
	for _, happened := range []bool{true, false} {
		driver, store := script(step{happened, errLost}, step{true, nil})

		written := testkit.Do(store.WriteStreams(t.Context(),
			messagestore.StreamWrite{Stream: "account-1", Expected: messagestore.NoStream, Bodies: []messagestore.Body{opened{"a"}, opened{"b"}}},
			messagestore.StreamWrite{Stream: "account-2", Expected: messagestore.NoStream},
			messagestore.StreamWrite{Stream: "order-1", Expected: messagestore.NoStream, Bodies: []messagestore.Body{opened{"c"}}}))(t)

		require.Len(t, written, 3)
		require.Equal(t, messagestore.Version(1), written[0].Version)
		require.Equal(t, messagestore.StreamName("account-2"), written[1].Stream)
		require.Equal(t, messagestore.NoStream, written[1].Version, "a check returns the version that it found")
		require.Equal(t, messagestore.Version(0), written[2].Version)
		require.Equal(t, map[bool]int{true: 1, false: 2}[happened], driver.appends)
		requireMessages(t, store, "account-1", 2)
	}
}

// The ids are there, and the write is not.
func TestLostWriteWhoseIDIsUsedForSomethingElseIsAConflict(t *testing.T) {
	first := messagestore.Envelope{ID: uuid.New(), Body: opened{"first"}, Metadata: messagestore.Metadata{SchemaVersion: "1"}}
	second := messagestore.Envelope{ID: uuid.New(), Body: opened{"second"}}
	changed := first
	changed.Body = opened{"changed"}
	bare := first
	bare.Metadata = messagestore.Metadata{}
	for name, test := range map[string]struct {
		again    []messagestore.Body
		conflict bool
	}{
		"the same":       {[]messagestore.Body{first, second}, false},
		"one of two":     {[]messagestore.Body{second}, false},
		"other data":     {[]messagestore.Body{changed, second}, true},
		"other metadata": {[]messagestore.Body{bare}, true},
		"another order":  {[]messagestore.Body{second, first}, true},
	} {
		driver, store := script(step{true, nil}, step{false, errLost})
		testkit.Do(store.Write(t.Context(), stream, messagestore.NoStream, first, second))(t)

		_, err := store.Write(t.Context(), stream, 1, test.again...)

		require.Equal(t, test.conflict, err != nil, name)
		if test.conflict {
			require.ErrorIs(t, err, messagestore.ErrIDConflict, name)
			require.NotErrorIs(t, err, messagestore.ErrOutcomeUnknown)
		}
		require.Equal(t, 2, driver.appends)
		requireMessages(t, store, stream, 2)
	}
}

func TestResolveWantsAnUnknownOutcome(t *testing.T) {
	_, err := untouchedStore(t).Resolve(t.Context(), messagestore.ErrVersionConflict)
	require.ErrorIs(t, err, messagestore.ErrVersionConflict)
	require.EqualError(t, err, "resolve: not an unknown outcome: version conflict")
	require.Error(t, testkit.ErrorOf(untouchedStore(t).Resolve(t.Context(), nil)))
}

func TestWatchRingsForWritesToItsCategory(t *testing.T) {
	store := testkit.Must(messagestore.New(memory.New(), nil))
	bell, stop := store.Watch("account", 0)
	other, stopOther := store.Watch("order", 0)
	second, stopSecond := store.Watch("account", 0)
	defer stopOther()
	defer stopSecond()
	rings := func(bell <-chan messagestore.GlobalPosition) bool {
		select {
		case <-bell:
			return true
		default:
			return false
		}
	}
	require.False(t, rings(bell))

	for i := range 3 {
		testkit.Do(store.Write(t.Context(), stream, messagestore.Version(i-1), opened{}))(t)
	}
	require.True(t, rings(bell))
	require.False(t, rings(bell), "several writes ring once")
	require.True(t, rings(second))
	require.False(t, rings(other))

	require.ErrorIs(t, testkit.ErrorOf(store.Write(t.Context(), stream, messagestore.NoStream, opened{})), messagestore.ErrVersionConflict)
	require.False(t, rings(bell), "a refused write does not ring")

	stop()
	stop()
	testkit.Do(store.WriteStreams(t.Context(),
		messagestore.StreamWrite{Stream: "account-2", Expected: messagestore.NoStream, Bodies: []messagestore.Body{opened{}}},
		messagestore.StreamWrite{Stream: "order-2", Expected: messagestore.NoStream, Bodies: []messagestore.Body{opened{}}}))(t)
	require.False(t, rings(bell), "it was stopped")
	require.True(t, rings(second))
	require.True(t, rings(other))
}

func TestReadingStopsWhenTheReaderDoes(t *testing.T) {
	store := testkit.Must(messagestore.New(memory.New(), &messagestore.Config{BatchSize: 2}))
	testkit.Do(store.Write(t.Context(), stream, messagestore.NoStream, opened{"0"}, opened{"1"}, opened{"2"}))(t)
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()

	n := 0
	for _, err := range store.ReadStream(ctx, stream, 0) {
		require.NoError(t, err)
		if n++; n == 1 {
			break
		}
	}
	require.Equal(t, 1, n)

	// A context that ends between two batches ends the reading, with its error last.
	var errs []error
	for m, err := range store.ReadCategory(ctx, "account", 0, messagestore.Filter{}) {
		if m != nil && m.Position == 1 {
			cancel()
		}
		errs = append(errs, err)
	}
	require.Len(t, errs, 3)
	require.ErrorIs(t, errs[2], context.Canceled)
	require.EqualError(t, errs[2], "read category account: context canceled")
}

func TestToIsAStreamWrite(t *testing.T) {
	require.Equal(t,
		messagestore.StreamWrite{Stream: "account-1", Expected: 3, Bodies: []messagestore.Body{opened{"a"}, opened{"b"}}},
		messagestore.To("account-1", 3, opened{"a"}, opened{"b"}))
}

// The memory driver has the process's clock, and so a test the clock of its bubble.
func TestNowIsTheTimeOfTheBubble(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := testkit.Must(messagestore.New(memory.New(), nil))
		before := testkit.Do(store.Now(t.Context()))(t)

		time.Sleep(time.Hour)

		after := testkit.Do(store.Now(t.Context()))(t)
		require.Equal(t, time.Hour, after.Sub(before))
	})
}

type closing struct {
	messagestore.Driver
	err error
}

func (c closing) Close() error { return c.err }

func TestCloseClosesADriverThatOwnsWhatItWorksWith(t *testing.T) {
	require.NoError(t, testkit.Must(messagestore.New(memory.New(), nil)).Close())
	require.ErrorIs(t, testkit.Must(messagestore.New(closing{err: errLost}, nil)).Close(), errLost)
}

func TestErrorsOfTheDriverSayWhatWasDone(t *testing.T) {
	store := testkit.Must(messagestore.New(memory.New(), nil))
	_, err := store.Last(t.Context(), stream)
	require.EqualError(t, err, "read last of account-1: no such message")
	require.ErrorIs(t, err, messagestore.ErrNotFound)

	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	require.EqualError(t, testkit.ErrorOf(store.Version(ctx, stream)), "read version of account-1: context canceled")
	for _, err := range store.ReadStream(ctx, stream, 0) {
		require.EqualError(t, err, "read account-1: context canceled")
	}
	_, err = store.WriteStreams(t.Context(), messagestore.StreamWrite{Stream: stream, Expected: 4, Bodies: []messagestore.Body{opened{}}})
	require.EqualError(t, err, "write streams: account-1: version conflict: expected 4, found no stream")

	id := uuid.MustParse("0199a7a0-0000-7000-8000-000000000001")
	testkit.Do(store.Write(t.Context(), stream, messagestore.NoStream, messagestore.Envelope{ID: id, Body: opened{"a"}}))(t)
	_, err = store.Write(t.Context(), "order-1", messagestore.NoStream, messagestore.Envelope{ID: id, Body: opened{"a"}})
	require.EqualError(t, err, `write order-1: message id conflict: 0199a7a0-0000-7000-8000-000000000001 is recorded with other content or elsewhere, as "account-1"@0`)
	require.Equal(t, "any version", messagestore.AnyVersion.String())
}

func TestLogHasNamesAndNumbersAndNoContent(t *testing.T) {
	var log bytes.Buffer
	store := testkit.Must(messagestore.New(memory.New(), &messagestore.Config{Logger: logger.Zerolog(zerolog.New(&log))}))
	testkit.Do(store.Write(t.Context(), stream, messagestore.NoStream, messagestore.Envelope{
		Body: opened{"secret"}, Metadata: messagestore.Metadata{Properties: messagestore.Properties{"token": "secret"}},
	}))(t)
	requireMessages(t, store, stream, 1)
	testkit.Do(store.ReadCategoryPage(t.Context(), messagestore.CategoryQuery{Category: "account", Limit: 1}))(t)

	require.Contains(t, log.String(), `"stream":"account-1","version":0,"duplicate":false,"message":"write"`)
	require.Contains(t, log.String(), `"message":"read stream"`)
	require.Contains(t, log.String(), `"message":"read category"`)
	require.NotContains(t, log.String(), "secret")
}

func TestWriteInitialIsNotTrueForAMessageThatIsNotFirst(t *testing.T) {
	store := testkit.Must(messagestore.New(memory.New(), nil))
	m := messagestore.Envelope{ID: uuid.New(), Body: opened{"second"}}
	testkit.Do(store.Write(t.Context(), "account-1", messagestore.NoStream, opened{"first"}, m))(t)

	require.False(t, testkit.Do(store.WriteInitial(t.Context(), "account-1", m))(t))
}

func TestWriteInitialOfTheFirstMessageAgainIsTrue(t *testing.T) {
	store := testkit.Must(messagestore.New(memory.New(), nil))
	m := messagestore.Envelope{ID: uuid.New(), Body: opened{"first"}}
	for range 2 {
		require.True(t, testkit.Do(store.WriteInitial(t.Context(), "account-1", m))(t))
	}
}

// keeping is a driver that keeps its arguments for later, like a driver after its caller has left.
type keeping struct {
	messagestore.Driver
	kept []messagestore.Append
}

func (k *keeping) Append(ctx context.Context, a messagestore.Append) (messagestore.Written, error) {
	k.kept = append(k.kept, a)
	return k.Driver.Append(ctx, a)
}

func TestABufferMayBeUsedAgainAfterTheWrite(t *testing.T) {
	driver := &keeping{Driver: memory.New()}
	store := testkit.Must(messagestore.New(driver, nil))
	buffer := []byte(`{"a":1}`)
	raw := messagestore.Raw{Type: "Opened", Data: buffer}
	testkit.Do(store.Write(t.Context(), "account-1", messagestore.AnyVersion, raw, &raw))(t)

	copy(buffer, `{"b":2}`)

	for _, r := range driver.kept[0].Records {
		require.JSONEq(t, `{"a":1}`, string(r.Data))
	}
}

// A driver of epochs tells one, or that it cannot.
type epochs struct {
	*memory.Driver
	epoch string
	err   error
}

func (d epochs) Epoch(context.Context) (string, error) { return d.epoch, d.err }

func TestAStoreTellsItsEpochIfItsDriverCan(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		driver messagestore.Driver
		want   string
		err    error
	}{
		{memory.New(), "", nil},
		{epochs{memory.New(), "", messagestore.ErrNotSupported}, "", nil},
		{epochs{memory.New(), "1", nil}, "1", nil},
		{epochs{memory.New(), "1", errLost}, "", errLost},
	} {
		epoch, err := testkit.Must(messagestore.New(c.driver, nil)).Epoch(t.Context())
		require.ErrorIs(t, err, c.err)
		require.Equal(t, c.want, epoch)
	}
}

func TestAConflictIsAnsweredWithTheLastMessageAndTheTime(t *testing.T) {
	clock := time.Date(2026, 1, 2, 3, 4, 5, 6000, time.UTC)
	var log bytes.Buffer
	store := testkit.Must(messagestore.New(memory.NewWithClock(func() time.Time { return clock }), &messagestore.Config{Logger: logger.Zerolog(zerolog.New(&log))}))
	first, met, err := store.TryWrite(t.Context(), stream, messagestore.NoStream, opened{"secret"})
	require.NoError(t, err)
	require.Nil(t, met)
	require.Equal(t, clock, first.Time)
	clock = clock.Add(time.Minute)

	written, met, err := store.TryWrite(t.Context(), stream, messagestore.NoStream, opened{"second"})

	require.NoError(t, err)
	require.Zero(t, written)
	require.Equal(t, clock, met.Time)
	require.Len(t, met.Last, 1)
	require.Equal(t, first.IDs[0], met.Last[0].ID)
	require.Equal(t, first.Time, met.Last[0].Time)
	require.Contains(t, log.String(), `"stream":"account-1","message":"write met another version"`)
	require.NotContains(t, log.String(), "secret")
	requireMessages(t, store, stream, 1)
}

func TestLostAnswerOfAWriteThatHappenedIsNoMeeting(t *testing.T) {
	driver, store := script(step{true, nil}, step{true, errLost})
	testkit.Do(store.Write(t.Context(), stream, messagestore.NoStream, opened{"before"}))(t)

	written, met, err := store.TryWrite(t.Context(), stream, 0, opened{"a"}, opened{"b"})

	require.NoError(t, err)
	require.Nil(t, met)
	require.Equal(t, messagestore.Version(2), written.Version)
	require.Len(t, written.IDs, 2)
	require.Equal(t, testkit.Do(store.Last(t.Context(), stream))(t).Time, written.Time)
	require.Equal(t, 2, driver.appends, "it is not written again")
	requireMessages(t, store, stream, 3)
}

func TestLostWriteThatDidNotHappenCanMeetAnotherWhenItIsWrittenOnceMore(t *testing.T) {
	driver, store := script(step{false, errLost}, step{true, nil})
	other := uuid.New()
	driver.find = func() error { // somebody else is first
		_, err := driver.Driver.Append(t.Context(), messagestore.Append{Stream: stream, Expected: messagestore.NoStream, Records: []messagestore.Encoded{{ID: other, Type: "Other", Data: []byte(`{}`)}}})
		return err
	}

	written, met, err := store.TryWrite(t.Context(), stream, messagestore.NoStream, opened{"a"})

	require.NoError(t, err)
	require.Zero(t, written)
	require.Equal(t, other, met.Last[0].ID)
	require.Equal(t, 2, driver.appends)
	requireMessages(t, store, stream, 1)
}

// The loser's messages are not found, and it meets the winner at the second attempt.
func TestLostMeetingIsMetOnceMore(t *testing.T) {
	driver, store := script(step{true, nil}, step{true, errLost}, step{true, nil})
	winner := testkit.Do(store.Write(t.Context(), "account-2", messagestore.NoStream, opened{"winner"}))(t)

	written, met, err := store.TryWriteStreams(t.Context(), messagestore.To("account-1", messagestore.NoStream, opened{"a"}), messagestore.To("account-2", messagestore.NoStream, opened{"b"}))

	require.NoError(t, err)
	require.Nil(t, written)
	require.Len(t, met.Last, 2)
	require.Nil(t, met.Last[0])
	require.Equal(t, winner.IDs[0], met.Last[1].ID)
	require.Equal(t, 3, driver.appends)
	requireMessages(t, store, "account-1", 0)
}

func TestWriteOrLastThatIsLostAgainAndAgainIsNotWritten(t *testing.T) {
	driver, store := script(step{false, errLost}, step{false, errLost}, step{false, errLost})

	_, met, err := store.TryWrite(t.Context(), stream, messagestore.NoStream, opened{"a"})

	require.ErrorIs(t, err, messagestore.ErrNotWritten)
	require.EqualError(t, err, "try to write: not written after 3 attempts: connection reset")
	require.Nil(t, met)
	require.Equal(t, 3, driver.appends)
}

func TestOutcomeOfAWriteOrLastIsUnknownWhenTheContextIsDone(t *testing.T) {
	_, store := script(step{true, errLost})
	ctx, cancel := context.WithCancel(t.Context())
	cancel()

	_, met, err := store.TryWrite(ctx, stream, messagestore.NoStream, opened{"a"})

	require.ErrorIs(t, err, messagestore.ErrOutcomeUnknown)
	require.Nil(t, met)
	written := testkit.Do(store.Resolve(t.Context(), err))(t)
	require.Equal(t, messagestore.Version(0), written[0].Version)
	require.NotZero(t, written[0].Time)
}

// A driver that cannot see the winner returns the conflict.
func TestAConflictThatShowsNothingIsAnError(t *testing.T) {
	_, store := script(step{false, &messagestore.VersionConflictError{Stream: stream, Expected: 3, Actual: 4}})

	_, met, err := store.TryWrite(t.Context(), stream, 3, opened{"a"})

	require.EqualError(t, err, "try to write: account-1: version conflict: expected 3, found 4")
	require.ErrorIs(t, err, messagestore.ErrVersionConflict)
	require.Nil(t, met)
}

func TestAWriteOrLastOfInvalidInputIsRefused(t *testing.T) {
	store := untouchedStore(t)

	_, _, err := store.TryWrite(t.Context(), stream, messagestore.NoStream)
	requireInvalid(t, err, messagestore.ErrInvalid, "batch", "", "must have a message")
	_, _, err = store.TryWrite(t.Context(), stream, -3, opened{})
	require.ErrorIs(t, err, messagestore.ErrInvalid)
	_, _, err = store.TryWrite(t.Context(), "account-", messagestore.NoStream, opened{})
	require.ErrorIs(t, err, messagestore.ErrInvalid)
	_, _, err = store.TryWrite(t.Context(), stream, messagestore.NoStream, raw(`[]`))
	requireInvalid(t, err, messagestore.ErrInvalid, "data", `"[]"`, "must be a JSON object")
}

// A nowhere is a driver that accepts everything and keeps nothing.
type nowhere struct{ messagestore.Driver }

func (nowhere) Append(context.Context, messagestore.Append) (messagestore.Written, error) {
	return messagestore.Written{}, nil
}

type moved struct {
	AccountID string `json:"accountId"`
	Amount    int64  `json:"amount"`
	Reference string `json:"reference"`
}

func (moved) MessageType() string { return "Moved" }

// BenchmarkWrite measures a write before it comes to the driver: a message is checked and
// encoded.
func BenchmarkWrite(b *testing.B) {
	store := testkit.Must(messagestore.New(nowhere{}, nil))
	m := messagestore.Envelope{
		ID:   uuid.Must(uuid.NewV7()),
		Body: moved{"CZ6508000000192000145399", 12_300, "rent of the flat on the second floor for the month of November"},
		Metadata: messagestore.Metadata{
			CausationStream: "account:command-01932b5c-8f4e-7d11-a1b2-c3d4e5f60718", CausationPosition: 7, CausationGlobalPosition: 123_456,
		},
	}
	b.ReportAllocs()
	for b.Loop() {
		testkit.Do(store.Write(b.Context(), "account-01932b5c-8f4e-7d11-a1b2-c3d4e5f60718", 6, m))(b)
	}
}
