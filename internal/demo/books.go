package demo

import (
	"context"
	"database/sql"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/url"
	"os"
	"reflect"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/stdlib"
)

// Books are the records of a run, as tables of a database in memory, one for each kind. Each figure
// of the verdict is a query, which shares no code with the parts that made the records. Books keeps
// the first error, which the verdict returns.
type Books struct {
	db   *sql.DB
	err  error
	rows []row
	odd  []string
	told strings.Builder

	left, right string // the headings of the table
}

// OpenBooks returns empty books.
func OpenBooks() (*Books, error) {
	db, err := sql.Open("sqlite", ":memory:")
	if err != nil {
		return nil, err
	}
	db.SetMaxOpenConns(1) // each would have a memory of its own
	return &Books{db: db, left: "expected", right: "found"}, nil
}

// Close closes the books' database.
func (b *Books) Close() { _ = b.db.Close() } // there is nothing to lose

// Head sets the headings of the table.
func (b *Books) Head(left, right string) { b.left, b.right = left, right }

func (b *Books) keep(err error) {
	if b.err == nil {
		b.err = err
	}
}

// Exec executes a statement.
func (b *Books) Exec(statement string, args ...any) {
	if b.err == nil {
		_, err := b.db.Exec(statement, args...) //nolint:noctx // it is in memory
		if err != nil {
			b.keep(fmt.Errorf("%w: %s", err, statement))
		}
	}
}

// Add adds records to a table, which it makes: each field is a column.
func Add[T any](b *Books, table string, records []T) {
	var columns []string
	var fields [][]int
	for _, f := range reflect.VisibleFields(reflect.TypeFor[T]()) {
		if !f.Anonymous && f.IsExported() {
			columns, fields = append(columns, strings.ToLower(f.Name)), append(fields, f.Index)
		}
	}
	insert := b.insertInto(table, columns)
	for _, record := range records {
		values := make([]any, len(fields))
		for i, index := range fields {
			values[i] = plain(reflect.ValueOf(record).FieldByIndex(index))
		}
		insert(values)
	}
	insert(nil)
}

// plain returns a value as a value of SQL.
func plain(v reflect.Value) any {
	if at, is := reflect.TypeAssert[time.Time](v); is {
		return at.UnixMicro()
	}
	switch v.Kind() {
	case reflect.String:
		return v.String()
	case reflect.Bool:
		return v.Bool()
	default:
		return v.Int()
	}
}

// insertInto returns a function that inserts a row, and with nil commits all.
func (b *Books) insertInto(table string, columns []string) func([]any) {
	b.Exec(`create table if not exists ` + table + ` ("` + strings.Join(columns, `", "`) + `")`)
	b.Exec("begin")
	if b.err != nil {
		return func([]any) {}
	}
	statement, err := b.db.Prepare("insert into " + table + " values (?" + strings.Repeat(", ?", len(columns)-1) + ")") //nolint:noctx // in memory
	b.keep(err)
	return func(values []any) {
		switch {
		case b.err != nil:
		case values == nil:
			b.keep(statement.Close())
			b.Exec("commit")
		default:
			_, err := statement.Exec(values...) //nolint:noctx // in memory
			b.keep(err)
		}
	}
}

// Copy adds the rows of a query in another database to a table, which it makes.
func (b *Books) Copy(ctx context.Context, from *sql.DB, table, query string) {
	if b.err != nil {
		return
	}
	rows, err := from.QueryContext(ctx, query)
	if err != nil {
		b.keep(fmt.Errorf("%w: %s", err, query))
		return
	}
	defer rows.Close()
	columns, err := rows.Columns()
	b.keep(err)
	values, targets := make([]any, len(columns)), make([]any, len(columns))
	for i := range values {
		targets[i] = &values[i]
	}
	insert := b.insertInto(table, columns)
	for rows.Next() {
		b.keep(rows.Scan(targets...))
		insert(values)
	}
	insert(nil)
	b.keep(rows.Err())
}

// The SQL for the messages of a store.
const (
	onSQLite   = "select lower(hex(id)) id, stream_name stream, category, position, global_position global, type, coalesce(data, '') data, coalesce(metadata, '{}') metadata, time at from dibs_messages order by global_position"
	onPostgres = "select replace(id::text, '-', '') id, stream_name stream, category, position, global_position global, type, coalesce(data::text, '') data, coalesce(metadata::text, '{}') metadata, (extract(epoch from time) * 1000000)::bigint at from %smessages order by global_position"

	// A message is named by its place, and its cause is the place of another. The subject is the
	// identifier of its stream, and the entity the identifier's first part.
	messages = `
create table messages as
  select *, stream || '@' || position place, substr(stream, length(category) + 2) subject,
    metadata->>'causationMessageStreamName' || '@' || (metadata->>'causationMessagePosition') cause
  from stored;
alter table messages add column entity;
update messages set entity = substr(subject, 1, instr(subject || '+', '+') - 1);
create index messages_category on messages (category, type);
create index messages_stream on messages (stream, position);
create index messages_cause on messages (cause);
create index messages_place on messages (place);`
)

// A Stored is a message as Messages reads it.
type Stored struct {
	ID, Stream, Category string
	Position, Global     int64
	Type, Data, Metadata string
	At                   time.Time
}

// Messages adds the table of all messages of a store.
func (b *Books) Messages(ctx context.Context, storeURL string) {
	store, schema, err := OpenSQL(storeURL)
	if err != nil {
		b.keep(err)
		return
	}
	defer store.Close()
	query := onSQLite
	if schema != "" {
		query = fmt.Sprintf(onPostgres, schema)
	}
	b.Copy(ctx, store, "stored", query)
	b.Exec(messages)
}

// AddMessages adds the table of messages, for a test.
func (b *Books) AddMessages(all []Stored) {
	Add(b, "stored", all)
	b.Exec(messages)
}

// Schema returns the prefix for the names of the run's tables: the schema on PostgreSQL, "" on
// SQLite.
func Schema(storeURL string) string {
	u, err := url.Parse(storeURL)
	if err != nil || u.Query().Get("schema") == "" {
		return ""
	}
	return pgx.Identifier{u.Query().Get("schema")}.Sanitize() + "."
}

// OpenSQL opens a store for SQL, and returns its [Schema].
func OpenSQL(storeURL string) (db *sql.DB, schema string, err error) {
	if path, is := strings.CutPrefix(storeURL, "sqlite:"); is {
		db, err = sql.Open("sqlite", "file:"+path+"?_pragma=busy_timeout(10000)")
		return db, "", err
	}
	u, err := url.Parse(storeURL)
	if err != nil {
		return nil, "", errors.New("the store's URL cannot be read") // it may have a password
	}
	query := u.Query()
	for _, ours := range []string{"schema", "pool_max_conns"} {
		query.Del(ours)
	}
	u.RawQuery = query.Encode()
	config, err := pgx.ParseConfig(u.String())
	if err != nil {
		return nil, "", err
	}
	config.DefaultQueryExecMode = pgx.QueryExecModeCacheDescribe // nothing is prepared by name, for PgBouncer
	return stdlib.OpenDB(*config), Schema(storeURL), nil
}

// ReadLines reads a file of JSON lines. A missing file is like an empty file.
func ReadLines[T any](path string) (all []T, err error) {
	file, err := os.Open(path)
	if errors.Is(err, os.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	defer file.Close()
	for lines := json.NewDecoder(file); ; {
		var line T
		if err := lines.Decode(&line); errors.Is(err, io.EOF) {
			return all, nil
		} else if err != nil {
			return nil, fmt.Errorf("%s: %w", path, err)
		}
		all = append(all, line)
	}
}

// Number returns an int, or the number that a query returns, 0 for NULL.
func (b *Books) Number(of any) int {
	query, is := of.(string)
	if !is {
		n, _ := of.(int)
		return n
	}
	var n sql.NullInt64
	if b.err == nil {
		if err := b.db.QueryRow(query).Scan(&n); err != nil { //nolint:noctx // in memory
			b.keep(fmt.Errorf("%w: %s", err, query))
		}
	}
	return int(n.Int64)
}

// Texts returns the texts that a query returns.
func (b *Books) Texts(query string, args ...any) (all []string) {
	if b.err != nil {
		return nil
	}
	rows, err := b.db.Query(query, args...) //nolint:noctx // in memory
	if err != nil {
		b.keep(fmt.Errorf("%w: %s", err, query))
		return nil
	}
	defer rows.Close()
	for rows.Next() {
		var text string
		b.keep(rows.Scan(&text))
		all = append(all, text)
	}
	b.keep(rows.Err())
	return all
}
