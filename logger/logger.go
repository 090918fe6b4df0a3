// Package logger has the type of every Logger field in Dibs. It wraps a zerolog logger or an slog
// handler:
//
//	messagestore.Config{Logger: logger.Zerolog(log.Logger)}
//	messagestore.Config{Logger: logger.Slog(slog.Default().Handler())}
//
// The zero value always writes warnings and errors to standard error, like [StandardError].
// [Silent] writes nothing.
package logger

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"log/slog"
	"os"
	"strings"
	"sync"
	"time"

	"github.com/rs/zerolog"
)

// A Logger receives events with names and numbers, never with messages' content. The zero value is
// [StandardError]. It is safe for concurrent use if its logger or handler is.
type Logger struct {
	zero    *zerolog.Logger
	handler slog.Handler // nil if events stay with zero
}

// Zerolog returns a Logger that writes to z, at z's level.
func Zerolog(z zerolog.Logger) Logger { return Logger{zero: &z} }

// Slog returns a Logger that gives each event to h as a record: its level, its message and its
// fields in their order. An error is an attribute named error. If h has not enabled a level, its
// events are not made. A nil handler drops all events.
func Slog(h slog.Handler) Logger {
	if h == nil {
		return Silent()
	}
	z := zerolog.New(records{h}).Level(zerolog.TraceLevel)
	return Logger{&z, h}
}

// Silent returns a Logger that drops all events.
func Silent() Logger { return Logger{zero: &silent} }

var silent = zerolog.Nop()

// StandardError returns a Logger for a person: it writes warnings and errors to standard error, one
// per line, with the time, and no colour. A stack follows on separate lines.
func StandardError() Logger { return standardError() }

var standardError = sync.OnceValue(func() Logger {
	return Zerolog(zerolog.New(zerolog.ConsoleWriter{
		Out: stderr{}, NoColor: true, TimeFormat: time.RFC3339,
		FieldsExclude: []string{Stack},
		FormatExtra: func(event map[string]any, line *bytes.Buffer) error {
			if stack, ok := event[Stack].(string); ok {
				line.WriteString("\n    " + strings.ReplaceAll(stack, "\n", "\n    "))
			}
			return nil
		},
	}).Level(zerolog.WarnLevel).With().Timestamp().Logger())
})

// stderr is [os.Stderr] at the time of each write.
type stderr struct{}

func (stderr) Write(line []byte) (int, error) { return os.Stderr.Write(line) }

// Stack is the name of the field that has the stack of a panic.
const Stack = "stack"

// IsZero reports whether l is the zero value.
func (l Logger) IsZero() bool { return l.zero == nil && l.handler == nil }

// An Event is a log event under construction. Its method Msg sends it.
type Event = zerolog.Event

// Debug begins an event that helps to find the cause of a failure.
func (l Logger) Debug() *zerolog.Event { return l.begin(zerolog.DebugLevel) }

// Info begins an event that is expected and rare.
func (l Logger) Info() *zerolog.Event { return l.begin(zerolog.InfoLevel) }

// Warn begins an event that an operator should know about, and that the program has handled.
func (l Logger) Warn() *zerolog.Event { return l.begin(zerolog.WarnLevel) }

// Error begins an event that needs an operator.
func (l Logger) Error() *zerolog.Event { return l.begin(zerolog.ErrorLevel) }

// begin returns nil if the event would be dropped; on nil, every method of an event does nothing.
func (l Logger) begin(level zerolog.Level) *zerolog.Event {
	if l.IsZero() {
		if level < zerolog.WarnLevel {
			return nil
		}
		l = StandardError()
	}
	switch {
	case level < l.zero.GetLevel():
		return nil
	case l.handler != nil && !l.handler.Enabled(context.Background(), slogLevel(level)):
		return nil
	}
	return l.zero.WithLevel(level) //nolint:zerologlint // the caller sends it
}

func slogLevel(level zerolog.Level) slog.Level {
	switch level {
	case zerolog.TraceLevel, zerolog.DebugLevel:
		return slog.LevelDebug
	case zerolog.WarnLevel:
		return slog.LevelWarn
	case zerolog.ErrorLevel, zerolog.FatalLevel, zerolog.PanicLevel:
		return slog.LevelError
	default:
		return slog.LevelInfo
	}
}

// records turns the lines that zerolog writes into records.
type records struct{ handler slog.Handler }

// Write implements [io.Writer], for events without a level.
func (r records) Write(line []byte) (int, error) { return r.WriteLevel(zerolog.NoLevel, line) }

// WriteLevel implements [zerolog.LevelWriter].
func (r records) WriteLevel(level zerolog.Level, line []byte) (n int, err error) {
	defer func() {
		if value := recover(); value != nil { // if a handler panics, the process goes on: zerolog reports it on standard error
			n, err = 0, fmt.Errorf("the slog handler panicked: %v", value)
		}
	}()
	message, attributes, err := parse(line)
	if err != nil {
		return 0, fmt.Errorf("an event for slog: %w", err)
	}
	record := slog.NewRecord(time.Now(), slogLevel(level), message, 0)
	record.AddAttrs(attributes...)
	return len(line), r.handler.Handle(context.Background(), record)
}

// parse splits an event into its message, which is the last field of that name, and the rest. It
// leaves out the level, which the record has.
func parse(line []byte) (message string, attributes []slog.Attr, err error) {
	decoder := json.NewDecoder(bytes.NewReader(line))
	decoder.UseNumber()
	if _, err := decoder.Token(); err != nil { // the opening brace
		return "", nil, err
	}
	for decoder.More() {
		key, err := decoder.Token()
		if err != nil {
			return "", nil, err
		}
		var value any
		if err := decoder.Decode(&value); err != nil {
			return "", nil, err
		}
		switch key {
		case zerolog.LevelFieldName:
		case zerolog.MessageFieldName:
			message = fmt.Sprint(value)
		default:
			attributes = append(attributes, slog.Any(fmt.Sprint(key), plain(value)))
		}
	}
	return message, attributes, nil
}

// plain returns a number as an int64 if it is one, or as a float64.
func plain(value any) any {
	n, ok := value.(json.Number)
	if !ok {
		return value
	}
	if i, err := n.Int64(); err == nil {
		return i
	}
	if f, err := n.Float64(); err == nil {
		return f
	}
	return n.String()
}
