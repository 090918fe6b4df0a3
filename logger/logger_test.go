package logger_test

import (
	"bytes"
	"context"
	"errors"
	"io"
	"log/slog"
	"os"
	"path/filepath"
	"testing"

	"github.com/rs/zerolog"
	"github.com/stretchr/testify/require"

	"github.com/dibs-go/dibs/logger"
)

func TestASilentLoggerDropsAll(t *testing.T) {
	t.Parallel()
	for _, l := range []logger.Logger{logger.Silent(), logger.Slog(nil)} {
		require.Nil(t, l.Debug())
		require.Nil(t, l.Error())
		l.Error().Str("a", "b").Err(errors.New("c")).Msg("nothing happens")
	}
}

//nolint:paralleltest // it replaces standard error
func TestTheZeroLoggerWarnsOnStandardError(t *testing.T) {
	file, err := os.Create(filepath.Join(t.TempDir(), "stderr"))
	require.NoError(t, err)
	defer file.Close()
	before := os.Stderr
	os.Stderr = file
	defer func() { os.Stderr = before }()

	var l logger.Logger
	require.Nil(t, l.Debug())
	require.Nil(t, l.Info())
	l.Warn().Str("stream", "account-1").Msg("key reused")
	l.Error().Msg("stopped")

	text, err := os.ReadFile(file.Name())
	require.NoError(t, err)
	require.Regexp(t, `^20\S+ WRN key reused stream=account-1\n20\S+ ERR stopped\n$`, string(text))
}

func TestASilentLoggerAllocatesNothing(t *testing.T) {
	var zero logger.Logger
	quiet := logger.Zerolog(zerolog.New(&bytes.Buffer{}).Level(zerolog.WarnLevel))
	handler := logger.Slog(slog.NewTextHandler(&bytes.Buffer{}, &slog.HandlerOptions{Level: slog.LevelWarn}))
	for _, l := range []logger.Logger{zero, logger.Silent(), quiet, handler} {
		require.Zero(t, testing.AllocsPerRun(100, func() { l.Debug().Str("stream", "account-1").Int64("version", 3).Msg("write") }))
	}
}

func TestZerologReceivesEventsOfItsLevel(t *testing.T) {
	t.Parallel()
	var out bytes.Buffer
	l := logger.Zerolog(zerolog.New(&out).Level(zerolog.InfoLevel))

	l.Debug().Msg("not this")
	l.Info().Str("stream", "account-1").Msg("this")

	require.JSONEq(t, `{"level":"info","stream":"account-1","message":"this"}`, out.String())
}

// A remembering handler keeps its records.
type remembering struct {
	slog.Handler
	least   slog.Level
	records []slog.Record
}

func (h *remembering) Enabled(_ context.Context, level slog.Level) bool { return level >= h.least }

func (h *remembering) Handle(_ context.Context, r slog.Record) error {
	h.records = append(h.records, r)
	return nil
}

func TestSlogReceivesLevelMessageAndAttributesInOrder(t *testing.T) {
	t.Parallel()
	h := &remembering{least: slog.LevelDebug}
	l := logger.Slog(h)

	l.Debug().Str("zebra", "a \"quoted\" name").Int64("big", 1<<62+1).Bool("ok", true).Float64("share", 0.5).Strs("list", []string{"x", "y"}).Msg("first")
	l.Info().Msg("second")
	l.Warn().Err(errors.New("it broke\nhere")).Msg("third")
	l.Error().Send()
	l.Warn().Int("n", 1).Msg("fifth")

	type event struct {
		level      slog.Level
		message    string
		attributes []slog.Attr
	}
	var events []event
	for _, r := range h.records {
		e := event{level: r.Level, message: r.Message}
		require.False(t, r.Time.IsZero())
		r.Attrs(func(a slog.Attr) bool {
			e.attributes = append(e.attributes, a)
			return true
		})
		events = append(events, e)
	}
	require.Equal(t, []event{
		{slog.LevelDebug, "first", []slog.Attr{
			slog.String("zebra", "a \"quoted\" name"), slog.Int64("big", 1<<62+1), slog.Bool("ok", true), slog.Float64("share", 0.5),
			slog.Any("list", []any{"x", "y"}),
		}},
		{slog.LevelInfo, "second", nil},
		{slog.LevelWarn, "third", []slog.Attr{slog.String("error", "it broke\nhere")}},
		{slog.LevelError, "", nil},
		{slog.LevelWarn, "fifth", []slog.Attr{slog.Int64("n", 1)}},
	}, events)
}

// The level of a handler may change while it is used.
func TestSlogHonoursEnabled(t *testing.T) {
	t.Parallel()
	h := &remembering{least: slog.LevelWarn}
	l := logger.Slog(h)
	l.Info().Msg("dropped")
	require.Empty(t, h.records)

	h.least = slog.LevelInfo
	l.Info().Msg("kept")
	l.Debug().Msg("dropped")

	require.Len(t, h.records, 1)
	require.Equal(t, "kept", h.records[0].Message)
}

func Example() {
	handler := slog.NewTextHandler(os.Stdout, &slog.HandlerOptions{ReplaceAttr: func(_ []string, a slog.Attr) slog.Attr {
		if a.Key == slog.TimeKey {
			return slog.Attr{}
		}
		return a
	}})
	l := logger.Slog(handler)
	l.Info().Str("stream", "account-123").Int("version", 7).Msg("write")
	// Output: level=INFO msg=write stream=account-123 version=7
}

type brokenHandler struct{ slog.Handler }

func (brokenHandler) Handle(context.Context, slog.Record) error { panic("broken") }

func TestASlogHandlerThatPanicsHarmsNoCaller(t *testing.T) {
	t.Parallel()
	log := logger.Slog(brokenHandler{slog.NewTextHandler(io.Discard, nil)})

	require.NotPanics(t, func() { log.Warn().Msg("written") })
}
