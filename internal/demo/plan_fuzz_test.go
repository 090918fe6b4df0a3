package demo

import (
	"bytes"
	"encoding/csv"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/dibs-go/dibs/examples/account"
)

// Orders that were read can be written, and are read back the same.
func FuzzOrdersAreReadOrRefused(f *testing.F) {
	f.Add("order_id,account_id,bank_to,account_to,amount\n1,7,AB,1,-1\n2,7,AB,1,1e3\n3,7,AB,1,.5\n4,7,AB,1,+5\n") // amounts
	f.Add("order_id,account_id,bank_to,account_to,amount\n")                                                      // header only
	// large
	f.Add("order_id,account_id,bank_to,account_to,amount\n1,7,A,B,10000000000000.00\n2,7,A,B,10000000000000.01\n")
	f.Add("amount, order_id,account_id,bank_to,account_to,k_symbol\n1,a,b,c,d,SIPO\n")                   // other columns
	f.Add("order_id,account_id,bank_to,account_to,amount\n1,7,AB,123,2452.00\n2,7,CD,9,0.5\n")           // plain
	f.Add("order_id,account_id,bank_to,account_to,amount\n\"1\n2\",\"7\",\"A\"\"B\",\"1,2\",\"3.07\"\n") // quoted
	f.Add("order_id,account_id,bank_to,account_to,amount\n1,7,A/B,C/D,3\n")                              // slash
	f.Add("order_id,account_id,bank_to,account_to,amount\n1,7,AB,1,1\n1,7,AB,1,1\n")                     // twice
	f.Fuzz(func(t *testing.T, text string) {
		orders, err := parseOrders(strings.NewReader(text))
		if err != nil {
			require.Empty(t, orders)
			return
		}
		require.NotEmpty(t, orders)
		seen := map[string]bool{}
		var again bytes.Buffer
		w := csv.NewWriter(&again)
		require.NoError(t, w.Write([]string{"order_id", "account_id", "bank_to", "account_to", "amount"}))
		for _, o := range orders {
			require.NotEmpty(t, o.ID)
			require.False(t, seen[o.ID], o.ID)
			seen[o.ID] = true
			require.Positive(t, o.Amount)
			require.NoError(t, account.Category.Stream(o.Account).Validate())
			bank, to, _ := strings.Cut(o.To, "/")
			require.NoError(t, w.Write([]string{o.ID, o.Account, bank, to, o.Amount.String()}))
		}
		w.Flush()
		require.NoError(t, w.Error())
		back, err := parseOrders(&again)
		require.NoError(t, err)
		require.Equal(t, orders, back)
	})
}
