package cli

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/dibs-go/dibs/internal/pgschema"
	"github.com/dibs-go/dibs/migrations"
)

type migrateAdoptCommand struct {
	DryRun          bool          `help:"Say what would be done and how long that takes, and do nothing."`
	Undo            bool          `help:"Give the messages back to message-db, with those that were written since."`
	Workers         int           `default:"2" placeholder:"N" help:"How many connections copy and compare. Defaults to ${default}."`
	LockTimeout     time.Duration `default:"2s" placeholder:"TIME" help:"How long a try to lock message-db's table holds off its writers. Defaults to ${default}."`
	LockTries       int           `default:"10" placeholder:"N" help:"How often that is tried. Defaults to ${default}."`
	LeaveDependents bool          `help:"Go on although views, triggers or functions of others will stay with the old table."`
}

// Help is printed below the command's usage.
func (migrateAdoptCommand) Help() string {
	return `Takes message-db 1.x over, with all messages as they are, their ids, positions and times. Message-db goes on taking writes until the switch at the end, which is short; then its clients use the same store as ours, unchanged. The copy is compared before that. The old schema stays, as message_store_before_dibs, and as long as it does --undo is the way back.

It may be interrupted, or killed, at any point: run it again, and it goes on.

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
	if a.Schema != "" && a.Schema != pgschema.Default {
		return usage("message-db is adopted by the store in the schema dibs, and by no other")
	}
	connect := func(ctx context.Context) (*pgx.Conn, error) { return connectTo(ctx, u) }
	meter := &adoptionMeter{app: a, terminal: isTerminal(a.stderr), progress: progress{every: 2 * time.Second, now: time.Now}}
	if meter.terminal {
		meter.every = 200 * time.Millisecond
	}
	config := &migrations.AdoptConfig{
		Workers: c.Workers, LockTimeout: c.LockTimeout, LockTries: c.LockTries,
		LeaveDependents: c.LeaveDependents, Progress: meter.show,
	}
	err = c.do(ctx, a, connect, config)
	meter.end()
	if err != nil && ctx.Err() != nil && !c.DryRun {
		a.warn("dibs: interrupted: what was copied stays, and the same command goes on from there\n")
	}
	return err
}

func (c *migrateAdoptCommand) do(ctx context.Context, a *app, connect migrations.Connect, config *migrations.AdoptConfig) error {
	switch {
	case c.Undo && c.DryRun:
		plan, err := migrations.PlanUndo(ctx, connect, config)
		if err != nil {
			return err
		}
		return a.printUndo(plan, true)
	case c.Undo:
		plan, err := migrations.UndoAdoption(ctx, connect, config)
		if err != nil {
			return err
		}
		return a.printUndo(plan, false)
	case c.DryRun:
		plan, err := migrations.PlanAdoption(ctx, connect, config)
		if err != nil {
			return err
		}
		return a.printAdoptionPlan(plan)
	}
	done, err := migrations.Adopt(ctx, connect, config)
	if err != nil {
		return err
	}
	if a.JSON {
		return a.out.object(newAdoptionLine(done))
	}
	held := ""
	if done.Held > 0 {
		held = fmt.Sprintf("; writers waited %s for the switch", shortTime(done.Held))
	}
	return a.out.line("adopted: %d messages of message-db %s%s\nthe old schema is message_store_before_dibs; until it is dropped, dibs migrate adopt --undo goes back",
		done.Messages, done.Version, held)
}

// An adoptionLine is how an adoption is printed as JSON.
type adoptionLine struct {
	Adoption   migrations.AdoptionState `json:"adoption"`
	Version    string                   `json:"version"`
	StartedAt  string                   `json:"startedAt"`
	SwitchedAt string                   `json:"switchedAt,omitempty"`
	UndoneAt   string                   `json:"undoneAt,omitempty"`
	Copied     int64                    `json:"copied"`
	Messages   int64                    `json:"messages,omitempty"`
	HasOld     bool                     `json:"hasOld"`
	HeldMillis int64                    `json:"heldMillis,omitempty"`
}

func newAdoptionLine(d *migrations.Adoption) adoptionLine {
	l := adoptionLine{
		Adoption: d.State, Version: d.Version, StartedAt: timeText(d.StartedAt),
		Copied: d.Copied, Messages: d.Messages, HasOld: d.HasOld, HeldMillis: d.Held.Milliseconds(),
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
func (a *app) printAdoption(d *migrations.Adoption) error {
	if a.JSON {
		return a.out.object(newAdoptionLine(d))
	}
	style, text := green, fmt.Sprintf("%s  %d messages of message-db %s", timeText(d.SwitchedAt), d.Messages, d.Version)
	switch {
	case d.State == migrations.Adopting:
		style = yellow
		text = fmt.Sprintf("%d messages of message-db %s are copied; message-db is the store until dibs migrate adopt is done", d.Copied, d.Version)
	case d.State == migrations.Undone:
		style = yellow
		text = timeText(d.UndoneAt) + "  message-db is the store again"
	case d.HasOld:
		text += "; message_store_before_dibs is still there"
	}
	return a.out.row(cell{text: "adoption"}, cell{text: string(d.State), style: style}, cell{text: text, style: dim})
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

func (a *app) printAdoptionPlan(p *migrations.AdoptionPlan) error {
	if p.State != nil && p.State.State == migrations.Adopted {
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
	if err == nil && len(obstacles) > 0 {
		err = &migrations.CannotAdoptError{Obstacles: p.Obstacles}
	}
	return err
}

func (a *app) printAdoptionRows(p *migrations.AdoptionPlan, obstacles []string) error {
	var rows [][2]string
	add := func(name, format string, args ...any) {
		rows = append(rows, [2]string{name, fmt.Sprintf(format, args...)})
	}
	if p.Version != "" {
		add("message-db", "%s, %d messages, %s", p.Version, p.Messages, sizeText(p.Bytes))
	}
	if p.State != nil {
		add("begun", "%s, %d messages are copied", timeText(p.State.StartedAt), p.State.Copied)
	}
	if p.Sample > 0 {
		add("needs", "%s of disk, and about as much of write-ahead log", sizeText(p.NeedBytes))
		add("takes", "about %s: %s to copy, %s for indexes, %s to compare (by a sample of %d, without the disk)",
			shortTime(p.Estimate()), shortTime(p.Copy), shortTime(p.Index), shortTime(p.Compare), p.Sample)
	}
	if len(obstacles) == 0 {
		add("writers", "go on meanwhile, and wait for the switch at the end")
		add("then", "the store is dibs.messages, for clients of message-db too; what was is message_store_before_dibs")
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

func (a *app) printUndo(p *migrations.UndoPlan, dryRun bool) error {
	if a.JSON {
		return a.out.object(undoLine{dryRun, p.Abandons, p.Since, p.Removed, append([]string{}, p.Dependents...), p.Held.Milliseconds()})
	}
	would := ""
	if dryRun {
		would = "would be "
	}
	if p.Abandons {
		return a.out.line("%sabandoned: what was copied is thrown away, and message-db stays the store", would)
	}
	text := fmt.Sprintf("%sundone: %d messages written since the switch %s copied back", would, p.Since, plural(p.Since))
	if p.Removed > 0 {
		text += fmt.Sprintf(", and %d trimmed or deleted since %s deleted there too", p.Removed, plural(p.Removed))
	}
	if err := a.out.line("%s", text); err != nil {
		return err
	}
	for _, d := range p.Dependents {
		if err := a.out.line("in the way: %s would go on with the schema that is put aside", visible(d)); err != nil {
			return err
		}
	}
	return nil
}

func plural(n int64) string {
	if n == 1 {
		return "is"
	}
	return "are"
}

// An adoptionMeter shows progress on the standard error: on a terminal in one line,
// elsewhere in a line every two seconds.
type adoptionMeter struct {
	progress

	app      *app
	terminal bool

	mu    sync.Mutex
	phase migrations.AdoptionPhase
	open  bool // whether the terminal's line has no end yet
}

// An adoptionProgressLine is how progress is printed as JSON.
type adoptionProgressLine struct {
	Progress         migrations.AdoptionPhase `json:"progress"`
	Done             int64                    `json:"done"`
	Total            int64                    `json:"total,omitempty"`
	Rate             int64                    `json:"rate,omitempty"`
	RemainingSeconds int64                    `json:"remainingSeconds,omitempty"`
	Blockers         []string                 `json:"blockers,omitempty"`
}

func (m *adoptionMeter) show(p migrations.AdoptionProgress) {
	m.mu.Lock()
	defer m.mu.Unlock()
	news := p.Phase != m.phase || len(p.Blockers) > 0
	m.phase = p.Phase
	if !m.due() && !news || p.Phase == migrations.AdoptionDone {
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
	if p.Done > 0 || p.Total > 0 && p.Phase != migrations.AdoptionLocks {
		text += fmt.Sprintf(" %d", p.Done)
		if p.Total > 0 {
			text += fmt.Sprintf(" of %d", p.Total)
		}
	}
	if p.Rate >= 1 && (p.Phase == migrations.AdoptionCopies || p.Phase == migrations.AdoptionFollows) {
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

func blockersText(blockers []migrations.Blocker) string {
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
	case errors.Is(err, migrations.ErrCannotAdopt):
		return "cannotAdopt", "nothing was changed; see all of it with: dibs migrate adopt --dry-run"
	case errors.Is(err, migrations.ErrCopyDiffers):
		return "copyDiffers", "nothing was switched; dibs migrate adopt --undo throws the copy away"
	case errors.Is(err, migrations.ErrLocked):
		return "locked", "nothing was switched, and what was copied stays: run it again when they are done"
	case errors.Is(err, migrations.ErrAdoptionRuns):
		return "adoptionRuns", ""
	case errors.Is(err, migrations.ErrNothingToUndo):
		return "nothingToUndo", ""
	}
	return "", ""
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
