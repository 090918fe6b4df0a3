package demo

import (
	"bytes"
	"context"
	"fmt"
	"math/rand/v2"
	"net/http"
	"net/http/httptest"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/dibs-go/dibs/examples/payments"
	"github.com/dibs-go/dibs/internal/pgtest"
	"github.com/dibs-go/dibs/internal/testkit"
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

			code := Payments(t.Context(), []string{"demo", "--store", test.store(t), "--orders", writeOrders(t, 60), "--kills", "2", "--lease", "1s", "--limit", "4m"}, &stdout, &stderr)

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

// right fills the books of a run in which nothing is wrong. In each the first payment was taken
// over once.
func right(t *testing.T, d *paymentsDemo, b *Books) {
	t.Helper()
	orders, err := ReadOrders(writeOrders(t, 12))
	require.NoError(t, err)
	d.plan, d.held = newPaymentPlan(orders, 7), make([]payments.Payment, 1)
	var messages []Stored
	var calls []payments.Call
	var answers []answer
	for _, p := range d.plan.all {
		for i, kind := range []string{"Reserved", "Confirmed"} {
			messages = append(messages, Stored{
				Stream: "payment:intent-" + p.Account + "+" + p.ID, Category: "payment:intent", Position: int64(i), Type: kind,
				Data: `{"attempt":1,"session":"server-1/abcdef","after":0,"ttl":2000}`, Metadata: "{}",
			})
		}
		calls = append(calls, payments.Call{Order: payments.Order{Payment: p.ID, Account: p.Account, Amount: p.Amount, Token: 10, Session: "server-1/abcdef"}, Number: 1})
		answers = append(answers, answer{p.ID, false, 201, "a"})
	}
	first := d.plan.all[0]
	calls = append(calls, payments.Call{Order: payments.Order{Payment: first.ID, Account: first.Account, Amount: first.Amount, Token: 9, Session: "server-2/fedcba"}})
	for range d.plan.planted {
		answers = append(answers, answer{"planted", true, 422, ""})
	}
	b.AddMessages(messages)
	Add(b, "call", calls)
	Add(b, "answer", answers)
	Add(b, "paid", d.plan.all)
}

func TestPaymentsVerdictSeesAllThatIsWrong(t *testing.T) {
	const (
		again = "insert into messages select * from messages where type = '%s' and stream like '%%' || ?; update messages set position = position + 7, type = '%s', data = '%s' where rowid = (select max(rowid) from messages)"
		call  = "insert into call (payment, account, session, amount, token, number, at) select payment, account, session, amount + %d, %d, %d, at from call where payment = ? and number > 0"
		reply = "insert into answer values (?, %s, %d, '%s')"
	)
	for name, test := range map[string]struct {
		row string // that differs; "" for what should not be there
		do  string // with the key of a payment
	}{
		"a row too many":              {"payments in the table", "insert into paid select * from paid where id = ?"},
		"a row is missing":            {"payments in the table", "delete from paid where id = ?"},
		"a row of no payment":         {"rows that differ from the file", "update paid set id = 'none' where id = ?"},
		"another amount":              {"sum of the table", "update paid set amount = amount + 1 where id = ?"},
		"of another account":          {"rows that differ from the file", "update paid set account = 'x' where id = ?"},
		"confirmed twice":             {"keys with exactly one Confirmed", fmt.Sprintf(again, "Confirmed", "Confirmed", "{}")},
		"after a Confirmed":           {"", fmt.Sprintf(again, "Reserved", "Extended", "{}")},
		"an attempt left out":         {"", "update messages set data = '{\"attempt\":2}' where type = 'Reserved' and stream like '%' || ?"},
		"a message of another kind":   {"", "update messages set type = 'Paid' where type = 'Reserved' and stream like '%' || ?"},
		"never paid":                  {"keys of the bank's transfers", "delete from call where payment = ?"},
		"paid twice in one attempt":   {"keys with more transfers than attempts", fmt.Sprintf(call, 0, 10, 2)},
		"more repeats than takeovers": {"transfers repeated, at most takeovers", fmt.Sprintf(call, 0, 11, 2)},
		"a token that fell":           {"transfers with a token that fell", fmt.Sprintf(call, 0, 9, 2)},
		"refused for no reason":       {"calls that the bank was wrong about", fmt.Sprintf(call, 0, 11, 0)},
		"an order that is in no file": {"calls that the bank was wrong about", fmt.Sprintf(call, 1, 11, 0)},
		"two responses":               {"payments without one response for all", fmt.Sprintf(reply, "false", 201, "b")},
		"no response":                 {"payments without one response for all", "delete from answer where key = ?"},
		"a reuse paid":                {"answers of another kind", fmt.Sprintf(reply, "true", 201, "a")},
		"a reuse dropped":             {"reused keys refused with 422", "delete from answer where planted and ? <> ''"},
		"422 for the same":            {"answers of another kind", fmt.Sprintf(reply, "false", 422, "")},
		"late, and paid":              {"late calls that the bank refused", "delete from call where payment = ? and number = 0"},
	} {
		t.Run(name, func(t *testing.T) {
			var d paymentsDemo
			table, good := judged(t, func(b *Books) { right(t, &d, b); d.judge(b, 0, 0) })
			require.True(t, good, "before anything is wrong:\n%s", table)

			table, good = judged(t, func(b *Books) {
				right(t, &d, b)
				b.Exec(test.do, d.plan.all[0].ID)
				d.judge(b, 0, 0)
			})

			require.False(t, good, table)
			if test.row != "" {
				require.Regexp(t, `(?m)^`+test.row+`.*DIFFERS$`, table)
			}
		})
	}
	for row, change := range map[string]func(d *paymentsDemo) (open int){
		"leases held in the end":                func(*paymentsDemo) int { return 1 },
		"servers stopped, and gone on too late": func(d *paymentsDemo) int { d.held = nil; return 0 },
	} {
		var d paymentsDemo
		table, good := judged(t, func(b *Books) { right(t, &d, b); d.judge(b, change(&d), 0) })
		require.False(t, good)
		require.Regexp(t, `(?m)^`+row+`.*DIFFERS$`, table)
	}
}

// The story is of a payment that had a late order refused.
func TestAStoryTellsEveryKindOfMessage(t *testing.T) {
	var d paymentsDemo
	b := testkit.Must(OpenBooks())
	defer b.Close()
	right(t, &d, b)
	key := d.plan.all[0].ID
	for i, kind := range []string{"Extended", "Released", "Waiting"} {
		b.Exec(`insert into messages select * from messages where type = 'Reserved' and stream like '%' || ?1;
			update messages set position = ?2, type = ?3, data = '{"session":"server-1/abcdef","reason":"broken"}' where rowid = (select max(rowid) from messages)`, key, i+3, kind)
	}

	d.judge(b, 0, 0)

	for _, want := range []string{
		"What became of payment " + key + "?", "reserved by server-1/…cdef with token", "extended by server-1/…cdef", "released by server-1/…cdef: broken",
		"confirmed by server-1/…cdef with its response", "waiting by server-1/…cdef", "the bank makes transfer 1", "token 9 is too late", "1 requests got that response",
	} {
		require.Contains(t, b.Told(), want)
	}
}

func TestEveryPaymentIsInThePlanOfEveryClient(t *testing.T) {
	orders, err := ReadOrders("")
	require.NoError(t, err)
	p := newPaymentPlan(orders, 7)

	require.Len(t, p.all, 13_002)
	require.Equal(t, 131, p.planted)
	require.Equal(t, p, newPaymentPlan(orders, 7), "it follows from the seed")
	sent := 0
	for _, tasks := range p.of {
		for _, task := range tasks {
			require.True(t, task.copies >= 1 && task.copies <= maxCopies)
			sent += task.copies
		}
	}
	require.Equal(t, p.sent, sent)
}

// A server that never answers as soon as the clients hang up is answered in the end, or a demo on a
// slow machine would not come to its end.
func TestAPaymentIsMadeOnASlowMachine(t *testing.T) {
	t.Parallel()
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		select {
		case <-r.Context().Done(): // the client has hung up
		case <-time.After(400 * time.Millisecond):
			w.WriteHeader(http.StatusCreated)
		}
	}))
	defer server.Close()
	d := &paymentsDemo{addresses: []string{server.URL, server.URL, server.URL}}
	ctx, cancel := context.WithTimeout(t.Context(), testkit.WaitLimit)
	defer cancel()

	err := d.do(ctx, server.Client(), rand.New(rand.NewPCG(1, 1)), paymentTask{payments.Payment{ID: "p", Account: "1"}, 1, true})

	require.NoError(t, err)
	require.Positive(t, d.cut.Load())
}

func TestWrongCallsOfThePaymentsDemoEndWithTwo(t *testing.T) {
	t.Parallel()
	for _, args := range [][]string{{"nonsense"}, {"demo", "--orders", "no-such-file"}, {"demo", "--store", "memory:"}} {
		var stdout, stderr bytes.Buffer
		require.Equal(t, 2, Payments(t.Context(), args, &stdout, &stderr), args)
		require.NotEmpty(t, stderr.String())
	}
}
