package archtest

import (
	"bytes"
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"regexp"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/rs/zerolog"

	"github.com/dibs-go/dibs/consumer"
	"github.com/dibs-go/dibs/entity"
	"github.com/dibs-go/dibs/handler"
	"github.com/dibs-go/dibs/inbox"
	"github.com/dibs-go/dibs/internal/pgtest"
	"github.com/dibs-go/dibs/internal/testkit"
	"github.com/dibs-go/dibs/logger"
	"github.com/dibs-go/dibs/messagestore"
	"github.com/dibs-go/dibs/messagestore/memory"
	"github.com/dibs-go/dibs/messagestore/postgres"
	"github.com/dibs-go/dibs/reservation"
)

var update = flag.Bool("update", false, "write the lists of docs/mistakes.md anew")

// A hold is a command of the mistakes.
type hold struct {
	Key string `json:"key"`
}

func (hold) MessageType() string { return "Hold" }

type held struct{}

func (held) MessageType() string { return "Held" }

type freed struct{}

func (freed) MessageType() string { return "Freed" }

type hidden struct{ key string }

func (hidden) MessageType() string { return "Hidden" }

const (
	seats    messagestore.Category = "seat"
	commands messagestore.Category = "seat:command"
)

func newStore() *messagestore.Store { return testkit.Must(messagestore.New(memory.New(), nil)) }

func write(t *testing.T, store *messagestore.Store, stream messagestore.StreamName, bodies ...messagestore.Body) *messagestore.Message {
	t.Helper()
	if _, err := store.Write(t.Context(), stream, messagestore.AnyVersion, bodies...); err != nil {
		t.Fatal(err)
	}
	m, err := store.Last(t.Context(), stream)
	if err != nil {
		t.Fatal(err)
	}
	return m
}

func key(h hold) string { return h.Key }

func nothing(context.Context, handler.Message[hold]) error { return nil }

// logged returns the lines at warn or error of a consumer that catches up, and its error.
func logged(t *testing.T, store *messagestore.Store, category messagestore.Category, h consumer.Handler, config *consumer.Config) string {
	t.Helper()
	var lines logLines
	if config == nil {
		config = &consumer.Config{}
	}
	config.Logger = lines.logger()
	c, err := consumer.New(store, category, "seats", h, config)
	if err == nil {
		err = c.CatchUp(t.Context())
	}
	if err != nil {
		return err.Error()
	}
	return lines.message()
}

type logLines struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (l *logLines) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.Write(p)
}

func (l *logLines) logger() logger.Logger {
	return logger.Zerolog(zerolog.New(l).Level(zerolog.WarnLevel))
}

var message = regexp.MustCompile(`"message":"([^"]*)"`)

// message returns the text of the last line.
func (l *logLines) message() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	all := message.FindAllStringSubmatch(l.b.String(), -1)
	if len(all) == 0 {
		return ""
	}
	return all[len(all)-1][1]
}

// A mistake is one of the page, and what is said of it.
type mistake struct {
	name string
	said func(t *testing.T) error
}

func text(s string) error {
	if s == "" {
		return nil
	}
	return errors.New(s)
}

// mistakes are those of a first week, in the order of the page.
var mistakes = []struct {
	title string
	all   []mistake
}{
	{"Something is missing", []mistake{
		{"a store over no driver", func(t *testing.T) error {
			t.Helper()
			_, err := messagestore.New(nil, nil)
			return err
		}},
		{"a driver over no pool", func(t *testing.T) error {
			t.Helper()
			_, err := postgres.New((*pgxpool.Pool)(nil), nil)
			return err
		}},
		{"no context", func(*testing.T) error {
			_, err := newStore().Version(nil, "seat-1") //nolint:staticcheck // it is the mistake
			return err
		}},
		{"a message that follows none", func(t *testing.T) error {
			t.Helper()
			_, err := newStore().Write(t.Context(), "seat-1", messagestore.AnyVersion, messagestore.Follow(nil, held{}))
			return err
		}},
		{"a handler function that is nil", func(*testing.T) error {
			mux := handler.New()
			handler.On[hold](mux, nil)
			return mux.Validate()
		}},
		{"`Copy` or `Inline` without a reserver", func(*testing.T) error {
			mux := handler.New()
			handler.Register(mux, reservation.Copy(nil, key, nothing))
			return mux.Validate()
		}},
		{"`Copy` or `Inline` without a key", func(*testing.T) error {
			mux := handler.New()
			handler.Register(mux, reservation.Copy(testkit.Must(reservation.New(newStore(), "seats", nil)), nil, nothing))
			return mux.Validate()
		}},
		{"a consumer without a handler", func(*testing.T) error {
			_, err := consumer.New(newStore(), seats, "seats", nil, nil)
			return err
		}},
		{"an inbox without a store", func(*testing.T) error {
			_, err := inbox.New[int](nil, "seat", nil)
			return err
		}},
	}},
	{"Writing", []mistake{
		{"the expected version is forgotten", func(t *testing.T) error {
			t.Helper()
			_, err := newStore().WriteStreams(t.Context(), messagestore.StreamWrite{Stream: "seat-1", Bodies: []messagestore.Body{held{}}})
			return err
		}},
		{"a body whose fields are all unexported", func(t *testing.T) error {
			t.Helper()
			_, err := newStore().Write(t.Context(), "seat-1", messagestore.AnyVersion, hidden{"k1"})
			return err
		}},
		{"a dash in a category", func(t *testing.T) error {
			t.Helper()
			_, err := newStore().Write(t.Context(), messagestore.Category("my-seat").Stream("1"), messagestore.AnyVersion, held{})
			return err
		}},
		{"the pool was closed", func(t *testing.T) error {
			t.Helper()
			pool, err := pgxpool.New(t.Context(), pgtest.URL(t))
			if err != nil {
				return err
			}
			pool.Close()
			_, err = testkit.Must(messagestore.New(testkit.Must(postgres.New(pool, nil)), nil)).Write(t.Context(), "seat-1", messagestore.AnyVersion, held{})
			return err
		}},
		{"the user may only read", func(t *testing.T) error {
			t.Helper()
			_, err := testkit.Must(messagestore.New(testkit.Must(postgres.New(pgtest.PoolAs(t, "dibs_reader"), nil)), nil)).Write(t.Context(), "seat-1", messagestore.AnyVersion, held{})
			return err
		}},
		{"a write through the pool, beside an open transaction of the caller's that wrote", func(t *testing.T) error {
			t.Helper()
			pool := pgtest.Connect(t, pgtest.Migrated(t))
			if _, err := pool.Exec(t.Context(), "alter function dibs.wait_for_category set lock_timeout = '50ms'"); err != nil {
				return err
			}
			tx, err := pool.Begin(t.Context())
			if err != nil {
				return err
			}
			defer func() { _ = tx.Rollback(context.Background()) }()
			const category = messagestore.Category("mistakeInner")
			if _, err := testkit.Must(messagestore.New(testkit.Must(postgres.New(tx, nil)), nil)).Write(t.Context(), category.Stream("1"), messagestore.AnyVersion, held{}); err != nil {
				return err
			}
			_, err = testkit.Must(messagestore.New(testkit.Must(postgres.New(pool, nil)), nil)).Write(t.Context(), category.Stream("2"), messagestore.AnyVersion, held{})
			return err
		}},
		{"a write through a pool of one connection, which an open transaction of the caller's has", func(t *testing.T) error {
			t.Helper()
			config := pgtest.Pool(t).Config()
			config.MaxConns = 1
			pool, err := pgxpool.NewWithConfig(t.Context(), config)
			if err != nil {
				return err
			}
			defer pool.Close()
			tx, err := pool.Begin(t.Context())
			if err != nil {
				return err
			}
			defer func() { _ = tx.Rollback(context.Background()) }()
			ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
			defer cancel()
			_, err = testkit.Must(messagestore.New(testkit.Must(postgres.New(pool, nil)), nil)).Write(ctx, "mistakeInner-1", messagestore.AnyVersion, held{})
			return err
		}},
		{"a write through the store in the function of Transact, over a pool of one connection", func(t *testing.T) error {
			t.Helper()
			config := pgtest.Pool(t).Config()
			config.MaxConns = 1
			pool, err := pgxpool.NewWithConfig(t.Context(), config)
			if err != nil {
				return err
			}
			defer pool.Close()
			txs, err := messagestore.Transactional[pgx.Tx](testkit.Must(messagestore.New(testkit.Must(postgres.New(pool, nil)), nil)))
			if err != nil {
				return err
			}
			_, err = txs.Transact(t.Context(), func(ctx context.Context, _ pgx.Tx) ([]messagestore.StreamWrite, error) {
				_, err := txs.Write(ctx, "mistakeInner-1", messagestore.AnyVersion, held{})
				return nil, err
			})
			return err
		}},
	}},
	{"Handlers and consumers", []mistake{
		{"a mux that is a zero value, and has no function", func(*testing.T) error {
			return new(handler.Mux).Validate()
		}},
		{"a type that no function is registered for, when its retries are over", func(t *testing.T) error {
			t.Helper()
			store, mux := newStore(), handler.New()
			handler.On(mux, nothing)
			write(t, store, "seat:command-1", held{})
			once := consumer.ErrorPolicy{Retry: consumer.Retry{For: consumer.NoRetry}}
			return text(logged(t, store, commands, mux, &consumer.Config{Errors: once}))
		}},
		{"data that does not decode", func(t *testing.T) error {
			t.Helper()
			store, mux := newStore(), handler.New()
			handler.On(mux, nothing)
			write(t, store, "seat:command-1", messagestore.Raw{Type: "Hold", Data: []byte(`{"key":5}`)})
			return text(logged(t, store, commands, mux, nil))
		}},
		{"a handler that writes to the category that it reads", func(t *testing.T) error {
			t.Helper()
			var lines logLines
			store, n := testkit.Must(messagestore.New(memory.New(), &messagestore.Config{Logger: lines.logger()})), 0
			mux := handler.New()
			once := testkit.Must(reservation.New(store, "seats", nil))
			handler.Register(mux, reservation.Inline(once, key, func(_ context.Context, m handler.Message[hold]) ([]messagestore.StreamWrite, error) {
				if n++; n > 20 {
					return nil, nil
				}
				return []messagestore.StreamWrite{messagestore.To(commands.Stream("2"), messagestore.AnyVersion, hold{fmt.Sprint("k", n)})}, nil
			}))
			write(t, store, "seat:command-1", hold{"k0"})
			logged(t, store, commands, mux, nil)
			return text(lines.message())
		}},
		{"a category that does not exist", func(t *testing.T) error {
			t.Helper()
			return text(logged(t, newStore(), "saet", handler.HandlerFunc(func(context.Context, *messagestore.Message) error { return nil }), nil))
		}},
		{"`OnlyKnown`, and no message of a type that the handler knows", func(t *testing.T) error {
			t.Helper()
			store := newStore()
			write(t, store, "seat-1", held{})
			mux := handler.New()
			handler.On(mux, nothing)
			return text(logged(t, store, seats, mux, &consumer.Config{OnlyKnown: true}))
		}},
		{"a `CatchUp` while another process runs the consumer", func(t *testing.T) error {
			t.Helper()
			store := newStore()
			write(t, store, "seat-1", held{})
			config := &consumer.Config{Logger: logger.Silent()}
			return testkit.Must(consumer.New(store, seats, "seats", handler.HandlerFunc(func(ctx context.Context, _ *messagestore.Message) error {
				return testkit.Must(consumer.New(store, seats, "seats", handler.HandlerFunc(func(context.Context, *messagestore.Message) error { return nil }), config)).CatchUp(ctx)
			}), config)).CatchUp(t.Context())
		}},
	}},
	{"Keys, entities and inboxes", []mistake{
		{"a reserver over another store than that of the consumer, when it starts", func(t *testing.T) error {
			t.Helper()
			mux := handler.New()
			handler.Register(mux, reservation.Copy(testkit.Must(reservation.New(newStore(), "seats", nil)), key, nothing))
			return text(logged(t, newStore(), commands, mux, nil))
		}},
		{"two reservers of one name in two consumers", func(t *testing.T) error {
			t.Helper()
			store := newStore()
			write(t, store, "seat:command-1", hold{"k1"})
			for _, name := range []string{"seats", "mailer"} {
				mux := handler.New()
				handler.Register(mux, reservation.Copy(testkit.Must(reservation.New(store, "shared", nil)), key, nothing))
				if err := testkit.Must(consumer.New(store, commands, name, mux, &consumer.Config{Logger: logger.Silent()})).CatchUp(t.Context()); err != nil {
					return err
				}
			}
			return nil
		}},
		{"a category of copies that no consumer reads", func(t *testing.T) error {
			t.Helper()
			store, mux := newStore(), handler.New()
			write(t, store, "seat:command-1", hold{"k1"})
			var lines logLines
			handler.Register(mux, reservation.Copy(testkit.Must(reservation.New(store, "seats", &reservation.Config{Logger: lines.logger()})), key, nothing))
			logged(t, store, commands, mux, nil)
			return text(lines.message())
		}},
		{"one reserver in two consumers", func(t *testing.T) error {
			t.Helper()
			store := newStore()
			once := testkit.Must(reservation.New(store, "shared", nil))
			write(t, store, "seat:command-1", hold{"k1"})
			for _, name := range []string{"seats", "mailer"} {
				mux := handler.New()
				handler.Register(mux, reservation.Copy(once, key, nothing))
				if err := testkit.Must(consumer.New(store, commands, name, mux, &consumer.Config{Logger: logger.Silent()})).CatchUp(t.Context()); err != nil {
					return err
				}
			}
			return nil
		}},
		{"an empty key", func(t *testing.T) error {
			t.Helper()
			store, mux := newStore(), handler.New()
			handler.Register(mux, reservation.Copy(testkit.Must(reservation.New(store, "seats", nil)), key, nothing))
			write(t, store, "seat:command-1", hold{})
			return text(logged(t, store, commands, mux, nil))
		}},
		{"`Reserve` of a message that is itself a reservation", func(t *testing.T) error {
			t.Helper()
			store := newStore()
			once := testkit.Must(reservation.New(store, "seats", nil))
			won, err := once.Reserve(t.Context(), write(t, store, "seat:command-1", hold{"k1"}), "k1")
			if err != nil {
				return err
			}
			_, err = once.Reserve(t.Context(), won.Winner, "k1")
			return err
		}},
		{"a key whose place another message has", func(t *testing.T) error {
			t.Helper()
			store := newStore()
			once := testkit.Must(reservation.New(store, "seats", nil))
			write(t, store, "seat:command+reservation+seats-1+k1", held{})
			_, err := once.Reserve(t.Context(), write(t, store, "seat:command-1", hold{"k1"}), "k1")
			return err
		}},
		{"an event that the projection does not know", func(t *testing.T) error {
			t.Helper()
			store := newStore()
			p := entity.NewProjection[bool]()
			entity.On(p, func(bool, held) bool { return true })
			write(t, store, "seat-1", held{}, freed{})
			_, _, err := testkit.Must(entity.New(store, seats, p, nil)).Get(t.Context(), "1")
			return err
		}},
	}},
}

var somewhere = regexp.MustCompile(`[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f-]{22}|test_[0-9a-z]+`)

// Each mistake of docs/mistakes.md is made, and its error is the one that the page shows.
func TestMistakesAreToldAsThePageShows(t *testing.T) {
	t.Parallel()
	const path, begin, end = "docs/mistakes.md", "<!-- made by TestMistakesAreToldAsThePageShows -->\n", "<!-- until here -->\n"
	page, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	before, rest, ok := strings.Cut(string(page), begin)
	shown, after, closed := strings.Cut(rest, end)
	if !ok || !closed {
		t.Fatalf("%s: its lists are not marked", path)
	}
	made := make([][]string, len(mistakes))
	t.Run("made", func(t *testing.T) {
		for i, group := range mistakes {
			made[i] = make([]string, len(group.all))
			for j, m := range group.all {
				t.Run(strings.ReplaceAll(m.name, "`", ""), func(t *testing.T) {
					t.Parallel()
					err := m.said(t)
					if err == nil {
						t.Error("nothing is said")
						return
					}
					said := somewhere.ReplaceAllString(strings.Join(strings.Fields(err.Error()), " "), "…")
					made[i][j] = fmt.Sprintf("- %s:\n  `%s`\n", m.name, said)
				})
			}
		}
	})
	if t.Failed() || os.Getenv("TEST_DATABASE_URL") == "" {
		return // without a server some mistakes cannot be made
	}
	var b strings.Builder
	for i, group := range mistakes {
		fmt.Fprintf(&b, "\n## %s\n\n%s", group.title, strings.Join(made[i], ""))
	}
	b.WriteString("\n")
	if *update {
		if err := os.WriteFile(path, []byte(before+begin+b.String()+end+after), 0o600); err != nil {
			t.Fatal(err)
		}
		return
	}
	if b.String() != shown {
		t.Errorf("%s does not show what is said: go test ./internal/archtest -run TestMistakes -update\n%s", path, b.String())
	}
}
