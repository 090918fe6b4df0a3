package cli

import (
	"cmp"
	"context"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgtype"

	"github.com/dibs-go/dibs/messagestore"
)

// A CategoryLock is one by which writers of a category, removals from it, or migrations wait for each other, with the session
// that holds it.
type CategoryLock struct {
	Key    int32  // stands for the category
	Holds  string // writes, removals or migrations
	Shared bool   // others write beside the holder in transactions of theirs, and readers stop below its messages

	PID               int  // 0 for a transaction that is only prepared
	Hidden            bool // this user may not see the holder's session
	User, Application string
	State, Query      string    // the state of the session, and its last statement, shortened
	Since             time.Time // its transaction began; zero if that is not visible

	Waiting   int64         // sessions that wait for the lock
	Waiters   string        // their process ids, the one that has waited longest first
	Waited    time.Duration // by that one
	BlockedBy string        // the process ids that the holder waits for in turn

	lasts, waited string // in the server's words
	long          bool   // the transaction lasts for ExamineConfig.LongLock
	floor         pgtype.Int8
}

// Floor returns the position up to which readers of the category may read while the holder's
// transaction is open, and whether there is such a bound. Only the lower 32 bits of the floor are
// known; Floor takes the position with these bits that is nearest to near.
func (l *CategoryLock) Floor(near messagestore.GlobalPosition) (messagestore.GlobalPosition, bool) {
	away := int32(uint32(l.floor.Int64) - uint32(near)) //nolint:gosec // the lower 32 bits of each
	return near + messagestore.GlobalPosition(away), l.floor.Valid
}

// Holder names the session, since when it is in its transaction, its state, and what it did last.
func (l *CategoryLock) Holder() string {
	text := fmt.Sprintf("process %d", l.PID)
	switch {
	case l.PID == 0:
		text = "a prepared transaction"
	case l.Hidden:
		text += ", which this user may not see"
	default:
		text += fmt.Sprintf(" (%s, %s)", l.User, cmp.Or(l.Application, "no application_name"))
	}
	if l.lasts != "" {
		text += ", in a transaction for " + l.lasts
	}
	if l.PID != 0 && !l.Hidden {
		text += fmt.Sprintf(", %s: %s", l.State, l.Query)
	}
	return text
}

// Waits returns a text about the sessions that wait for the lock, "" if none do.
func (l *CategoryLock) Waits() string {
	switch l.Waiting {
	case 0:
		return ""
	case 1:
		return fmt.Sprintf("process %s waits, for %s", l.Waiters, l.waited)
	}
	return fmt.Sprintf("%d wait, the first for %s: %s", l.Waiting, l.waited, l.Waiters)
}

// Remedy says how the lock is let go. A transaction of less than [ExamineConfig.LongLock] is left to end by itself.
func (l *CategoryLock) Remedy() string {
	switch {
	case l.PID == 0:
		return "commit prepared or rollback prepared: see pg_prepared_xacts"
	case l.Hidden:
		return "grant pg_monitor to this user"
	case l.long:
		return fmt.Sprintf("to end it: select pg_terminate_backend(%d)", l.PID)
	}
	return "its transaction has only begun: look again"
}

// CategoryLocks returns the locks of the writers of a category, those of the oldest transactions first. It changes nothing, and the
// connection must not be in a transaction. A holder's session is visible to its own user and to a member of pg_monitor: of others
// only the process id is.
func CategoryLocks(ctx context.Context, conn *pgx.Conn, config *ExamineConfig, category messagestore.Category) ([]CategoryLock, error) {
	c, err := config.orDefaults()
	if err == nil {
		err = category.Validate()
	}
	var locks []CategoryLock
	if err == nil {
		e := examination{conn: conn, config: c}
		locks, err = e.locks(ctx, pgtype.Text{String: string(category), Valid: true})
	}
	if err != nil {
		return nil, fmt.Errorf("locks of category %s: %w", category, err)
	}
	return locks, nil
}

func (e *examination) locks(ctx context.Context, category pgtype.Text) ([]CategoryLock, error) {
	var locks []CategoryLock
	err := e.query(ctx, sqlOf("locks"), []any{category}, func(rows pgx.Rows) error {
		var l CategoryLock
		var user, application, state, query, lasts, waiters, waited, blockedBy pgtype.Text
		var since pgtype.Timestamptz
		var seconds, waitedSeconds pgtype.Float8
		err := rows.Scan(&l.Key, &l.Holds, &l.Shared, &l.PID, &l.Hidden, &user, &application, &state, &query,
			&since, &seconds, &lasts, &l.Waiting, &waiters, &waitedSeconds, &waited, &blockedBy, &l.floor)
		l.User, l.Application, l.State, l.Query = user.String, application.String, state.String, query.String
		l.Since, l.lasts, l.long = since.Time, lasts.String, seconds.Valid && ofSeconds(seconds) >= e.config.LongLock
		l.Waiters, l.waited, l.Waited, l.BlockedBy = waiters.String, waited.String, ofSeconds(waitedSeconds), blockedBy.String
		locks = append(locks, l)
		return err
	})
	return locks, err
}

func ofSeconds(s pgtype.Float8) time.Duration { return time.Duration(s.Float64 * float64(time.Second)) }

// categoryLocks reports the locks that are held for long, or that others wait for so long.
func (e *examination) categoryLocks(ctx context.Context, group string) ([]Finding, error) {
	locks, err := e.locks(ctx, pgtype.Text{})
	if err != nil {
		return nil, err
	}
	var found []Finding
	for i := range locks {
		if f := e.aboutLock(&locks[i]); f.Verdict != VerdictOK {
			found = append(found, f)
		}
	}
	if len(found) == 0 {
		says := "no category is locked"
		if len(locks) > 0 {
			says = fmt.Sprintf("%d locks of categories are held, none of them for long", len(locks))
		}
		found = []Finding{{Group: group, Name: "category locks", Verdict: VerdictOK, Says: says}}
	}
	return found, nil
}

func (e *examination) aboutLock(l *CategoryLock) Finding {
	f := Finding{Group: "locks", Name: "category lock", Verdict: VerdictOK, Advice: l.Remedy()}
	switch {
	case l.Waiting > 0 && l.Waited >= e.config.LongLock:
		f.Verdict = VerdictFail
	case l.PID == 0 || l.long:
		f.Verdict = VerdictWarn
	case l.Hidden:
		f.Verdict = VerdictHidden
	}
	f.Says = l.Holds
	if l.Holds != "migrations" {
		f.Says += fmt.Sprintf(" of the category with key %d", l.Key)
	}
	f.Says += " are held by " + l.Holder()
	if waits := l.Waits(); waits != "" {
		f.Says += "; " + waits
	}
	if l.BlockedBy != "" {
		f.Says += "; it waits for process " + l.BlockedBy
	}
	if l.PID == 0 || f.Verdict == VerdictHidden {
		return f
	}
	does := "migrates"
	switch {
	case l.Holds == "writes" && l.Shared:
		does = "writes to the category but in a transaction, and readers stop below its messages,"
	case l.Holds == "writes":
		does = "writes to the category"
	case l.Holds == "removals":
		does = "removes from the category"
	}
	f.Advice = fmt.Sprintf("no other session %s meanwhile; %s", does, l.Remedy())
	return f
}
