package cli

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/dibs-go/dibs/cmd/dibs/internal/doctor"
	"github.com/dibs-go/dibs/internal/messagedb/adopt"
	"github.com/dibs-go/dibs/internal/pglink"
	"github.com/dibs-go/dibs/migrations"
)

type migrateAdoptCommand struct {
	DryRun          bool          `help:"Print the plan and its duration, and do nothing."`
	Undo            bool          `help:"Give the messages back to message-db, with those written since."`
	Workers         int           `default:"2" placeholder:"N" help:"Connections that copy and compare. Defaults to ${default}."`
	LockTimeout     time.Duration `default:"2s" placeholder:"TIME" help:"Longest time that one try to lock message-db's table holds off its writers. Defaults to ${default}."`
	LockTries       int           `default:"10" placeholder:"N" help:"Tries to get the lock. Defaults to ${default}."`
	LeaveDependents bool          `help:"Adopt although views, triggers or functions of others will stay with the old table, or roles will lose their rights."`
}

// Help is printed below the command's usage.
func (migrateAdoptCommand) Help() string {
	return `Copies the messages of message-db 1.x as they are, with their ids, positions and times. Message-db takes writes until the switch at the end, which is short; then its clients use this store, unchanged. The copy is compared before that. The old schema stays, as message_store_before_dibs, and as long as it does --undo is the way back.

It may be interrupted, or killed, at any point: run it again, and it continues.

Example:

    dibs migrate adopt --dry-run`
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
		return usage("--workers=%d: it is from 1 to 16", c.Workers)
	case c.LockTimeout < time.Millisecond || c.LockTimeout > time.Hour:
		return usage("--lock-timeout=%v: it is from 1ms to 1h", c.LockTimeout)
	case c.LockTries < 1 || c.LockTries > 1_000_000:
		return usage("--lock-tries=%d: it is from 1 to 1000000", c.LockTries)
	}
	connect := func(ctx context.Context) (*pgx.Conn, error) { return connectTo(ctx, u) }
	meter := &adoptionMeter{app: a, terminal: isTerminal(a.stderr), progress: progress{every: 2 * time.Second, now: time.Now}}
	if meter.terminal {
		meter.every = 200 * time.Millisecond
	}
	config := &adopt.Config{
		Workers: c.Workers, LockTimeout: c.LockTimeout, LockTries: c.LockTries,
		LeaveDependents: c.LeaveDependents, Progress: meter.show,
	}
	err = c.do(ctx, a, connect, config)
	meter.end()
	if err != nil && !c.DryRun {
		switch full, _ := errors.AsType[*pgconn.PgError](err); {
		case ctx.Err() != nil:
			a.warn("dibs: interrupted: the copy stays, and the same command continues it\n")
		case full != nil && full.Code == "53100" && !c.Undo: // disk_full
			a.warn("dibs: the copy stays: make room and run the same command, or throw the copy away with --undo\n")
		}
	}
	return err
}

func (c *migrateAdoptCommand) do(ctx context.Context, a *app, connect adopt.Connect, config *adopt.Config) error {
	switch {
	case c.Undo && c.DryRun:
		plan, err := adopt.NewUndoPlan(ctx, connect, config)
		if err != nil {
			return err
		}
		return a.printUndo(plan, true, c.LeaveDependents)
	case c.Undo:
		plan, err := adopt.Undo(ctx, connect, config)
		if err != nil {
			return shortened(err)
		}
		return a.printUndo(plan, false, c.LeaveDependents)
	case c.DryRun:
		plan, err := adopt.NewPlan(ctx, connect, config)
		if err != nil {
			return err
		}
		return a.printAdoptionPlan(plan)
	}
	done, err := adopt.Run(ctx, connect, config)
	if err != nil {
		return shortened(err)
	}
	if a.JSON {
		return a.out.object(newAdoptionLine(done))
	}
	held := ""
	if done.Held > 0 {
		held = fmt.Sprintf("; writers were held for %s by the switch", shortTime(done.Held))
	}
	return a.out.line("adopted: %d messages of message-db %s%s\nthe old schema is message_store_before_dibs; until it is dropped, dibs migrate adopt --undo is the way back",
		done.Messages, done.Version, held)
}

// An adoptionLine is how an adoption is printed as JSON.
type adoptionLine struct {
	Adoption   adopt.State `json:"adoption"`
	Version    string      `json:"version"`
	StartedAt  string      `json:"startedAt"`
	SwitchedAt string      `json:"switchedAt,omitempty"`
	UndoneAt   string      `json:"undoneAt,omitempty"`
	Found      int64       `json:"found"`
	Copied     int64       `json:"copied"`
	Messages   int64       `json:"messages,omitempty"`
	HasOld     bool        `json:"hasOld"`
	HeldMillis int64       `json:"heldMillis,omitempty"`
}

func newAdoptionLine(d *adopt.Adoption) adoptionLine {
	l := adoptionLine{
		Adoption: d.State, Version: d.Version, StartedAt: timeText(d.StartedAt),
		Found: d.Found, Copied: d.Copied, Messages: d.Messages, HasOld: d.HasOld, HeldMillis: d.Held.Milliseconds(),
	}
	if !d.SwitchedAt.IsZero() {
		l.SwitchedAt = timeText(d.SwitchedAt)
	}
	if !d.UndoneAt.IsZero() {
		l.UndoneAt = timeText(d.UndoneAt)
	}
	return l
}

// printAdoption tells of an adoption below the migrations.
func (a *app) printAdoption(d *adopt.Adoption) error {
	if a.JSON {
		return a.out.object(newAdoptionLine(d))
	}
	style, text := green, fmt.Sprintf("%s  %d messages of message-db %s", timeText(d.SwitchedAt), d.Messages, d.Version)
	switch {
	case d.State == adopt.Adopting:
		style = yellow
		text = fmt.Sprintf("%d of %d messages of message-db %s are copied; message-db is the store until dibs migrate adopt is done", d.Copied, max(d.Found, d.Copied), d.Version)
	case d.State == adopt.Undone:
		style = yellow
		text = timeText(d.UndoneAt) + "  message-db is the store again"
	case d.HasOld:
		text += "; message_store_before_dibs is still there"
	}
	return a.out.row(cell{text: "adoption"}, cell{text: string(d.State), style: style}, cell{text: text, style: dim})
}

// aboutAdoption is the doctor's finding about an adoption.
func aboutAdoption(d *adopt.Adoption) doctor.Finding {
	f := doctor.Finding{Group: "schema", Name: "adoption", Verdict: doctor.Warn, Advice: "run dibs migrate adopt"}
	switch {
	case d.State == adopt.Adopting:
		f.Says = fmt.Sprintf("message-db is the store, and is being adopted: %d of %d messages are copied", d.Copied, max(d.Found, d.Copied))
		f.Advice += " to go on, or with --undo to give it up"
	case d.State == adopt.Undone:
		f.Says = "message-db is the store again: its adoption was undone " + timeText(d.UndoneAt)
		f.Advice += " to adopt it once more"
	case d.HasOld:
		f.Verdict, f.Says, f.Advice = doctor.OK, "message-db was adopted "+timeText(d.SwitchedAt)+"; message_store_before_dibs is still there", ""
	default:
		f.Verdict, f.Says, f.Advice = doctor.OK, "message-db was adopted "+timeText(d.SwitchedAt), ""
	}
	return f
}

// An adoptionPlanLine is how a plan is printed as JSON.
type adoptionPlanLine struct {
	Version        string        `json:"version"`
	Messages       int64         `json:"messages"`
	Bytes          int64         `json:"bytes"`
	NeedBytes      int64         `json:"needBytes"`
	Obstacles      []string      `json:"obstacles"`
	Warnings       []string      `json:"warnings"`
	Sample         int64         `json:"sample"`
	CopySeconds    float64       `json:"copySeconds"`
	IndexSeconds   float64       `json:"indexSeconds"`
	CompareSeconds float64       `json:"compareSeconds"`
	Begun          *adoptionLine `json:"begun,omitempty"`
}

func (a *app) printAdoptionPlan(p *adopt.Plan) error {
	if p.State != nil && p.State.State == adopt.Adopted {
		return a.printAdoption(p.State)
	}
	obstacles, warnings := make([]string, 0, len(p.Obstacles)), append([]string{}, p.Warnings...)
	for _, o := range p.Obstacles {
		obstacles = append(obstacles, o.Problem)
	}
	var err error
	if a.JSON {
		l := adoptionPlanLine{
			Version: p.Version, Messages: p.Messages, Bytes: p.Bytes, NeedBytes: p.NeedBytes, Obstacles: obstacles, Warnings: warnings,
			Sample: p.Sample, CopySeconds: p.Copy.Seconds(), IndexSeconds: p.Index.Seconds(), CompareSeconds: p.Compare.Seconds(),
		}
		if p.State != nil {
			begun := newAdoptionLine(p.State)
			l.Begun = &begun
		}
		err = a.out.object(l)
	} else {
		err = a.printAdoptionRows(p, obstacles)
	}
	if err != nil {
		return err
	}
	return inTheWay(p.Obstacles)
}

// inTheWay is the error for obstacles that are printed.
func inTheWay(obstacles []adopt.Obstacle) error {
	n := len(obstacles)
	if n == 0 {
		return nil
	}
	text := "1 thing is in the way"
	if n > 1 {
		text = fmt.Sprintf("%d things are in the way", n)
	}
	return &obstaclesError{text, &adopt.CannotAdoptError{Obstacles: obstacles}, true}
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
	cannot, ok := errors.AsType[*adopt.CannotAdoptError](err)
	if !ok || len(cannot.Obstacles) < 2 {
		return err
	}
	first := &adopt.CannotAdoptError{Obstacles: cannot.Obstacles[:1]}
	return &obstaclesError{fmt.Sprintf("%v, and %d more", first, len(cannot.Obstacles)-1), err, false}
}

// leavable reports whether --leave-dependents would do.
func leavable(e *adopt.CannotAdoptError) bool {
	for _, o := range e.Obstacles {
		if o.Kind != adopt.ObstacleDependents {
			return false
		}
	}
	return true
}

func (a *app) printAdoptionRows(p *adopt.Plan, obstacles []string) error {
	var rows [][2]string
	add := func(name, format string, args ...any) {
		rows = append(rows, [2]string{name, fmt.Sprintf(format, args...)})
	}
	if p.Version != "" {
		add("message-db", "%s, %d messages, %s", p.Version, p.Messages, sizeText(p.Bytes))
	}
	if p.State != nil {
		text := fmt.Sprintf("%s, %d messages are copied", timeText(p.State.StartedAt), p.State.Copied)
		if p.State.State == adopt.Undone {
			text = fmt.Sprintf("%s, and undone %s: it begins anew", timeText(p.State.StartedAt), timeText(p.State.UndoneAt))
		}
		add("begun", "%s", text)
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
		add("in the way", "%s", o)
	}
	for _, row := range rows {
		style := plain
		if row[0] == "in the way" {
			style = red
		}
		if err := a.out.row(cell{text: row[0], style: style}, cell{text: visible(row[1])}); err != nil {
			return err
		}
	}
	return nil
}

// An undoLine is how an undo, or its plan, is printed as JSON.
type undoLine struct {
	DryRun     bool     `json:"dryRun"`
	Abandons   bool     `json:"abandons"`
	Returned   int64    `json:"returned"`
	Removed    int64    `json:"removed"`
	Dependents []string `json:"dependents"`
	HeldMillis int64    `json:"heldMillis,omitempty"`
}

func (a *app) printUndo(p *adopt.UndoPlan, dryRun, leave bool) error {
	var err error
	if a.JSON {
		err = a.out.object(undoLine{dryRun, p.Abandons, p.Since, p.Removed, append([]string{}, p.Dependents...), p.Held.Milliseconds()})
	} else {
		err = a.printUndoRows(p, dryRun, leave)
	}
	if err != nil || !dryRun || leave {
		return err
	}
	return inTheWay(p.Obstacles())
}

func (a *app) printUndoRows(p *adopt.UndoPlan, dryRun, leave bool) error {
	would := ""
	if dryRun {
		would = "would be "
	}
	if p.Abandons {
		return a.out.line("%sabandoned: the copy is thrown away, and message-db stays the store", would)
	}
	text := fmt.Sprintf("%sundone: messages copied back that were written since the switch: %d", would, p.Since)
	if p.Removed > 0 {
		text += fmt.Sprintf("; deleted there too, since they were trimmed or deleted: %d", p.Removed)
	}
	switch {
	case dryRun:
		text += "; writers would wait for that"
	case p.Held > 0:
		text += "; writers were held for " + shortTime(p.Held)
	}
	if err := a.out.line("%s", text); err != nil || !dryRun {
		return err
	}
	for _, o := range p.Obstacles() {
		row := []cell{{text: "in the way", style: red}, {text: visible(o.Problem)}}
		if leave {
			row[0] = cell{text: "warning"}
		}
		if err := a.out.row(row...); err != nil {
			return err
		}
	}
	return nil
}

// An adoptionMeter shows progress on the standard error: on a terminal in one line,
// elsewhere in a line every two seconds.
type adoptionMeter struct {
	progress

	app      *app
	terminal bool

	mu    sync.Mutex
	phase adopt.Phase
	open  bool // whether the terminal's line has no end yet
}

// An adoptionProgressLine is how progress is printed as JSON.
type adoptionProgressLine struct {
	Progress         adopt.Phase `json:"progress"`
	Done             int64       `json:"done"`
	Total            int64       `json:"total,omitempty"`
	Rate             int64       `json:"rate,omitempty"`
	RemainingSeconds int64       `json:"remainingSeconds,omitempty"`
	Blockers         []string    `json:"blockers,omitempty"`
}

func (m *adoptionMeter) show(p adopt.Progress) {
	m.mu.Lock()
	defer m.mu.Unlock()
	news := p.Phase != m.phase || len(p.Blockers) > 0
	m.phase = p.Phase
	if !m.due() && !news || p.Phase == adopt.Done {
		return
	}
	if m.app.JSON {
		l := adoptionProgressLine{Progress: p.Phase, Done: p.Done, Total: p.Total, Rate: int64(p.Rate), RemainingSeconds: int64(p.Remaining.Seconds())}
		for _, b := range p.Blockers {
			l.Blockers = append(l.Blockers, b.String())
		}
		if text, err := oneLine(l); err == nil {
			m.app.warn("%s", text)
		}
		return
	}
	text := "dibs: " + string(p.Phase)
	if p.Phase == adopt.Locking {
		text = "dibs: locking the table"
	}
	if p.Done > 0 || p.Total > 0 && p.Phase != adopt.Locking {
		text += fmt.Sprintf(" %d", p.Done)
		if p.Total > 0 {
			text += fmt.Sprintf(" of %d", p.Total)
		}
	}
	if p.Rate >= 1 && (p.Phase == adopt.Copying || p.Phase == adopt.Following) {
		text += fmt.Sprintf(", %.0f messages/s", p.Rate)
	}
	if p.Remaining > time.Second {
		text += fmt.Sprintf(", %s left", shortTime(p.Remaining))
	}
	if len(p.Blockers) > 0 {
		text += ", waiting for " + blockersText(p.Blockers)
	}
	switch {
	case !m.terminal:
		m.app.warn("%s\n", text)
	case news && m.open:
		m.app.warn("\n%s", text)
	default:
		m.app.warn("\r\x1b[K%s", text)
	}
	m.open = m.terminal
}

func blockersText(blockers []adopt.Blocker) string {
	texts := make([]string, len(blockers))
	for i, b := range blockers {
		texts[i] = visible(b.String())
	}
	return strings.Join(texts, ", ")
}

func (m *adoptionMeter) end() {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.open {
		m.app.warn("\n")
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

func adoptionHint(err error) (kind, hint string) {
	switch {
	case errors.Is(err, migrations.ErrAdopting):
		return "adopting", "until then message-db is the store: see dibs migrate status"
	case errors.Is(err, adopt.ErrCannotAdopt):
		return "cannotAdopt", cannotAdoptHint(err)
	case errors.Is(err, adopt.ErrCopyDiffers):
		return "copyDiffers", "nothing was switched; dibs migrate adopt --undo throws the copy away"
	case errors.Is(err, adopt.ErrLocked):
		return "locked", "nothing was switched, and the copy stays: run it again when these sessions are done, or with more --lock-tries"
	case errors.Is(err, adopt.ErrRunning):
		return "adoptionRuns", "wait until it is done, or end it: its sessions are named dibs migrate adopt"
	case errors.Is(err, adopt.ErrPooled):
		return "pooled", "give the server's own address: --store or DATABASE_URL"
	case errors.Is(err, adopt.ErrNothingToUndo):
		return "nothingToUndo", "none was begun, it was undone already, or the old schema was dropped: see dibs migrate status"
	}
	return "", ""
}

func cannotAdoptHint(err error) string {
	hints := []string{"nothing was changed"}
	if all, ok := errors.AsType[*obstaclesError](err); !ok || !all.listed {
		hints = append(hints, "see all of it with: --dry-run")
	}
	if cannot, ok := errors.AsType[*adopt.CannotAdoptError](err); ok && leavable(cannot) {
		hints = append(hints, "to adopt all the same: --leave-dependents")
	}
	return strings.Join(hints, "; ")
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
