package operate_test

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/dibs-go/dibs/internal/testkit"
	"github.com/dibs-go/dibs/logger"
	"github.com/dibs-go/dibs/messagestore"
	"github.com/dibs-go/dibs/messagestore/memory"
	"github.com/dibs-go/dibs/operate"
	"github.com/dibs-go/dibs/queue/cron"
)

func TestAScheduleIsRunNowOnceHoweverOftenItIsAsked(t *testing.T) {
	t.Parallel()
	store := testkit.Must(messagestore.New(memory.New(), &messagestore.Config{Logger: logger.Silent()}))
	schedules := testkit.Must(cron.New(store, "report", nil))
	require.NoError(t, schedules.Set(t.Context(), cron.Schedule{Name: "daily", Spec: "0 6 * * *", Body: messagestore.Raw{Type: "Report", Data: []byte(`{"to":"boss"}`)}}))
	before := testkit.Do(schedules.Status(t.Context()))(t)[0]

	act := operate.Act{Do: "run", On: operate.OnSchedule, Category: "report", Name: "daily"}
	act.ID = testkit.Do(act.Preview(t.Context(), store))(t).Seen
	for _, reason := range []string{"it is needed", "it is needed", "in another tab"} {
		require.Equal(t, 1, testkit.Do(act.Run(t.Context(), store, "ann", &operate.ChangeOpts{Reason: reason}))(t))
	}
	stream := messagestore.Category("report").Stream("daily")
	m := testkit.Do(store.Last(t.Context(), stream))(t)
	require.Equal(t, messagestore.Version(0), m.Position, "one item")
	require.Equal(t, "Report", m.Type)
	require.JSONEq(t, `{"to":"boss"}`, string(m.Data))
	require.JSONEq(t, `"ann: it is needed"`, string(m.Metadata.Extra["runBy"]))
	_, tick := cron.TickOf(m)
	require.False(t, tick)
	require.Equal(t, before.Next, testkit.Do(schedules.Status(t.Context()))(t)[0].Next.Truncate(time.Second), "the ticks stay")

	testkit.Do(store.Write(t.Context(), stream, messagestore.AnyVersion, messagestore.Raw{Type: "Report", Data: []byte(`{}`)}))(t)
	seen := act
	seen.ID = "0" // and another item came since
	_, err := seen.Run(t.Context(), store, "ann", nil)
	require.ErrorIs(t, err, messagestore.ErrVersionConflict)

	act.ID = "x"
	_, err = act.Run(t.Context(), store, "ann", nil)
	require.ErrorIs(t, err, messagestore.ErrInvalid)
	act.Name = "none"
	_, err = act.Preview(t.Context(), store)
	require.ErrorIs(t, err, messagestore.ErrNotFound)
}
