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
	"github.com/dibs-go/dibs/internal/tier"
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
	tier.NeedsChange(t)
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
	tier.NeedsChange(t)
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
		"Report/CountsByStream":                     "not supported by this driver",
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
	reopens func(d *driver) // breaks the driver that is opened again
}

func (b bug) options() Options {
	open := func(*testing.T) messagestore.Driver {
		d := &driver{Driver: memory.New()}
		b.breaks(d)
		return d
	}
	return Options{
		Open: open,
		Reopen: func(_ *testing.T, opened messagestore.Driver) messagestore.Driver {
			d := &driver{Driver: opened.(*driver).Driver} //nolint:errcheck // as opened
			b.breaks(d)
			if b.reopens != nil {
				b.reopens(d)
			}
			return d
		},
		Beside: func(_ *testing.T, opened messagestore.Driver) messagestore.Driver {
			d := &driver{Driver: opened.(*driver).Driver} //nolint:errcheck // as opened
			b.breaks(d)
			return d
		},
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

// A driver is a sound one in which some calls are replaced.
type driver struct {
	messagestore.Driver
	append       func(context.Context, messagestore.Append) (messagestore.Written, error)
	appendAll    func(context.Context, []messagestore.Append) ([]messagestore.Written, error)
	appendOrMeet func(context.Context, []messagestore.Append) ([]messagestore.Written, *messagestore.Conflict, error)
	readStream   func(context.Context, messagestore.StreamQuery) ([]*messagestore.Message, error)
	readCategory func(context.Context, messagestore.CategoryQuery) (messagestore.CategoryPage, error)
	last         func(context.Context, messagestore.StreamName, string) (*messagestore.Message, error)
	version      func(context.Context, messagestore.StreamName) (messagestore.Version, error)
	find         func(context.Context, messagestore.StreamName, []uuid.UUID) ([]*messagestore.Message, error)
	report       func(context.Context, report.Query) (report.Report, error)
	categories   func(context.Context, string) ([]messagestore.Category, error)
	count        func(context.Context, messagestore.CategoryQuery) (int64, error)
	heads        func(context.Context, []messagestore.Category) ([]messagestore.GlobalPosition, error)
	now          func(context.Context) (time.Time, error)
	check        func(context.Context, bool) error
	trim         func(context.Context, messagestore.StreamName, int) (int64, error)
}

func (d *driver) Append(ctx context.Context, a messagestore.Append) (messagestore.Written, error) {
	if d.append != nil {
		return d.append(ctx, a)
	}
	return d.Driver.Append(ctx, a)
}

func (d *driver) AppendAll(ctx context.Context, appends []messagestore.Append) ([]messagestore.Written, error) {
	if d.appendAll != nil {
		return d.appendAll(ctx, appends)
	}
	return d.Driver.AppendAll(ctx, appends)
}

func (d *driver) TryAppend(ctx context.Context, appends []messagestore.Append) ([]messagestore.Written, *messagestore.Conflict, error) {
	if d.appendOrMeet != nil {
		return d.appendOrMeet(ctx, appends)
	}
	return d.soundMeeting(ctx, appends)
}

func (d *driver) soundMeeting(ctx context.Context, appends []messagestore.Append) ([]messagestore.Written, *messagestore.Conflict, error) {
	return d.Driver.TryAppend(ctx, appends)
}

func (d *driver) ReadStream(ctx context.Context, q messagestore.StreamQuery) ([]*messagestore.Message, error) {
	if d.readStream != nil {
		return d.readStream(ctx, q)
	}
	return d.Driver.ReadStream(ctx, q)
}

func (d *driver) ReadCategory(ctx context.Context, q messagestore.CategoryQuery) (messagestore.CategoryPage, error) {
	if d.readCategory != nil {
		return d.readCategory(ctx, q)
	}
	return d.Driver.ReadCategory(ctx, q)
}

func (d *driver) Last(ctx context.Context, stream messagestore.StreamName, messageType string) (*messagestore.Message, error) {
	if d.last != nil {
		return d.last(ctx, stream, messageType)
	}
	return d.Driver.Last(ctx, stream, messageType)
}

func (d *driver) Version(ctx context.Context, stream messagestore.StreamName) (messagestore.Version, error) {
	if d.version != nil {
		return d.version(ctx, stream)
	}
	return d.Driver.Version(ctx, stream)
}

func (d *driver) Find(ctx context.Context, stream messagestore.StreamName, ids []uuid.UUID) ([]*messagestore.Message, error) {
	if d.find != nil {
		return d.find(ctx, stream, ids)
	}
	return d.Driver.Find(ctx, stream, ids)
}

func (d *driver) Now(ctx context.Context) (time.Time, error) {
	if d.now != nil {
		return d.now(ctx)
	}
	return d.Driver.Now(ctx)
}

// sound is the driver's that reports.
func (d *driver) sound() report.Driver {
	return d.Driver.(report.Driver) //nolint:errcheck // as opened
}

func (d *driver) Report(ctx context.Context, q report.Query) (report.Report, error) {
	if d.report != nil {
		return d.report(ctx, q)
	}
	return d.sound().Report(ctx, q)
}

func (d *driver) Categories(ctx context.Context, containing string) ([]messagestore.Category, error) {
	if d.categories != nil {
		return d.categories(ctx, containing)
	}
	return d.Driver.Categories(ctx, containing)
}

func (d *driver) Count(ctx context.Context, q messagestore.CategoryQuery) (int64, error) {
	if d.count != nil {
		return d.count(ctx, q)
	}
	return d.Driver.Count(ctx, q)
}

func (d *driver) Heads(ctx context.Context, categories []messagestore.Category) ([]messagestore.GlobalPosition, error) {
	if d.heads != nil {
		return d.heads(ctx, categories)
	}
	return d.soundHeads(ctx, categories)
}

func (d *driver) soundHeads(ctx context.Context, categories []messagestore.Category) ([]messagestore.GlobalPosition, error) {
	return d.Driver.Heads(ctx, categories)
}
