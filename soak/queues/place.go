package queues

import (
	"context"
	"database/sql"
	"encoding/json"
	"errors"
	"path/filepath"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/dibs-go/dibs/messagestore"
	"github.com/dibs-go/dibs/messagestore/retention"
	"github.com/dibs-go/dibs/messagestore/sqlite"
	"github.com/dibs-go/dibs/soak/crew"
	"github.com/dibs-go/dibs/soak/server"
)

// A place has the store of a run, as the harness sees it: a server, or a file of SQLite's.
type place struct {
	*crew.Crew
	file string  // "" for a server
	db   *sql.DB // nil for a server
	questions
}

// The questions to a place have one value for an answer.
type questions struct {
	lines   string // of the logs, by their sort, as JSON
	inLine  string // callers that wait
	orphans string // items that are held behind none
}

// The tables of a run, in addition to Dibs's. They have no unique columns, so that the checker sees
// each committed row.
const (
	effects  = "soak_effects"  // rows that handlers write with their completions
	inserted = "soak_inserted" // rows that callers write with the items that they stage
	removed  = "soak_removed"  // messages that were trimmed
)

// postgresTables has a trigger that looks at each message that is removed, and whether its item was
// open.
const postgresTables = `
create table ` + effects + ` (position bigint not null, version integer not null);
create table ` + inserted + ` (process text not null, op bigint not null, id text not null);
create table ` + removed + ` (global_position bigint, position bigint, stream_name text, id uuid, data json, metadata json, open boolean);
create function soak_remember() returns trigger language plpgsql security definer as $$
declare
	q constant integer := (select x.id from dibs.queues x where x.name = '` + Category + `');
begin
	if old.category = '` + Category + `' then
		insert into public.` + removed + ` values (old.global_position, old.position, old.stream_name, old.id, old.data, old.metadata,
			old.global_position > coalesce((select x.cursor from dibs.queue_heads x where x.queue = q order by x.version desc limit 1), 0)
			or exists (select from dibs.queue_open x where x.queue = q and x.position = old.global_position and x.state <> 'z'));
	end if;
	return null;
end $$;
create trigger soak_remember after delete on dibs.messages for each row execute function soak_remember();
`

func newPostgresPlace(ctx context.Context, c *crew.Crew, clock bool) (*place, error) {
	return &place{Crew: c, questions: questions{
		lines:  "select coalesce(json_object_agg(what, n), '{}')::text from (select what::text, count(*) as n from dibs.queue_log group by 1) x",
		inLine: "select count(*) from dibs.queue_tickets where until > now() + interval '1 minute'",
		orphans: `select count(*) from dibs.queue_open h
			where h.state in ('h', 'z') and not exists (select from dibs.queue_open b where b.position = h.after)`,
	}}, c.Serve(ctx, &server.PostgresConfig{Clock: clock}, postgresTables)
}

const fileName = "soak.db"

const fileTables = `
create table ` + effects + ` (position integer not null, version integer not null);
create table ` + inserted + ` (process text not null, op integer not null, id text not null);
create table ` + removed + ` (global_position integer, position integer, stream_name text, id blob, data text, metadata text, open integer);
create trigger soak_remember after delete on dibs_messages when old.category = '` + Category + `' begin
	insert into ` + removed + ` select old.global_position, old.position, old.stream_name, old.id, old.data, old.metadata,
		old.global_position > coalesce((select q.cursor from dibs_queues q where q.name = '` + Category + `'), 0)
		or exists (select 1 from dibs_queue_open x where x.position = old.global_position and x.place <> 'z');
end;
`

func newFilePlace(ctx context.Context, c *crew.Crew) (*place, error) {
	p := &place{Crew: c, file: filepath.Join(c.Dir, fileName), questions: questions{
		lines:  "select json_group_object(what, n) from (select what, count(*) as n from dibs_queue_log group by 1)",
		inLine: "select count(*) from dibs_queue_tickets where until > unixepoch('subsec') * 1000000 + 60000000",
		orphans: `select count(*) from dibs_queue_open h
			where h.place in ('h', 'z') and not exists (select 1 from dibs_queue_open b where b.position = h.after)`,
	}}
	d, err := p.driver(ctx) // makes the tables of Dibs
	if err != nil {
		return nil, err
	}
	if err := d.Close(); err != nil {
		return nil, err
	}
	if p.db, err = openSQLite(p.file); err != nil {
		return nil, err
	}
	_, err = p.db.ExecContext(ctx, fileTables)
	return p, err
}

// driver waits for a process that holds the file, also if that is stopped.
func (p *place) driver(ctx context.Context) (*sqlite.Driver, error) {
	return sqlite.Open(ctx, p.file, &sqlite.Config{BusyTimeout: time.Minute})
}

// open makes a connection that only faults of the server affect.
func (p *place) open(ctx context.Context) (messagestore.Driver, error) {
	if p.db != nil {
		return p.driver(ctx)
	}
	return p.Open(ctx)
}

func (p *place) ask(ctx context.Context, question string, answer any) error {
	if p.db != nil {
		return p.db.QueryRowContext(ctx, question).Scan(answer)
	}
	return p.Ask(ctx, func(conn *pgx.Conn) error { return conn.QueryRow(ctx, question).Scan(answer) })
}

func (p *place) number(ctx context.Context, question string) (n int, err error) {
	err = p.ask(ctx, question, &n)
	return n, err
}

// sorts returns how many lines of each sort the logs have.
func (p *place) sorts(ctx context.Context) (found map[string]int, err error) {
	var encoded []byte
	if err := p.ask(ctx, p.lines, &encoded); err != nil {
		return nil, err
	}
	return found, json.Unmarshal(encoded, &found)
}

// trim removes a stream, but for its last message.
func (p *place) trim(ctx context.Context, stream messagestore.StreamName) (removed int64, err error) {
	if p.db == nil {
		return p.Number(ctx, "select coalesce(removed, 0) from dibs.trim($1, keep => 1, min_age => '0')", string(stream))
	}
	d, err := p.driver(ctx)
	if err != nil {
		return 0, err
	}
	trimmed, err := d.Trim(ctx, stream, &retention.TrimOptions{Keep: 1, MinAge: retention.AnyAge})
	return trimmed.Removed, errors.Join(err, d.Close())
}

// lock locks the file, like another program.
func (p *place) lock(ctx context.Context, meanwhile func()) {
	tx, err := p.db.BeginTx(ctx, nil)
	if err != nil {
		return // another process has the file, or the run is over
	}
	meanwhile()
	_ = tx.Rollback() // it was, if the run is over
}

// dump copies the content of the store.
func (p *place) dump(ctx context.Context) error {
	if p.db != nil {
		return errors.Join(p.dumpFile(ctx), p.db.Close())
	}
	const (
		n   = "coalesce((data ->> 'n')::integer, 0)"
		due = "coalesce((metadata ->> 'dueAt')::bigint, 0)"
	)
	return errors.Join(
		p.Copy(ctx, "messages", `
			select global_position, stream_name, position, id::text, `+n+`, `+due+`, false, false from dibs.messages where category = $1
			union all
			select global_position, stream_name, position, id::text, `+n+`, `+due+`, true, open from public.`+removed+`
			order by 1`, Category),
		p.Copy(ctx, "rows", "select position, version, state::text, failures::integer, coalesce(session, 0), coalesce(after, 0) from dibs.queue_open"),
		p.Copy(ctx, "log", "select position, version, what::text, (extract(epoch from at) * 1000000)::bigint, coalesce(session, 0) from dibs.queue_log"),
		p.Copy(ctx, "effects", "select position, version from public."+effects),
		p.Copy(ctx, "inserted", "select process, op, id from public."+inserted),
		p.Copy(ctx, "head", "select cursor, held, taken, finished, returned, buried from dibs.queue_heads order by version desc limit 1"),
	)
}

func (p *place) dumpFile(ctx context.Context) error {
	const (
		id = "lower(substr(hex(id), 1, 8) || '-' || substr(hex(id), 9, 4) || '-' || substr(hex(id), 13, 4) || '-' || substr(hex(id), 17, 4) || '-' || substr(hex(id), 21))"
		m  = "select global_position, stream_name, position, " + id + ", coalesce(data ->> 'n', 0), coalesce(metadata ->> 'dueAt', 0)"
	)
	if err := p.History.Exec(ctx, "attach ? as store", p.file); err != nil {
		return err
	}
	return p.History.Exec(ctx, `
		insert into messages
			`+m+`, 0, 0 from store.dibs_messages where category = '`+Category+`' union all `+m+`, 1, open from store.`+removed+`;
		insert into rows select position, version, place, failures, coalesce(session, 0), coalesce(after, 0) from store.dibs_queue_open;
		insert into log select position, version, what, at, coalesce(session, 0) from store.dibs_queue_log;
		insert into effects select position, version from store.`+effects+`;
		insert into inserted select process, op, id from store.`+inserted+`;
		insert into head select cursor, 0, taken, finished, returned, buried from store.dibs_queues where changed is not null;
		detach store`)
}
