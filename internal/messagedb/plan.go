package messagedb

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"
)

// A State says which table is the store.
type State string

// The states.
const (
	Adopting State = "copying" // message-db's table, which is being copied
	Adopted  State = "adopted" // dibs.messages
	Undone   State = "undone"  // message-db's again
)

// An Adoption is the state of an adoption, as the database records it.
type Adoption struct {
	State      State
	Version    string    // message-db's
	StartedAt  time.Time // UTC
	SwitchedAt time.Time // UTC; zero before the switch
	UndoneAt   time.Time // UTC; zero if it was not undone
	Found      int64     // roughly how many messages there were when it began
	Copied     int64     // messages copied so far
	Messages   int64     // messages at the switch; 0 before it
	HasOld     bool      // message-db's table still exists, under its new schema

	// Held is how long message-db's writers waited for the switch, if this call switched.
	Held time.Duration

	held                   bool
	frontier, lastPosition int64
}

// Status returns the adoption of this database, or nil if it has not begun. It changes nothing.
func Status(ctx context.Context, conn *pgx.Conn) (*Adoption, error) {
	a, err := readAdoption(ctx, conn)
	if err != nil {
		return nil, fmt.Errorf("adoption status: %w", err)
	}
	return a, nil
}

func readAdoption(ctx context.Context, q querier) (*Adoption, error) {
	var there bool
	const known = `select exists (select from pg_catalog.pg_class c join pg_catalog.pg_namespace n on n.oid = c.relnamespace
		where n.nspname = 'dibs_adoption' and c.relname = 'state' and has_schema_privilege(n.oid, 'usage') and has_table_privilege(c.oid, 'select'))`
	if err := q.QueryRow(ctx, known).Scan(&there); err != nil || !there {
		return nil, err
	}
	a := &Adoption{}
	var frontier, messages, last *int64
	var switched, undone *time.Time
	var ranges, missing int64
	err := q.QueryRow(ctx, statements["status"]).Scan(&a.State, &a.Version, &a.StartedAt, &a.Found, &frontier, &messages, &last, &switched, &undone,
		&ranges, &a.Copied, &missing, &a.HasOld)
	if errors.Is(err, pgx.ErrNoRows) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	a.StartedAt = a.StartedAt.UTC()
	if frontier != nil {
		a.held, a.frontier = true, *frontier
	}
	if switched != nil {
		a.SwitchedAt, a.Messages, a.lastPosition = switched.UTC(), *messages, *last
	}
	if undone != nil {
		a.UndoneAt = undone.UTC()
	}
	return a, nil
}

// A survey is the result of the checks before an adoption.
type survey struct {
	version   string
	messages  int64
	bytes     int64
	obstacles []Obstacle
	left      []string // dependents that the adoption leaves
	own       int64    // messages with types of this module
}

func (s *survey) found(kind ObstacleKind, format string, args ...any) {
	s.obstacles = append(s.obstacles, Obstacle{kind, fmt.Sprintf(format, args...)})
}

// A source is the answer of source.sql about the schema message_store.
type source struct {
	HasSchema, HasTable, IsPlain bool
	Missing, Added               []string // columns
	Version                      string
	OwnsSchema, OwnsTable        bool
	MayCreate                    bool
	HasBefore, HasAdoption       bool
	HasStore                     bool
	Bytes                        int64
	Encoding                     string
	IsStandby                    bool
	UniqueIDs, UniqueGlobals     bool
	UniquePositions              bool
}

// survey looks for all obstacles to going on from state.
func (a *adopter) survey(ctx context.Context, state *Adoption) (*survey, error) {
	s := &survey{}
	rows, err := a.main.Query(ctx, statements["source"])
	if err != nil {
		return nil, err
	}
	source, err := pgx.CollectExactlyOneRow(rows, pgx.RowToStructByPos[source])
	if err != nil {
		return nil, err
	}
	s.bytes = source.Bytes

	if source.IsStandby {
		s.found(ObstacleSource, "this server is a standby, which only follows another")
		return s, nil
	}
	switch {
	case !source.HasTable:
		s.found(ObstacleSource, "there is no table message_store.messages")
		return s, nil
	case !source.IsPlain:
		s.found(ObstacleSource, "message_store.messages is partitioned, or inherits, or is inherited from")
	case len(source.Missing) > 0:
		s.found(ObstacleSource, "message_store.messages has no column %s", strings.Join(source.Missing, ", "))
	}
	if len(source.Added) > 0 {
		s.found(ObstacleSource, "message_store.messages has columns that are not message-db's: %s", strings.Join(source.Added, ", "))
	}
	if source.Encoding != "UTF8" {
		s.found(ObstacleSource, "the database's encoding is %s, and it has to be UTF8", source.Encoding)
	}
	if source.Version == "" {
		s.found(ObstacleSource, "there is no function message_store.message_store_version: message-db before 1.0 has to be updated first")
	}
	if !source.OwnsSchema || !source.OwnsTable {
		s.found(ObstacleRights, "this user does not own the schema message_store and its table")
	}
	if !source.MayCreate {
		s.found(ObstacleRights, "this user may not create schemas in this database")
	}
	if source.HasBefore {
		s.found(ObstacleTarget, "there is a schema message_store_before_dibs already")
	}
	if len(s.obstacles) > 0 {
		return s, nil // the other checks would only fail
	}
	s.version = source.Version
	if !strings.HasPrefix(s.version, "1.") {
		s.found(ObstacleSource, "message-db is of version %.20q, and not 1.x", s.version)
	}
	if state == nil && source.HasStore {
		if err := a.surveyStore(ctx, s); err != nil {
			return nil, err
		}
	}
	if err := a.surveyMessages(ctx, s, source, state); err != nil {
		return nil, err
	}
	if source.HasStore {
		if err := a.surveyCompatible(ctx, s); err != nil {
			return nil, err
		}
	}
	dependents, err := a.dependents(ctx)
	if err != nil {
		return nil, err
	}
	if a.LeaveDependents {
		s.left = dependents
		return s, nil
	}
	for _, d := range dependents {
		s.found(ObstacleDependents, "%s", d)
	}
	return s, nil
}

func (a *adopter) surveyStore(ctx context.Context, s *survey) error {
	var readable, used bool
	if err := a.main.QueryRow(ctx, "select has_schema_privilege('dibs', 'usage') and pg_has_role((select relowner from pg_class where oid = to_regclass('dibs.messages')), 'usage')").Scan(&readable); err != nil {
		return err
	}
	if !readable {
		s.found(ObstacleRights, "this user does not own dibs.messages, and is no member of its owner")
		return nil
	}
	if err := a.main.QueryRow(ctx, "select exists (select from dibs.messages)").Scan(&used); err != nil {
		return err
	}
	if used {
		s.found(ObstacleTarget, "there are messages in dibs.messages")
	}
	return nil
}

// surveyCompatible checks the schema that an undo puts aside and the switch takes back: it cannot
// be made a second time in one store.
func (a *adopter) surveyCompatible(ctx context.Context, s *survey) error {
	const lost = `select to_regnamespace('message_store_by_dibs') is null and exists (select from dibs.migrations where name like '%message_store%')
		from pg_namespace n where n.nspname = 'dibs' and pg_has_role(n.nspowner, 'usage')`
	var is bool
	err := a.main.QueryRow(ctx, lost).Scan(&is)
	if errors.Is(err, pgx.ErrNoRows) {
		return nil // an obstacle says so already
	}
	if is {
		s.found(ObstacleTarget, "the store in the schema dibs has lost its schema message_store: drop the schemas dibs and dibs_adoption, and adopt anew")
	}
	return err
}

// surveyMessages reads all messages, except messages that cannot change any longer, according to
// state.
func (a *adopter) surveyMessages(ctx context.Context, s *survey, source source, state *Adoption) error {
	var found int64
	var beyond *int64
	if state != nil && state.State == Adopting && state.held {
		found, beyond = state.Found, &state.frontier
	}
	var last, positions, globals, times, nulls int64
	if err := a.main.QueryRow(ctx, statements["rows"], beyond).Scan(&s.messages, &last, &positions, &globals, &times, &nulls, &s.own); err != nil {
		return err
	}
	s.messages += found
	var ids, numbers, places int64
	if !source.UniqueIDs || !source.UniqueGlobals || !source.UniquePositions {
		err := a.main.QueryRow(ctx, statements["twice"], source.UniqueIDs, source.UniqueGlobals, source.UniquePositions).Scan(&ids, &numbers, &places)
		if err != nil {
			return err
		}
	}
	// This comes last, because the sequence goes on.
	var drawn int64
	err := a.main.QueryRow(ctx, statements["sequence"]).Scan(&drawn)
	switch {
	case errors.Is(err, pgx.ErrNoRows):
		s.found(ObstacleSource, "message_store.messages has no sequence that numbers messages one by one, as message-db's does")
	case err != nil:
		return err
	case last > drawn:
		// New messages would get lower positions than existing ones.
		s.found(ObstacleMessages, "the sequence of global positions is at %d, and there is a message at %d", drawn, last)
	}
	for _, bad := range []struct {
		count int64
		what  string
	}{
		{positions, "messages with a position below 0"},
		{globals, "messages with a global position below 1"},
		{times, "messages with a time outside of the years 1 to 9999"},
		{nulls, "messages with null where a message has a value"},
		{ids, "ids of more than one message"},
		{numbers, "global positions of more than one message"},
		{places, "positions in a stream of more than one message"},
	} {
		if bad.count > 0 {
			s.found(ObstacleMessages, "%s: %d", bad.what, bad.count)
		}
	}
	return nil
}

// dependents returns the objects of others that the switch would break, one sentence each.
func (a *adopter) dependents(ctx context.Context) ([]string, error) {
	rows, err := a.main.Query(ctx, statements["dependents"], "message_store", false)
	if err != nil {
		return nil, err
	}
	all, err := pgx.CollectRows(rows, pgx.RowTo[string])
	if err != nil {
		return nil, err
	}
	for i := range all {
		all[i] += " would go on with the old table"
	}
	if rows, err = a.main.Query(ctx, statements["cut_off"]); err != nil {
		return nil, err
	}
	cut, err := pgx.CollectRows(rows, pgx.RowTo[string])
	return append(all, cut...), err
}

// A Plan is the forecast of [Adopt].
type Plan struct {
	Version   string     // message-db's
	Messages  int64      // in message-db's table
	Bytes     int64      // of message-db's table and its indexes
	NeedBytes int64      // size of the copy; the write-ahead log takes about as much again
	Obstacles []Obstacle // why it would refuse; empty if it would not
	Warnings  []string   // to consider first
	State     *Adoption  // of an adoption that has begun, or nil

	Sample  int64         // messages copied to measure the speed, and not kept
	Copy    time.Duration // estimate for all messages
	Index   time.Duration // the same
	Compare time.Duration // the same
}

// Estimate is roughly how long an adoption takes; message-db accepts writes all the time except for
// a moment.
func (p *Plan) Estimate() time.Duration { return p.Copy + p.Index + p.Compare }

// NewPlan forecasts [Adopt] and its duration, by copying a sample in a transaction that it rolls
// back. It leaves nothing behind, and does not hold up writers.
func NewPlan(ctx context.Context, connect Connect, config *Config) (*Plan, error) {
	plan := &Plan{}
	err := withAdopter(ctx, connect, config, func(a *adopter) error { return a.plan(ctx, plan) })
	if err != nil {
		return nil, fmt.Errorf("plan to adopt: %w", err)
	}
	return plan, nil
}

func (a *adopter) plan(ctx context.Context, plan *Plan) error {
	a.start(Checking, 0)
	var err error
	if plan.State, err = readAdoption(ctx, a.main); err != nil || plan.State != nil && plan.State.State == Adopted {
		return err
	}
	s, err := a.survey(ctx, plan.State)
	if err != nil {
		return err
	}
	plan.Version, plan.Messages, plan.Bytes, plan.Obstacles = s.version, s.messages, s.bytes, s.obstacles
	if s.version == "" {
		return nil
	}
	rows, err := a.main.Query(ctx, statements["warnings"])
	if err != nil {
		return err
	}
	if plan.Warnings, err = pgx.CollectRows(rows, pgx.RowTo[string]); err != nil {
		return err
	}
	plan.Warnings = append(plan.Warnings, s.left...)
	for _, o := range s.obstacles {
		if o.Kind != ObstacleDependents {
			return nil // copying may be impossible
		}
	}
	var gaps int64
	if err := a.main.QueryRow(ctx, statements["gaps"]).Scan(&gaps); err != nil {
		return err
	}
	if gaps > 0 {
		plan.Warnings = append(plan.Warnings, fmt.Sprintf("streams that do not begin at position 0, or have gaps: %d; they stay so, and dibs verify tells of them", gaps))
	}
	if s.own > 0 && plan.State == nil { // an undo leaves some
		plan.Warnings = append(plan.Warnings, fmt.Sprintf("messages of a type that begins with dibs: %d; services in Go take them for the store's own, and not for messages", s.own))
	}
	return a.sample(ctx, plan)
}

// sample copies the last messages like Run, into a table that it does not keep.
func (a *adopter) sample(ctx context.Context, plan *Plan) error {
	const most = 20_000
	tx, err := a.main.BeginTx(ctx, pgx.TxOptions{IsoLevel: pgx.ReadCommitted, AccessMode: pgx.ReadWrite})
	if err != nil {
		return err
	}
	defer tx.Rollback(context.WithoutCancel(ctx)) //nolint:errcheck // nothing of it is kept
	if err := applyCore(ctx, tx); err != nil {
		return err
	}
	if err := execAll(ctx, tx, "create table dibs_adoption.sample (like dibs.messages including constraints)"); err != nil {
		return err
	}
	// The newest messages are more typical of future messages than the oldest.
	var after, upto int64
	const ends = "select coalesce(min(global_position) - 1, 0), coalesce(max(global_position), 0) from (select global_position from message_store.messages order by 1 desc limit $1) m"
	if err := tx.QueryRow(ctx, ends, most).Scan(&after, &upto); err != nil {
		return err
	}
	clock := time.Now()
	lap := func() time.Duration {
		took := time.Since(clock)
		clock = time.Now()
		return took
	}
	into := func(statement string) string {
		return strings.ReplaceAll(statements[statement], "dibs.messages", "dibs_adoption.sample")
	}
	tag, err := tx.Exec(ctx, into("copy"), after, upto)
	if err != nil {
		return err
	}
	copied := lap()
	if plan.Sample = tag.RowsAffected(); plan.Sample == 0 {
		return nil
	}
	const indexes = `create unique index on dibs_adoption.sample (category, global_position);
		create unique index on dibs_adoption.sample (stream_name, "position"); create unique index on dibs_adoption.sample (id)`
	if err := execAll(ctx, tx, indexes); err != nil {
		return err
	}
	indexed := lap()
	// The rollback restores the sums of an adoption that has begun.
	if err := execAll(ctx, tx, "truncate dibs_adoption.sums"); err != nil {
		return err
	}
	if _, err := tx.Exec(ctx, statements["sum_old"], after, upto); err != nil {
		return err
	}
	if _, err := tx.Exec(ctx, into("sum_new"), "(0,0)", "(4294967295,0)", upto); err != nil {
		return err
	}
	compared := lap()
	var bytes int64
	if err := tx.QueryRow(ctx, "select pg_total_relation_size('dibs_adoption.sample') + pg_relation_size('dibs_adoption.sums')").Scan(&bytes); err != nil {
		return err
	}
	whole := float64(plan.Messages) / float64(plan.Sample)
	plan.NeedBytes = int64(float64(bytes) * whole)
	each := whole / float64(a.Workers)
	plan.Copy = time.Duration(float64(copied) * each)
	if plan.State != nil && plan.State.State == Adopting {
		plan.Copy = time.Duration(float64(plan.Copy) * max(0, 1-float64(plan.State.Copied)/float64(max(plan.Messages, 1))))
	}
	plan.Index = time.Duration(float64(indexed) * each)
	plan.Compare = time.Duration(float64(compared) * each)
	return nil
}
