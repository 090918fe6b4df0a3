package storetest

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/dibs-go/dibs/internal/report"
	"github.com/dibs-go/dibs/internal/testkit"
	"github.com/dibs-go/dibs/messagestore"
)

// The tests of reports, of the names of categories, and of counts. Below are the tests of heads.
var reportTests = []test{
	{"Report/CountsByStream", 0, func(t *testing.T, f *fixture) {
		f.fill(t, f.stream("b"), 2)
		f.write(t, f.stream("a"), messagestore.NoStream, deposited{1})
		f.write(t, f.stream("b"), messagestore.AnyVersion, deposited{1})
		f.write(t, f.category.WithType("other").Stream("c"), messagestore.NoStream, Opened{})

		r := f.report(t, by(report.ByStream))

		names, counts := reported(r)
		require.Equal(t, []string{string(f.stream("a")), string(f.stream("b"))}, names)
		require.Equal(t, []int64{1, 3}, counts)
		require.Equal(t, int64(4), r.Messages)
		require.Equal(t, int64(2), r.Groups)
		require.Equal(t, 25.0, r.Rows[0].Percent) //nolint:testifylint // a quarter is exact
		require.EqualValues(t, 0, r.Rows[0].LastPosition)
		require.EqualValues(t, 2, r.Rows[1].LastPosition)
	}},
	{"Report/CountsByTypeAndCategory", 0, func(t *testing.T, f *fixture) {
		f.fill(t, f.stream("a"), 2)
		f.fill(t, f.stream("b"), 1)
		f.write(t, f.stream("a"), messagestore.AnyVersion, deposited{1})

		names, counts := reported(f.report(t, by(report.ByType)))
		require.Equal(t, []string{"Deposited", "Opened"}, names)
		require.Equal(t, []int64{1, 3}, counts)

		names, counts = reported(f.report(t, by(report.ByCategory)))
		require.Equal(t, []string{string(f.category)}, names)
		require.Equal(t, []int64{4}, counts)
	}},
	{"Report/CountsByTwo", 0, func(t *testing.T, f *fixture) {
		f.write(t, f.stream("a"), messagestore.NoStream, Opened{}, deposited{1}, Opened{})
		f.write(t, f.stream("b"), messagestore.NoStream, Opened{})

		r := f.report(t, by(report.ByType, report.ByStream))
		names, counts := reported(r)
		require.Equal(t, []string{"Deposited " + string(f.stream("a")), "Opened " + string(f.stream("a")), "Opened " + string(f.stream("b"))}, names)
		require.Equal(t, []int64{1, 2, 1}, counts)
		require.EqualValues(t, 1, r.Rows[0].LastPosition)

		names, _ = reported(f.report(t, by(report.ByStream, report.ByType, report.ByCategory)))
		require.Equal(t, []string{
			string(f.stream("a")) + " Deposited " + string(f.category), string(f.stream("a")) + " Opened " + string(f.category),
			string(f.stream("b")) + " Opened " + string(f.category),
		}, names)
	}},
	{"Report/AgreesWithWhatIsRead", 0, func(t *testing.T, f *fixture) {
		f.write(t, f.stream("a"), messagestore.NoStream, Opened{Name: "short"})
		f.write(t, f.stream("b"), messagestore.NoStream, Opened{}, deposited{7})
		f.write(t, f.stream("a"), messagestore.AnyVersion, Opened{Name: strings.Repeat("long ", 100)})

		r := f.report(t, by(report.ByStream))

		require.Len(t, r.Rows, 2)
		for _, row := range r.Rows {
			all := f.read(t, messagestore.StreamName(row.Names[0]))
			require.Len(t, all, int(row.Messages))
			last := all[len(all)-1]
			require.EqualValues(t, last.Position, row.LastPosition)
			require.EqualValues(t, last.GlobalPosition, row.LastGlobalPosition)
			// Clocks may be set back between two messages.
			times := slices.SortedFunc(func(yield func(time.Time) bool) {
				for _, m := range all {
					if !yield(m.Time) {
						return
					}
				}
			}, time.Time.Compare)
			require.Equal(t, times[0], row.First)
			require.Equal(t, times[len(times)-1], row.Last)
			require.Positive(t, row.Bytes)
		}
		require.Greater(t, r.Rows[0].Bytes, r.Rows[1].Bytes)
	}},
	{"Report/CountsTheWholeStore", 0, func(t *testing.T, f *fixture) {
		other := f.category.WithType("other")
		f.fill(t, f.stream("a"), 2)
		f.fill(t, other.Stream("b"), 3)

		// The store may be shared with other tests, which write meanwhile.
		r := testkit.Do(report.Of(t.Context(), f.store, report.Query{By: []report.Key{report.ByCategory}, Containing: string(f.category)}))(t)

		names, counts := reported(r)
		require.Equal(t, []string{string(f.category), string(other)}, names)
		require.Equal(t, []int64{2, 3}, counts)
		require.GreaterOrEqual(t, r.Messages, int64(5))
		require.Equal(t, int64(2), r.Groups)
	}},
	{"Report/KeepsWhatContainsTheText", 0, func(t *testing.T, f *fixture) {
		for _, id := range []string{"10%", "100", "a_b", "aXb", "ABC", "abc"} {
			f.fill(t, named(f.category, id), 1)
		}
		for text, want := range map[string][]string{
			"0%": {"10%"}, "a_b": {"a_b"}, "-10": {"10%", "100"}, "-abc": {"abc"}, string(f.category) + "-A": {"ABC"}, "no such": nil,
		} {
			q := by(report.ByStream)
			q.Containing = text
			r := f.report(t, q)
			var found []string
			for _, row := range r.Rows {
				found = append(found, messagestore.StreamName(row.Names[0]).ID())
			}
			require.Equal(t, want, found, text)
			require.Equal(t, int64(len(want)), r.Groups)
			require.Equal(t, int64(6), r.Messages)
		}
	}},
	{"Report/IsSorted", 0, func(t *testing.T, f *fixture) {
		f.fill(t, f.stream("few"), 1)
		f.fill(t, f.stream("most"), 3)
		f.write(t, f.stream("large"), messagestore.NoStream, Opened{Name: strings.Repeat("x", 1000)}, Opened{})
		f.fill(t, f.stream("Few"), 1)

		for order, want := range map[report.Order][]string{
			"":                    {"Few", "few", "large", "most"},
			report.SortByName:     {"Few", "few", "large", "most"},
			report.SortByMessages: {"most", "large", "Few", "few"},
			report.SortByBytes:    {"large", "most", "Few", "few"},
		} {
			q := by(report.ByStream)
			q.Sort = order
			var found []string
			for _, row := range f.report(t, q).Rows {
				found = append(found, messagestore.StreamName(row.Names[0]).ID())
			}
			require.Equal(t, want, found, order)
		}
		q := by(report.ByStream)
		q.Sort = report.SortByLast
		rows := f.report(t, q).Rows
		require.True(t, slices.IsSortedFunc(rows, func(a, b report.Row) int {
			return cmp.Or(b.Last.Compare(a.Last), slices.Compare(a.Names, b.Names))
		}))
	}},
	{"Report/LimitCutsRowsOnly", 0, func(t *testing.T, f *fixture) {
		for _, id := range numbers(1, 5) {
			f.fill(t, f.stream(id), 2)
		}
		q := by(report.ByStream)
		q.Limit = 2

		r := f.report(t, q)

		names, _ := reported(r)
		require.Equal(t, []string{string(f.stream("1")), string(f.stream("2"))}, names)
		require.Equal(t, int64(5), r.Groups)
		require.Equal(t, int64(10), r.Messages)
		require.Equal(t, 20.0, r.Rows[0].Percent) //nolint:testifylint // a fifth of a hundred is exact
	}},
	{"Report/OfNothingIsEmpty", 0, func(t *testing.T, f *fixture) {
		for _, key := range []report.Key{report.ByStream, report.ByType, report.ByCategory} {
			require.Equal(t, report.Report{}, f.report(t, by(key)))
		}
	}},
	{"Report/EndsWithItsContext", 0, func(t *testing.T, f *fixture) {
		f.fill(t, f.stream(), 1)
		ctx, cancel := context.WithCancel(t.Context())
		cancel()
		require.ErrorIs(t, testkit.ErrorOf(report.Of(ctx, f.store, by(report.ByStream))), context.Canceled)
		require.ErrorIs(t, testkit.ErrorOf(f.store.Categories(ctx, "")), context.Canceled)
		require.ErrorIs(t, testkit.ErrorOf(f.store.Count(ctx, messagestore.CategoryQuery{Category: f.category, Limit: 1})), context.Canceled)
	}},
	{"Categories/AreNamedOnceInOrder", 0, func(t *testing.T, f *fixture) {
		b, c := f.category.WithType("b"), f.category.WithType("c")
		for _, stream := range []messagestore.StreamName{c.Stream("1"), f.stream("1"), b.Stream("1"), f.stream("2"), c.Stream("2"), c.Stream("1")} {
			f.fill(t, stream, 1)
		}

		found := testkit.Do(f.store.Categories(t.Context(), string(f.category)))(t)
		require.Equal(t, []messagestore.Category{f.category, b, c}, found)

		found = testkit.Do(f.store.Categories(t.Context(), string(f.category)+":"))(t)
		require.Equal(t, []messagestore.Category{b, c}, found)

		found = testkit.Do(f.store.Categories(t.Context(), string(f.category)+"%"))(t)
		require.Empty(t, found)

		found = testkit.Do(f.store.Categories(t.Context(), ""))(t)
		require.Contains(t, found, f.category)
		require.Contains(t, found, c)
	}},
	{"Count/IsWhatIsRead", 0, func(t *testing.T, f *fixture) {
		for i, id := range []string{"1", "2", "3", "2", "1", "4", "5"} {
			if i%2 == 0 {
				f.fill(t, named(f.category, id), 1)
				continue
			}
			m := raw("Deposited", `{"amount": 1}`)
			m.Metadata.CorrelationStream = "transfer-1"
			f.write(t, f.stream(id), messagestore.AnyVersion, m)
		}
		f.fill(t, f.category.WithType("other").Stream("1"), 3)
		all := f.readCategory(t, f.category, messagestore.Filter{})
		require.Len(t, all, 7)

		for _, filter := range []messagestore.Filter{
			{},
			{Types: []string{"Deposited"}},
			{Types: []string{"Deposited", "Opened"}},
			{Types: []string{"None"}},
			{Correlation: "transfer"},
			{Correlation: "none"},
			{GroupSize: 1},
			{GroupSize: 2},
			{GroupSize: 2, GroupMember: 1},
			{GroupSize: 3, GroupMember: 2, Types: []string{"Opened"}},
		} {
			for _, from := range []messagestore.GlobalPosition{0, all[0].GlobalPosition, all[3].GlobalPosition, all[6].GlobalPosition, all[6].GlobalPosition + 1, farAway} {
				q := messagestore.CategoryQuery{Category: f.category, From: from, Limit: 1000, Filter: filter}
				want, _ := f.readFrom(t, q)
				require.Equal(t, int64(len(want)), testkit.Do(f.store.Count(t.Context(), q))(t), "%+v", q)
			}
		}
	}},
	{"Count/StopsAtItsLimit", 0, func(t *testing.T, f *fixture) {
		f.fill(t, f.stream(), 5)
		for limit, want := range map[int]int64{1: 1, 4: 4, 5: 5, 6: 5, 1 << 40: 5} {
			for _, filter := range []messagestore.Filter{{}, {Types: []string{"Opened"}}} {
				require.Equal(t, want, testkit.Do(f.store.Count(t.Context(), messagestore.CategoryQuery{Category: f.category, Limit: limit, Filter: filter}))(t))
			}
		}
	}},
}

// report returns a report about the fixture's category.
func (f *fixture) report(t *testing.T, q report.Query) report.Report {
	t.Helper()
	q.Category = string(f.category)
	return testkit.Do(report.Of(t.Context(), f.store, q))(t)
}

// reported returns the names of a report's rows, and how many messages each has.
func reported(r report.Report) (names []string, counts []int64) {
	for _, row := range r.Rows {
		names = append(names, strings.Join(row.Names, " "))
		counts = append(counts, row.Messages)
	}
	return names, counts
}

func by(keys ...report.Key) report.Query {
	return report.Query{By: keys}
}

var headsTests = []test{
	{"Heads/AreWhereCategoriesEnd", telling, func(t *testing.T, f *fixture) {
		typed, empty := f.category.WithType("other"), f.category.WithType("empty")
		f.write(t, f.stream("1"), messagestore.NoStream, Opened{}, Opened{})
		last := f.write(t, f.stream("2"), messagestore.NoStream, Opened{})
		lastTyped := f.write(t, typed.Stream("1"), messagestore.NoStream, Opened{})

		require.Equal(t, []messagestore.GlobalPosition{last.GlobalPosition}, f.heads(t, f.category))
		require.Equal(t, []messagestore.GlobalPosition{0, lastTyped.GlobalPosition}, f.heads(t, empty, typed))
		require.Empty(t, f.heads(t))
	}},
	{"Heads/SeeEveryWriteThatReturned", telling, func(t *testing.T, f *fixture) {
		for range 20 {
			written := f.write(t, f.stream("1"), messagestore.AnyVersion, Opened{})
			require.Equal(t, []messagestore.GlobalPosition{written.GlobalPosition}, f.heads(t, f.category))
		}
	}},
	{"Heads/AreInTheOrderAskedFor", telling, func(t *testing.T, f *fixture) {
		var categories []messagestore.Category
		var want []messagestore.GlobalPosition
		for i := range 300 {
			category := f.category.WithType(fmt.Sprintf("t%d", i))
			var head messagestore.GlobalPosition
			if i%50 == 0 {
				head = f.write(t, category.Stream("1"), messagestore.NoStream, Opened{}).GlobalPosition
			}
			categories, want = append([]messagestore.Category{category}, categories...), append([]messagestore.GlobalPosition{head}, want...)
		}
		require.Equal(t, want, f.heads(t, categories...))

		twice := []messagestore.Category{categories[49], categories[0], categories[49]}
		require.Equal(t, []messagestore.GlobalPosition{want[49], want[0], want[49]}, f.heads(t, twice...))
	}},
	{"Heads/OfManyAreTold", telling, func(t *testing.T, f *fixture) {
		many := make([]messagestore.Category, 1000)
		for i := range many {
			many[i] = f.category
		}
		last := f.write(t, f.stream("1"), messagestore.NoStream, Opened{})
		heads := f.heads(t, many...)
		require.Len(t, heads, len(many))
		require.Equal(t, last.GlobalPosition, heads[len(many)-1])
	}},
}

// tellsHeads reports whether a driver supports Heads.
func tellsHeads(t *testing.T, driver messagestore.Driver) bool {
	t.Helper()
	_, err := driver.Heads(t.Context(), []messagestore.Category{Category(t)})
	return !errors.Is(err, messagestore.ErrNotSupported)
}

func (f *fixture) heads(t *testing.T, categories ...messagestore.Category) []messagestore.GlobalPosition {
	t.Helper()
	return testkit.Do(f.driver.Heads(t.Context(), categories))(t)
}
