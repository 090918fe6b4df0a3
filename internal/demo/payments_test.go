package demo

import (
	"bytes"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/dibs-go/dibs/examples/account"
	"github.com/dibs-go/dibs/examples/payments"
	"github.com/dibs-go/dibs/internal/demo/stage"
	"github.com/dibs-go/dibs/internal/must"
	"github.com/dibs-go/dibs/internal/pgtest"
	"github.com/dibs-go/dibs/messagestore"
	"github.com/dibs-go/dibs/messagestore/memory"
)

func TestPaymentsDemoAgreesWithTheFileThroughKillsAndAStop(t *testing.T) {
	t.Parallel()
	for _, test := range []struct {
		name  string
		store func(t *testing.T) string
	}{
		{"SQLite", func(*testing.T) string { return "" }},
		{"PostgreSQL", func(t *testing.T) string { t.Helper(); return pgtest.URL(t) }},
	} {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			var stdout, stderr bytes.Buffer

			code := RunPayments(t.Context(), []string{"demo", "--store", test.store(t), "--orders", writeOrders(t, 60), "--kills", "2", "--lease", "1s", "--limit", "4m"}, &stdout, &stderr)

			require.Zero(t, code, "%s\n%s", &stdout, &stderr)
			out := stdout.String()
			require.Regexp(t, `server 3 stopped with SIGSTOP, about to make \d+ calls? to the bank`, out)
			require.Regexp(t, `servers killed and started again +[12]\n`, out)
			require.Regexp(t, `late calls that the bank refused +>= [1-9].* ok`, out)
			require.Contains(t, out, "Every payment was made once")
			require.Contains(t, out, "byte for byte")
			require.NotContains(t, out, "DIFFERS")
		})
	}
}

// right returns the records of a run in which nothing is wrong.
func right(t *testing.T) (*paymentsDemo, *outcome) {
	t.Helper()
	orders, err := ReadOrders(writeOrders(t, 12))
	require.NoError(t, err)
	d := &paymentsDemo{plan: newPaymentPlan(orders, 7), held: make([]payments.Payment, 1)}
	o := &outcome{
		Calls: map[string]int{}, Tokens: map[string]int64{}, Confirmed: map[string]int{}, Attempts: map[string]int{},
		Answers: map[string]map[string]int{}, Late: map[string]bool{}, OpenRows: map[string]int{},
	}
	var rows []tableRow
	for _, key := range d.plan.order {
		p := d.plan.Payments[key]
		rows = append(rows, tableRow{ID: p.ID, Account: p.Account, Amount: p.Amount})
		o.addCall(d.plan, d.call(key, 10, 1))
		o.addAnswer(answer{Key: key, Status: 201, Sum: "a"})
		o.addMessage(message("Reserved", key, `{"attempt":1}`))
		o.addMessage(message("Confirmed", key, `{"attempt":1}`))
	}
	o.addCall(d.plan, d.call(d.plan.order[0], 9, 0))
	for range d.plan.Planted {
		o.addAnswer(answer{Planted: true, Status: 422})
	}
	o.addRows(d.plan, rows)
	return d, o
}

func (d *paymentsDemo) call(key string, token, number int64) payments.Call {
	p := d.plan.Payments[key]
	return payments.Call{Order: payments.Order{Payment: key, Account: p.Account, Amount: p.Amount, Token: token}, Number: number}
}

func message(kind, key, data string) *messagestore.Message {
	return &messagestore.Message{Stream: payments.Intents.Stream("1").With(key), Type: kind, Data: []byte(data)}
}

func TestPaymentsVerdictSeesAllThatIsWrong(t *testing.T) {
	for name, test := range map[string]struct {
		row string // that differs; "" for a strange message
		do  func(d *paymentsDemo, o *outcome, key string)
	}{
		"a row too many":      {"payments in the table", func(d *paymentsDemo, o *outcome, key string) { o.addRows(d.plan, []tableRow{{ID: key}}) }},
		"a row of no payment": {"rows that differ", func(d *paymentsDemo, o *outcome, _ string) { o.addRows(d.plan, []tableRow{{ID: "none"}}) }},
		"another amount":      {"sum of the table", func(_ *paymentsDemo, o *outcome, _ string) { o.Sum++ }},
		"confirmed twice":     {"keys with exactly one Confirmed", func(_ *paymentsDemo, o *outcome, key string) { o.Confirmed[key]++ }},
		"after a Confirmed":   {"", func(_ *paymentsDemo, o *outcome, key string) { o.addMessage(message("Extended", key, "{}")) }},
		"an attempt left out": {"", func(_ *paymentsDemo, o *outcome, _ string) {
			o.addMessage(message("Reserved", "other", `{"attempt":2}`))
		}},
		"a message of another": {"", func(_ *paymentsDemo, o *outcome, _ string) { o.addMessage(message("Paid", "other", "{}")) }},
		"never paid":           {"keys of the bank's transfers", func(_ *paymentsDemo, o *outcome, key string) { delete(o.Calls, key) }},
		"paid twice in one attempt": {
			"keys with more transfers than attempts", func(d *paymentsDemo, o *outcome, key string) { o.addCall(d.plan, d.call(key, 10, 2)) },
		},
		"more repeats than takeovers": {
			"transfers repeated, at most takeovers", func(d *paymentsDemo, o *outcome, key string) { o.addCall(d.plan, d.call(key, 11, 2)) },
		},
		"a token that fell": {"transfers with a token that fell", func(d *paymentsDemo, o *outcome, key string) { o.addCall(d.plan, d.call(key, 9, 2)) }},
		"refused for no reason": {
			"calls that the bank was wrong about", func(d *paymentsDemo, o *outcome, key string) { o.addCall(d.plan, d.call(key, 11, 0)) },
		},
		"an order that is in no file": {
			"calls that the bank was wrong about", func(d *paymentsDemo, o *outcome, key string) {
				c := d.call(key, 11, 0)
				c.Amount++
				o.addCall(d.plan, c)
			},
		},
		"two responses": {"payments without one response for all", func(_ *paymentsDemo, o *outcome, key string) { o.addAnswer(answer{Key: key, Status: 201, Sum: "b"}) }},
		"no response":   {"payments without one response for all", func(_ *paymentsDemo, o *outcome, key string) { delete(o.Answers, key) }},
		"a reuse paid": {"answers of another kind", func(_ *paymentsDemo, o *outcome, key string) {
			o.addAnswer(answer{Key: key, Planted: true, Status: 201})
		}},
		"a reuse dropped": {"reused keys refused with 422", func(_ *paymentsDemo, o *outcome, _ string) { o.Refused-- }},
		"422 for the same": {
			"answers of another kind", func(_ *paymentsDemo, o *outcome, key string) { o.addAnswer(answer{Key: key, Status: 422}) },
		},
		"still held":     {"leases held in the end", func(_ *paymentsDemo, o *outcome, _ string) { o.Held++ }},
		"not stopped":    {"servers stopped, and gone on too late", func(d *paymentsDemo, _ *outcome, _ string) { d.held = nil }},
		"late, and paid": {"late calls that the bank refused", func(_ *paymentsDemo, o *outcome, _ string) { o.TooLate-- }},
	} {
		t.Run(name, func(t *testing.T) {
			d, o := right(t)
			out := &bytes.Buffer{}
			require.True(t, stage.PrintTable(out, "", "", d.table(o, clientReport{})), "before anything is wrong:\n%s", out)
			require.Empty(t, o.Strange)
			out.Reset()

			test.do(d, o, d.plan.order[0])

			same := stage.PrintTable(out, "", "", d.table(o, clientReport{}))
			if test.row == "" {
				require.NotEmpty(t, o.Strange)
				return
			}
			require.False(t, same)
			require.Regexp(t, `(?m)^`+test.row+`.*DIFFERS$`, out.String())
		})
	}
}

func TestALateCallIsCountedAndIsNotWrong(t *testing.T) {
	d, o := right(t)

	o.addCall(d.plan, d.call(d.plan.order[0], 8, 0))

	require.Equal(t, 2, o.TooLate, "with the one of every run")
	require.Equal(t, d.plan.order[0], d.interesting(o), "its story is told")
	require.True(t, stage.PrintTable(&bytes.Buffer{}, "", "", d.table(o, clientReport{})))
}

func TestEveryPaymentIsInThePlanOfEveryClient(t *testing.T) {
	orders, err := ReadOrders("")
	require.NoError(t, err)
	p := newPaymentPlan(orders, 7)

	require.Len(t, p.Payments, 13_002)
	require.Equal(t, 131, p.Planted)
	sent, again := 0, newPaymentPlan(orders, 7)
	for i, tasks := range p.tasks {
		require.Equal(t, tasks, again.tasks[i], "it follows from the seed")
		for _, task := range tasks {
			require.True(t, task.Copies >= 1 && task.Copies <= maxCopies)
			sent += task.Copies
		}
	}
	require.Equal(t, p.Sent, sent)
}

func TestWrongCallsOfThePaymentsDemoEndWithTwo(t *testing.T) {
	t.Parallel()
	for _, args := range [][]string{{"nonsense"}, {"demo", "--orders", "no-such-file"}, {"demo", "--store", "memory:"}} {
		var stdout, stderr bytes.Buffer
		require.Equal(t, 2, RunPayments(t.Context(), args, &stdout, &stderr), args)
		require.NotEmpty(t, stderr.String())
	}
}

func TestAStoryTellsEveryKindOfMessage(t *testing.T) {
	store := must.New(messagestore.New(memory.New(), nil))
	d := &paymentsDemo{books: books{store: store}}
	require.NoError(t, d.books.close())
	for kind, want := range map[string]string{
		"Reserved": "taken over, attempt 2, by server-1/…cdef with token", "Extended": "extended by server-1/…cdef",
		"Released": "released by server-1/…cdef: broken", "Confirmed": "confirmed by server-1/…cdef with its response", "Waiting": "waiting by server-1/…cdef",
	} {
		text, _, err := told(message(kind, "k", `{"session":"server-1/abcdef","attempt":2,"ttl":2000,"reason":"broken"}`), 0)

		require.NoError(t, err)
		require.Contains(t, text, want)
	}
}

func TestThePartOfARunIsJudgedAsAWholeOne(t *testing.T) {
	for name, test := range map[string]struct {
		row string
		do  func(d *paymentsDemo, o *outcome, answered, open string)
	}{
		"nothing is wrong": {"", func(*paymentsDemo, *outcome, string, string) {}},
		"an open one was made": {"", func(d *paymentsDemo, o *outcome, _, open string) {
			p := d.plan.Open[open]
			o.addRows(d.plan, []tableRow{{ID: open, Account: p.Account, Amount: p.Amount}})
			o.addMessage(message("Confirmed", open, `{}`))
		}},
		"an answered one was not made": {"payments in the table", func(_ *paymentsDemo, o *outcome, _, _ string) { o.Rows-- }},
		"an answered one never paid":   {"keys of the bank's transfers", func(_ *paymentsDemo, o *outcome, answered, _ string) { delete(o.Calls, answered) }},
		"two responses": {"payments without one response for all", func(_ *paymentsDemo, o *outcome, answered, _ string) {
			o.addAnswer(answer{Key: answered, Status: 201, Sum: "b"})
		}},
		"an open one of another amount": {"rows that differ from the file", func(d *paymentsDemo, o *outcome, _, open string) {
			o.addRows(d.plan, []tableRow{{ID: open, Account: d.plan.Open[open].Account, Amount: 1}})
		}},
		"an open one is half made": {"of them half made: a row or a Confirmed", func(_ *paymentsDemo, o *outcome, _, open string) {
			o.addMessage(message("Confirmed", open, `{}`))
		}},
		"an open one paid twice in one attempt": {"keys with more transfers than attempts", func(d *paymentsDemo, o *outcome, _, open string) {
			c := d.call(open, 10, 1)
			c.Account, c.Amount = d.plan.Open[open].Account, d.plan.Open[open].Amount
			o.addCall(d.plan, c)
			c.Number++
			o.addCall(d.plan, c)
		}},
	} {
		t.Run(name, func(t *testing.T) {
			d, o := right(t)
			answered, open := d.plan.order[0], d.plan.order[1]
			p := d.plan.Payments[open]
			o.Rows, o.Sum, o.BankPaid = o.Rows-1, o.Sum-account.Money(p.Amount), o.BankPaid-account.Money(p.Amount)
			delete(o.Answers, open)
			delete(o.Calls, open)
			delete(o.Tokens, open)
			delete(o.Confirmed, open)
			d.plan, d.late = d.plan.part(o.Answers), stage.ErrNotDone

			test.do(d, o, answered, open)

			out := &bytes.Buffer{}
			same := stage.PrintTable(out, "", "", d.table(o, clientReport{}))
			if test.row == "" {
				require.True(t, same, out)
				require.Empty(t, o.Strange)
				return
			}
			require.False(t, same)
			require.Regexp(t, `(?m)^`+test.row+`.*DIFFERS$`, out.String())
		})
	}
}
