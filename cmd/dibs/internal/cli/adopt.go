package cli

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/dibs-go/dibs/internal/messagedb"
	"github.com/dibs-go/dibs/internal/pglink"
	"github.com/dibs-go/dibs/internal/text"
)

// A migrateAdoptCommand is dibs migrate adopt: it moves the messages of message-db to this store,
// or gives them back.
type migrateAdoptCommand struct {
	DryRun          bool          `help:"Print the plan and its duration, and do nothing."`
	Undo            bool          `help:"Give the messages back to message-db, with those written since."`
	Workers         int           `default:"2" placeholder:"N" help:"Connections that copy and compare. Defaults to ${default}."`
	LockTimeout     time.Duration `default:"2s" placeholder:"TIME" help:"Longest time that one try to lock message-db's table holds off its writers. Defaults to ${default}."`
	LockTries       int           `default:"10" placeholder:"N" help:"Tries to get the lock. Defaults to ${default}."`
	LeaveDependents bool          `help:"Adopt although views, triggers or functions of others will stay with the old table, or roles will lose their rights."`
}

// Run adopts, or gives back.
func (c *migrateAdoptCommand) Run(ctx context.Context, a *app) error {
	u, err := a.storeURL()
	if err != nil {
		return err
	}
	if !isPostgres(u) {
		return usage("message-db is in a PostgreSQL database, and the store of %s is another", a.origin)
	}
	if a.Schema != "" && a.Schema != pglink.DefaultSchema {
		return usage("message-db is adopted by the store in the schema dibs, and by no other")
	}
	switch {
	case c.Workers < 1 || c.Workers > 16:
		return usage("--workers=%d: must be between 1 and 16", c.Workers)
	case c.LockTimeout < time.Millisecond || c.LockTimeout > time.Hour:
		return usage("--lock-timeout=%v: must be between 1ms and 1h", c.LockTimeout)
	case c.LockTries < 1 || c.LockTries > 1_000_000:
		return usage("--lock-tries=%d: must be between 1 and 1000000", c.LockTries)
	}
	connect := func(ctx context.Context) (*pgx.Conn, error) { return connectTo(ctx, u) }
	meter := &adoptionMeter{progress: progress{app: a, every: 2 * time.Second, now: time.Now}, terminal: isTerminal(a.stderr)}
	if meter.terminal {
		meter.every = 200 * time.Millisecond
	}
	config := &messagedb.Config{
		Workers: c.Workers, LockTimeout: c.LockTimeout, LockTries: c.LockTries,
		LeaveDependents: c.LeaveDependents, Progress: meter.show,
	}
	err = c.do(ctx, a, connect, config)
	meter.end()
	if err != nil && !c.DryRun {
		switch full, _ := errors.AsType[*pgconn.PgError](err); {
		case ctx.Err() != nil:
			a.warn("dibs: interrupted: the copy stays, and the same command continues it")
		case full != nil && full.Code == "53100" && !c.Undo: // disk_full
			a.warn("dibs: the copy stays: make room and run the same command, or throw the copy away with --undo")
		}
	}
	return err
}

func (c *migrateAdoptCommand) do(ctx context.Context, a *app, connect messagedb.Connect, config *messagedb.Config) error {
	switch {
	case c.Undo && c.DryRun:
		plan, err := messagedb.NewUndoPlan(ctx, connect, config)
		if err != nil {
			return err
		}
		return a.printUndo(plan, true, c.LeaveDependents)
	case c.Undo:
		plan, err := messagedb.Undo(ctx, connect, config)
		if err != nil {
			return shortened(err)
		}
		return a.printUndo(plan, false, c.LeaveDependents)
	case c.DryRun:
		plan, err := messagedb.NewPlan(ctx, connect, config)
		if err != nil {
			return err
		}
		return a.printAdoptionPlan(plan)
	}
	done, err := messagedb.Adopt(ctx, connect, config)
	if err != nil {
		return shortened(err)
	}
	held := ""
	if done.Held > 0 {
		held = fmt.Sprintf("; writers were held for %s by the switch", shortTime(done.Held))
	}
	a.out.line("adopted: %d messages of message-db %s%s", done.Messages, done.Version, held)
	return a.out.tell(adoptionFields(done), "the old schema is message_store_before_dibs; until it is dropped, dibs migrate adopt --undo is the way back")
}

// adoptionFields are how an adoption is printed as JSON.
func adoptionFields(d *messagedb.Adoption) fields {
	return fields{
		"adoption", d.State, "version", d.Version, "startedAt", d.StartedAt, "switchedAt?", d.SwitchedAt, "undoneAt?", d.UndoneAt,
		"found", d.Found, "copied", d.Copied, "messages?", d.Messages, "hasOld", d.HasOld, "heldMillis?", d.Held.Milliseconds(),
	}
}

// printAdoption tells of an adoption below the migrations.
func (a *app) printAdoption(d *messagedb.Adoption) {
	style, says := green, fmt.Sprintf("%s  %d messages of message-db %s", text.Time(d.SwitchedAt), d.Messages, d.Version)
	switch {
	case d.State == messagedb.Adopting:
		style = yellow
		says = fmt.Sprintf("%d of %d messages of message-db %s are copied; message-db is the store until dibs migrate adopt is done", d.Copied, max(d.Found, d.Copied), d.Version)
	case d.State == messagedb.Undone:
		style = yellow
		says = text.Time(d.UndoneAt) + "  message-db is the store again"
	case d.HasOld:
		says += "; message_store_before_dibs is still there"
	}
	a.out.row(adoptionFields(d), "adoption", in(style, d.State), in(dim, says))
}

// aboutAdoption is the doctor's finding about an adoption.
func aboutAdoption(d *messagedb.Adoption) Finding {
	f := Finding{Group: "schema", Name: "adoption", Verdict: VerdictWarn, Advice: "run dibs migrate adopt"}
	switch {
	case d.State == messagedb.Adopting:
		f.Says = fmt.Sprintf("message-db is the store, and is being adopted: %d of %d messages are copied", d.Copied, max(d.Found, d.Copied))
		f.Advice += " to go on, or with --undo to give it up"
	case d.State == messagedb.Undone:
		f.Says = "message-db is the store again: its adoption was undone " + text.Time(d.UndoneAt)
		f.Advice += " to adopt it once more"
	case d.HasOld:
		f.Verdict, f.Says, f.Advice = VerdictOK, "message-db was adopted "+text.Time(d.SwitchedAt)+"; message_store_before_dibs is still there", ""
	default:
		f.Verdict, f.Says, f.Advice = VerdictOK, "message-db was adopted "+text.Time(d.SwitchedAt), ""
	}
	return f
}

func (a *app) printAdoptionPlan(p *messagedb.Plan) error {
	if p.State != nil && p.State.State == messagedb.Adopted {
		a.printAdoption(p.State)
		return nil
	}
	obstacles, begun := make([]string, 0, len(p.Obstacles)), fields(nil)
	for _, o := range p.Obstacles {
		obstacles = append(obstacles, o.Problem)
	}
	if p.State != nil {
		begun = adoptionFields(p.State)
	}
	a.out.object(fields{
		"version", p.Version, "messages", p.Messages, "bytes", p.Bytes, "needBytes", p.NeedBytes, "obstacles", obstacles,
		"warnings", append([]string{}, p.Warnings...), "sample", p.Sample, "copySeconds", p.Copy.Seconds(), "indexSeconds", p.Index.Seconds(),
		"compareSeconds", p.Compare.Seconds(), "begun?", begun,
	})
	a.printAdoptionRows(p, obstacles)
	return inTheWay(p.Obstacles)
}

// inTheWay is the error for obstacles that are printed.
func inTheWay(obstacles []messagedb.Obstacle) error {
	if len(obstacles) == 0 {
		return nil
	}
	return &obstaclesError{text.Number(len(obstacles), "thing is in the way|things are in the way"), &messagedb.CannotAdoptError{Obstacles: obstacles}, true}
}

// An obstaclesError is shorter than the error it wraps, which may be pages.
type obstaclesError struct {
	text   string
	err    error
	listed bool // all of it is printed
}

func (e *obstaclesError) Error() string { return e.text }
func (e *obstaclesError) Unwrap() error { return e.err }

// shortened names the first of many obstacles.
func shortened(err error) error {
	cannot, ok := errors.AsType[*messagedb.CannotAdoptError](err)
	if !ok || len(cannot.Obstacles) < 2 {
		return err
	}
	first := &messagedb.CannotAdoptError{Obstacles: cannot.Obstacles[:1]}
	return &obstaclesError{fmt.Sprintf("%v, and %d more", first, len(cannot.Obstacles)-1), err, false}
}

// leavable reports whether --leave-dependents would do.
func leavable(e *messagedb.CannotAdoptError) bool {
	return !slices.ContainsFunc(e.Obstacles, func(o messagedb.Obstacle) bool { return o.Kind != messagedb.ObstacleDependents })
}

func (a *app) printAdoptionRows(p *messagedb.Plan, obstacles []string) {
	add := func(name, format string, args ...any) { a.out.row(nil, name, fmt.Sprintf(format, args...)) }
	if p.Version != "" {
		add("message-db", "%s, %d messages, %s", p.Version, p.Messages, sizeText(p.Bytes))
	}
	switch {
	case p.State == nil:
	case p.State.State == messagedb.Undone:
		add("begun", "%s, and undone %s: it begins anew", text.Time(p.State.StartedAt), text.Time(p.State.UndoneAt))
	default:
		add("begun", "%s, %d messages are copied", text.Time(p.State.StartedAt), p.State.Copied)
	}
	if p.Sample > 0 {
		add("needs", "%s of disk, and about as much of write-ahead log", sizeText(p.NeedBytes))
		add("takes", "about %s: %s to copy, %s for indexes, %s to compare (by a sample of %d, without the disk)",
			shortTime(p.Estimate()), shortTime(p.Copy), shortTime(p.Index), shortTime(p.Compare), p.Sample)
	}
	if len(obstacles) == 0 {
		add("writers", "go on meanwhile, and wait for the switch at the end")
		add("then", "the store is dibs.messages, for clients of message-db too; the old schema stays, as message_store_before_dibs")
	}
	for _, w := range p.Warnings {
		add("warning", "%s", w)
	}
	for _, o := range obstacles {
		a.out.row(nil, in(red, "in the way"), o)
	}
}

func (a *app) printUndo(p *messagedb.UndoPlan, dryRun, leave bool) error {
	would, text := "", "abandoned: the copy is thrown away, and message-db stays the store"
	if dryRun {
		would = "would be "
	}
	if !p.Abandons {
		text = fmt.Sprintf("undone: messages copied back that were written since the switch: %d", p.Since)
		if p.Removed > 0 {
			text += fmt.Sprintf("; deleted there too, since they were trimmed or deleted: %d", p.Removed)
		}
		switch {
		case dryRun:
			text += "; writers would wait for that"
		case p.Held > 0:
			text += "; writers were held for " + shortTime(p.Held)
		}
	}
	err := a.out.tell(fields{
		"dryRun", dryRun, "abandons", p.Abandons, "returned", p.Since, "removed", p.Removed, "dependents", append([]string{}, p.Dependents...),
		"heldMillis?", p.Held.Milliseconds(),
	}, "%s%s", would, text)
	if err != nil || !dryRun {
		return err
	}
	label := in(red, "in the way")
	if leave {
		label = in(plain, "warning")
	}
	for _, o := range p.Obstacles() {
		a.out.row(nil, label, o.Problem)
	}
	if leave {
		return nil
	}
	return inTheWay(p.Obstacles())
}

// An adoptionMeter shows progress on the standard error: on a terminal in one line,
// elsewhere in a line every two seconds.
type adoptionMeter struct {
	progress

	terminal bool

	mu    sync.Mutex
	phase messagedb.Phase
	open  bool // whether the terminal's line has no end yet
}

func (m *adoptionMeter) show(p messagedb.Progress) {
	m.mu.Lock()
	defer m.mu.Unlock()
	news := p.Phase != m.phase || len(p.Blockers) > 0
	m.phase = p.Phase
	if !m.due() && !news || p.Phase == messagedb.Done {
		return
	}
	var blockers []string
	for _, b := range p.Blockers {
		blockers = append(blockers, b.String())
	}
	if m.app.JSON {
		m.app.note(fields{
			"progress", p.Phase, "done", p.Done, "total?", p.Total, "rate?", int64(p.Rate), "remainingSeconds?", int64(p.Remaining.Seconds()), "blockers?", blockers,
		})
		return
	}
	text := "dibs: " + string(p.Phase)
	if p.Phase == messagedb.Locking {
		text = "dibs: locking the table"
	}
	if p.Done > 0 || p.Total > 0 && p.Phase != messagedb.Locking {
		text += fmt.Sprintf(" %d", p.Done)
		if p.Total > 0 {
			text += fmt.Sprintf(" of %d", p.Total)
		}
	}
	if p.Rate >= 1 && (p.Phase == messagedb.Copying || p.Phase == messagedb.Following) {
		text += fmt.Sprintf(", %.0f messages/s", p.Rate)
	}
	if p.Remaining > time.Second {
		text += fmt.Sprintf(", %s left", shortTime(p.Remaining))
	}
	if len(blockers) > 0 {
		text += ", waiting for " + strings.Join(blockers, ", ")
	}
	switch text = visible(text); {
	case !m.terminal:
		m.app.say(text + "\n")
	case news && m.open:
		m.app.say("\n" + text)
	default:
		m.app.say("\r\x1b[K" + text)
	}
	m.open = m.terminal
}

func (m *adoptionMeter) end() {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.open {
		m.app.say("\n")
		m.open = false
	}
}

// shortTime is a duration as a person says it.
func shortTime(d time.Duration) string {
	switch {
	case d < time.Second:
		return d.Round(time.Millisecond).String()
	case d < time.Minute:
		return d.Round(100 * time.Millisecond).String()
	}
	return strings.TrimSuffix(d.Round(time.Second).String(), "0s")
}

// cannotAdoptHint says what more helps.
func cannotAdoptHint(err error) (hint string) {
	if all, ok := errors.AsType[*obstaclesError](err); !ok || !all.listed {
		hint = "; see all of it with: --dry-run"
	}
	if cannot, ok := errors.AsType[*messagedb.CannotAdoptError](err); ok && leavable(cannot) {
		hint += "; to adopt all the same: --leave-dependents"
	}
	return hint
}

// sizeText is a size as a person says it.
func sizeText(bytes int64) string {
	switch {
	case bytes < 1e6:
		return fmt.Sprintf("%d kB", (bytes+999)/1000)
	case bytes < 1e10:
		return fmt.Sprintf("%d MB", bytes/1e6)
	}
	return fmt.Sprintf("%d GB", bytes/1e9)
}
