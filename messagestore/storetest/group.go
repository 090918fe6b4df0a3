package storetest

import (
	"errors"
	"fmt"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/dibs-go/dibs/messagestore"
)

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
	// message-db's clients divide a category as ours do, so that they can share one.
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
