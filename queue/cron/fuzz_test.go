package cron_test

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/dibs-go/dibs/internal/testkit"
	"github.com/dibs-go/dibs/logger"
	"github.com/dibs-go/dibs/messagestore"
	"github.com/dibs-go/dibs/messagestore/memory"
	"github.com/dibs-go/dibs/queue/cron"
)

// Any writer of the store may have written any message of a schedule. It is a schedule that could have been set, or corrupt, and
// another is listed beside it.
func FuzzAForgedScheduleIsReadOrCorrupt(f *testing.F) {
	for _, seed := range [][2]string{
		{"Scheduled", `{"name":"bad","spec":"@daily","type":"Report","data":{},"from":"2026-01-01T00:00:00Z"}`},
		{"Scheduled", `{"name":"bad","spec":"@every 1ns","type":"Report","from":"0001-01-01T00:00:00Z"}`},
		{"Scheduled", `{"name":"bad","spec":"0 0 31 2 *","type":"Report","from":"9999-12-31T00:00:00Z"}`},
		{"Scheduled", `{"name":"bad","spec":"@daily","type":"Report","from":"-2026-01-01T00:00:00Z","overlap":"skip","queue":"x"}`},
		{"Scheduled", `{"name":"other","spec":7}`},
		{"Unscheduled", `7`},
		{"Skipped", `null`},
		{"Other", `[]`},
	} {
		f.Add(seed[0], []byte(seed[1]))
	}
	f.Fuzz(func(t *testing.T, of string, data []byte) {
		store := testkit.Must(messagestore.New(memory.New(), nil))
		c := testkit.Must(cron.New(store, "reports", &cron.Config{Logger: logger.Silent()}))
		require.NoError(t, c.Set(t.Context(), cron.Schedule{Name: "good", Spec: "@daily", Body: Report{"sales"}}))
		if _, err := store.Write(t.Context(), "reports:schedule-bad", messagestore.AnyVersion, messagestore.Raw{Type: of, Data: data}); err != nil {
			t.Skip("the store refuses it")
		}
		began := time.Now()

		all, err := c.List(t.Context())
		states, statusErr := c.Status(t.Context())

		require.Less(t, time.Since(began), 10*time.Second)
		names := map[string]bool{}
		for _, s := range all {
			names[s.Name] = true
		}
		require.True(t, names["good"])
		require.NotEmpty(t, states)
		if err != nil {
			require.ErrorIs(t, err, cron.ErrCorrupt)
			require.ErrorIs(t, statusErr, cron.ErrCorrupt)
			require.False(t, names["bad"])
		}
		if names["bad"] {
			for _, s := range all {
				if s.Name == "bad" {
					require.NoError(t, c.Set(t.Context(), s), "what is listed can be set")
				}
			}
		}
	})
}
