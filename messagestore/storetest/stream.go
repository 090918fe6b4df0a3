package storetest

import (
	"fmt"
	"iter"
	"math"
	"strings"
	"testing"

	"github.com/google/uuid"
	"github.com/stretchr/testify/require"

	"github.com/dibs-go/dibs/internal/testkit"
	"github.com/dibs-go/dibs/internal/text"
	"github.com/dibs-go/dibs/messagestore"
)

// The tests of reading a stream: its pages and its exact name. Below are the tests of its last
// message, its version, and of finding messages by their ids.
var streamTests = []test{
	{"Stream/PagesForwards", 0, func(t *testing.T, f *fixture) {
		stream := f.stream()
		f.write(t, stream, messagestore.NoStream, opened(6)...)
		for _, size := range batchSizes {
			store := testkit.Must(messagestore.New(f.driver, &messagestore.Config{BatchSize: size}))
			for from := range 6 {
				require.Equal(t, numbers(from, 5), collect(t, store.ReadStream(t.Context(), stream, messagestore.Version(from))),
					"from %d in batches of %d", from, size)

				page := testkit.Do(f.driver.ReadStream(t.Context(), messagestore.StreamQuery{Stream: stream, From: messagestore.Version(from), Limit: size}))(t)
				require.Equal(t, numbers(from, min(from+size, 6)-1), names(t, page))
			}
		}
	}},
	{"Stream/PagesBackwards", 0, func(t *testing.T, f *fixture) {
		stream := f.stream()
		f.write(t, stream, messagestore.NoStream, opened(6)...)
		for _, size := range batchSizes {
			store := testkit.Must(messagestore.New(f.driver, &messagestore.Config{BatchSize: size}))
			for from := range 6 {
				require.Equal(t, numbers(from, 0), collect(t, store.ReadStreamBackwards(t.Context(), stream, messagestore.Version(from))),
					"from %d in batches of %d", from, size)
			}
			for _, from := range []messagestore.Version{6, 1000, messagestore.EndOfStream} {
				require.Equal(t, numbers(5, 0), collect(t, store.ReadStreamBackwards(t.Context(), stream, from)), "from %d in batches of %d", from, size)
			}
		}
	}},
	{"Stream/BeyondTheEnd", 0, func(t *testing.T, f *fixture) {
		stream := f.stream()
		f.fill(t, stream, 2)
		for _, from := range []messagestore.Version{2, 3, math.MaxInt32 + 1, math.MaxInt64} {
			require.Empty(t, testkit.Do(f.driver.ReadStream(t.Context(), messagestore.StreamQuery{Stream: stream, From: from, Limit: 10}))(t), "from %d", from)
		}
	}},
	{"Stream/EmptyHasNone", 0, func(t *testing.T, f *fixture) {
		f.fill(t, f.stream("other"), 1)
		for _, from := range []messagestore.Version{0, 1, messagestore.EndOfStream} {
			require.Empty(t, collect(t, f.store.ReadStream(t.Context(), f.stream(), from)))
			require.Empty(t, collect(t, f.store.ReadStreamBackwards(t.Context(), f.stream(), from)))
		}
	}},
	{"Stream/TenThousandMessages", 0, func(t *testing.T, f *fixture) {
		const messages = 10_000
		stream := f.stream()
		store := testkit.Must(messagestore.New(f.driver, nil))
		all := opened(messages)
		for at := 0; at < messages; at += messagestore.MaxWriteMessages {
			f.write(t, stream, messagestore.Version(at-1), all[at:at+messagestore.MaxWriteMessages]...)
		}

		require.Equal(t, numbers(0, messages-1), collect(t, store.ReadStream(t.Context(), stream, 0)))
		require.Equal(t, numbers(messages-1, 0), collect(t, store.ReadStreamBackwards(t.Context(), stream, messagestore.EndOfStream)))
		require.Equal(t, numbers(0, messages-1), collect(t, store.ReadCategory(t.Context(), f.category, 0, messagestore.Filter{})))
	}},
	{"Stream/NamesAreExact", 0, func(t *testing.T, f *fixture) {
		c := f.category
		f.requireApart(t, []messagestore.StreamName{
			named(c, "1"), named(c, "11"), named(c, "1+1"), named(c, "1+1+1"), named(c, "-1"), named(c, "1-"), named(c, "1-1"),
			named(c, "%"), named(c, "_"), named(c, "%%"), named(c, "1%"), named(c, `\`), named(c, `\\`), named(c, `\%`), named(c, "*"), named(c, ">"), named(c, "."),
			named(c, `'`), named(c, `''`), named(c, `"`), named(c, "`"), named(c, "1'; DROP TABLE messages;--"), named(c, "%s%d%n"), named(c, "${x}"), named(c, "$1"), named(c, "?"),
			named(c, "a b"), named(c, "a/b"), named(c, "a:b"), named(c, "a,b"), named(c, "{a}"), named(c, "[a]"), named(c, "NULL"), named(c, "0"), named(c, "01"),
			c.WithType("command").Stream("1"), c.WithType("commands").Stream("1"), c.WithType("command").WithType("position").Stream("1"),
			(c + "x").Stream("1"), (c + "%").Stream("1"), (c + "_").Stream("1"), (c + "'").Stream("1"), c[:len(c)-1].Stream("1"),
			c.Stream(strings.Repeat("l", text.MaxNameBytes-len(c)-1)), c.Stream(strings.Repeat("l", text.MaxNameBytes-len(c)-2)),
		})
	}},
	{"Stream/UnicodeFormsAreDistinct", 0, func(t *testing.T, f *fixture) {
		c := f.category
		f.requireApart(t, []messagestore.StreamName{
			c.Stream("\u00e9"), c.Stream("e\u0301"), // é, composed and not
			c.Stream("\ufb01"), c.Stream("fi"), // a ligature
			c.Stream("\u2460"), c.Stream("1"), // ① sorts with 1 in many locales
			c.Stream("\U0001F468"), c.Stream("\U0001F469"), c.Stream("\uFFFD"), c.Stream("\U0010FFFD"),
			(c + "\u00e9").Stream("1"), (c + "e\u0301").Stream("1"),
		})
	}},
	{"Stream/CaseIsDistinct", 0, func(t *testing.T, f *fixture) {
		c := f.category
		upper := messagestore.Category(strings.ToUpper(string(c)))
		f.requireApart(t, []messagestore.StreamName{
			c.Stream("a"), c.Stream("A"), upper.Stream("a"), upper.Stream("A"), c.Stream("ß"), c.Stream("ss"), c.Stream("SS"), c.Stream("ı"), c.Stream("i"), c.Stream("I"),
		})
		require.Equal(t, "Opened", f.read(t, c.Stream("a"))[0].Type)
	}},
}

func collect(t *testing.T, messages iter.Seq2[*messagestore.Message, error]) []string {
	t.Helper()
	all := []string{}
	for m, err := range messages {
		require.NoError(t, err)
		body := testkit.Do(messagestore.Decode[Opened](m))(t)
		all = append(all, body.Name)
	}
	return all
}

// batchSizes, for six messages, are one, a size that leaves a rest, exact parts of six, six, and
// more than there are.
var batchSizes = []int{1, 4, 3, 2, 6, 7}

// requireApart writes to each of the streams and requires that each has exactly its own messages.
func (f *fixture) requireApart(t *testing.T, streams []messagestore.StreamName) {
	t.Helper()
	for _, stream := range streams {
		f.write(t, stream, messagestore.NoStream, Opened{Name: string(stream)})
	}
	for _, stream := range streams {
		messages := f.read(t, stream)
		require.Equal(t, []string{string(stream)}, names(t, messages))
		require.Equal(t, stream, messages[0].Stream)

		require.Equal(t, messages[0], testkit.Do(f.driver.Last(t.Context(), stream, ""))(t))

		require.Equal(t, messagestore.Version(0), testkit.Do(f.driver.Version(t.Context(), stream))(t))
	}
	own := map[messagestore.Category][]string{}
	for _, stream := range streams {
		own[stream.Category()] = append(own[stream.Category()], string(stream))
	}
	for category, want := range own {
		require.Equal(t, want, names(t, f.readCategory(t, category, messagestore.Filter{})), "category %s", category)
	}
}

// spread writes one message to each of n streams, in turn, until there are total.
func (f *fixture) spread(t *testing.T, n, total int) {
	t.Helper()
	for i := range total {
		f.write(t, f.stream(fmt.Sprint(i%n)), messagestore.AnyVersion, Opened{Name: fmt.Sprint(i)})
	}
}

var lastTests = []test{
	{"Last/OfStream", 0, func(t *testing.T, f *fixture) {
		stream := f.stream()
		for n := range 3 {
			f.write(t, stream, messagestore.AnyVersion, opened(n+1)...)
			f.write(t, f.stream("other"), messagestore.AnyVersion, Opened{})

			last := testkit.Do(f.driver.Last(t.Context(), stream, ""))(t)
			all := f.read(t, stream)
			require.Equal(t, all[len(all)-1], last)
		}
	}},
	{"Last/OfType", 0, func(t *testing.T, f *fixture) {
		stream := f.stream()
		f.write(t, stream, messagestore.NoStream, Opened{Name: "0"}, Opened{Name: "1"}, deposited{2}, deposited{3}, raw("opened", `{}`), raw("Open", `{}`))
		f.write(t, f.stream("other"), messagestore.NoStream, Opened{Name: "elsewhere"})

		for messageType, position := range map[string]messagestore.Version{"Opened": 1, "Deposited": 3, "opened": 4, "Open": 5, "": 5} {
			last := testkit.Do(f.driver.Last(t.Context(), stream, messageType))(t)
			require.Equal(t, f.read(t, stream)[position], last)
		}
	}},
	{"Last/NotFound", 0, func(t *testing.T, f *fixture) {
		require.ErrorIs(t, testkit.ErrorOf(f.driver.Last(t.Context(), f.stream(), "")), messagestore.ErrNotFound)

		f.fill(t, f.stream(), 1)
		for _, messageType := range []string{"Deposited", "opened", "Open", "Opened "} {
			require.ErrorIs(t, testkit.ErrorOf(f.driver.Last(t.Context(), f.stream(), messageType)), messagestore.ErrNotFound, messageType)
		}
	}},
	{"Version/IsTheLastPosition", 0, func(t *testing.T, f *fixture) {
		stream := f.stream()
		for version := messagestore.NoStream; version < 3; version++ {
			got := testkit.Do(f.driver.Version(t.Context(), stream))(t)
			require.Equal(t, version, got)

			f.write(t, stream, got, Opened{})
			f.write(t, f.stream("other"), messagestore.AnyVersion, Opened{}, Opened{})
		}
	}},
}

var findTests = []test{
	{"Find/ReturnsThoseOfTheStreamInOrder", 0, func(t *testing.T, f *fixture) {
		stream := f.stream()
		f.write(t, stream, messagestore.NoStream, opened(5)...)
		elsewhere := f.write(t, f.stream("other"), messagestore.NoStream, Opened{})
		all := f.read(t, stream)

		found := testkit.Do(f.driver.Find(t.Context(), stream, []uuid.UUID{all[3].ID, elsewhere.IDs[0], all[1].ID, uuid.New(), all[4].ID}))(t)

		require.Equal(t, []*messagestore.Message{all[1], all[3], all[4]}, found)

		found = testkit.Do(f.driver.Find(t.Context(), stream, ids(all)))(t)
		require.Equal(t, all, found)
	}},
	{"Find/NothingIsNoError", 0, func(t *testing.T, f *fixture) {
		for range 2 {
			for _, ids := range [][]uuid.UUID{nil, {uuid.New()}, {uuid.New(), uuid.New()}} {
				require.Empty(t, testkit.Do(f.driver.Find(t.Context(), f.stream(), ids))(t))
			}
			f.fill(t, f.stream(), 1)
		}
	}},
}
