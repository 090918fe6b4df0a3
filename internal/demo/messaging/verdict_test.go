package main

import (
	"bytes"
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/dibs-go/dibs/examples/transfer"
	"github.com/dibs-go/dibs/internal/demo"
)

// right returns a run that agrees: of three transfers of one account the first is paid, the second
// is undone after the bank has paid, and the third finds no money.
func right(t *testing.T) (*messagingDemo, *demo.Books) {
	t.Helper()
	d := &messagingDemo{gone: 1, plan: &plan{balances: map[string]int64{"1": 100}, planted: 1, orders: []transfer.Transfer{
		{ID: "a", From: "1", Amount: 30}, {ID: "b", From: "1", Amount: 20}, {ID: "c", From: "1", Amount: 900},
	}}}
	d.turned.Store(1)
	b, err := demo.OpenBooks()
	require.NoError(t, err)
	t.Cleanup(b.Close)
	var all []demo.Stored
	var there []sunk
	versions := map[string]int64{}
	message := func(category, id, kind, data string) demo.Stored {
		stream := category + "-" + id
		m := demo.Stored{
			ID: fmt.Sprint("m", len(all)), Stream: stream, Category: category, Position: versions[stream], Type: kind, Data: data, Metadata: "{}",
			At: time.UnixMicro(int64(len(all)) * 1e6),
		}
		versions[stream]++
		all = append(all, m)
		return m
	}
	event := func(kind, order string, amount, balance int64) { // which JetStream has too
		m := message("account", "1", kind, fmt.Sprintf(`{"transfer":%q,"amount":%d,"balance":%d}`, order, amount, balance))
		there = append(there, sunk{m.ID, m.Stream, m.Position, m.Type, m.Data, m.At})
	}
	event("Opened", "", 0, 100)
	for _, id := range []string{"a", "b", "c"} {
		message("transfer:inbox", id, "Received", "{}")
		message("transfer:saga", id, "Started", "{}")
	}
	message("transfer:inbox+refused", "a", "Refused", "{}")
	event("Debited", "a", 30, 70)
	event("Debited", "b", 20, 50)
	message("transfer:saga", "a", "Completed", "{}")
	event("Returned", "b", 20, 70)
	message("transfer:saga", "b", "Compensated", "{}")
	message("transfer:saga", "c", "Compensated", "{}")
	b.AddMessages(all)
	demo.Add(b, "there", there)
	b.Exec(`
		create table account as select '1' id, 70 balance;
		create table payment as select 'a' id, 1 number, 'paid' state, 0 at, 0 ended union all select 'b', 2, 'reversed', 1, 2;
		create table entry as select 'a' id, 30 amount union all select 'b', 20 union all select 'b', -20;
		create table webhook as select 0 copies, 3 sent`)
	return d, b
}

// put returns the SQL that appends a message, as the last of its stream.
func put(category, id, kind, data string) string {
	return fmt.Sprintf(`insert into messages (id, stream, category, subject, position, type, data, metadata, at, place)
		select 'new', '%[1]s-%[2]s', '%[1]s', '%[2]s', coalesce(max(position) + 1, 0), '%[3]s', '%[4]s', '{}', 99, 'new' from messages where stream = '%[1]s-%[2]s';`, category, id, kind, data)
}

// event returns the SQL that appends an event of the account, which JetStream has too.
func event(kind, order string, amount, balance int64) string {
	return put("account", "1", kind, fmt.Sprintf(`{"transfer":"%s","amount":%d,"balance":%d}`, order, amount, balance)) +
		fmt.Sprintf("update messages set id = 'new' || rowid where id = 'new'; insert into there select id, stream, position, type, data, at from messages where rowid = (select max(rowid) from messages); update account set balance = %d;", balance)
}

func TestTheVerdictSeesAllThatIsWrong(t *testing.T) {
	const unpaid, lost = "insert into entry values ('b', 20);", "update account set balance = balance - 1;"
	for name, test := range map[string]struct{ row, do string }{ // row "" for what should not be there
		"a hundredth is lost":                 {"money before and after", lost},
		"a row changed alone":                 {"rows that differ from the last event", lost},
		"an account is gone":                  {"accounts", "delete from account"},
		"an account without events":           {"rows that differ from the last event", "insert into account values ('2', 0)"},
		"an order is lost":                    {"orders received, each once", "delete from messages where stream = 'transfer:inbox-c'"},
		"an order taken twice":                {"orders received, each once", put("transfer:inbox", "a2", "Received", "{}")},
		"a saga is not started":               {"sagas started", "delete from messages where stream = 'transfer:saga-c'"},
		"a saga is open":                      {"sagas open", put("transfer:saga", "d", "Started", "{}")},
		"a saga has two ends":                 {"sagas open", put("transfer:saga", "b", "Completed", "{}")},
		"paid and not debited":                {"orders torn", "insert into entry values ('c', 900)"},
		"debited and not paid":                {"orders torn", "delete from entry where id = 'a'"},
		"undone and still paid":               {"orders paid once and debited once, or neither", unpaid},
		"paid twice":                          {"orders that the bank paid twice", unpaid + "insert into entry values ('b', -20)"},
		"debited twice, and given back twice": {"orders debited or given back twice", event("Debited", "b", 20, 50) + event("Returned", "b", 20, 70)},
		"completed and not paid":              {"sagas whose end the bank denies", event("Returned", "a", 30, 100) + "insert into entry values ('a', -30)"},
		"another amount is debited":           {"amounts that differ from the file", event("Debited", "c", 10, 60)},
		"another amount is paid":              {"amounts that differ from the file", "insert into entry values ('c', 5), ('c', -5)"},
		"another account is debited":          {"amounts that differ from the file", "update messages set subject = '2' where category = 'account' and type = 'Debited'"},
		"an order of no file":                 {"amounts that differ from the file", "insert into entry values ('z', 5), ('z', -5)"},
		"a balance that does not follow":      {"", event("Debited", "c", 900, 70)},
		"opened twice":                        {"", event("Opened", "", 0, 100)},
		"an event of no kind":                 {"", event("Closed", "a", 30, 70)},
		"an event that is none":               {"", put("account", "1", "Debited", "[]")},
		"an event is not sent":                {"events missing in JetStream", "delete from there where rowid = 4"},
		"an event is left out":                {"events there out of order", "delete from there where rowid = 2"},
		"two that cancel out are left out":    {"events there out of order", event("Debited", "c", 5, 65) + "delete from there where rowid in (3, 4)"},
		"the first is left out":               {"events there out of order", "delete from there where rowid = 1"},
		"two are in wrong order":              {"events there out of order", "update there set rowid = 9 where rowid = 2"},
		"an event is sent twice":              {"events there twice", "insert into there select * from there where rowid = 2"},
		"one was rolled back":                 {"events there that were rolled back", "insert into there select 'other', stream, position, type, data, at from there where rowid = 4"},
		"one has other data":                  {"events there that were rolled back", "update there set data = '{\"balance\":7}' where rowid = 4"},
		"a webhook waits":                     {"webhooks unsent", "update webhook set copies = 1"},
		"a reuse is forgotten":                {"and recorded as refused", "delete from messages where category = 'transfer:inbox+refused'"},
	} {
		t.Run(name, func(t *testing.T) {
			d, b := right(t)
			var out bytes.Buffer
			d.judge(b)
			good, err := b.Judge(&out)
			require.NoError(t, err)
			require.True(t, good, "before anything is wrong:\n%s", &out)
			d, b = right(t)
			out.Reset()

			b.Exec(test.do)
			d.judge(b)

			good, err = b.Judge(&out)
			require.NoError(t, err)
			require.False(t, good, &out)
			if test.row != "" {
				require.Regexp(t, `(?m)^`+test.row+` .*DIFFERS$`, out.String())
			}
		})
	}
	for row, do := range map[string]func(d *messagingDemo){
		"reused keys refused with 422":  func(d *messagingDemo) { d.turned.Store(0) },
		"answers of another kind":       func(d *messagingDemo) { d.odd = []string{"an answer"} },
		"times that JetStream was gone": func(d *messagingDemo) { d.gone = 0 },
	} {
		d, b := right(t)
		do(d)
		d.judge(b)
		var out bytes.Buffer
		good, err := b.Judge(&out)
		require.NoError(t, err)
		require.False(t, good)
		require.Regexp(t, `(?m)^`+row+` .*DIFFERS$`, out.String())
	}
}

func TestTheStoryIsOfATransferThatTheBankTookBack(t *testing.T) {
	d, b := right(t)

	d.judge(b)

	for _, want := range []string{
		"What became of order b", "debited, and 0.50 left, account-1@2", "the bank takes the payment back", "JetStream has the Returned",
		"the saga: Compensated, transfer:saga-b@1",
	} {
		require.Contains(t, b.Told(), want)
	}
}
