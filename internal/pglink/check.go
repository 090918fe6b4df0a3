package pglink

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/dibs-go/dibs/internal/calling"
	"github.com/dibs-go/dibs/internal/text"
)

// override is the setting that allows an unsafe server. It may be set wherever PostgreSQL's
// settings are: for the server, a database or a role, or in the URL.
const override = "dibs.allow_unsafe_settings"

// An UnsafeSettingsError names all settings because of which a server is refused. An operator has
// to change them, so a consumer stops. If the only setting is "in_hot_standby", a consumer waits,
// because a standby may be promoted.
//
// The setting "timeline" stands for an old primary: another server was promoted, and the driver has
// been connected to it. Writes to an old primary are lost. The next connection may reach the new
// primary, so a consumer waits. The timeline is not checked in a caller's transaction, but at the
// next use of the connection. If an older backup was restored on purpose without a new timeline, a
// new driver accepts it.
type UnsafeSettingsError struct {
	Settings []UnsafeSetting
}

// An UnsafeSetting is a setting with an unsafe value.
type UnsafeSetting struct {
	Name  string // "fsync"
	Value string // "off"
	Need  string // "on"
}

const (
	// inHotStandby is the name of PostgreSQL's setting for a server in recovery.
	inHotStandby = "in_hot_standby"

	// onTimeline is not a setting of PostgreSQL. It is treated like inHotStandby: another
	// connection may reach the primary.
	onTimeline = "timeline"
)

// Error names each setting, its value and the value that it needs.
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

// Is reports whether target is [ErrUnsafeSettings]; or [calling.ErrLasting], if an operator has to
// change a setting.
func (e *UnsafeSettingsError) Is(target error) bool {
	return target == ErrUnsafeSettings || target == calling.ErrLasting && e.lasts()
}

// lasts reports whether an operator has to change a setting.
func (e *UnsafeSettingsError) lasts() bool {
	return slices.ContainsFunc(e.Settings, func(s UnsafeSetting) bool { return s.Name != inHotStandby && s.Name != onTimeline })
}

// lifted reports whether the override allows this setting.
func (s UnsafeSetting) lifted() bool { return !strings.HasSuffix(s.Name, "_encoding") }

// A SchemaVersionError says that the schema does not fit this release of the library. It matches
// [ErrNotMigrated] if the schema is missing or too old, and [ErrSchemaTooNew] if it is too new.
type SchemaVersionError struct {
	Schema  string
	Version int // of the schema; 0 without a schema
	Serves  int // the oldest version that the schema works for
	Need    int // the version that this release needs
}

// Error names the versions that do not fit, and the remedy.
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

// Is reports whether target is [ErrNotMigrated] or [ErrSchemaTooNew], whichever applies, or
// [calling.ErrLasting]: an operator has to migrate or to upgrade.
func (e *SchemaVersionError) Is(target error) bool {
	if target == calling.ErrLasting {
		return true
	}
	if e.Version < e.Need {
		return target == ErrNotMigrated
	}
	return target == ErrSchemaTooNew
}

// A server is the answer to the check.
type server struct {
	fsync, fullPageWrites, synchronousCommit string
	standbys                                 string // synchronous_standby_names
	tells                                    string // client_min_messages
	watched                                  bool   // see WatchReplication
	serverEncoding, clientEncoding           string
	inRecovery                               bool
	override                                 string
	pid                                      uint32
	hasVersion                               bool
	denied                                   string // the object that the user has no right to
	adopting                                 bool
	kept                                     int       // see keptKB
	asked                                    bool      // the timeline was asked for
	timeline                                 *timeline // nil if unknown
	latest                                   *timeline // the latest that the link has seen
}

// refused returns the settings for which the server is refused, and the settings that only the
// override allows.
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

// judge calls f with each setting and whether its value is safe.
func (s *server) judge(f func(setting UnsafeSetting, ok bool)) {
	judge := func(ok bool, name, value, need string) { f(UnsafeSetting{Name: name, Value: value, Need: need}, ok) }
	judge(s.fsync == "on", "fsync", s.fsync, "on")
	judge(s.fullPageWrites == "on", "full_page_writes", s.fullPageWrites, "on")
	// Every value except off waits for this server's disk.
	judge(s.synchronousCommit != "off", "synchronous_commit", s.synchronousCommit, "on, or at least local")
	if s.waitsForStandby() && s.watched && s.tells == "error" {
		judge(false, "client_min_messages", s.tells, "warning, or lower")
	}
	judge(s.serverEncoding == "UTF8", "server_encoding", s.serverEncoding, "UTF8")
	// UNICODE means UTF8 too; the server keeps this name unchanged.
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

// isOn reads a setting that PostgreSQL does not know and therefore does not validate.
func isOn(value string) bool {
	switch strings.ToLower(value) {
	case "on", "true", "yes", "1":
		return true
	}
	return false
}

// A mark holds the result of the check on a connection.
type mark struct {
	pooled bool              // the connection goes to a pooler, which chooses a server for each transaction
	mode   pgx.QueryExecMode // how statements are sent
	tracer pgx.QueryTracer   // of the configuration, which pgx copies on each call of Config

	asked    bool      // the timeline was asked for, which cannot be done in a transaction
	timeline *timeline // of the server; nil if unknown
}

// markKey is the key of a mark in a connection's custom data. Each schema has its own.
func (l *Link) markKey() string { return "dibs.checked." + l.config.Schema }

func (l *Link) markOf(conn *pgx.Conn) *mark {
	if conn == nil {
		return l.mark
	}
	m, _ := conn.PgConn().CustomData()[l.markKey()].(*mark)
	return m
}

func (l *Link) setMark(conn *pgx.Conn, m *mark) {
	switch {
	case conn == nil:
		l.mark = m
	case m == nil:
		delete(conn.PgConn().CustomData(), l.markKey())
	default:
		conn.PgConn().CustomData()[l.markKey()] = m
	}
}

// safely calls f with a connection to a server that passed the check. It checks at the first use of
// a connection, again outside of a transaction if the first check was in one, and after an error
// that may mean that the server has changed. The check cannot abort a transaction.
func (l *Link) safely(ctx context.Context, db DB, f func(db DB) error) error {
	conn := Conn(db)
	if m := l.markOf(conn); m == nil || !m.asked && l.mayAsk(db) || m.timeline.leftFor(l.latest.see(m.timeline)) {
		m, err := l.check(ctx, db)
		if err != nil {
			return fmt.Errorf("check the server: %w", Failed(err))
		}
		l.setMark(conn, m)
	}
	err := f(db)
	if outdated(err) {
		l.setMark(conn, nil)
	}
	return err
}

// mayAsk reports whether a refused query is harmless, because it cannot abort a transaction.
func (l *Link) mayAsk(db DB) bool { return Conn(db) != nil && !l.InTransaction(db) }

// turnedAway are the SQLSTATEs of a server on which message-db's messages are being adopted; other
// errors have them too.
var turnedAway = []string{"42501", "55000"}

// outdated reports whether err may mean that the server has changed since the check.
func outdated(err error) bool {
	e, ok := errors.AsType[*pgconn.PgError](err)
	return ok && (e.Code == readOnly || slices.Contains(noSchema, e.Code) || slices.Contains(turnedAway, e.Code))
}

func (l *Link) check(ctx context.Context, db DB) (*mark, error) {
	conn := Conn(db)
	s, version, err := l.askAll(ctx, db)
	if err != nil {
		return nil, err
	}
	s.latest = l.latest.see(s.timeline)
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
	if len(lifted) > 0 && l.saidUnsafe.CompareAndSwap(false, true) {
		l.config.Logger.Warn().Str("error", text.Log(&UnsafeSettingsError{Settings: lifted})).Msg("allowed by " + override)
	}
	if s.waitsForStandby() && !s.watched && l.saidUnwatched.CompareAndSwap(false, true) {
		l.config.Logger.Warn().Msg("a wait for a standby that is cancelled will go unnoticed: see WatchReplication")
	}
	m := &mark{asked: s.asked, timeline: s.timeline}
	if conn != nil {
		m.pooled = conn.PgConn().PID() != s.pid
		m.mode, m.tracer = modeFor(conn, m.pooled), conn.Config().Tracer
	}
	return m, nil
}

// A schemaVersion is the version of a schema, or the error of reading it.
type schemaVersion struct {
	found SchemaVersionError
	err   error
}

// askAll reads the settings, the schema's version and the timeline in one round trip. In a
// transaction, which a missing schema or right would abort, it takes two round trips and leaves out
// the timeline.
func (l *Link) askAll(ctx context.Context, db DB) (*server, *schemaVersion, error) {
	version := &schemaVersion{found: SchemaVersionError{Schema: l.config.Schema, Need: l.config.Version}}
	conn := Conn(db)
	if !l.mayAsk(db) {
		s, err := l.ask(ctx, db)
		switch {
		case err != nil:
			return nil, nil, err
		case s.denied != "": // the error that the server would return
			version.err = PermissionDenied(s.denied)
		case s.hasVersion:
			version.err = one(ctx, db, l.checks.schemaVersion, nil, &version.found.Version, &version.found.Serves)
		}
		return s, version, nil
	}

	s := server{watched: watched(conn), asked: true}
	batch := &pgconn.Batch{}
	batch.ExecParams(l.checks.check, l.checkParameters(), nil, nil, nil)
	batch.ExecParams(l.checks.schemaVersion, nil, nil, nil, nil)
	batch.ExecParams(l.checks.epoch, nil, nil, nil, nil)
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
	case answered == 2 && err != nil && code(err) == "":
		return nil, nil, err
	}
	return &s, version, nil
}

// PermissionDenied returns the error that a server returns when the user may not use an object.
func PermissionDenied(object string) error {
	return &pgconn.PgError{Severity: "ERROR", SeverityUnlocalized: "ERROR", Code: Denied, Message: "permission denied for " + object}
}

// ask reads the settings.
func (l *Link) ask(ctx context.Context, db DB) (*server, error) {
	s := server{watched: watched(Conn(db))}
	parameters := l.checkParameters()
	args := make([]any, len(parameters))
	for i, p := range parameters {
		args[i] = string(p)
	}
	if err := one(ctx, db, l.checks.check, args, s.fields()...); err != nil {
		return nil, err
	}
	return &s, nil
}

// keptKB is the size, in kB, of a block that the check allocates and frees so that the session
// keeps freed memory. glibc returns memory to the system when more than 128 kB are free, so each
// page of 1,000 messages costs page faults: 89 for 300 kB of messages, and 0 after the block. The
// server then takes 0.83 of the time for such a page, and 0.86 to 0.9 for a backlog of pages.
// Freeing a large block raises glibc's bound to twice its size (mallopt(3), M_MMAP_THRESHOLD). 200
// kB made no difference, and 4 MB the same as 1 MB, which takes the server some 1 ms per
// connection, or 10 ms if it is busy. It has no effect on other allocators.
const keptKB = 1000

// checkParameters are the query's parameters, as text.
func (l *Link) checkParameters() [][]byte {
	kept := 0
	if l.config.KeepMemory {
		kept = keptKB
	}
	return [][]byte{[]byte(override), []byte(strconv.Itoa(kept))}
}

// fields are in the order of the query.
func (s *server) fields() []any {
	return []any{
		&s.fsync, &s.fullPageWrites, &s.synchronousCommit, &s.standbys, &s.tells, &s.serverEncoding, &s.clientEncoding,
		&s.inRecovery, &s.override, &s.pid, &s.hasVersion, &s.denied, &s.adopting, &s.kept,
	}
}

// one reads the single row of a query. The connection has not been checked yet, so one prepares no
// statement on it.
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
