package demo

import (
	"bytes"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	"github.com/dibs-go/dibs"
	"github.com/dibs-go/dibs/consumer"
	"github.com/dibs-go/dibs/examples/account"
	"github.com/dibs-go/dibs/internal/pgtest"
	"github.com/dibs-go/dibs/internal/testkit"
	"github.com/dibs-go/dibs/messagestore"
)

// The demos start themselves for their processes, which in a test is the test's program.
func TestMain(m *testing.M) {
	roles := map[string]Program{
		"run": Account, "serve": Payments, "bank": Payments, "cron": Standing, "worker": Standing, "replica": Ticketing,
	}
	if len(os.Args) > 1 && roles[os.Args[1]] != nil {
		os.Exit(roles[os.Args[1]].Run())
	}
	testkit.ManyAtOnce()
	if err := os.Unsetenv(StoreVariable); err != nil { // a demo is told its store
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

			code := Account(t.Context(), []string{"demo", "--store", test.store(t), "--orders", writeOrders(t, 60), "--limit", "4m"}, &stdout, &stderr)

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

// settled returns a demo whose commands have been sent, as the plan has it, and handled.
func settled(t *testing.T) (*accountDemo, *Run) {
	t.Helper()
	orders, err := ReadOrders(writeOrders(t, 12))
	require.NoError(t, err)
	d := &accountDemo{plan: newAccountPlan(orders, 7), kills: 1}
	r := &Run{URL: "sqlite:" + filepath.Join(t.TempDir(), "demo.db")}
	r.Store = testkit.Must(dibs.Open(t.Context(), r.URL, nil))
	t.Cleanup(func() { require.NoError(t, r.Store.Close()) })
	require.NoError(t, d.send(t.Context(), r.URL))
	commands, copies, err := account.Consumers(r.Store, nil)
	require.NoError(t, err)
	for _, c := range []*consumer.Consumer{copies, commands, copies} { // a consumer that has read the copies is known
		require.NoError(t, c.CatchUp(t.Context()))
	}
	return d, r
}

// judged returns the table of a verdict, and whether it is a good one.
func judged(t *testing.T, fill func(*Books)) (table string, right bool) {
	t.Helper()
	b := testkit.Must(OpenBooks())
	defer b.Close()
	fill(b)
	var out bytes.Buffer
	right, err := b.Judge(&out)
	require.NoError(t, err)
	return out.String(), right
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
		t.Run(test.name, func(t *testing.T) {
			d, r := settled(t)
			verdict := func(b *Books) {
				_, err := d.Verdict(t.Context(), r, b)
				require.NoError(t, err)
			}
			table, right := judged(t, verdict)
			require.True(t, right, "before anything is wrong:\n%s", table)
			_, err := r.Store.Write(t.Context(), test.stream, messagestore.AnyVersion, test.body)
			require.NoError(t, err)

			table, right = judged(t, verdict)

			require.False(t, right)
			require.Regexp(t, `(?m)^`+test.row+`.*DIFFERS$`, table)
		})
	}
}

// A store that stands still has no demo wait for longer than its limit.
func TestADemoWhoseLimitEndsSaysSo(t *testing.T) {
	t.Parallel()
	for name, demo := range map[string]Program{"account": Account, "payments": Payments, "standing": Standing} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			var stdout, stderr bytes.Buffer

			code := demo(t.Context(), []string{"demo", "--store", "", "--limit", "500ms"}, &stdout, &stderr)

			require.Equal(t, 3, code, "%s\n%s", &stdout, &stderr)
			require.Contains(t, stderr.String(), "not done after 500ms")
		})
	}
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
		{"NoAccount", header + "1,,AB,3,4,\n", `line 2: account_id: invalid stream name "account-": the identifier must not be empty`},
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
		require.Equal(t, 2, Account(t.Context(), args, &stdout, &stderr), args)
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

	require.Equal(t, []book{
		{Account: "even", Funding: 13_000, Paid: 6, Balance: 10_000},
		{Account: "large", Funding: 6500, Paid: 3, Rejected: 3, Balance: 3500},
		{Account: "single", Funding: 2502, Paid: 2, Rejected: 1, Balance: 500},
	}, books)
}
