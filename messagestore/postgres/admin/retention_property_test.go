package admin_test

import (
	"errors"
	"fmt"
	"strings"
	"testing"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"github.com/dibs-go/dibs/internal/pgtest"
	"github.com/dibs-go/dibs/internal/removal"
	"github.com/dibs-go/dibs/internal/testkit"
	"github.com/dibs-go/dibs/messagestore"
	"github.com/dibs-go/dibs/messagestore/retention"
)

// A removedStream is the expected state of a stream after removals.
type removedStream struct {
	name    messagestore.StreamName
	version int64 // -1 before there was anything
	deleted int64 // the least position that is readable: a tombstone's, or 0
	ids     map[uuid.UUID]int64
	trimmed int64 // ids below are not asked for
	digest  bool  // it has the name of another stream's remains
}

// Streams are written to, trimmed, deleted and erased in every order, in parts that are
// left half done, also those in which it is recorded and those that are named by a hash:
// no position is given twice, nobody is first again, nothing that was deleted comes back,
// nobody is told that it was not written, and Verify finds nothing.
func TestNoRemovalMakesAStreamBeginAgain(t *testing.T) {
	t.Parallel()
	v := newVerified(t)
	run := 0
	rapid.Check(t, func(r *rapid.T) {
		run++
		category := messagestore.Category(fmt.Sprintf("c%d", run))
		one := category.Stream("1")
		names := []messagestore.StreamName{
			one, category.Stream("2"), digestStream(one),
			category.WithType("retention").Stream("1"), digestStream(category.WithType("retention").Stream("1")),
		}
		streams := map[messagestore.StreamName]*removedStream{}
		for _, name := range names {
			streams[name] = &removedStream{name: name, version: -1, ids: map[uuid.UUID]int64{}, digest: len(name.ID()) == 64}
		}
		h := &removing{v, streams}
		stream := rapid.SampledFrom(names)
		r.Repeat(map[string]func(*rapid.T){
			"append": func(r *rapid.T) {
				h.append(t, r, stream.Draw(r, "stream"), rapid.Int64Range(1, 4).Draw(r, "messages"))
			},
			"append first": func(r *rapid.T) { h.appendFirst(t, r, stream.Draw(r, "stream")) },
			"trim":         func(r *rapid.T) { h.trim(t, r, stream.Draw(r, "stream")) },
			"delete":       func(r *rapid.T) { h.delete(t, r, stream.Draw(r, "stream")) },
		})
		for _, name := range names {
			h.check(t, r, streams[name])
			h.ask(t, r, streams[name])
		}
		h.verify(t, r, &retention.VerifyConfig{Categories: []messagestore.Category{category}})
	})
	require.Empty(t, v.verify(t).Violations)
}

type removing struct {
	*verified

	streams map[messagestore.StreamName]*removedStream
}

func (h *removing) verify(t *testing.T, r *rapid.T, config *retention.VerifyConfig) {
	t.Helper()
	found, err := h.admin.Verify(t.Context(), config)
	if !errors.Is(err, messagestore.ErrNotFound) {
		require.NoError(t, err)
		if len(found.Violations) > 0 {
			r.Fatalf("%v", found.Violations)
		}
	}
}

func (h *removing) sql(statement string) string {
	return strings.ReplaceAll(statement, "dibs.", h.schema+".")
}

func (h *removing) append(t *testing.T, r *rapid.T, name messagestore.StreamName, messages int64) {
	t.Helper()
	s := h.streams[name]
	for range messages {
		id := uuid.Must(uuid.NewV7())
		var outcome string
		var version int64
		require.NoError(t, h.pool.QueryRow(t.Context(), h.sql(
			"select outcome, version from dibs.append(array[$1], array[-2::bigint], array[1], array[$2::uuid], array['T'], array['{}'::json], array[null::json])"),
			string(name), id).Scan(&outcome, &version))
		if outcome != "written" || version <= s.version {
			r.Fatalf("%s: %s at %d after %d", name, outcome, version, s.version)
		}
		s.version = version
		s.ids[id] = version
	}
	h.check(t, r, s)
}

func (h *removing) appendFirst(t *testing.T, r *rapid.T, name messagestore.StreamName) {
	t.Helper()
	s := h.streams[name]
	var outcome string
	var version int64
	require.NoError(t, h.pool.QueryRow(t.Context(), h.sql(
		"select outcome, version from dibs.append(array[$1], array[-1::bigint], array[1], array[gen_random_uuid()], array['T'], array['{}'::json], array[null::json])"),
		string(name)).Scan(&outcome, &version))
	if (outcome == "written") != (s.version == -1) {
		r.Fatalf("%s: %s at %d after %d", name, outcome, version, s.version)
	}
	s.version = version
	h.check(t, r, s)
}

func (h *removing) trim(t *testing.T, r *rapid.T, name messagestore.StreamName) {
	t.Helper()
	s := h.streams[name]
	var outcome string
	var first *int64
	require.NoError(t, h.pool.QueryRow(t.Context(), h.sql("select outcome, first_position from dibs.trim($1, $2, min_age => '0', max_messages => $3)"),
		string(name), rapid.Int64Range(1, 3).Draw(r, "keep"), rapid.IntRange(1, 4).Draw(r, "max")).Scan(&outcome, &first))
	if outcome == "trimmed" {
		s.trimmed = *first
		h.foresee(t)
	}
	h.check(t, r, s)
}

func (h *removing) delete(t *testing.T, r *rapid.T, name messagestore.StreamName) {
	t.Helper()
	s := h.streams[name]
	var outcome string
	var version int64
	var more bool
	err := h.pool.QueryRow(t.Context(), h.sql("select outcome, version, more from dibs.delete_stream($1, erase_name => $2, max_messages => $3)"),
		string(name), rapid.Bool().Draw(r, "erase"), rapid.IntRange(1, 4).Draw(r, "max")).Scan(&outcome, &version, &more)
	if refused, ok := errors.AsType[*pgconn.PgError](err); ok && refused.Code == "DB001" {
		return // it stands for another
	}
	require.NoError(t, err)
	if outcome == "no_stream" && s.version != -1 {
		r.Fatalf("%s: no stream, and was at %d", name, s.version)
	}
	if outcome != "deleted" {
		return
	}
	s.version = version
	if !more {
		s.deleted = version
	}
	h.foresee(t)
	h.check(t, r, s)
}

// foresee notes the records that a removal has written elsewhere.
func (h *removing) foresee(t *testing.T) {
	t.Helper()
	for _, s := range h.streams {
		version := pgtest.Value[int64](t, h.pool, h.sql("select dibs.stream_version($1)"), string(s.name))
		s.version = max(s.version, version)
	}
}

func (h *removing) check(t *testing.T, r *rapid.T, s *removedStream) {
	t.Helper()
	version := pgtest.Value[int64](t, h.pool, h.sql("select dibs.stream_version($1)"), string(s.name))
	if version != s.version {
		r.Fatalf("%s: at %d, and was at %d", s.name, version, s.version)
	}
	type row struct {
		Position int64
		Type     string
	}
	rows, err := h.pool.Query(t.Context(), h.sql(`select "position", type from dibs.read_stream($1)`), string(s.name))
	require.NoError(t, err)
	read := testkit.Do(pgx.CollectRows(rows, pgx.RowToStructByPos[row]))(t)
	if len(read) == 0 {
		if s.version != -1 {
			r.Fatalf("%s: nothing to read, and is at %d", s.name, s.version)
		}
		return
	}
	if last := read[len(read)-1].Position; last != s.version || read[0].Position < s.deleted {
		r.Fatalf("%s: %v, at %d, deleted up to %d", s.name, read, s.version, s.deleted)
	}
	for i := 1; i < len(read); i++ {
		next := read[i].Position == read[i-1].Position+1
		// Another stream's tombstone comes where that ended.
		stands := s.digest && read[i].Type == removal.TombstoneType && read[i].Position > read[i-1].Position
		if !next && !stands {
			r.Fatalf("%s: %v", s.name, read)
		}
	}
}

// ask asks for each message that was written: unless it was trimmed, nobody is told that
// it was not.
func (h *removing) ask(t *testing.T, r *rapid.T, s *removedStream) {
	t.Helper()
	for id, position := range s.ids {
		if position < s.trimmed {
			continue
		}
		var found int
		err := h.pool.QueryRow(t.Context(), h.sql("select count(*) from dibs.find_messages($1, array[$2::uuid])"), string(s.name), id).Scan(&found)
		if refused, ok := errors.AsType[*pgconn.PgError](err); ok && refused.Code == "DB002" {
			continue
		}
		require.NoError(t, err)
		if found != 1 {
			r.Fatalf("%s@%d: told that it was not written", s.name, position)
		}
	}
}
