package postgres

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
)

// madeFor is the version of the schema that has all this driver calls.
const madeFor = 8

// override is the setting that takes a server as it is. It may be set wherever
// PostgreSQL's own are: for the server, a database or a role, or in the URL.
const override = "dibs.allow_unsafe_settings"

// Failures to match with [errors.Is]. Nothing was read or written.
var (
	// ErrUnsafeSettings is matched by the error of a call on a server that might
	// lose what it has acknowledged, or change it. See [UnsafeSettingsError].
	ErrUnsafeSettings = errors.New("unsafe server settings")

	// ErrSchemaTooNew is matched by the error of a call on a database whose schema
	// no longer works with this release of the library. See [SchemaVersionError].
	ErrSchemaTooNew error = lastingError("the schema is too new for this release of the library: upgrade the library")

	// ErrAdopting is matched by the error of a call on a database in which message-db's
	// table is the store, because its messages are being adopted, or were given back.
	ErrAdopting error = lastingError("message-db's messages are not adopted yet: see dibs migrate status")
)

// An UnsafeSettingsError names the settings for which a server is refused, all of
// them. It lasts until somebody mends them, so a consumer stops at it; but a standby
// may be promoted, so a consumer waits for that.
//
// "timeline" is among them where the server is a primary that another was promoted in
// place of, and that the driver has been connected to since: what such a server takes is
// lost. In a transaction of yours nobody looks; after it somebody does. The next
// connection may reach the right one, so a consumer waits. Where an older backup was put
// back in its place on purpose, without a timeline of its own, a driver that is made anew
// takes it.
type UnsafeSettingsError struct {
	Settings []UnsafeSetting
}

// An UnsafeSetting is a setting that is not as it has to be.
type UnsafeSetting struct {
	Name  string // "fsync"
	Value string // "off"
	Need  string // "on"
}

const (
	// inHotStandby is what PostgreSQL calls it, in its settings, that a server is in
	// recovery.
	inHotStandby = "in_hot_standby"

	// onTimeline is no setting, but like that: another connection may reach the primary.
	onTimeline = "timeline"
)

// Error names each setting, its value and what it has to be.
func (e *UnsafeSettingsError) Error() string {
	said := make([]string, len(e.Settings))
	for i, s := range e.Settings {
		said[i] = fmt.Sprintf("%s is %s and has to be %s", s.Name, s.Value, s.Need)
	}
	text := fmt.Sprintf("%v: %s", ErrUnsafeSettings, strings.Join(said, ", "))
	if !slices.ContainsFunc(e.Settings, func(s UnsafeSetting) bool { return !s.lifted() }) {
		text += "; " + override + " = on takes the server as it is"
	}
	return text
}

// Is reports whether target is [ErrUnsafeSettings].
func (e *UnsafeSettingsError) Is(target error) bool { return target == ErrUnsafeSettings }

// Permanent reports whether it takes a change of settings to go on.
func (e *UnsafeSettingsError) Permanent() bool {
	return slices.ContainsFunc(e.Settings, func(s UnsafeSetting) bool { return s.Name != inHotStandby && s.Name != onTimeline })
}

// lifted reports whether the override is one for this setting.
func (s UnsafeSetting) lifted() bool { return !strings.HasSuffix(s.Name, "_encoding") }

// A SchemaVersionError says that a schema and this release of the library do not
// fit. It matches [ErrNotMigrated] if the schema is missing or too old, and
// [ErrSchemaTooNew] if it is too new.
type SchemaVersionError struct {
	Schema  string
	Version int // of the schema; 0 if it is not there, or so old that it has none
	Serves  int // the oldest version that the schema works for
	Need    int // the version that this release is made for
}

// Error says which versions do not fit, and what to do.
func (e *SchemaVersionError) Error() string {
	switch {
	case e.Version == 0:
		return fmt.Sprintf("schema %s: %v", e.Schema, ErrNotMigrated)
	case e.Version < e.Need:
		return fmt.Sprintf("schema %s has version %d, and this release needs %d: %v", e.Schema, e.Version, e.Need, ErrNotMigrated)
	}
	return fmt.Sprintf("schema %s has version %d, which works from version %d on, and this release is made for %d: %v",
		e.Schema, e.Version, e.Serves, e.Need, ErrSchemaTooNew)
}

// Is reports whether target is what the error matches.
func (e *SchemaVersionError) Is(target error) bool {
	if e.Version < e.Need {
		return target == ErrNotMigrated
	}
	return target == ErrSchemaTooNew
}

// Permanent reports true: somebody has to migrate, or to upgrade.
func (e *SchemaVersionError) Permanent() bool { return true }

// A server is what the one behind a connection says of itself.
type server struct {
	fsync, fullPageWrites, synchronousCommit string
	standbys                                 string // that a commit waits for
	tells                                    string // from which level on the client is sent what goes on
	watched                                  bool   // the connection is, for a wait that is cancelled
	serverEncoding, clientEncoding           string
	inRecovery                               bool
	override                                 string
	pid                                      uint32
	hasVersion                               bool
	denied                                   string // what of that the user has no right to
	adopting                                 bool
	asked                                    bool      // for the timeline
	timeline                                 *timeline // nil if it is not known
	latest                                   *timeline // that the driver was on
}

// refused returns the settings for which it is refused, and those for which it
// would be but for the override.
func (s *server) refused() (refused, lifted []UnsafeSetting) {
	overridden := isOn(s.override)
	s.judge(func(setting UnsafeSetting, ok bool) {
		switch {
		case ok:
		case overridden && setting.lifted():
			lifted = append(lifted, setting)
		default:
			refused = append(refused, setting)
		}
	})
	return refused, lifted
}

// judge calls f with each setting that has to be as it has to be.
func (s *server) judge(f func(setting UnsafeSetting, ok bool)) {
	judge := func(ok bool, name, value, need string) { f(UnsafeSetting{Name: name, Value: value, Need: need}, ok) }
	judge(s.fsync == "on", "fsync", s.fsync, "on")
	judge(s.fullPageWrites == "on", "full_page_writes", s.fullPageWrites, "on")
	// Every value but off waits for the disk of this server.
	judge(s.synchronousCommit != "off", "synchronous_commit", s.synchronousCommit, "on, or at least local")
	if s.waitsForStandby() && s.watched && s.tells == "error" {
		judge(false, "client_min_messages", s.tells, "warning, or lower")
	}
	judge(s.serverEncoding == "UTF8", "server_encoding", s.serverEncoding, "UTF8")
	// That is UTF8 too, and the one other name that the server keeps as it was given.
	judge(s.clientEncoding == "UTF8" || s.clientEncoding == "UNICODE", "client_encoding", s.clientEncoding, "UTF8")
	judge(!s.inRecovery, inHotStandby, onOff(s.inRecovery), "off")
	if s.timeline.leftFor(s.latest) {
		judge(false, onTimeline, fmt.Sprint(s.timeline.number), fmt.Sprintf("at least %d, that of the server promoted in its place", s.latest.number))
	}
}

func onOff(on bool) string {
	if on {
		return "on"
	}
	return "off"
}

// waitsForStandby reports whether a commit waits for another server.
func (s *server) waitsForStandby() bool {
	return s.standbys != "" && s.synchronousCommit != "off" && s.synchronousCommit != "local"
}

// isOn reads a setting that PostgreSQL knows nothing of, and so does not check.
func isOn(value string) bool {
	switch strings.ToLower(value) {
	case "on", "true", "yes", "1":
		return true
	}
	return false
}

// A mark is what is remembered of a connection whose server was found good.
type mark struct {
	pooled bool              // the connection is to a pooler, which gives it a server for each transaction
	mode   pgx.QueryExecMode // how statements are sent
	tracer pgx.QueryTracer   // of its configuration, which pgx copies for who asks

	asked    bool      // for the timeline, which nobody is in a transaction
	timeline *timeline // of the server; nil if it is not known
}

// markKey is where a connection keeps its mark, apart from other schemas' drivers.
func (d *Driver) markKey() string { return "dibs.checked." + d.schema }

func (d *Driver) markOf(conn *pgx.Conn) *mark {
	if conn == nil {
		return d.mark
	}
	m, _ := conn.PgConn().CustomData()[d.markKey()].(*mark)
	return m
}

func (d *Driver) setMark(conn *pgx.Conn, m *mark) {
	switch {
	case conn == nil:
		d.mark = m
	case m == nil:
		delete(conn.PgConn().CustomData(), d.markKey())
	default:
		conn.PgConn().CustomData()[d.markKey()] = m
	}
}

// safely calls f with a connection whose server is good: it asks when the connection
// is used first, once more outside of a transaction if that was in one, and again after an
// error that says that it may not be any more. It asks in a way that cannot abort a
// transaction.
func (d *Driver) safely(ctx context.Context, db DB, f func(db DB) error) error {
	conn := connOf(db)
	if m := d.markOf(conn); m == nil || !m.asked && d.mayAsk(db) || m.timeline.leftFor(d.latest.see(m.timeline)) {
		m, err := d.check(ctx, db)
		if err != nil {
			return fmt.Errorf("check the server: %w", d.failed(err))
		}
		d.setMark(conn, m)
	}
	err := f(db)
	if outdated(err) {
		d.setMark(conn, nil)
	}
	return err
}

// mayAsk reports whether a question that is refused aborts no transaction.
func (d *Driver) mayAsk(db DB) bool { return connOf(db) != nil && !d.inTransaction(db) }

// turnedAway is what a server says where message-db's messages are adopted meanwhile,
// and for other reasons too.
var turnedAway = []string{"42501", "55000"}

// outdated reports whether an error says that the server is not what it was.
func outdated(err error) bool {
	e, ok := errors.AsType[*pgconn.PgError](err)
	return ok && (e.Code == readOnly || slices.Contains(noSchema, e.Code) || slices.Contains(turnedAway, e.Code))
}

func (d *Driver) check(ctx context.Context, db DB) (*mark, error) {
	conn := connOf(db)
	s, version, err := d.askAll(ctx, db)
	if err != nil {
		return nil, err
	}
	s.latest = d.latest.see(s.timeline)
	refused, lifted := s.refused()
	if len(refused) > 0 {
		return nil, &UnsafeSettingsError{Settings: refused}
	}
	if s.adopting {
		return nil, ErrAdopting
	}
	if version.err != nil {
		return nil, version.err
	}
	if found := version.found; found.Version < found.Need || found.Serves > found.Need {
		return nil, &found
	}
	if len(lifted) > 0 && d.saidUnsafe.CompareAndSwap(false, true) {
		d.log.Warn().Err(&UnsafeSettingsError{Settings: lifted}).Msg("allowed by " + override)
	}
	if s.waitsForStandby() && !s.watched && d.saidUnwatched.CompareAndSwap(false, true) {
		d.log.Warn().Msg("a wait for a standby that is cancelled will go unnoticed: see postgres.WatchReplication")
	}
	m := &mark{asked: s.asked, timeline: s.timeline}
	if conn != nil {
		m.pooled = conn.PgConn().PID() != s.pid
		m.mode, m.tracer = modeFor(conn, m.pooled), conn.Config().Tracer
	}
	return m, nil
}

// A schemaVersion is what a schema says of itself, or why it does not.
type schemaVersion struct {
	found SchemaVersionError
	err   error
}

// askAll asks for the settings, the schema's version and the timeline: in one round trip,
// but in a transaction, which a schema that is not there or not the user's would abort, in
// two, and without the timeline, which not everybody may ask for.
func (d *Driver) askAll(ctx context.Context, db DB) (*server, *schemaVersion, error) {
	version := &schemaVersion{found: SchemaVersionError{Schema: d.schema, Need: madeFor}}
	conn := connOf(db)
	if !d.mayAsk(db) {
		s, err := d.ask(ctx, db)
		switch {
		case err != nil:
			return nil, nil, err
		case s.denied != "": // as the server says it
			version.err = &pgconn.PgError{Severity: "ERROR", SeverityUnlocalized: "ERROR", Code: denied, Message: "permission denied for " + s.denied}
		case s.hasVersion:
			version.err = one(ctx, db, d.queries.schemaVersion, nil, &version.found.Version, &version.found.Serves)
		}
		return s, version, nil
	}

	s := server{watched: watched(conn), asked: true}
	batch := &pgconn.Batch{}
	batch.ExecParams(d.queries.check, d.checkParameters(), nil, nil, nil)
	batch.ExecParams(d.queries.schemaVersion, nil, nil, nil, nil)
	batch.ExecParams(d.queries.epoch, nil, nil, nil, nil)
	results := conn.PgConn().ExecBatch(ctx, batch)
	answered := 0
	var epoch string
	var err error
	for _, into := range [][]any{s.fields(), {&version.found.Version, &version.found.Serves}, {&epoch}} {
		if !results.NextResult() {
			break
		}
		rows := pgx.RowsFromResultReader(conn.TypeMap(), results.ResultReader()) //nolint:rowserrcheck // scanOne does
		if err = scanOne(rows, into...); err != nil {
			break
		}
		answered++
	}
	if closeErr := results.Close(); err == nil {
		err = closeErr
	}
	s.timeline = timelineOf(epoch)
	switch {
	case answered == 0:
		return nil, nil, err
	case answered == 1 && s.hasVersion:
		version.err = err
	case answered == 2 && err != nil && !cannotTell(err):
		return nil, nil, err
	}
	return &s, version, nil
}

// ask returns what the server says of itself.
func (d *Driver) ask(ctx context.Context, db DB) (*server, error) {
	s := server{watched: watched(connOf(db))}
	parameters := d.checkParameters()
	args := make([]any, len(parameters))
	for i, p := range parameters {
		args[i] = string(p)
	}
	if err := one(ctx, db, d.queries.check, args, s.fields()...); err != nil {
		return nil, err
	}
	return &s, nil
}

// checkParameters are those of the query, as text.
func (d *Driver) checkParameters() [][]byte {
	return [][]byte{[]byte(override)}
}

// fields are in the order of the query.
func (s *server) fields() []any {
	return []any{
		&s.fsync, &s.fullPageWrites, &s.synchronousCommit, &s.standbys, &s.tells, &s.serverEncoding, &s.clientEncoding,
		&s.inRecovery, &s.override, &s.pid, &s.hasVersion, &s.denied, &s.adopting,
	}
}

// one reads the one row that a query returns. Nothing is known of the connection
// yet, so nothing is prepared on it.
func one(ctx context.Context, db DB, sql string, args []any, into ...any) error {
	rows, err := db.Query(ctx, sql, append([]any{pgx.QueryExecModeExec}, args...)...)
	if err != nil {
		return err
	}
	return scanOne(rows, into...)
}

func scanOne(rows pgx.Rows, into ...any) error {
	defer rows.Close()
	for rows.Next() {
		if err := rows.Scan(into...); err != nil {
			return err
		}
	}
	return rows.Err()
}
