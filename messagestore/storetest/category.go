package storetest

import (
	"errors"
	"fmt"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/dibs-go/dibs/internal/testkit"
	"github.com/dibs-go/dibs/messagestore"
)

// The tests of reading a category: its order, its pages and its filters. Below are the tests of
// reading it as a member of a group.
var categoryTests = []test{
	{"Category/IsInOrder", 0, func(t *testing.T, f *fixture) {
		f.spread(t, 3, 9)
		f.write(t, f.stream("0"), messagestore.AnyVersion, Opened{Name: "9"}, Opened{Name: "10"})

		messages := f.readCategory(t, f.category, messagestore.Filter{})

		require.Equal(t, numbers(0, 10), names(t, messages))
		for i, m := range messages {
			require.Positive(t, m.GlobalPosition, "0 reads from the start, so the first is at least 1")
			require.True(t, i == 0 || m.GlobalPosition > messages[i-1].GlobalPosition)
		}
		for _, limit := range batchSizes {
			paged, _ := f.readFrom(t, messagestore.CategoryQuery{Category: f.category, Limit: limit})
			require.Equal(t, messages, paged, "in batches of %d", limit)
		}
	}},
	{"Category/FromIsInclusive", 0, func(t *testing.T, f *fixture) {
		f.spread(t, 2, 6)
		all := f.readCategory(t, f.category, messagestore.Filter{})
		for i, m := range all {
			for _, limit := range batchSizes {
				from, _ := f.readFrom(t, messagestore.CategoryQuery{Category: f.category, From: m.GlobalPosition, Limit: limit})
				require.Equal(t, all[i:], from)
				after, _ := f.readFrom(t, messagestore.CategoryQuery{Category: f.category, From: m.GlobalPosition.Next(), Limit: limit})
				require.Equal(t, ids(all[i+1:]), ids(after))
			}
		}
	}},
	{"Category/BeyondTheEnd", 0, func(t *testing.T, f *fixture) {
		for range 2 { // of nothing, and of one message
			_, end := f.readFrom(t, messagestore.CategoryQuery{Category: f.category, Limit: 10})
			for _, from := range []messagestore.GlobalPosition{end, end + 1000, farAway - 1, farAway} {
				q := messagestore.CategoryQuery{Category: f.category, From: from, Limit: 10}
				page := testkit.Do(f.driver.ReadCategory(t.Context(), q))(t)
				require.Empty(t, page.Messages)
				require.False(t, page.More)
				require.Equal(t, from, page.Next, "a reader that finds nothing goes on where it was")
			}
			f.fill(t, f.stream(), 1)
		}
	}},
	{"Category/HasItsOwnStreamsOnly", 0, func(t *testing.T, f *fixture) {
		c := f.category
		categories := []messagestore.Category{
			c, c.WithType("command"), c.WithType("commands"), c.WithType("command").WithType("position"), c + "x", c + "_", c + "%", c[:len(c)-1], c[:len(c)-1] + "_",
		}
		for i, category := range categories {
			for n := range 2 {
				f.write(t, category.Stream(fmt.Sprint(n)), messagestore.NoStream, Opened{Name: fmt.Sprint(i)})
			}
		}
		for i, category := range categories {
			require.Equal(t, []string{fmt.Sprint(i), fmt.Sprint(i)}, names(t, f.readCategory(t, category, messagestore.Filter{})), "category %s", category)
		}
	}},
	{"Category/MoreSaysWhetherThereIs", 0, func(t *testing.T, f *fixture) {
		f.spread(t, 2, 6)
		all := f.readCategory(t, f.category, messagestore.Filter{})
		end := all[5].GlobalPosition.Next()
		for limit := 1; limit <= 8; limit++ {
			q := messagestore.CategoryQuery{Category: f.category, Limit: limit}
			page := testkit.Do(f.driver.ReadCategory(t.Context(), q))(t)
			require.Len(t, page.Messages, min(limit, 6))
			requireHonest(t, q, page)
			switch {
			case limit < 6:
				require.True(t, page.More, "6 messages in a page of %d", limit)
				require.LessOrEqual(t, page.Next, all[limit].GlobalPosition, "the next page has the next message")
			case limit > 6:
				require.False(t, page.More, "6 messages in a page of %d", limit)
				require.Equal(t, end, page.Next)
			}
		}
	}},
	{"Category/FilterTypes", 0, func(t *testing.T, f *fixture) {
		for i := range 4 {
			f.write(t, f.stream(fmt.Sprint(i%2)), messagestore.AnyVersion,
				raw("Opened", `{}`), raw("opened", `{}`), raw("Open", `{}`), raw("Opened2", `{}`), raw("Op%", `{}`), raw("O'pened, {} \"x\"", `{}`))
		}
		for _, types := range [][]string{
			{"Opened"}, {"opened"}, {"Open"}, {"Op%"}, {"O'pened, {} \"x\""}, {"Opened", "Open"}, {"Open", "Opened2", "none"}, {"Open", "Open"}, {"none"}, {"_pened"}, {"OPENED"},
		} {
			f.requireFiltered(t, messagestore.Filter{Types: types})
		}
		require.Len(t, f.readCategory(t, f.category, messagestore.Filter{Types: []string{"Opened", "Open"}}), 8)
	}},
	{"Category/FilterCorrelation", 0, func(t *testing.T, f *fixture) {
		for _, correlation := range []messagestore.StreamName{
			"process-1", "process-2", "process-", "process", "processx-1", "process:command-1", "proces-1", "Process-1", "proc%-1", "other-process-1", "",
		} {
			message := raw("Opened", `{"name":"`+string(correlation)+`"}`)
			message.Metadata.CorrelationStream = correlation
			f.write(t, f.stream(), messagestore.AnyVersion, message)
		}

		for correlation, want := range map[messagestore.Category][]string{
			"process":         {"process-1", "process-2", "process-", "process"},
			"process:command": {"process:command-1"},
			"processx":        {"processx-1"},
			"proc%":           {"proc%-1"},
			"other":           {"other-process-1"},
			"none":            {},
		} {
			require.Equal(t, want, names(t, f.readCategory(t, f.category, messagestore.Filter{Correlation: correlation})), "correlation %s", correlation)
		}
	}},
	{"Category/FiltersCombine", 0, func(t *testing.T, f *fixture) {
		for i := range 60 {
			message := raw([]string{"Opened", "Closed", "Moved"}[i%3], `{}`)
			message.Metadata.CorrelationStream = []messagestore.StreamName{"", "process-1", "process-2", "other-1"}[i%4]
			f.write(t, f.stream(fmt.Sprint(i%5)), messagestore.AnyVersion, message)
		}

		matched := 0
		for _, types := range [][]string{nil, {"Opened"}, {"Closed", "Moved"}} {
			for _, correlation := range []messagestore.Category{"", "process"} {
				for member := range 2 {
					matched += f.requireFiltered(t, messagestore.Filter{Types: types, Correlation: correlation, GroupSize: 2, GroupMember: member})
				}
				f.requireFiltered(t, messagestore.Filter{Types: types, Correlation: correlation})
			}
		}
		require.Equal(t, 60+60/3+2*60/3+30+30/3+2*30/3, matched, "each message is one member's")
	}},
	// A reader that remembers one number must get past messages that it did not want, or it would
	// look at them again for ever.
	{"Category/NextPassesWhatTheFilterKeepsBack", 0, func(t *testing.T, f *fixture) {
		f.spread(t, 3, 20)
		all := f.readCategory(t, f.category, messagestore.Filter{})
		end := all[19].GlobalPosition.Next()
		for _, filter := range []messagestore.Filter{
			{Types: []string{"none"}}, {Correlation: "none"}, {Types: []string{"none"}, GroupSize: 2, GroupMember: 1},
		} {
			for _, limit := range []int{1, 5, 1000} {
				messages, next := f.readFrom(t, messagestore.CategoryQuery{Category: f.category, Limit: limit, Filter: filter})
				require.Empty(t, messages)
				require.Equal(t, end, next, "filter %+v in pages of %d", filter, limit)
			}
		}
	}},
	{"Category/FilteredReaderReachesTheEnd", 0, func(t *testing.T, f *fixture) {
		f.spread(t, 3, 10)
		f.write(t, f.stream("0"), messagestore.AnyVersion, deposited{1})
		f.spread(t, 3, 10)
		f.write(t, f.stream("0"), messagestore.AnyVersion, deposited{2})
		f.spread(t, 3, 10)

		filter := messagestore.Filter{Types: []string{"Deposited"}}
		for _, limit := range batchSizes {
			messages, next := f.readFrom(t, messagestore.CategoryQuery{Category: f.category, Limit: limit, Filter: filter})
			require.Len(t, messages, 2)

			// Later messages are found from there.
			late := f.write(t, f.stream("0"), messagestore.AnyVersion, Opened{}, deposited{3})
			more, _ := f.readFrom(t, messagestore.CategoryQuery{Category: f.category, From: next, Limit: limit, Filter: filter})
			require.Equal(t, late.IDs[1:], ids(more))
			filter.Types = []string{"Deposited"}
			f.category = Category(t)
			f.spread(t, 3, 10)
			f.write(t, f.stream("0"), messagestore.AnyVersion, deposited{1}, Opened{}, deposited{2}, Opened{})
		}
	}},
	// To notice that the store went back, a reader must know the message that it is behind, and
	// which message is in that place now, even if its filter excludes both.
	{"Category/EndsAreMarked", 0, func(t *testing.T, f *fixture) {
		f.spread(t, 3, 10)
		f.write(t, f.stream("0"), messagestore.AnyVersion, deposited{1})
		f.spread(t, 3, 10)
		all := f.readCategory(t, f.category, messagestore.Filter{})
		for _, filter := range []messagestore.Filter{
			{},
			{Types: []string{"none"}},
			{Types: []string{"Deposited"}},
			{Types: []string{"Opened"}},
			{Correlation: "none"},
			{GroupSize: 1},
			{GroupSize: 2, GroupMember: 0},
			{GroupSize: 2, GroupMember: 1},
			{GroupSize: 1000, GroupMember: 7},
		} {
			for _, limit := range []int{1, 2, 3, 7, 1000} {
				q := messagestore.CategoryQuery{Category: f.category, Limit: limit, Filter: filter}
				first := 0
				for more := true; more; {
					page := testkit.Do(f.store.ReadCategoryPage(t.Context(), q))(t)
					last := slices.IndexFunc(all, func(m *messagestore.Message) bool { return m.GlobalPosition.Next() == page.Next })
					require.GreaterOrEqual(t, last, 0, "next is right behind a message")
					if page.Next > q.From {
						require.Equal(t, all[first].Mark(), page.First, "filter %+v in pages of %d, from %d", filter, limit, q.From)
						require.Equal(t, all[last].Mark(), page.Last, "filter %+v in pages of %d, from %d", filter, limit, q.From)
					}
					q.From, more, first = page.Next, page.More, last+1
				}
				page := testkit.Do(f.store.ReadCategoryPage(t.Context(), q))(t)
				require.True(t, page.First.IsZero() && page.Last.IsZero(), "there was nothing to look at")
			}
		}
	}},
}

// requireFiltered compares a filtered category, in pages of any size, with
// [messagestore.Filter.Matches].
func (f *fixture) requireFiltered(t *testing.T, filter messagestore.Filter) int {
	t.Helper()
	var want []*messagestore.Message
	for _, m := range f.readCategory(t, f.category, messagestore.Filter{}) {
		if filter.Matches(m) {
			want = append(want, m)
		}
	}
	for _, limit := range []int{1, 2, 3, 1000} {
		got, _ := f.readFrom(t, messagestore.CategoryQuery{Category: f.category, Limit: limit, Filter: filter})
		require.Equal(t, want, got, "filter %+v in pages of %d", filter, limit)
	}
	return len(want)
}

var groupTests = []test{
	{"Group/IsAPartition", 0, func(t *testing.T, f *fixture) {
		const largest = 1024
		for i := range 40 {
			f.write(t, f.stream(fmt.Sprint("entity", i)), messagestore.NoStream, Opened{})
		}
		for _, size := range []int{1, 2, 3, 5, 7, largest} {
			total := 0
			for member := range size {
				if size == largest && member > 0 && member < size-1 {
					continue // the first and the last bound it
				}
				messages := f.readCategory(t, f.category, messagestore.Filter{GroupSize: size, GroupMember: member})
				for _, m := range messages {
					require.Equal(t, member, m.Stream.GroupMember(size))
				}
				total += len(messages)
			}
			if size < largest {
				require.Equal(t, 40, total, "each message is one member's, of %d", size)
			}
		}
	}},
	{"Group/GoesByCardinalID", 0, func(t *testing.T, f *fixture) {
		const entities, streams = 8, 4
		for entity := range entities {
			id := fmt.Sprint("e-", entity) // with a dash, as a UUID has
			f.write(t, f.stream(id), messagestore.NoStream, Opened{Name: id})
			for n := range streams - 1 {
				f.write(t, f.stream(id, fmt.Sprint(n)), messagestore.NoStream, Opened{Name: id})
				f.write(t, f.category.WithType("command").Stream(id).With(fmt.Sprint(n), "x"), messagestore.NoStream, Opened{Name: id})
			}
		}
		for _, size := range []int{2, 3, 5} {
			owner := map[string]int{}
			for member := range size {
				filter := messagestore.Filter{GroupSize: size, GroupMember: member}
				count := map[string]int{}
				for _, entity := range names(t, f.readCategory(t, f.category, filter)) {
					count[entity]++
				}
				for entity, n := range count {
					require.Equal(t, streams, n, "all streams of %s have one member", entity)
					owner[entity] = member
				}
				for _, entity := range names(t, f.readCategory(t, f.category.WithType("command"), filter)) {
					require.Equal(t, owner[entity], member, "%s has one member, whatever the category", entity)
				}
			}
			require.Len(t, owner, entities)
		}
	}},
	// message-db's clients divide a category in the same way, so both can share one.
	{"Group/IsMessageDBs", 0, func(t *testing.T, f *fixture) {
		vectors := map[string]map[int]int{ // id: size: member, as message-db 1.3.0 answers
			"1": {2: 0, 3: 0, 5: 1}, "2": {2: 1, 3: 1, 5: 2}, "3": {2: 0, 3: 2, 5: 4}, "4": {2: 1, 3: 0, 5: 4}, "5": {2: 1, 3: 0, 5: 2},
			"6": {2: 1, 3: 2, 5: 1}, "7": {2: 0, 3: 2, 5: 1}, "8": {2: 1, 3: 1, 5: 4}, "9": {2: 1, 3: 1, 5: 3}, "10": {2: 1, 3: 1, 5: 0},
		}
		for id := range vectors {
			f.write(t, f.stream(id), messagestore.NoStream, Opened{Name: id})
		}
		for _, size := range []int{2, 3, 5} {
			for member := range size {
				for _, id := range names(t, f.readCategory(t, f.category, messagestore.Filter{GroupSize: size, GroupMember: member})) {
					require.Equal(t, vectors[id][size], member, "id %s of %d", id, size)
				}
			}
		}
	}},
	// The store refuses the name of a stream without an identifier. Other clients of
	// the same database may have written to one, and its messages must not be lost to
	// a group, nor handled by all its members.
	{"Group/StreamWithoutIdentifierHasOneMember", 0, func(t *testing.T, f *fixture) {
		for _, stream := range []messagestore.StreamName{messagestore.StreamName(f.category), f.stream("")} {
			_, err := f.driver.Append(t.Context(), messagestore.Append{
				Stream: stream, Expected: messagestore.AnyVersion, Records: []messagestore.Encoded{record("Opened", `{}`)},
			})
			if errors.Is(err, messagestore.ErrInvalid) {
				t.Skipf("not applicable: %v", err)
			}
			require.NoError(t, err)
		}
		require.Len(t, f.readCategory(t, f.category, messagestore.Filter{}), 2)

		for _, size := range []int{1, 2, 3, 5} {
			total := 0
			for member := range size {
				messages := f.readCategory(t, f.category, messagestore.Filter{GroupSize: size, GroupMember: member})
				for _, m := range messages {
					require.Equal(t, member, m.Stream.GroupMember(size))
				}
				total += len(messages)
			}
			require.Equal(t, 2, total, "each is one member's, of %d", size)
		}
	}},
}
