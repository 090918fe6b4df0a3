package storetest

import (
	"context"
	"errors"
	"maps"
	"os"
	"os/exec"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/stretchr/testify/require"

	"github.com/dibs-go/dibs/internal/calling"
	"github.com/dibs-go/dibs/internal/testkit"
	"github.com/dibs-go/dibs/messagestore"
	"github.com/dibs-go/dibs/messagestore/memory"
)

// A counting is a transaction over counters in memory.
type counting struct {
	counters map[string]int
	ends     bool // Commit and Rollback work, as they must not
	ended    error
}

func (tx *counting) end() error {
	tx.ended = messagestore.ErrTransactionEnded
	if tx.ends {
		return nil
	}
	return tx.ended
}

var errSerialization = errors.New("could not serialize access")

// A transactor is a sound driver with transactions of *counting, in which some things are
// broken.
type transactor struct {
	*memory.Driver
	mu       sync.Mutex
	counters map[string]int

	faults
}

type faults struct {
	keepsSQL        bool // after an error of f
	keepsAfterPanic bool
	dropsSQL        bool // where messages are committed
	dropsAlone      bool // where there are no messages
	ignoresContext  bool
	writesFirst     bool // commits the SQL before the append is tried
	repeats         bool // commits the SQL of a duplicate
	begunIsLast     bool
	commitWorks     bool
	hidesEnd        bool // commits although f tried to end the transaction
	hidesRetry      bool // an error that may be retried comes as any other
	overlaps        bool // runs functions at the same time, on the same counters
	messagesFirst   bool // are written although f fails
	dropsPast       bool // types that may come in between
	dropsAfter      bool // the id of the message at the expected version
	anyPast         bool // the same, and nothing else is looked at either
	createsAny      bool // takes StreamExists for AnyVersion
	conflictIsBlind bool // says that any conflict is of another kind
}

func (d *transactor) Transact(
	ctx context.Context, first messagestore.StreamName,
	f func(context.Context, *counting, *messagestore.Message) ([]messagestore.Append, error),
) ([]messagestore.Written, error) {
	if f == nil {
		return nil, nil
	}
	if err := ctx.Err(); err != nil && !d.ignoresContext {
		return nil, err
	}
	if !d.overlaps {
		d.mu.Lock()
		defer d.mu.Unlock()
	}
	tx := &counting{counters: d.snapshot(), ends: d.commitWorks}
	begun, err := d.begun(ctx, first)
	if err != nil {
		return nil, err
	}
	if d.keepsAfterPanic {
		defer func() { d.commit(tx) }()
	}
	appends, err := f(ctx, tx, begun)
	if d.keepsSQL {
		d.commit(tx)
	}
	if d.messagesFirst && err == nil && tx.ended != nil {
		_, _ = d.AppendAll(ctx, appends)
	}
	switch {
	case tx.ended != nil && !d.hidesEnd:
		return nil, errors.Join(tx.ended, err)
	case errors.Is(err, errSerialization) && !d.hidesRetry:
		return nil, &calling.RetryableError{Cause: err}
	case err != nil:
		return nil, err
	case ctx.Err() != nil && !d.ignoresContext:
		return nil, ctx.Err()
	}
	if d.writesFirst {
		d.commit(tx)
	}
	var written []messagestore.Written
	for i, a := range appends {
		if d.dropsPast {
			appends[i].Past = nil
		}
		if d.dropsAfter {
			appends[i].After = uuid.Nil
		}
		if d.createsAny && a.Expected == messagestore.StreamExists && len(a.Records) > 0 {
			appends[i].Expected = messagestore.AnyVersion
		}
		if d.anyPast && len(a.Past) > 0 {
			appends[i].Expected, appends[i].Past = messagestore.AnyVersion, nil
		}
	}
	if len(appends) > 0 {
		if written, err = d.AppendAll(context.WithoutCancel(ctx), appends); err != nil {
			if d.conflictIsBlind && errors.Is(err, messagestore.ErrVersionConflict) {
				err = errors.New("a conflict")
			}
			return nil, err
		}
		if written[0].Duplicate && !d.repeats {
			return written, nil
		}
	}
	if !d.dropsSQL && (!d.dropsAlone || len(appends) > 0) {
		d.commit(tx)
	}
	return written, nil
}

func (d *transactor) snapshot() map[string]int {
	if d.overlaps {
		d.mu.Lock()
		defer d.mu.Unlock()
	}
	return maps.Clone(d.counters)
}

func (d *transactor) commit(tx *counting) {
	if d.overlaps {
		<-time.After(time.Millisecond) // the others commit meanwhile
		d.mu.Lock()
		defer d.mu.Unlock()
	}
	d.counters = tx.counters
}

func (d *transactor) begun(ctx context.Context, first messagestore.StreamName) (*messagestore.Message, error) {
	if first == "" {
		return nil, nil
	}
	q := messagestore.StreamQuery{Stream: first, Limit: 1}
	if d.begunIsLast {
		q.From, q.Backwards = messagestore.EndOfStream, true
	}
	messages, err := d.ReadStream(context.WithoutCancel(ctx), q)
	if err != nil || len(messages) == 0 {
		return nil, err
	}
	return messages[0], nil
}

func (broken faults) options() TransactOptions[*counting] {
	return TransactOptions[*counting]{
		Open: func(*testing.T) messagestore.Driver {
			return &transactor{Driver: memory.New(), counters: map[string]int{}, faults: broken}
		},
		Add: func(_ context.Context, tx *counting, counter string) error {
			if tx.ended != nil {
				return tx.ended
			}
			tx.counters[counter]++
			return nil
		},
		Count: func(_ *testing.T, driver messagestore.Driver, counter string) int {
			d := driver.(*transactor) //nolint:errcheck // as opened
			d.mu.Lock()
			defer d.mu.Unlock()
			return d.counters[counter]
		},
		Commit:   func(_ context.Context, tx *counting) error { return tx.end() },
		Rollback: func(_ context.Context, tx *counting) error { return tx.end() },
		Fail:     func(context.Context, *counting) error { return errSerialization },
	}
}

type transactBug struct {
	name    string
	foundBy []string
	faults  faults
}

var transactBugs = []transactBug{
	{"the SQL of a committed transaction is lost", []string{"CommitsBoth", "LostAnswerOfACommitIsResolved"}, faults{dropsSQL: true}},
	{"a transaction without messages is not committed", []string{"CommitsWithoutMessages"}, faults{dropsAlone: true}},
	{"the SQL stays after an error", []string{"ErrorRollsBack", "LostCommitRunsAgain"}, faults{keepsSQL: true}},
	{"the SQL stays after a panic", []string{"PanicRollsBack"}, faults{keepsAfterPanic: true}},
	{"the context is not looked at", []string{"CancelledContextRollsBack"}, faults{ignoresContext: true}},
	{"the SQL is committed before the messages", []string{"ConflictRunsAgain", "LastConflictIsReturned", "IDConflictRollsBack"}, faults{writesFirst: true}},
	{"a conflict is an error like any other", []string{"ConflictRunsAgain", "LastConflictIsReturned"}, faults{conflictIsBlind: true}},
	{"the SQL of a duplicate is committed again", []string{"DuplicateIsDoneOnce"}, faults{repeats: true}},
	{"the types that may come in between are lost on the way", []string{"WritesPastTypes"}, faults{dropsPast: true}},
	{"messages of any type may come in between", []string{"WritesPastTypes"}, faults{anyPast: true}},
	{"the message at the expected version is lost on the way", []string{"WritesAfterAMessage"}, faults{dropsAfter: true}},
	{"a stream that has to exist may be new", []string{"WritesToAStreamThatExists"}, faults{createsAny: true}},
	{"the last message is taken for the first", []string{"FirstMessageIsSeen"}, faults{begunIsLast: true}},
	{"Commit and Rollback work", []string{"CommitIsRefused", "RollbackIsRefused"}, faults{commitWorks: true}},
	{"a refused Commit is forgotten", []string{"CommitIsRefused", "RollbackIsRefused"}, faults{hidesEnd: true}},
	{"messages are written although the function ended the transaction", []string{"CommitIsRefused"}, faults{messagesFirst: true}},
	{"a serialization failure is an error like any other", []string{"RetryableFailureRunsAgain", "LastRetryableFailureIsReturned"}, faults{hidesRetry: true}},
	{"transactions overwrite each other", []string{"ConcurrentCallersLoseNothing"}, faults{overlaps: true}},
}

// TestTransactSuite passes on a sound driver. TestEveryTransactBugIsFound starts it on
// broken ones, each in a process of its own, and there it must fail.
func TestTransactSuite(t *testing.T) {
	var broken faults
	if name := os.Getenv(bugVariable); name != "" {
		i := slices.IndexFunc(transactBugs, func(b transactBug) bool { return b.name == name })
		require.GreaterOrEqual(t, i, 0, "no bug %q", name)
		broken = transactBugs[i].faults
	}
	RunTransact(t, broken.options())
}

func TestEveryTransactBugIsFound(t *testing.T) {
	testkit.NeedsChange(t)
	t.Parallel()
	var all, found []string
	for _, test := range transactTests[*counting]() {
		all = append(all, strings.TrimPrefix(test.name, "Transact/"))
	}
	for _, b := range transactBugs {
		found = append(found, b.foundBy...)
		t.Run(b.name, func(t *testing.T) {
			t.Parallel()
			command := exec.CommandContext(t.Context(), os.Args[0], "-test.v", "-test.timeout=1m",
				"-test.run=^TestTransactSuite$/^Transact$/^("+strings.Join(b.foundBy, "|")+")$")
			command.Env = append(os.Environ(), bugVariable+"="+b.name)
			output, err := command.CombinedOutput()

			require.Error(t, err, "the suite passed:\n%s", output)
			require.NotContains(t, string(output), "panic:")
			for _, name := range b.foundBy {
				require.Contains(t, string(output), "--- FAIL: TestTransactSuite/Transact/"+name+" ")
			}
		})
	}
	slices.Sort(all)
	slices.Sort(found)
	require.Equal(t, all, slices.Compact(found), "every sub-test has found a bug")
}

// A driver without transactions of the type is no transactional store.
func TestTransactionalNeedsADriverThatCan(t *testing.T) {
	t.Parallel()
	_, err := messagestore.Transactional[*counting](testkit.Must(messagestore.New(memory.New(), nil)))
	require.ErrorIs(t, err, messagestore.ErrNotSupported)
	require.ErrorContains(t, err, "*storetest.counting")
}
