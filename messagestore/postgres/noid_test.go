package postgres_test

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/dibs-go/dibs/internal/must"
	"github.com/dibs-go/dibs/internal/pgtest"
	"github.com/dibs-go/dibs/messagestore"
	"github.com/dibs-go/dibs/messagestore/postgres"
	"github.com/dibs-go/dibs/messagestore/storetest"
)

// Our functions refuse a stream without an identifier, but clients of message-db
// write to such ones. In a group they are one member's, where message-db itself
// delivers them to none.
func TestStreamWithoutIdentifierIsOneMembers(t *testing.T) {
	t.Parallel()
	pool := pgtest.Pool(t)
	category := storetest.Category(t)
	must.Do(pool.Exec(t.Context(), `insert into dibs.messages (category, group_hash, stream_name, position, type, id, data)
		values (dibs.category($1), dibs.group_hash($1), $1, 0, 'Opened', gen_random_uuid(), '{}')`, string(category)))(t)
	store := must.New(messagestore.New(must.New(postgres.New(pool, nil)), nil))

	for _, size := range []int{1, 2, 3, 64} {
		var members []int
		for member := range size {
			for m, err := range store.ReadCategory(t.Context(), category, 0, messagestore.Filter{GroupSize: size, GroupMember: member}) {
				require.NoError(t, err)
				require.Equal(t, messagestore.StreamName(category), m.Stream)
				members = append(members, member)
			}
		}
		require.Equal(t, []int{messagestore.StreamName(category).GroupMember(size)}, members)
	}
}
