package saga_test

import (
	"context"
	"encoding/json"
	"math"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/dibs-go/dibs/messagestore"
	"github.com/dibs-go/dibs/saga"
)

// Any writer of the store may have written any message of a saga. A runner, an operator and Verify read it, or refuse it: none panics,
// and none takes a time that no one could have asked for.
func FuzzAForgedMessageIsReadOrRefused(f *testing.F) {
	for _, seed := range []struct{ one, data, two, more string }{
		{"Received", `{"name":"approved","index":-1}`, "Received", `{"name":"approved#2","index":9223372036854775807}`},
		{"Signalled", `{"name":"approved","value":"x"}`, "Received", `{"name":"approved","index":0,"late":true}`},
		{"Began", `{"step":"flight","attempt":9223372036854775807}`, "Failed", `{"step":"flight","attempt":-1,"retryAt":-9223372036854775808}`},
		{"Waiting", `{"name":"night","until":9223372036854775807}`, "SetBack", `{"from":9223372036854775807,"to":-9223372036854775808}`},
		{"Waiting", `{"name":"approved","until":-1,"signal":true}`, "SetBack", `{"from":-9223372036854775808,"to":9223372036854775807}`},
		{"Valued", `{"name":"fee","value":{}}`, "Done", `{"step":"flight","output":[]}`},
		{"Compensating", `{}`, "Undone", `{"step":"flight"}`},
		{"Suspended", `{"why":"invalid","step":"approved"}`, "Resumed", `{"skip":"approved"}`},
		{"Replied", `{"step":"flight","output":1,"refused":"x"}`, "CancelRequested", `null`},
		{"Completed", `{"output":7}`, "Resolved", `{}`},
		{"Started", `{"deadlineMillis":9223372036854775807}`, "Other", `7`},
	} {
		f.Add(seed.one, []byte(seed.data), seed.two, []byte(seed.more), int64(math.MaxInt64))
	}
	f.Add("Began", []byte(`{"step":"flight","attempt":1,"kind":"ask"}`), "Replied", []byte(`{"step":"flight","output":{"reference":"7"}}`), int64(math.MaxInt64/1_000_000+1))
	f.Fuzz(func(t *testing.T, one string, data []byte, two string, more []byte, deadline int64) {
		store, w := newStore(), newWorld()
		flight := w.step("flight", nil)
		s := newSaga(t, store, func(r *saga.Run, in trip) (string, error) {
			if err := r.Sleep("night", time.Hour); err != nil {
				return "", err
			}
			for range 2 {
				if _, err := saga.Receive[int](r, "approved", time.Hour); err != nil {
					return "", err
				}
			}
			got, err := flight.Do(r, in)
			return got.Reference, err
		}, saga.Steps{flight}, nil)
		started, err := json.Marshal(map[string]any{"definition": "booking", "version": 1, "input": trip{"LIS"}, "deadlineMillis": deadline})
		require.NoError(t, err)
		write(t, store, messagestore.To("booking:saga-7", messagestore.NoStream, messagestore.Raw{Type: "Started", Data: started}))
		first, err := store.Last(t.Context(), "booking:saga-7")
		require.NoError(t, err)
		for _, forged := range []messagestore.Raw{{Type: one, Data: data}, {Type: two, Data: more}} {
			if _, err := store.Write(t.Context(), "booking:saga-7", messagestore.AnyVersion, forged); err != nil {
				t.Skip("the store refuses it")
			}
		}

		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		o := operator(t, store)
		for range 3 {
			_ = s.Turn(ctx, first, 0)
			if status, err := s.Status(ctx, "7"); err == nil {
				require.NotContains(t, status.Reason, "panic")
				if deadline > 0 && one != "SetBack" && two != "SetBack" {
					require.False(t, status.Deadline.Before(status.Started), status.Deadline)
				}
			}
		}
		for entry, err := range o.History(ctx, "7") {
			if err == nil {
				require.NotNil(t, entry.Message)
			}
		}
		for status, err := range o.List(ctx) {
			require.True(t, err != nil || status.ID == "7")
		}
		_, err = o.Verify(ctx, nil)
		require.NoError(t, err)
		require.NoError(t, ctx.Err())
	})
}
