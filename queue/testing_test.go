package queue_test

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/dibs-go/dibs/handler"
	"github.com/dibs-go/dibs/messagestore"
	"github.com/dibs-go/dibs/messagestore/memory"
	"github.com/dibs-go/dibs/queue"
)

// Letter is an item of the queue.
type Letter struct{ To string }

func (Letter) MessageType() string { return "Letter" }

func TestALetterIsSentWhenTheMailServerIsBack(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store, err := messagestore.New(memory.New(), nil)
		require.NoError(t, err)
		letters, err := queue.New(store, "mail", nil)
		require.NoError(t, err)
		back := time.Now().Add(time.Minute)
		var sent []string
		mux := handler.New()
		handler.On(mux, func(_ context.Context, m handler.Message[Letter]) error {
			switch {
			case m.Body.To == "nobody":
				return handler.Refuse(errors.New("no such address"))
			case time.Now().Before(back):
				return errors.New("the mail server is down")
			}
			sent = append(sent, m.Body.To)
			return nil
		})
		ctx, stop := context.WithCancel(t.Context())
		ended := make(chan error, 1)
		go func() { ended <- letters.Work(ctx, mux, nil) }()

		for _, to := range []string{"ann", "nobody"} {
			_, err = letters.Insert(ctx, Letter{to}, &queue.InsertOpts{Key: to})
			require.NoError(t, err)
		}
		time.Sleep(5 * time.Minute) // takes no time: the workers do what they do meanwhile

		stop()
		require.NoError(t, <-ended)
		require.Equal(t, []string{"ann"}, sent)
		dead, err := letters.Items(t.Context(), queue.Dead, 0, 10)
		require.NoError(t, err)
		require.Len(t, dead, 1)
		require.Contains(t, dead[0].Error, "no such address")
	})
}
