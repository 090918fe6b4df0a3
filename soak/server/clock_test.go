package server

import (
	"context"
	"slices"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/stretchr/testify/require"
)

func TestTheClockOfAServerJumpsAndBack(t *testing.T) {
	_, err := FakeClock() // make test/soak installs it
	require.NoError(t, err)
	keeper, _ := start(t)
	p, err := NewPostgres(t.Context(), keeper.Dir(), "faked", &PostgresConfig{Clock: true})
	require.NoError(t, err)
	conn, err := pgx.Connect(t.Context(), p.URL("postgres"))
	require.NoError(t, err)
	defer func() { require.NoError(t, conn.Close(t.Context())) }()
	for _, off := range []time.Duration{time.Hour, -time.Hour, 0} {
		require.NoError(t, p.SetClock(off))
		var now time.Time
		require.NoError(t, conn.QueryRow(t.Context(), "select clock_timestamp()").Scan(&now))
		require.WithinDuration(t, time.Now().Add(off), now, time.Minute)
	}
}

// A crash is told when it is met, and again when the server answers.
func TestACrashOfAServerIsTold(t *testing.T) {
	keeper, _ := start(t)
	p, err := NewPostgres(t.Context(), keeper.Dir(), "crashing", &PostgresConfig{Clock: true})
	require.NoError(t, err)
	require.NoError(t, p.SetClock(time.Hour))
	ctx, cancel := context.WithCancel(t.Context())
	told, done := make(chan string, 2), make(chan error)
	go func() {
		done <- p.Crashes(ctx, func() (up func()) {
			told <- "down"
			return func() { told <- "up" }
		})
	}()
	watches := func() bool {
		return slices.ContainsFunc(p.Backends(), func(b Backend) bool { return b.Kind == ClientBackend })
	}
	require.Eventually(t, watches, 20*time.Second, 10*time.Millisecond)

	require.NoError(t, p.RealClock(t.Context()))
	require.Equal(t, "down", <-told)
	require.Equal(t, "up", <-told)
	conn, err := pgx.Connect(t.Context(), p.URL("postgres"))
	require.NoError(t, err)
	defer func() { require.NoError(t, conn.Close(t.Context())) }()
	var now time.Time
	require.NoError(t, conn.QueryRow(t.Context(), "select clock_timestamp()").Scan(&now))
	require.WithinDuration(t, time.Now(), now, time.Minute)
	cancel()
	require.NoError(t, <-done)
}

func TestTheClockOfAServerStands(t *testing.T) {
	keeper, _ := start(t)
	p, err := NewPostgres(t.Context(), keeper.Dir(), "frozen", &PostgresConfig{Clock: true})
	require.NoError(t, err)
	conn, err := pgx.Connect(t.Context(), p.URL("postgres"))
	require.NoError(t, err)
	defer func() { require.NoError(t, conn.Close(t.Context())) }()
	at := time.Now().Add(-time.Hour).Truncate(time.Second)
	require.NoError(t, p.FreezeClock(at))
	for range 3 {
		time.Sleep(10 * time.Millisecond) // and not pg_sleep, which waits for that clock
		var now time.Time
		require.NoError(t, conn.QueryRow(t.Context(), "select clock_timestamp()").Scan(&now))
		require.True(t, at.Equal(now), "%v is not %v", now, at)
	}
}
