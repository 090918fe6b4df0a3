// Package mutants has the bugs that are planted to test the soak, each with a scene that provokes it and the
// invariants that it breaks.
package mutants

import (
	"slices"
	"strings"

	"github.com/dibs-go/dibs/soak/plant"
	"github.com/dibs-go/dibs/soak/promise"
)

// A Mutant is a bug.
type Mutant struct {
	Name   string
	Says   string // what is wrong
	Plant  plant.Mutant
	Scene  *Scene // that provokes it
	Breaks []promise.Rule
}

// broken are the ids of promises.
func broken(ids ...promise.Rule) []promise.Rule { return ids }

// Where says where the bug is.
func (m *Mutant) Where() string {
	if len(m.Plant.Settings) > 0 {
		return "settings"
	}
	var places []string
	for _, e := range slices.Concat(m.Plant.Go, m.Plant.SQL) {
		if !slices.Contains(places, e.In) {
			places = append(places, e.In)
		}
	}
	return strings.Join(places, ", ")
}

// Consumers that miss something, or are given it too early.
var (
	skips = []promise.Rule{"C1b", "C1c", "C2a", "C2b", "C1a"}

	// What a group has: its seats, and the positions of its slots.
	seats     = []promise.Rule{"C3b", "C3c", "C3d", "C3e", "C3g"}
	positions = []promise.Rule{"C1d", "C1e", "C3a", "C3f"}
)

// All returns every bug there is, always in the same order.
func All() []*Mutant {
	return slices.Concat(order(), writes(), outcomes(), consumers(), replicas(), reservations(), leases(), queued(), ofSagas())
}

func sql(edits ...plant.Edit) plant.Mutant { return plant.Mutant{SQL: edits} }

func edit(in, old, new string) plant.Edit { return plant.Edit{In: in, Old: old, New: new} }

func code(edits ...plant.Edit) plant.Mutant { return plant.Mutant{Go: edits} }

// The locks of a category.
var (
	lockOfOne = edit("append_one", `
		if not pg_try_advisory_xact_lock(1684628083, dibs.lock_key(stream_category)) then
			perform dibs.wait_for_category(stream_category);
		end if;`, "")
	lockOfSeveral = edit("append", `
		perform pg_advisory_xact_lock(1684628083, dibs.lock_key(k.category))
		from (select split_part(s.name, '-', 1) as category from unnest(streams) s (name) order by s.name collate "C" offset 0) k;`, "")
	lockOfOneInTransaction = edit("append", "perform pg_advisory_xact_lock(1684628083, dibs.lock_key(one_category));", "")

	// columns are the columns that dibs.append fills, in both of its ways.
	columns     = "(category, group_hash, correlation_category, stream_name, position, type, id, data, metadata)"
	lockOfGroup = edit("append_each", `
		if not pg_try_advisory_xact_lock(1684628083, dibs.lock_key(waited)) then
			perform dibs.wait_for_category(waited);
		end if;`, "")
	otherLocksOfGroup = edit("append_each", `
		offset 0) k
		where pg_try_advisory_xact_lock(1684628083, dibs.lock_key(k.category));`, "offset 0) k;")
	floorOfShared = `
      -- Behind the category's lock, and before a position is drawn.
      done := pg_advisory_xact_lock_shared(dibs.floor_class(stream_category),
        (coalesce(pg_sequence_last_value('dibs.messages_global_position_seq'), dibs.drawn()) & 4294967295)::bit(32)::integer) is null;`
	floorOfMarked = `
      done := pg_advisory_xact_lock_shared(dibs.floor_class(stream_category),
        (coalesce(pg_sequence_last_value('dibs.messages_global_position_seq'), dibs.drawn()) & 4294967295)::bit(32)::integer) is null;`
	lockOfFind = edit("find_messages", "perform dibs.lock_category(split_part(stream, '-', 1));", "")
)

// The order of a category, which the locks protect.
func order() []*Mutant {
	disorder := append([]promise.Rule{"S6b", "S6c"}, skips...)
	return []*Mutant{
		{
			"no-lock", "no write locks its category, so a read advances past writes in flight",
			sql(lockOfOne, lockOfSeveral, lockOfOneInTransaction, lockOfGroup, otherLocksOfGroup), groups, disorder,
		},
		{"one-no-lock", "a write by itself does not lock its category", sql(lockOfOne), alone, disorder},
		{"several-no-lock", "a write to several streams, or one with a condition, does not lock its categories", sql(lockOfSeveral, lockOfOneInTransaction), alone, disorder},
		{"group-no-lock", "a group does not lock the category of its first write", sql(lockOfGroup), groups, disorder},
		{"group-second-lock", "a group locks the category of its first write, and no other", sql(otherLocksOfGroup), groups, disorder},
		{"one-early-position", "a write by itself takes its global position before the lock", sql(
			edit("append_one", "fence_found bigint;", "fence_found bigint; early bigint := nextval('dibs.messages_global_position_seq');"),
			edit("append_one", "into dibs.messages as m (category,", "into dibs.messages as m (global_position, category,"),
			edit("append_one", "values (stream_category,", "values (early, stream_category,"),
		), alone, disorder},
		{"group-early-position", "a group takes its global positions before the lock", sql(
			edit("append_each", "known integer[];", `known integer[];
				early bigint[] := (select array_agg(nextval('dibs.messages_global_position_seq')) from generate_series(1, cardinality(ids)));`),
			edit("append_each", "into dibs.messages as m (category,", "into dibs.messages as m (global_position, category,"),
			edit("append_each", "select split_part(names[p.n], '-', 1), coalesce(", "select early[p.n], split_part(names[p.n], '-', 1), coalesce("),
		), groups, disorder},
		{"floor-late", "a caller's transaction says which positions may still come when it has drawn one", sql(
			edit("lock_shared", floorOfShared, ""),
			edit("append_shared", floorOfMarked, ""),
		), alone, disorder},
		{"read-ahead", "a read continues after the last global position that was taken, committed or not", sql(
			edit("read_category", "select least(min(p.global_position), 9223372036854775806) + 1, count(*) > 1", `
				select greatest(min(p.global_position),
					case when count(*) = 1 then (select s.last_value from dibs.messages_global_position_seq s) end) + 1, count(*) > 1`),
		), groups, skips},
	}
}

// Written messages.
func writes() []*Mutant {
	version := broken("S3c", "S3d", "S3e")
	return []*Mutant{
		{"one-any-version", "a write by itself is done at any version", sql(
			edit("append_one", "elsif expected = version or expected = -2 then", "elsif true then"),
		), alone, version},
		{"several-any-version", "a write to several streams, or in a transaction, is done at any version", sql(
			edit("append", "where s.expected <> -2 and s.expected <> m.position", "where false"),
		), alone, version},
		{"group-any-version", "a write in a group is done at any version", sql(
			edit("append_each", "when v.expected = v.version or v.expected = -2 then 'w'", "when true then 'w'"),
			edit("follow_each", "when expected[last] in (versions_found[first], -2) then 'w'", "when true then 'w'"),
		), groups, version},
		{"group-half", "of a write to several streams in a group, each stream is written or refused by itself", sql(
			edit("follow_each", "exit when joined is null or last = writes_of or not joined[last + 1];", "exit;"),
		), groups, broken("S3c", "S3d", "S3e", "S5a", "S5b", "S4a", "S2a")},
		{"group-second-any-version", "of a write to several streams in a group, only the first is done at its version", sql(
			edit("follow_each", "when expected[last] in (versions_found[first], -2) then 'w'", "when expected[last] in (versions_found[first], -2) or joined[last] then 'w'"),
		), groups, version},
		{"repeat-is-conflict", "a write by itself that is tried again, when its stream is beyond its version, has met a conflict", sql(
			edit("append_one", "elsif not exists (select from dibs.messages m where m.id = message_id) then", "else"),
		), alone, broken("S5e")},
		{"id-any-content", "other content with an id that is taken is a duplicate", sql(
			edit("find_recorded", `
				or m.type <> r.type
				or m.data::jsonb is distinct from r.data::jsonb
				or m.metadata::jsonb is distinct from r.metadata::jsonb`, ""),
		), alone, broken("S5b")},
		{
			"no-sync", "a commit is answered before it is on the disk",
			plant.Mutant{Settings: []string{"synchronous_commit=off", "wal_writer_delay=10s", "dibs.allow_unsafe_settings=on"}},
			crashes,
			broken("S1a"),
		},
	}
}

// The reported outcomes of writes.
func outcomes() []*Mutant {
	phantom := broken("S4a")
	return []*Mutant{
		{
			"group-neighbour", "a write in a group gets the outcome of its neighbour",
			code(edit("messagestore/postgres", "group []*ticket, a eachAnswer) {", `group []*ticket, a eachAnswer) {
				if len(group) > 1 && len(group[0].appends) == 1 && len(group[1].appends) == 1 &&
					len(group[0].appends[0].Records) == len(group[1].appends[0].Records) {
					group[0], group[1] = group[1], group[0]
				}`)), groups,
			broken("S5a", "S5b", "S4a"),
		},
		{"group-left", "a write is done with its group though its caller has left and was told that it is not", code(
			edit("messagestore/postgres", "|| t.state.Load() == taken", "|| true"),
			edit("messagestore/postgres", "if t.state.Load() == waiting {", "if true {"),
		), pauses, phantom},
		{
			"definite", "a write whose reply was lost is reported as failed, and in a group is done again",
			code(edit("internal/pglink", "func Definite(err error) bool {", "func Definite(err error) bool { return true")), cuts,
			broken("S4a", "S5c", "S5d", "S5e"),
		},
		{"find-no-lock", "resolving a write does not wait for it", sql(lockOfFind), pauses, phantom},
		{"find-no-fence", "resolving a write does not raise the fence, so it is accepted if it comes later", sql(
			edit("find_messages", `
				insert into dibs.fences as f (category, fence)
				values (split_part(stream, '-', 1), (extract(epoch from clock_timestamp()) * 1000000)::bigint)
				on conflict (category) do update set fence = greatest(f.fence + 1, excluded.fence);`, "null;"),
		), pauses, phantom},
		// A version that was looked up too early meets the unique index, and append looks again. The
		// fence, which is looked up with it, meets nothing, if the server is not told to cancel the
		// write. So the moment in which it matters is made longer, and nothing is cancelled in it.
		{"one-early-look", "a write by itself looks up the version and the fence before the lock", sql(
			lockOfOne,
			edit("append_one", "if fence_found < 0 or fence <> fence_found then", `
				begin perform pg_sleep(0.05); exception when query_canceled then null; end;
				perform dibs.lock_category(stream_category);
				if fence_found < 0 or fence <> fence_found then`),
		), lonely, phantom},
	}
}

func consumers() []*Mutant {
	return []*Mutant{
		{
			"early-checkpoint", "a consumer's checkpoint is the last message read, and not the last handled",
			code(edit("consumer",
				"next.saved = r.progress.toStore()",
				"next.saved = r.progress.toStore(); next.Checkpoint = checkpoint.Checkpoint{Position: r.reader.next, After: r.reader.mark.ID}")), groups,
			broken("C1b", "C1c"),
		},
		{
			"unfenced", "a consumer checkpoints over the checkpoint of another",
			code(edit("consumer/internal/checkpoint", "p.log.Write(ctx, p.Stream, p.version,", "p.log.Write(ctx, p.Stream, messagestore.AnyVersion,")), crowds,
			slices.Concat(seats, positions),
		},
		{"panic-is-success", "a message whose handler panics counts as handled", code(
			edit("consumer", "defer panics.Catch(err)", "defer func() {\n\t\tif recover() != nil {\n\t\t\t*err = nil\n\t\t}\n\t}()"),
		), groups, skips},
		{"park-nothing", "a message is given up on, and not parked", code(
			edit("consumer", "park(ctx context.Context, it *item) error {", "park(ctx context.Context, it *item) error { return nil"),
		), groups, skips},
		{"one-epoch", "a consumer continues in another epoch of the store", code(
			edit("consumer/internal/checkpoint", "now != p.epoch", "now != p.epoch && false"),
		), backups, broken("C6a", "C6c")},
		{"no-lanes", "messages of one stream are handled concurrently", code(
			edit("consumer", "return d.message.Stream.CardinalID()", "return d.message.ID.String()"),
		), groups, broken("C2a", "C2b")},
	}
}

func reservations() []*Mutant {
	broken := broken("R1a", "R1b", "R2", "R3", "R4a", "R4b", "R5")
	return []*Mutant{
		{"key-any-content", "another command with a key that is taken is a duplicate", code(
			edit("reservation", "same := sum == c.digest", "same := true"),
		), alone, broken},
		{"key-any-error", "a reservation that fails for any reason is taken for a duplicate", code(
			edit("reservation", `!errors.Is(failure, messagestore.ErrIDConflict) {
				return fail(failure)`, `!errors.Is(failure, messagestore.ErrIDConflict) {
				return r.tell(ctx, c, Result{Outcome: Duplicate, Key: c.key, Stream: c.stream}), nil`),
		), cuts, broken},
	}
}
