package main

import (
	"bytes"
	"fmt"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/dibs-go/dibs/internal/demo"
)

// books returns the books of a run that agrees: three orders, sent and paid in each language.
func books(t *testing.T) (*run, *demo.Books) {
	t.Helper()
	d := &run{killed: true, stopped: true}
	b, err := demo.OpenBooks()
	require.NoError(t, err)
	t.Cleanup(b.Close)
	var all []demo.Stored
	message := func(stream, category, kind, data string) {
		all = append(all, demo.Stored{ID: fmt.Sprint("m", len(all)), Stream: stream, Category: category, Type: kind, Data: data, Metadata: "{}"})
	}
	for i, by := range []string{"go", "typescript", "shell"} {
		payer := []string{"go", "typescript", "go"}[i]
		o := due{Order: fmt.Sprint("o", i), Account: fmt.Sprint("a", i), Month: month, Cents: int64(100 * (i + 1)), By: by}
		d.orders = append(d.orders, o)
		data := func(more string) string {
			return fmt.Sprintf(`{"order":%q,"account":%q,"cents":%d,"by":%q%s}`, o.Order, o.Account, o.Cents, o.By, more)
		}
		message("standing-"+o.Account, standing, "Due", data(""))
		message("payment-"+o.Account, payments, "Paid", data(fmt.Sprintf(`,"payer":%q`, payer)))
		message("payment:intent-"+o.Order, intents, "Confirmed", "{}")
	}
	b.AddMessages(all)
	b.Exec("create table head as select 4 taken; create table log as select 'e' what")
	return d, b
}

func TestTheVerdictSeesAllThatIsWrong(t *testing.T) {
	t.Parallel()
	const paid = "insert into messages (stream, category, type, data) select stream, category, type, data from messages where category = 'payment' limit 1"
	for name, test := range map[string]struct{ row, do string }{
		"nothing":                     {"", ""},
		"a payment twice":             {"payments, each once", paid},
		"a payment that is not":       {"payments, each once", "delete from messages where id = 'm1'"},
		"an order that is lost":       {"orders, each once", `update messages set data = json_set(data, '$.order', 'other') where id = 'm0'`},
		"a cent too many":             {"  their sum", `update messages set data = json_set(data, '$.cents', 101) where id = 'm1'`},
		"a confirmation twice":        {"confirmations", "insert into messages (stream, category, type, data) select stream, category, type, data from messages where id = 'm2'"},
		"an intent that is not":       {"intents confirmed", "delete from messages where id = 'm2'"},
		"a delivery without a reason": {"deliveries that finished no order", "delete from log"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			d, b := books(t)
			if test.do != "" {
				b.Exec(test.do)
			}
			_, err := d.judge(b)
			require.NoError(t, err)
			var out bytes.Buffer
			right, err := b.Judge(&out)
			require.NoError(t, err)
			require.Equal(t, test.do == "", right, out.String())
			if test.do != "" {
				require.Regexp(t, `(?m)^ *`+test.row+` .*[^k]$`, out.String())
			}
		})
	}
}
