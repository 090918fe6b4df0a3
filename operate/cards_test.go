package operate_test

import (
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/dibs-go/dibs/internal/testkit"
	"github.com/dibs-go/dibs/logger"
	"github.com/dibs-go/dibs/messagestore"
	"github.com/dibs-go/dibs/messagestore/memory"
	"github.com/dibs-go/dibs/operate"
)

func changesOf(t *testing.T, store *messagestore.Store) (all []string) {
	t.Helper()
	for _, c := range testkit.Do(operate.CardHistory(t.Context(), store, 100))(t) {
		all = append(all, fmt.Sprint(c.Change, " ", c.Name, " ", c.What, " ", c.Count))
	}
	return all
}

func TestCardsAreRaisedGetWorseAndAreResolvedOnce(t *testing.T) {
	t.Parallel()
	store := testkit.Must(messagestore.New(memory.New(), &messagestore.Config{Logger: logger.Silent()}))
	raised := time.Date(2030, 1, 1, 0, 0, 0, 0, time.UTC)
	now := raised
	record := func(want int, healths ...operate.Health) {
		t.Helper()
		require.Equal(t, want, testkit.Do(operate.RecordCards(t.Context(), store, healths, now))(t))
		require.Zero(t, testkit.Do(operate.RecordCards(t.Context(), store, healths, now))(t), "nothing has changed")
		now = now.Add(time.Minute)
	}
	mail := func(causes ...operate.Cause) operate.Health {
		return operate.Health{Kind: operate.AQueue, Category: "mail", Name: "mail", Causes: causes}
	}
	require.Zero(t, testkit.Do(operate.RecordCards(t.Context(), store, []operate.Health{mail()}, now))(t))
	require.Empty(t, changesOf(t, store))
	dead := func(n int64) operate.Cause { return operate.Cause{What: "dead", Count: n} }
	record(1, mail(dead(3)))
	record(0, mail(dead(5)))
	record(0, mail(dead(2)))
	record(2, mail(dead(6), operate.Cause{What: "paused"}))
	record(1, mail(dead(7), operate.Cause{What: "paused", Fails: true}))
	record(1, mail(dead(11)))
	record(1)
	require.Equal(t, []string{
		"CardResolved mail dead 6", "CardResolved mail paused 0", "CardGotWorse mail paused 0",
		"CardRaised mail paused 0", "CardGotWorse mail dead 6", "CardRaised mail dead 3",
	}, changesOf(t, store))
	require.Equal(t, raised, testkit.Do(operate.CardHistory(t.Context(), store, 1))(t)[0].Raised)

	// What another client has written there is nothing that was raised.
	testkit.Do(store.Write(t.Context(), operate.CardCategory.Stream("cards"), messagestore.AnyVersion, messagestore.Raw{Type: "Other", Data: []byte(`{"open":7}`)}))(t)
	record(1, mail(dead(1)))
	require.Len(t, changesOf(t, store), 7)
}

func TestPagesRecordAChangeTogetherOnce(t *testing.T) {
	t.Parallel()
	store := testkit.Must(messagestore.New(memory.New(), &messagestore.Config{Logger: logger.Silent()}))
	health := []operate.Health{{Kind: operate.AQueue, Category: "mail", Name: "mail", Causes: []operate.Cause{{What: "dead", Count: 1}}}}
	const pages = 8
	ended := make(chan error, pages)
	start := make(chan struct{})
	for range pages {
		go func() {
			<-start
			_, err := operate.RecordCards(t.Context(), store, health, time.Now())
			ended <- err
		}()
	}
	close(start)
	var all error
	for range pages {
		all = errors.Join(all, testkit.Receive(t, "a page", ended))
	}
	require.NoError(t, all)
	require.Len(t, changesOf(t, store), 1)
}
