package entity_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"math/big"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/rs/zerolog"
	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"
	"pgregory.net/rapid"

	"github.com/dibs-go/dibs/entity"
	"github.com/dibs-go/dibs/internal/testkit"
	"github.com/dibs-go/dibs/internal/text"
	"github.com/dibs-go/dibs/logger"
	"github.com/dibs-go/dibs/messagestore"
	"github.com/dibs-go/dibs/messagestore/memory"
	"github.com/dibs-go/dibs/upcast"
)

func TestMain(m *testing.M) {
	testkit.FewerCases()
	goleak.VerifyTestMain(m)
}

// list is an entity that is all in a slice.
type list struct {
	Items []int
}

func (l list) Clone() list { return list{slices.Clone(l.Items)} }

type (
	added   struct{ N int }
	changed struct{ N int } // changes the first item in place
	refused struct{}        // cannot be applied
	viewed  struct{}        // changes nothing
)

func (added) MessageType() string   { return "Added" }
func (changed) MessageType() string { return "Changed" }
func (refused) MessageType() string { return "Refused" }
func (viewed) MessageType() string  { return "Viewed" }

func lists() *entity.Projection[list] {
	p := entity.NewProjection[list]()
	entity.On(p, func(l list, e added) list {
		l.Items = append(l.Items, e.N)
		return l
	})
	entity.On(p, func(l list, e changed) list {
		if len(l.Items) > 0 {
			l.Items[0] = e.N
		}
		return l
	})
	entity.Ignore[viewed](p)
	return p
}

func newLists(t require.TestingT, store *messagestore.Store, config *entity.Config) *entity.Store[list] {
	s, err := entity.New(store, "list", lists(), config)
	require.NoError(t, err)
	return s
}

func write(t require.TestingT, store *messagestore.Store, stream messagestore.StreamName, bodies ...messagestore.Body) {
	_, err := store.Write(context.Background(), stream, messagestore.AnyVersion, bodies...)
	require.NoError(t, err)
}

// A driver that counts, and fails when it is told to.
type driver struct {
	messagestore.Driver
	read     atomic.Int64 // messages read from streams
	failRead atomic.Bool
	failAdd  atomic.Bool
}

var errDriver = errors.New("the driver failed")

func (d *driver) ReadStream(ctx context.Context, q messagestore.StreamQuery) ([]*messagestore.Message, error) {
	if d.failRead.Load() && q.From > 0 {
		return nil, errDriver
	}
	messages, err := d.Driver.ReadStream(ctx, q)
	d.read.Add(int64(len(messages)))
	return messages, err
}

func (d *driver) Append(ctx context.Context, a messagestore.Append) (messagestore.Written, error) {
	if d.failAdd.Load() {
		return messagestore.Written{}, errDriver
	}
	return d.Driver.Append(ctx, a)
}

func TestAnEmptyStreamIsTheZeroEntityAtNoStream(t *testing.T) {
	t.Parallel()
	s := newLists(t, testkit.Must(messagestore.New(memory.New(), nil)), nil)

	l, version, err := s.Get(t.Context(), "1")

	require.NoError(t, err)
	require.Equal(t, list{}, l)
	require.Equal(t, messagestore.NoStream, version)
}

func TestGetReturnsWhatTheMessagesMakeAndTheVersionToWriteWith(t *testing.T) {
	t.Parallel()
	store := testkit.Must(messagestore.New(memory.New(), nil))
	s := newLists(t, store, nil)
	for n := range 3 {
		_, version, err := s.Get(t.Context(), "1")
		require.NoError(t, err)
		_, err = store.Write(t.Context(), s.Stream("1"), version, added{n})
		require.NoError(t, err)
	}

	l, version, err := s.Get(t.Context(), "1")

	require.NoError(t, err)
	require.Equal(t, []int{0, 1, 2}, l.Items)
	require.Equal(t, messagestore.Version(2), version)
}

func TestOnlyWhatIsNewIsRead(t *testing.T) {
	t.Parallel()
	d := &driver{Driver: memory.New()}
	store := testkit.Must(messagestore.New(d, nil))
	s := newLists(t, store, nil)
	for n := range 100 {
		write(t, store, "list-1", added{n})
	}
	_, _, err := s.Get(t.Context(), "1")
	require.NoError(t, err)
	d.read.Store(0)
	write(t, store, "list-1", added{100})

	l, version, err := s.Get(t.Context(), "1")

	require.NoError(t, err)
	require.Len(t, l.Items, 101)
	require.Equal(t, messagestore.Version(100), version)
	require.EqualValues(t, 2, d.read.Load()) // the one it knew, and the new one
}

func TestWhatACallerDoesToAnEntityIsTheCallersAlone(t *testing.T) {
	t.Parallel()
	store := testkit.Must(messagestore.New(memory.New(), nil))
	s := newLists(t, store, nil)
	write(t, store, "list-1", added{1}, added{2})

	for range 3 {
		l, _, err := s.Get(t.Context(), "1")
		require.NoError(t, err)
		require.Equal(t, []int{1, 2}, l.Items)
		l.Items[0] = 99
	}
}

func TestAnErrorLeavesNothingHalfApplied(t *testing.T) {
	t.Parallel()
	d := &driver{Driver: memory.New()}
	store := testkit.Must(messagestore.New(d, &messagestore.Config{BatchSize: 2}))
	s := newLists(t, store, nil)
	write(t, store, "list-1", added{1})
	_, _, err := s.Get(t.Context(), "1")
	require.NoError(t, err)
	write(t, store, "list-1", changed{7}, added{2}, added{3}, added{4})
	d.failRead.Store(true)

	_, _, err = s.Get(t.Context(), "1") // the second page fails

	require.ErrorIs(t, err, errDriver)
	require.EqualError(t, err, "get list-1: read list-1: the driver failed")
	d.failRead.Store(false)
	l, version, err := s.Get(t.Context(), "1")
	require.NoError(t, err)
	require.Equal(t, []int{7, 2, 3, 4}, l.Items)
	require.Equal(t, messagestore.Version(4), version)
}

func TestAMessageThatCannotBeAppliedIsNamed(t *testing.T) {
	t.Parallel()
	store := testkit.Must(messagestore.New(memory.New(), nil))
	s := newLists(t, store, nil)
	write(t, store, "list-2", messagestore.Raw{Type: "Added", Data: []byte(`{"N":"one"}`)})

	_, _, err := s.Get(t.Context(), "2")

	require.ErrorContains(t, err, "get list-2: apply Added list-2@0: decode into entity_test.added: json: ")
}

func TestAnUnknownTypeIsAnError(t *testing.T) {
	t.Parallel()
	store := testkit.Must(messagestore.New(memory.New(), nil))
	s := newLists(t, store, nil)
	write(t, store, "list-1", added{1}, refused{})

	_, _, err := s.Get(t.Context(), "1")

	require.ErrorIs(t, err, entity.ErrUnknownType)
	require.EqualError(t, err, "get list-1: apply Refused list-1@1: unknown message type: no function is registered for it (On), and the projection does not ignore it (Ignore, IgnoreUnknown)")
}

func TestATypeThatIsIgnoredDoesNotChangeTheEntity(t *testing.T) {
	t.Parallel()
	for name, ignore := range map[string]func(p *entity.Projection[list]){
		"by type": func(p *entity.Projection[list]) { entity.Ignore[refused](p) },
		"by name": func(p *entity.Projection[list]) { entity.Ignore[other](p, "Refused") },
		"unknown": func(p *entity.Projection[list]) { p.IgnoreUnknown() },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			store := testkit.Must(messagestore.New(memory.New(), nil))
			p := lists()
			ignore(p)
			s, err := entity.New(store, "list", p, nil)
			require.NoError(t, err)
			write(t, store, "list-1", added{1}, refused{})

			l, version, err := s.Get(t.Context(), "1")

			require.NoError(t, err)
			require.Equal(t, []int{1}, l.Items)
			require.Equal(t, messagestore.Version(1), version)
		})
	}
}

func TestIgnoringOneTypeIgnoresNoOther(t *testing.T) {
	t.Parallel()
	store := testkit.Must(messagestore.New(memory.New(), nil))
	p := lists()
	entity.Ignore[other](p)
	write(t, store, "list-1", refused{})

	_, _, err := testkit.Must(entity.New(store, "list", p, nil)).Get(t.Context(), "1")

	require.ErrorIs(t, err, entity.ErrUnknownType)
}

func TestMistakesOfIgnoringAreKept(t *testing.T) {
	t.Parallel()
	p := lists()
	entity.Ignore[added](p)
	entity.Ignore[messagestore.Raw](p)
	entity.Ignore[refused](p, "")

	err := p.Validate()

	require.ErrorContains(t, err, `invalid projection "Added": must not be registered twice`)
	require.ErrorContains(t, err, `invalid projection "messagestore.Raw": must have a zero value with a valid message type, and it is ""`)
	require.ErrorContains(t, err, "invalid projection: must not be empty")

	p = lists()
	_, err = p.Apply(list{}, &messagestore.Message{Type: "Added"})
	require.NoError(t, err)
	p.IgnoreUnknown()
	require.ErrorContains(t, p.Validate(), "must be ignored before the projection is used")
}

// An event that was renamed is missing from no entity: not silently, and not at all once its
// older name is given.
func TestAnEventThatWasRenamedIsReadUnderItsOlderName(t *testing.T) {
	t.Parallel()
	store := testkit.Must(messagestore.New(memory.New(), nil))
	write(t, store, "list-1", added{1}, messagestore.Raw{Type: "Put", Data: []byte(`{"N":2}`)}, one{3})
	p := entity.NewProjection[list]()
	entity.On(p, func(l list, e added) list {
		l.Items = append(l.Items, e.N)
		return l
	}, upcast.Named[added]("Put"), upcast.From(func(old one) added { return added{N: 10 * old.One} }))

	l, _, err := testkit.Must(entity.New(store, "list", p, nil)).Get(t.Context(), "1")

	require.NoError(t, err)
	require.Equal(t, []int{1, 2, 30}, l.Items)
}

func TestAnOlderFormThatDoesNotFitNamesItsGoType(t *testing.T) {
	t.Parallel()
	store := testkit.Must(messagestore.New(memory.New(), nil))
	write(t, store, "list-1", messagestore.Raw{Type: "One", Data: []byte(`{"One":"x"}`)})
	p := entity.NewProjection[list]()
	entity.On(p, func(l list, _ added) list { return l }, upcast.From(func(old one) added { return added{N: old.One} }))

	_, _, err := testkit.Must(entity.New(store, "list", p, nil)).Get(t.Context(), "1")

	require.ErrorContains(t, err, "get list-1: apply One list-1@0: decode into entity_test.one: json: ")
}

func TestMistakesOfOlderFormsAreKept(t *testing.T) {
	t.Parallel()
	p := lists()
	entity.On(p, func(l list, _ other) list { return l }, upcast.Named[other]("Added"), upcast.Named[other]("Former"))
	entity.On(p, func(l list, _ refused) list { return l }, upcast.Named[refused](""))

	err := p.Validate()

	require.ErrorContains(t, err, `invalid projection "Added": must not be registered twice`)
	require.ErrorContains(t, err, `invalid projection "entity_test.refused": invalid older form`)
}

// other is an event that no entity of these tests has.
type other struct{}

func (other) MessageType() string { return "Other" }

// one is the form that an item was added in before.
type one struct{ One int }

func (one) MessageType() string { return "One" }

func TestAFunctionMaySeeTheEnvelope(t *testing.T) {
	t.Parallel()
	store := testkit.Must(messagestore.New(memory.New(), nil))
	p := entity.NewProjection[time.Time]()
	entity.OnMessage(p, func(_ time.Time, _ added, m *messagestore.Message) time.Time { return m.Time })
	s, err := entity.New(store, "list", p, nil)
	require.NoError(t, err)
	write(t, store, "list-1", added{1})

	at, _, err := s.Get(t.Context(), "1")

	require.NoError(t, err)
	require.WithinDuration(t, time.Now(), at, time.Minute)
}

func TestTheEntitiesUsedLastAreRemembered(t *testing.T) {
	t.Parallel()
	d := &driver{Driver: memory.New()}
	store := testkit.Must(messagestore.New(d, nil))
	s := newLists(t, store, &entity.Config{CacheSize: 2})
	get := func(id string) int64 {
		d.read.Store(0)
		_, _, err := s.Get(t.Context(), id)
		require.NoError(t, err)
		return d.read.Load()
	}
	for _, id := range []string{"1", "2", "3"} {
		write(t, store, s.Stream(id), added{1}, added{2}, added{3})
	}
	require.EqualValues(t, 3, get("1"))
	require.EqualValues(t, 3, get("2"))
	require.EqualValues(t, 1, get("1"))

	require.EqualValues(t, 3, get("3")) // 2 goes

	require.EqualValues(t, 1, get("1"))
	require.EqualValues(t, 1, get("3"))
	require.EqualValues(t, 3, get("2"))
}

func TestNoCacheReadsAll(t *testing.T) {
	t.Parallel()
	d := &driver{Driver: memory.New()}
	store := testkit.Must(messagestore.New(d, nil))
	s := newLists(t, store, &entity.Config{CacheSize: entity.NoCache})
	write(t, store, "list-1", added{1}, added{2}, added{3})

	for range 2 {
		_, _, err := s.Get(t.Context(), "1")
		require.NoError(t, err)
	}

	require.EqualValues(t, 6, d.read.Load())
}

// A database is put back to an earlier state, and maybe written to again.
func TestARestoredDatabaseIsNoticed(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct {
		after []messagestore.Body
		want  []int
	}{
		"shorter":                        {[]messagestore.Body{added{1}}, []int{1}},
		"empty":                          {nil, nil},
		"as long, with other messages":   {[]messagestore.Body{added{4}, added{5}, added{6}}, []int{4, 5, 6}},
		"longer, with other messages":    {[]messagestore.Body{added{4}, added{5}, added{6}, added{7}}, []int{4, 5, 6, 7}},
		"shorter, with changed messages": {[]messagestore.Body{added{1}, changed{3}}, []int{3}},
	} {
		for what, config := range map[string]*entity.Config{
			"cache":    nil,
			"snapshot": {CacheSize: entity.NoCache, Snapshot: entity.Snapshot{Every: 1}},
			"both":     {Snapshot: entity.Snapshot{Every: 1}},
		} {
			t.Run(name+" with "+what, func(t *testing.T) {
				t.Parallel()
				d := &driver{Driver: memory.New()}
				store := testkit.Must(messagestore.New(d, nil))
				s := newLists(t, store, config)
				write(t, store, "list-1", added{1}, added{2}, added{3})
				_, _, err := s.Get(t.Context(), "1")
				require.NoError(t, err)

				restored := memory.New()
				snapshots, err := d.Driver.ReadStream(t.Context(), messagestore.StreamQuery{Stream: "list:snapshot-1", Limit: 10})
				require.NoError(t, err)
				for _, m := range snapshots { // that a snapshot is ahead is the hard case
					write(t, testkit.Must(messagestore.New(restored, nil)), m.Stream, m.Body())
				}
				d.Driver = restored
				if test.after != nil {
					write(t, store, "list-1", test.after...)
				}

				for again := range 2 {
					d.read.Store(0)
					l, version, err := s.Get(t.Context(), "1")
					require.NoError(t, err)
					require.Equal(t, test.want, l.Items)
					require.Equal(t, messagestore.Version(len(test.after)-1), version)
					if again == 1 { // the cache has the entity as it is now
						require.EqualValues(t, min(1, len(test.after)), d.read.Load())
					}
				}
			})
		}
	}
}

func TestASnapshotSavesReading(t *testing.T) {
	t.Parallel()
	d := &driver{Driver: memory.New()}
	store := testkit.Must(messagestore.New(d, nil))
	config := &entity.Config{Snapshot: entity.Snapshot{Every: 10, Tag: "v1"}}
	for n := range 25 {
		write(t, store, "list-1", added{n})
	}
	_, _, err := newLists(t, store, config).Get(t.Context(), "1")
	require.NoError(t, err)
	write(t, store, "list-1", added{25})
	d.read.Store(0)

	l, version, err := newLists(t, store, config).Get(t.Context(), "1") // another process

	require.NoError(t, err)
	require.Len(t, l.Items, 26)
	require.Equal(t, messagestore.Version(25), version)
	require.EqualValues(t, 2, d.read.Load())
	snapshot, err := store.Last(t.Context(), "list:snapshot-1")
	require.NoError(t, err)
	require.Equal(t, messagestore.Version(0), snapshot.Position)
	require.Contains(t, string(snapshot.Data), `"version":24`)
	require.Contains(t, string(snapshot.Data), `"tag":"v1"`)
}

func TestASnapshotIsWrittenWhenTheIntervalIsFull(t *testing.T) {
	t.Parallel()
	store := testkit.Must(messagestore.New(memory.New(), nil))
	s := newLists(t, store, &entity.Config{Snapshot: entity.Snapshot{Every: 3}})
	var snapshots []messagestore.Version
	for n := range 9 {
		write(t, store, "list-1", added{n})
		_, _, err := s.Get(t.Context(), "1")
		require.NoError(t, err)
		version, err := store.Version(t.Context(), "list:snapshot-1")
		require.NoError(t, err)
		snapshots = append(snapshots, version+1)
	}

	require.Equal(t, []messagestore.Version{0, 0, 1, 1, 1, 2, 2, 2, 3}, snapshots)
}

func TestASnapshotThatDoesNotFitIsPassedOver(t *testing.T) {
	t.Parallel()
	for name, snapshot := range map[string]string{
		"another tag":       `{"entity":{"Items":[99]},"version":0,"last":"%s","tag":"v1"}`,
		"undecodable":       `{"entity":{"Items":"x"},"version":0,"last":"%s","tag":"v2"}`,
		"nothing in it":     `{"version":0,"last":"%s","tag":"v2"}`,
		"another message":   `{"entity":{"Items":[99]},"version":0,"last":"0198c6b1-4b4c-7000-8000-000000000000","tag":"v2"}%.0s`,
		"a bad version":     `{"entity":{"Items":[99]},"version":-7,"last":"%s","tag":"v2"}`,
		"no JSON of ours":   `{"version":"x","last":"%s"}`,
		"a version ahead":   `{"entity":{"Items":[99]},"version":9,"last":"%s","tag":"v2"}`,
		"another's content": `{"%s":1}`,
		"an empty entity":   `{"entity":{},"version":0,"last":"%s","tag":"v2"}`,
		"null":              `{"entity":null,"version":0,"last":"%s","tag":"v2"}`,
		"other fields":      `{"entity":{"items":[99]},"version":0,"last":"%s","tag":"v2"}`,
		"a field more":      `{"entity":{"Items":[99],"More":1},"version":0,"last":"%s","tag":"v2"}`,
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			store := testkit.Must(messagestore.New(memory.New(), nil))
			write(t, store, "list-1", added{1})
			first, err := store.Last(t.Context(), "list-1")
			require.NoError(t, err)
			write(t, store, "list:snapshot-1", messagestore.Raw{Type: "Snapshot", Data: fmt.Appendf(nil, snapshot, first.ID)})

			l, version, err := newLists(t, store, &entity.Config{Snapshot: entity.Snapshot{Every: 10, Tag: "v2"}}).Get(t.Context(), "1")

			require.NoError(t, err)
			require.Equal(t, []int{1}, l.Items)
			require.Equal(t, messagestore.Version(0), version)
		})
	}
}

// The name of a snapshot's stream is longer than the entity's.
func TestAnIdTooLongForASnapshotHasNone(t *testing.T) {
	t.Parallel()
	var log bytes.Buffer
	store := testkit.Must(messagestore.New(memory.New(), nil))
	longest := strings.Repeat("x", text.MaxNameBytes-len("list:snapshot-"))
	s := newLists(t, store, &entity.Config{CacheSize: entity.NoCache, Snapshot: entity.Snapshot{Every: 1}, Logger: logger.Zerolog(zerolog.New(&log))})
	for _, id := range []string{longest, longest + "x"} {
		write(t, store, s.Stream(id), added{1}, added{2})
		for range 2 {
			l, version, err := s.Get(t.Context(), id)
			require.NoError(t, err)
			require.Equal(t, []int{1, 2}, l.Items)
			require.Equal(t, messagestore.Version(1), version)
		}
	}

	require.NotContains(t, log.String(), "not written")
	_, err := store.Last(t.Context(), messagestore.Category("list:snapshot").Stream(longest))
	require.NoError(t, err)
}

func TestASnapshotThatCannotBeWrittenIsLogged(t *testing.T) {
	t.Parallel()
	var log bytes.Buffer
	d := &driver{Driver: memory.New()}
	store := testkit.Must(messagestore.New(d, nil))
	s := newLists(t, store, &entity.Config{Snapshot: entity.Snapshot{Every: 1}, Logger: logger.Zerolog(zerolog.New(&log))})
	write(t, store, "list-1", added{4711})
	d.failAdd.Store(true)

	l, _, err := s.Get(t.Context(), "1")

	require.NoError(t, err)
	require.Equal(t, []int{4711}, l.Items)
	require.Contains(t, log.String(), `"level":"warn","error":"write list:snapshot-1: the driver failed","stream":"list-1","version":0,"message":"snapshot not written"`)
	require.NotContains(t, log.String(), "4711")
	d.failAdd.Store(false)
	_, _, err = s.Get(t.Context(), "1")
	require.NoError(t, err)
	_, err = store.Last(t.Context(), "list:snapshot-1")
	require.NoError(t, err)
}

type (
	withPointer struct{ At struct{ Of [2]*int } }
	withBig     struct{ Sum big.Int }
	withFunc    struct{ F func() }
	hidden      struct{ N, m int }
	leftOut     struct {
		N int `json:"-"`
	}
	withAny      struct{ Deep []map[string]any }
	wellClonedBy struct{ M map[string]int }
	plain        struct { // everything that needs no Clone
		ID uuid.UUID
		At time.Time
		S  string
		A  [3]struct{ F float64 }
	}
	recursive struct{ Children []recursive }

	beside struct { // encoded as its time alone
		time.Time
		Balance int
	}
)

var _ = hidden{m: 1}

func (w *wellClonedBy) Clone() wellClonedBy { return wellClonedBy{map[string]int{"cloned": len(w.M)}} }
func (r recursive) Clone() recursive        { return r }
func (w withAny) Clone() withAny            { return w }

func TestAnEntityThatCannotBeKeptIsRefused(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct {
		err  error
		want string // "" for accepted
	}{
		"plain":                   {try[plain](nil), ""},
		"cloned by a pointer":     {try[wellClonedBy](nil), ""},
		"recursive":               {try[recursive](&entity.Config{Snapshot: entity.Snapshot{Every: 1}}), ""},
		"not cached":              {try[withPointer](&entity.Config{CacheSize: entity.NoCache}), ""},
		"hidden, but cached only": {try[hidden](nil), ""},
		"a pointer inside":        {try[withPointer](nil), `"entity_test.withPointer.At.Of[]": a copy would share this ptr: give entity_test.withPointer a method Clone, or turn the cache off`},
		"a slice inside big.Int":  {try[withBig](nil), `"entity_test.withBig.Sum.abs": a copy would share this slice: give entity_test.withBig a method Clone, or turn the cache off`},
		"a function":              {try[withFunc](nil), `"entity_test.withFunc.F": a copy would share this func: give entity_test.withFunc a method Clone, or turn the cache off`},
		"a map itself":            {try[map[string]int](nil), `"map[string]int": a copy would share this map: give map[string]int a method Clone, or turn the cache off`},
		"a pointer itself":        {try[*plain](nil), `"*entity_test.plain": must be a value and not a pointer: the fold of an empty stream is the zero value`},
		"an interface":            {try[any](nil), `"interface {}": must be a value and not a pointer: the fold of an empty stream is the zero value`},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			if test.want == "" {
				require.NoError(t, test.err)
				return
			}
			require.ErrorIs(t, test.err, messagestore.ErrInvalid)
			require.EqualError(t, test.err, `entities of "list": invalid entity `+test.want)
		})
	}
}

// A snapshot that would lose a field is not written, and the entity is folded from its
// stream, whole.
func TestASnapshotThatWouldLoseAFieldIsNotWritten(t *testing.T) {
	t.Parallel()
	loses(t, hidden{N: 1, m: 2})
	loses(t, leftOut{N: 1})
	loses(t, withAny{Deep: []map[string]any{{"n": 1}}})
	loses(t, beside{time.Unix(1, 0).UTC(), 1})
}

func loses[T any](t *testing.T, is T) {
	t.Helper()
	var log bytes.Buffer
	store := testkit.Must(messagestore.New(memory.New(), nil))
	p := entity.NewProjection[T]()
	entity.On(p, func(T, added) T { return is })
	config := &entity.Config{CacheSize: entity.NoCache, Snapshot: entity.Snapshot{Every: 1}, Logger: logger.Zerolog(zerolog.New(&log))}
	write(t, store, "list-1", added{1})

	for range 2 {
		got, _, err := testkit.Must(entity.New(store, "list", p, config)).Get(t.Context(), "1")

		require.NoError(t, err)
		require.Equal(t, is, got)
	}
	require.Contains(t, log.String(), "snapshot not written")
	_, err := store.Last(t.Context(), "list:snapshot-1")
	require.ErrorIs(t, err, messagestore.ErrNotFound)
}

func try[T any](config *entity.Config) error {
	p := entity.NewProjection[T]()
	entity.On(p, func(t T, _ added) T { return t })
	_, err := entity.New(testkit.Must(messagestore.New(memory.New(), nil)), "list", p, config)
	return err
}

func TestNewRefusesWhatCannotWork(t *testing.T) {
	t.Parallel()
	store := testkit.Must(messagestore.New(memory.New(), nil))
	twice := lists()
	entity.On(twice, func(l list, _ added) list { return l })
	none := lists()
	entity.On[list, refused](none, nil)
	create := func(store entity.MessageStore, category messagestore.Category, p *entity.Projection[list], config *entity.Config) error {
		_, err := entity.New(store, category, p, config)
		return err
	}
	tagged := func(tag string) *entity.Config { return &entity.Config{Snapshot: entity.Snapshot{Tag: tag}} }
	for name, test := range map[string]struct {
		err, is error
		want    string
	}{
		"no store":          {create(nil, "list", lists(), nil), messagestore.ErrInvalid, "invalid store: must not be nil"},
		"a nil store":       {create((*messagestore.Store)(nil), "list", lists(), nil), messagestore.ErrInvalid, "invalid store: must not be nil"},
		"a stream":          {create(store, "list-1", lists(), nil), messagestore.ErrInvalid, `invalid category "list-1": must be a category, without a dash, and is the name of a stream`},
		"no projection":     {create(store, "list", nil, nil), messagestore.ErrInvalid, "invalid projection: must not be nil"},
		"an empty one":      {create(store, "list", entity.NewProjection[list](), nil), messagestore.ErrInvalid, "invalid projection: must not be empty: register a function with On"},
		"one type twice":    {create(store, "list", twice, nil), messagestore.ErrInvalid, `invalid projection "Added": must not be registered twice`},
		"a nil function":    {create(store, "list", none, nil), messagestore.ErrInvalid, `invalid projection "Refused": the function must not be nil`},
		"the cache size":    {create(store, "list", lists(), &entity.Config{CacheSize: -2}), messagestore.ErrInvalid, "invalid cache size -2: must be at least 1, or NoCache"},
		"the interval":      {create(store, "list", lists(), &entity.Config{Snapshot: entity.Snapshot{Every: -1}}), messagestore.ErrInvalid, "invalid snapshot interval -1: must be at least 1, or 0 for never"},
		"a tag with U+0000": {create(store, "list", lists(), tagged("\x00")), messagestore.ErrInvalid, `invalid snapshot tag "\x00": must not contain U+0000`},
		"a tag no UTF-8":    {create(store, "list", lists(), tagged("v\xff")), messagestore.ErrInvalid, `invalid snapshot tag "v\xff": must be valid UTF-8`},
		"a long tag":        {create(store, "list", lists(), tagged(strings.Repeat("v", 256))), messagestore.ErrInvalid, `must be at most 255 bytes, and is 256`},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			require.ErrorIs(t, test.err, test.is)
			require.ErrorContains(t, test.err, test.want)
			require.Less(t, len(test.err.Error()), 300)
		})
	}
}

// Each tag that is accepted is written with the snapshot, and found again.
func TestALongTagIsThatOfASnapshot(t *testing.T) {
	t.Parallel()
	for _, tag := range []string{"", strings.Repeat("v", 255), "\u200b \"\n", strings.Repeat("\x01", 255)} {
		store := testkit.Must(messagestore.New(memory.New(), nil))
		s := newLists(t, store, &entity.Config{Snapshot: entity.Snapshot{Every: 1, Tag: tag}})
		_, err := store.Write(t.Context(), "list-1", messagestore.NoStream, added{1})
		require.NoError(t, err)

		_, _, err = s.Get(t.Context(), "1")
		require.NoError(t, err)

		_, err = store.Last(t.Context(), "list:snapshot-1")
		require.NoErrorf(t, err, "%q", tag)
	}
}

func TestAnIdThatIsNoneIsRefused(t *testing.T) {
	t.Parallel()
	s := newLists(t, testkit.Must(messagestore.New(memory.New(), nil)), nil)

	_, _, err := s.Get(t.Context(), "")

	require.ErrorIs(t, err, messagestore.ErrInvalid)
}

func TestRegistrationEndsWithUse(t *testing.T) {
	t.Parallel()
	p := lists()
	_, err := entity.New(testkit.Must(messagestore.New(memory.New(), nil)), "list", p, nil)
	require.NoError(t, err)

	entity.On(p, func(l list, _ refused) list { return l })

	require.ErrorIs(t, p.Validate(), messagestore.ErrInvalid)
	_, err = p.Apply(list{}, &messagestore.Message{Type: "Added", Stream: "list-1"})
	require.EqualError(t, err, `apply Added list-1@0: invalid projection "Refused": must be registered before the projection is used`)
}

func TestCloneByAPointerIsUsed(t *testing.T) {
	t.Parallel()
	store := testkit.Must(messagestore.New(memory.New(), nil))
	p := entity.NewProjection[wellClonedBy]()
	entity.On(p, func(w wellClonedBy, _ added) wellClonedBy {
		w.M = map[string]int{"a": 1, "b": 2}
		return w
	})
	s, err := entity.New(store, "list", p, nil)
	require.NoError(t, err)
	write(t, store, "list-1", added{1})
	_, _, err = s.Get(t.Context(), "1")
	require.NoError(t, err)

	w, _, err := s.Get(t.Context(), "1")

	require.NoError(t, err)
	require.Contains(t, w.M, "cloned")
}

// Under writes, failures, restarts and reads at once, Get returns the fold of the whole
// stream.
func TestALoadedEntityIsItsStreamFolded(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		ctx := context.Background()
		d := &driver{Driver: memory.New()}
		store := testkit.Must(messagestore.New(d, &messagestore.Config{BatchSize: rapid.IntRange(1, 5).Draw(t, "batch")}))
		config := &entity.Config{
			CacheSize: rapid.SampledFrom([]int{entity.NoCache, 1, 2, 10}).Draw(t, "cache"),
			Snapshot:  entity.Snapshot{Every: rapid.IntRange(0, 4).Draw(t, "interval")},
		}
		s := newLists(t, store, config)
		ids := rapid.SampledFrom([]string{"1", "2", "3"})
		same := func(id string) error {
			l, version, err := s.Get(ctx, id)
			if err != nil {
				return err
			}
			want, last := list{}, messagestore.NoStream
			for m, err := range store.ReadStream(ctx, s.Stream(id), 0) {
				if err != nil {
					return err
				}
				if m.Position > version { // written since, by another goroutine
					break
				}
				if want, err = lists().Apply(want, m); err != nil {
					return err
				}
				last = m.Position
			}
			if !slices.Equal(l.Items, want.Items) || version != last {
				return fmt.Errorf("got %v at %v, want %v at %v", l.Items, version, want.Items, last)
			}
			if len(l.Items) > 0 {
				l.Items[0] = -1 // harms nobody
			}
			return nil
		}
		t.Repeat(map[string]func(*rapid.T){
			"write": func(t *rapid.T) {
				bodies := rapid.SliceOfN(rapid.Custom(func(t *rapid.T) messagestore.Body {
					n := rapid.IntRange(0, 9).Draw(t, "n")
					return rapid.SampledFrom([]messagestore.Body{added{n}, changed{n}, viewed{}}).Draw(t, "body")
				}), 1, 5).Draw(t, "bodies")
				write(t, store, s.Stream(ids.Draw(t, "id")), bodies...)
			},
			"get": func(t *rapid.T) { require.NoError(t, same(ids.Draw(t, "id"))) },
			"fail": func(t *rapid.T) {
				d.failRead.Store(true)
				d.failAdd.Store(rapid.Bool().Draw(t, "failAdd"))
				_, _, err := s.Get(ctx, ids.Draw(t, "id"))
				if err != nil {
					require.ErrorIs(t, err, errDriver)
				}
				d.failRead.Store(false)
				d.failAdd.Store(false)
			},
			"restart": func(t *rapid.T) { s = newLists(t, store, config) },
			"at once": func(t *rapid.T) {
				id := ids.Draw(t, "id")
				errs := make(chan error, 8)
				var group sync.WaitGroup
				for n := range 8 {
					group.Go(func() {
						if n%4 == 0 {
							_, err := store.Write(ctx, s.Stream(id), messagestore.AnyVersion, changed{n}, added{n})
							errs <- err
							return
						}
						errs <- same(id)
					})
				}
				group.Wait()
				close(errs)
				for err := range errs {
					require.NoError(t, err)
				}
			},
		})
	})
}

type holder struct{ IBAN, Long string }

type opened struct{ IBAN string }

func (opened) MessageType() string { return "Opened" }

// A log has no content of messages, also where an entity is refused for its size.
func TestTheLogOfASnapshotThatIsRefusedHasNoContent(t *testing.T) {
	t.Parallel()
	var log bytes.Buffer
	store := testkit.Must(messagestore.New(memory.New(), nil))
	p := entity.NewProjection[holder]()
	entity.On(p, func(_ holder, o opened) holder {
		return holder{o.IBAN, strings.Repeat("x", messagestore.MaxMessageBytes)}
	})
	s, err := entity.New(store, "account", p, &entity.Config{Snapshot: entity.Snapshot{Every: 1}, Logger: logger.Zerolog(zerolog.New(&log))})
	require.NoError(t, err)
	write(t, store, "account-1", opened{"CZ6508000000192000145399"})

	_, _, err = s.Get(t.Context(), "1")

	require.NoError(t, err)
	require.Contains(t, log.String(), "snapshot not written")
	require.Contains(t, log.String(), "write account:snapshot-1: invalid message 0: data: ")
	require.NotContains(t, log.String(), "CZ65")
}
