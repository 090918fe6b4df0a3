package inbox_test

import (
	"context"
	"encoding/json"
	"errors"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/dibs-go/dibs/inbox"
	"github.com/dibs-go/dibs/messagestore"
	"github.com/dibs-go/dibs/reservation"
)

// Whatever came from outside is recorded byte for byte, once, and its key stays free.
func TestARequestThatIsNotCarriedOutIsRecordedOnce(t *testing.T) {
	t.Parallel()
	eachDesk(t, func(t *testing.T, d *desk) {
		for name, m := range map[string]inbox.Request{
			"JSON":              {ID: "json", Source: "s", Data: []byte(`{"a": 1}`)},
			"nothing":           {ID: "nothing", Source: "s"},
			"no JSON":           {ID: "no-json", Source: "s", Data: []byte(`{"a":`)},
			"two values":        {ID: "two", Source: "s", Data: []byte(`{} {}`)},
			"bytes":             {ID: "bytes", Source: "s", Data: []byte("\xff\x00\x01")},
			"U+0000":            {ID: "nul", Source: "s", Data: []byte(`"\u0000"`)},
			"no key":            {Source: "s", Data: []byte(`1`)},
			"a key of bytes":    {ID: "a\xff", Source: "s", Data: []byte(`1`)},
			"a source of bytes": {ID: "source", Source: "\xff\x00" + strings.Repeat("s", 1000), Data: []byte(`1`)},
			"a long key":        {ID: strings.Repeat("k", 5000), Source: "s", Data: []byte(`1`)},
			"long":              {ID: "long", Source: "s", Data: []byte(`"` + strings.Repeat("x", 2*messagestore.MaxMessageBytes) + `"`)},
		} {
			before := len(d.refused(t))
			for range 2 {
				require.NoError(t, d.refuse(t.Context(), m, errors.New("the account\n is closed")), name)
			}
			require.NoError(t, d.refuse(t.Context(), m, errors.New("another reason")), name)

			records := d.refused(t)[before:]
			var data []byte
			for i, r := range records {
				require.Equal(t, "the account  is closed", r.Error, name)
				require.Equal(t, records[0].Digest, r.Digest, name)
				require.NotEmpty(t, r.Source, name)
				if r.Parts > 0 {
					require.Equal(t, []int{i + 1, len(records)}, []int{r.Part, r.Parts}, name)
				}
				data = append(append(data, r.Raw...), r.Data...)
			}
			require.NotEmpty(t, records, name)
			if records[0].Parts == 0 && len(m.Data) > 0 {
				require.JSONEq(t, string(m.Data), string(data), name)
			} else {
				require.Equal(t, string(m.Data), string(data), name)
			}
		}
		result, err := d.receive(t.Context(), inbox.Request{ID: "json", Source: "s", Data: []byte(`1`)}, func() (doneWith, error) { return doneWith{}, nil })
		require.NoError(t, err)
		require.Equal(t, reservation.Reserved, result.Outcome)

		requireInvalid(t, d.refuse(t.Context(), inbox.Request{}, nil), "reason", "nil")
	})
}

// Different requests without a key are different records.
func TestRequestsWithoutAKeyAreToldApart(t *testing.T) {
	t.Parallel()
	eachDesk(t, func(t *testing.T, d *desk) {
		for _, m := range []inbox.Request{
			{Source: "a", Data: []byte(`1`)}, {Source: "b", Data: []byte(`1`)}, {Source: "a", Data: []byte(`2`)}, {ID: "\xff", Source: "a", Data: []byte(`1`)},
		} {
			require.NoError(t, d.refuse(t.Context(), m, errors.New("no key")))
		}

		require.Len(t, d.refused(t), 4)
	})
}

func (d *desk) refused(t *testing.T) (all []inbox.Refused) {
	t.Helper()
	category := messagestore.Category(d.name + ":inbox+refused")
	for m, err := range d.store.ReadCategory(context.Background(), category, 0, messagestore.Filter{}) {
		require.NoError(t, err)
		var r inbox.Refused
		require.NoError(t, json.Unmarshal(m.Data, &r))
		all = append(all, r)
	}
	return all
}
