package demo

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/signal"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"

	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	"github.com/dibs-go/dibs/consumer"
	"github.com/dibs-go/dibs/examples/account"
	"github.com/dibs-go/dibs/internal/demo/stage"
	"github.com/dibs-go/dibs/internal/must"
	"github.com/dibs-go/dibs/internal/pgtest"
	"github.com/dibs-go/dibs/internal/tier"
	"github.com/dibs-go/dibs/messagestore"
	"github.com/dibs-go/dibs/messagestore/memory"
)

// The demo starts itself for its senders and consumers, which in a test is the
// test's program.
func TestMain(m *testing.M) {
	if len(os.Args) > 1 && (os.Args[1] == "run" || os.Args[1] == "send") {
		ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM)
		defer stop()
		os.Exit(Run(ctx, os.Args[1:], os.Stdout, os.Stderr))
	}
	if len(os.Args) > 1 && slices.Contains([]string{"serve", "bank", "client"}, os.Args[1]) {
		ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM)
		defer stop()
		os.Exit(RunPayments(ctx, os.Args[1:], os.Stdout, os.Stderr))
	}
	if len(os.Args) > 1 && (os.Args[1] == "cron" || os.Args[1] == "worker") {
		ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM)
		defer stop()
		os.Exit(RunStanding(ctx, os.Args[1:], os.Stdout, os.Stderr))
	}
	if len(os.Args) > 1 && os.Args[1] == "replica" {
		ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM)
		defer stop()
		os.Exit(RunTicketing(ctx, os.Args[1:], os.Stdout, os.Stderr))
	}
	tier.ManyAtOnce()
	if err := os.Unsetenv(stage.StoreVariable); err != nil { // a demo is told its store
		panic(err)
	}
	goleak.VerifyTestMain(m)
}

// writeOrders writes the first n orders of the built-in file to a file of its own.
func writeOrders(t *testing.T, n int) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "orders.csv")
	lines := bytes.SplitAfterN(paymentOrders, []byte("\n"), n+2)
	require.NoError(t, os.WriteFile(path, bytes.Join(lines[:n+1], nil), 0o600))
	return path
}

func TestDemoAgreesWithTheFileThroughAKill(t *testing.T) {
	t.Parallel()
	for _, test := range []struct {
		name  string
		store func(t *testing.T) string
	}{
		{"SQLite", func(*testing.T) string { return "" }},
		{"PostgreSQL", func(t *testing.T) string { t.Helper(); return pgtest.URL(t) }},
		{"PgBouncer", func(t *testing.T) string { t.Helper(); return pgtest.PgBouncer(t, pgtest.URL(t)).URL }},
	} {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			var stdout, stderr bytes.Buffer

			code := Run(t.Context(), []string{"demo", "--store", test.store(t), "--orders", writeOrders(t, 60), "--limit", "4m"}, &stdout, &stderr)

			require.Zero(t, code, "%s\n%s", &stdout, &stderr)
			out := stdout.String()
			require.Contains(t, out, "killed with SIGKILL in mid-flight")
			require.Contains(t, out, "Every command was handled exactly once")
			require.Contains(t, out, ": won\n")
			require.Contains(t, out, ": refused\n")
			require.NotContains(t, out, "DIFFERS")
		})
	}
}

// settled returns a demo whose commands have been sent, as the plan has it, and handled: all, or those that a sender has
// sent before the limit ended.
func settled(t *testing.T, part int) (*demo, *bytes.Buffer) {
	t.Helper()
	orders, err := ReadOrders(writeOrders(t, 12))
	require.NoError(t, err)
	out := &bytes.Buffer{}
	d := &demo{out: out, orders: orders, plan: newPlan(orders, 7, senders), store: must.New(messagestore.New(memory.New(), nil)), killed: true}
	for phase := range d.plan.phases {
		for i := range senders {
			s := &commandSender{store: d.store, name: fmt.Sprint(i), out: json.NewEncoder(io.Discard)}
			list := d.plan.of(i, phase, 7)
			if phase == 2 {
				list = list[:len(list)/part]
			}
			require.NoError(t, s.send(t.Context(), t.Context(), list, 1))
			d.reports[i].Begun += s.begun.Load()
			d.reports[i].Sent += s.sent.Load()
			d.reports[i].Refused += s.refused.Load()
		}
	}
	commands, copies, err := account.Consumers(d.store, nil)
	require.NoError(t, err)
	for _, c := range []*consumer.Consumer{copies, commands, copies} { // a consumer that has read the copies is known
		require.NoError(t, c.CatchUp(t.Context()))
	}
	return d, out
}

// pass has the consumers at the end of the commands, whatever they have handled.
func pass(t *testing.T, d *demo) {
	t.Helper()
	for _, category := range []messagestore.Category{account.Commands, account.Copies} {
		for m, err := range d.store.ReadCategory(t.Context(), category.WithType("position"), 0, messagestore.Filter{}) {
			require.NoError(t, err)
			_, err = d.store.Write(t.Context(), m.Stream, messagestore.AnyVersion, messagestore.Raw{Type: m.Type, Data: []byte(`{"position":1000000}`)})
			require.NoError(t, err)
		}
	}
}

func TestVerdictSeesWhatIsWrong(t *testing.T) {
	for _, test := range []struct {
		name   string
		stream messagestore.StreamName
		body   messagestore.Body
		row    string
	}{
		{"PaidTwice", "account-1", account.Withdrawn{AccountID: "1", WithdrawalID: "29401/1998-10", Amount: 245200}, "effects that happened exactly once"},
		{"PaidSomethingElse", "account-1", account.Withdrawn{AccountID: "1", WithdrawalID: "nobody's", Amount: 1}, "accounts with another balance"},
		{"DepositedTwice", "account-1", account.Deposited{AccountID: "1", DepositID: "funding-1", Amount: 1}, "effects that happened exactly once"},
		{"OpenedTwice", "account-1", account.Opened{AccountID: "1"}, "effects that happened exactly once"},
		{"UnknownAccount", "account-none", account.Opened{AccountID: "none"}, "accounts "},
		{"ReservedTwice", "account:command+reservation+accounts-1+29401/1998-10", account.Withdraw{AccountID: "1", WithdrawalID: "29401/1998-10", Amount: 245200}, "reservations with exactly one winner"},
		{"SentByNobody", "account:command-1", account.Withdraw{AccountID: "1", WithdrawalID: "29401/1998-10", Amount: 245200}, "commands sent"},
	} {
		for name, end := range ends {
			t.Run(test.name+"/"+name, func(t *testing.T) {
				d, out := settled(t, end.part)
				whole := d.plan
				require.NoError(t, d.verdict(t.Context(), end.late), "before anything is wrong:\n%s", out)
				out.Reset()
				d.plan = whole
				_, err := d.store.Write(t.Context(), test.stream, messagestore.AnyVersion, test.body)
				require.NoError(t, err)

				require.ErrorIs(t, d.verdict(t.Context(), end.late), errBooksDiffer)

				require.Regexp(t, `(?m)^`+test.row+`.*DIFFERS$`, out.String())
			})
		}
	}
}

// ends are those of a run, with the part of the withdrawals that were sent by then.
var ends = map[string]struct {
	part int
	late error
}{
	"Done":       {1, nil},
	"NotDone":    {2, stage.ErrNotDone},
	"NotSettled": {2, errors.Join(stage.ErrNotDone, stage.ErrNotSettled)},
}

func TestAVerdictOnAPartIsOnWhatAConsumerCameTo(t *testing.T) {
	d, out := settled(t, 2)
	send := func(commands ...sending) {
		s := &commandSender{store: d.store, out: json.NewEncoder(io.Discard)}
		require.NoError(t, s.send(t.Context(), t.Context(), commands, 1))
		d.reports[0].Begun += s.begun.Load()
		d.reports[0].Sent += s.sent.Load()
	}
	l, err := readLedger(t.Context(), d.store)
	require.NoError(t, err)
	var next []sending
	for _, s := range d.plan.phases[2] {
		if w, is := s.Body.(account.Withdraw); is && l.Sent[effectOf(s)] == 0 && d.plan.Repeats[w.WithdrawalID] > 0 {
			next = append(next, s)
		}
	}
	require.NotEmpty(t, next)
	send(next[0])
	notSettled := errors.Join(stage.ErrNotDone, stage.ErrNotSettled)
	whole := d.plan

	require.NoError(t, d.verdict(t.Context(), notSettled), "a command that no consumer came to:\n%s", out)
	require.Regexp(t, `(?m)^ +commands that no consumer came to +1$`, out.String())
	require.Regexp(t, `This verdict is on \d+ of 52 commands: not done`, out.String())

	d.plan = whole
	out.Reset()
	pass(t, d)
	require.ErrorIs(t, d.verdict(t.Context(), notSettled), errBooksDiffer, "the consumers passed it without an effect")
	require.Regexp(t, `(?m)^effects that happened exactly once .*DIFFERS$`, out.String())
	require.Regexp(t, `(?m)^reservations with exactly one winner .*DIFFERS$`, out.String())
}

func TestOrdersThatCannotBeRead(t *testing.T) {
	const header = "order_id,account_id,bank_to,account_to,amount,purpose\n"
	for _, test := range []struct{ name, file, want string }{
		{"Empty", "", "read the header: EOF"},
		{"HeaderOnly", header, "there is no order in it"},
		{"MissingColumn", "order_id,account_id,bank_to,account_to\n", "there is no column amount"},
		{"ShortRow", header + "1,2,AB\n", "line 2: 3 fields, not 6"},
		{"NoAmount", header + "1,2,AB,3,,\n", `line 2: amount: "" is not an amount above 0`},
		{"Negative", header + "1,2,AB,3,-4,\n", `line 2: amount: "-4" is not an amount above 0`},
		{"ThreeDecimals", header + "1,2,AB,3,4.123,\n", `line 2: amount: "4.123" has more than two decimals`},
		{"NotANumber", header + "1,2,AB,3,1e3,\n", `line 2: amount: "1e3" is not an amount above 0`},
		{"NoAccount", header + "1,,AB,3,4,\n", `line 2: account_id: invalid stream name "account-": the identifier is empty`},
		{"NoID", header + ",2,AB,3,4,\n", "line 2: order_id is empty"},
		{"Twice", header + "1,2,AB,3,4,\n1,2,AB,3,4,\n", `line 3: order_id "1" is on line 2 too`},
		{"OpenQuote", header + "1,2,\"AB,3,4,\n", `parse error`},
	} {
		t.Run(test.name, func(t *testing.T) {
			_, err := parseOrders(strings.NewReader(test.file))
			require.ErrorContains(t, err, test.want)
		})
	}
}

func TestWrongCallsEndWithTwo(t *testing.T) {
	t.Parallel()
	for _, args := range [][]string{
		{"nonsense"}, {"demo", "--nonsense"}, {"demo", "argument"}, {"demo", "--orders", "no-such-file"}, {"demo", "--store", "memory:"},
	} {
		var stdout, stderr bytes.Buffer
		require.Equal(t, 2, Run(t.Context(), args, &stdout, &stderr), args)
		require.NotEmpty(t, stderr.String())
	}
}

// Rejections follow from the amounts alone, in any order.
func TestBooksDoNotDependOnTheOrder(t *testing.T) {
	books := keepBooks([]Order{
		{ID: "1", Account: "single", Amount: 1001},
		{ID: "2", Account: "large", Amount: 10_000},
		{ID: "3", Account: "large", Amount: 1000},
		{ID: "4", Account: "even", Amount: 500},
		{ID: "5", Account: "even", Amount: 500},
	})

	require.Equal(t, map[string]book{
		"single": {Funding: 2502, Paid: 2, Rejected: 1, Balance: 500},
		"large":  {Funding: 6500, Paid: 3, Rejected: 3, Balance: 3500},
		"even":   {Funding: 13_000, Paid: 6, Balance: 10_000},
	}, books)
}
