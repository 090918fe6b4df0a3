package storetest

import (
	"context"
	"os"
	"os/exec"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	"github.com/dibs-go/dibs/internal/report"
	"github.com/dibs-go/dibs/internal/testkit"
	"github.com/dibs-go/dibs/messagestore"
	"github.com/dibs-go/dibs/messagestore/memory"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// bugVariable names, in the environment, the bug of the driver that TestSuite runs
// the suite on.
const bugVariable = "STORETEST_BUG"

// Drivers without bugs, of few abilities.
const (
	unable  = "a driver that can only what it must"
	oneUser = "a driver over a transaction"
)

// TestSuite passes on a sound driver. TestEveryBugIsFound starts it on broken ones,
// each in a process of its own, and there it must fail.
func TestSuite(t *testing.T) {
	broken := bug{breaks: func(*driver) {}}
	switch name := os.Getenv(bugVariable); name {
	case "":
	case unable:
		Run(t, Options{Open: func(*testing.T) messagestore.Driver { return strict{memory.New()} }})
		return
	case oneUser:
		Run(t, Options{OneUser: true, Open: func(*testing.T) messagestore.Driver { return memory.New() }})
		return
	default:
		i := slices.IndexFunc(bugs, func(b bug) bool { return b.name == name })
		require.GreaterOrEqual(t, i, 0, "no bug %q", name)
		broken = bugs[i]
	}
	Run(t, broken.options())
}

// A suite is worth as much as the bugs that it has been seen to catch.
func TestEveryBugIsFound(t *testing.T) {
	testkit.NeedsChange(t)
	for _, b := range bugs {
		t.Run(b.name, func(t *testing.T) {
			t.Parallel()
			output, err := b.suite(t, b.foundBy)
			for again := 1; err == nil && again < 3; again++ { // a race that the machine was too busy for
				output, err = b.suite(t, b.foundBy)
			}

			require.Error(t, err, "the suite passed:\n%s", output)
			require.NotContains(t, output, "panic:")
			for _, name := range b.foundBy {
				require.Contains(t, output, "--- FAIL: TestSuite/"+name+" ")
			}
		})
	}
}

func TestEverySubTestHasFoundABug(t *testing.T) {
	testkit.NeedsChange(t)
	var all, found []string
	for _, test := range tests() {
		all = append(all, test.name)
	}
	for _, b := range bugs {
		require.NotEmpty(t, b.foundBy, b.name)
		found = append(found, b.foundBy...)
	}
	slices.Sort(all)
	slices.Sort(found)

	require.Equal(t, slices.Compact(slices.Clone(all)), all, "sub-tests have names of their own")
	require.Equal(t, all, slices.Compact(found))
}

// Sub-tests of abilities that a driver does not have are skipped with the reason, and do
// not fail.
func TestWhatIsNotApplicableIsSkippedWithTheReason(t *testing.T) {
	for name, reason := range map[string]string{
		"S1/AcknowledgedIsThereAfterReopening":      "the suite is not told how to reopen the driver",
		"S3/OneInitialWriterOfTwoDriversWins":       "the suite is not told how to open a second driver beside the first",
		"Heads/AreWhereCategoriesEnd":               "not supported by this driver",
		"Group/StreamWithoutIdentifierHasOneMember": "invalid stream name",
	} {
		output, err := bug{name: unable}.suite(t, []string{name})
		require.NoError(t, err, output)
		require.Contains(t, output, "--- SKIP: TestSuite/"+name+" ")
		require.Regexp(t, "not applicable: .*"+reason, output)
	}
	output, err := bug{name: oneUser}.suite(t, []string{"S3/OneInitialWriterWins"})
	require.NoError(t, err, output)
	require.Contains(t, output, "not applicable: the driver has one user")
}

// suite runs sub-tests of TestSuite in another process, on a driver with the bug.
func (b bug) suite(t *testing.T, subTests []string, env ...string) (output string, err error) {
	t.Helper()
	var subjects, names []string
	for _, name := range subTests {
		subject, rest, _ := strings.Cut(name, "/")
		subjects, names = append(subjects, subject), append(names, rest)
	}
	pattern := "^TestSuite$/^(" + strings.Join(subjects, "|") + ")$/^(" + strings.Join(names, "|") + ")$"
	command := exec.CommandContext(t.Context(), os.Args[0], "-test.v", "-test.run="+pattern, "-test.timeout=1m", "-rapid.nofailfile", "-rapid.shrinktime=100ms")
	command.Env = append(append(os.Environ(), bugVariable+"="+b.name), env...)
	combined, err := command.CombinedOutput()
	return string(combined), err
}

// A bug is one way to break a driver, and the sub-tests that must find it.
type bug struct {
	name    string
	foundBy []string
	breaks  func(d *driver)
}

func (b bug) options() Options {
	broken := func(sound messagestore.Driver, reopened bool) *driver {
		d := newDriver(sound)
		d.reopened = reopened
		b.breaks(d)
		return d
	}
	again := func(reopened bool) func(*testing.T, messagestore.Driver) messagestore.Driver {
		return func(_ *testing.T, opened messagestore.Driver) messagestore.Driver {
			return broken(opened.(*driver).Driver, reopened) //nolint:errcheck // as opened
		}
	}
	return Options{
		Open:   func(*testing.T) messagestore.Driver { return broken(memory.New(), false) },
		Reopen: again(true),
		Beside: again(false),
	}
}

// A strict driver has no abilities that one may lack, and refuses names that the store does.
type strict struct{ messagestore.Driver }

func (strict) Heads(context.Context, []messagestore.Category) ([]messagestore.GlobalPosition, error) {
	return nil, messagestore.ErrNotSupported
}

func (s strict) Append(ctx context.Context, a messagestore.Append) (messagestore.Written, error) {
	if err := a.Stream.Validate(); err != nil {
		return messagestore.Written{}, err
	}
	return s.Driver.Append(ctx, a)
}

// A call is one of a driver's that has one argument.
type call[Q, A any] = func(context.Context, Q) (A, error)

// A driver is a sound one in which some calls are replaced.
type driver struct {
	messagestore.Driver
	reopened bool // the second that was opened over the same messages

	append       call[messagestore.Append, written]
	appendAll    call[[]messagestore.Append, []written]
	appendOrMeet func(context.Context, []messagestore.Append) ([]written, *messagestore.Conflict, error)
	readStream   call[messagestore.StreamQuery, []*recorded]
	readCategory call[messagestore.CategoryQuery, category]
	last         func(context.Context, messagestore.StreamName, string) (*recorded, error)
	version      call[messagestore.StreamName, messagestore.Version]
	find         func(context.Context, messagestore.StreamName, []uuid.UUID) ([]*recorded, error)
	report       call[report.Query, report.Report]
	categories   call[string, []messagestore.Category]
	count        call[messagestore.CategoryQuery, int64]
	heads        call[[]messagestore.Category, []messagestore.GlobalPosition]
	now          func(context.Context) (time.Time, error)
	check        func(context.Context, bool) error
	trim         func(context.Context, messagestore.StreamName, int) (int64, error)
}

func newDriver(sound messagestore.Driver) *driver {
	return &driver{
		Driver: sound, append: sound.Append, appendAll: sound.AppendAll, appendOrMeet: sound.TryAppend,
		readStream: sound.ReadStream, readCategory: sound.ReadCategory, last: sound.Last, version: sound.Version, find: sound.Find,
		report: sound.Report, categories: sound.Categories, count: sound.Count,
		heads: sound.Heads, now: sound.Now, check: sound.Check, trim: sound.TrimCheckpoints,
	}
}

func (d *driver) Append(ctx context.Context, a messagestore.Append) (written, error) {
	return d.append(ctx, a)
}

func (d *driver) AppendAll(ctx context.Context, appends []messagestore.Append) ([]written, error) {
	return d.appendAll(ctx, appends)
}

func (d *driver) TryAppend(ctx context.Context, appends []messagestore.Append) ([]written, *messagestore.Conflict, error) {
	return d.appendOrMeet(ctx, appends)
}

func (d *driver) ReadStream(ctx context.Context, q messagestore.StreamQuery) ([]*recorded, error) {
	return d.readStream(ctx, q)
}

func (d *driver) ReadCategory(ctx context.Context, q messagestore.CategoryQuery) (category, error) {
	return d.readCategory(ctx, q)
}

func (d *driver) Last(ctx context.Context, stream messagestore.StreamName, messageType string) (*recorded, error) {
	return d.last(ctx, stream, messageType)
}

func (d *driver) Version(ctx context.Context, stream messagestore.StreamName) (messagestore.Version, error) {
	return d.version(ctx, stream)
}

func (d *driver) Find(ctx context.Context, stream messagestore.StreamName, ids []uuid.UUID) ([]*recorded, error) {
	return d.find(ctx, stream, ids)
}

func (d *driver) Now(ctx context.Context) (time.Time, error) { return d.now(ctx) }

func (d *driver) Report(ctx context.Context, q report.Query) (report.Report, error) {
	return d.report(ctx, q)
}

func (d *driver) Categories(ctx context.Context, containing string) ([]messagestore.Category, error) {
	return d.categories(ctx, containing)
}

func (d *driver) Count(ctx context.Context, q messagestore.CategoryQuery) (int64, error) {
	return d.count(ctx, q)
}

func (d *driver) Heads(ctx context.Context, categories []messagestore.Category) ([]messagestore.GlobalPosition, error) {
	return d.heads(ctx, categories)
}

func (d *driver) Check(ctx context.Context, write bool) error { return d.check(ctx, write) }

func (d *driver) TrimCheckpoints(ctx context.Context, stream messagestore.StreamName, keep int) (int64, error) {
	return d.trim(ctx, stream, keep)
}

// asking has a call asked for something else.
func asking[Q, A any](sound call[Q, A], change func(*Q)) call[Q, A] {
	return func(ctx context.Context, q Q) (A, error) {
		change(&q)
		return sound(ctx, q)
	}
}

// answering has a call answer something else.
func answering[Q, A any](sound call[Q, A], change func(Q, *A)) call[Q, A] {
	return func(ctx context.Context, q Q) (A, error) {
		a, err := sound(ctx, q)
		change(q, &a)
		return a, err
	}
}

// each changes a copy of each append.
func each(change func(*messagestore.Append)) func(*[]messagestore.Append) {
	return func(appends *[]messagestore.Append) {
		*appends = slices.Clone(*appends)
		for i := range *appends {
			change(&(*appends)[i])
		}
	}
}
