package dibs_test

import (
	"context"
	"fmt"
	"net/url"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/stretchr/testify/require"

	"github.com/dibs-go/dibs"
	"github.com/dibs-go/dibs/internal/pgtest"
	"github.com/dibs-go/dibs/messagestore"
)

func ExampleOpen() {
	ctx := context.Background()
	store, err := dibs.Open(ctx, "memory:", nil)
	if err != nil {
		panic(err)
	}
	defer store.Close()

	_, err = store.Write(ctx, "account-123", messagestore.NoStream, messagestore.Raw{Type: "Opened", Data: []byte(`{}`)})
	if err != nil {
		panic(err)
	}
	fmt.Println(store.Version(ctx, "account-123"))
	// Output: 0 <nil>
}

func TestEveryURLOpensAStoreThatKeepsMessages(t *testing.T) {
	t.Parallel()
	file := filepath.Join(t.TempDir(), "messages.db")
	for name, storeURL := range map[string]string{
		"memory":          "memory:",
		"sqlite":          "sqlite:" + file,
		"sqlite absolute": "sqlite://" + file + "2",
		"upper case":      "SQLite:" + file + "3",
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			requireWorks(t, storeURL)
		})
	}
}

func TestPostgresURLChoosesTheSchema(t *testing.T) {
	t.Parallel()
	_, schema := pgtest.SchemaInShared(t)
	server := postgresURL(t)

	requireWorks(t, withParameter(server, "schema="+schema))

	conn, err := pgx.Connect(t.Context(), server)
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, conn.Close(context.WithoutCancel(t.Context()))) })
	var n int
	require.NoError(t, conn.QueryRow(t.Context(), "select count(*) from "+schema+".messages").Scan(&n))
	require.Equal(t, 1, n)
}

func TestPostgresURLWithoutASchemaTakesTheDefault(t *testing.T) {
	t.Parallel()
	pgtest.Pool(t)
	requireWorks(t, postgresURL(t))
}

func TestWhatIsNoStoreURLIsRefused(t *testing.T) {
	t.Parallel()
	for _, storeURL := range []string{
		"", "messages.db", "mysql://u:canary@h/d", "memory:x", "sqlite:", "sqlite://", "sqlite://folder/file", "sqlite:a.db?mode=ro", "sqlite:///a.db?schema=other", "sqlite:?", "postgres",
		"postgres://u:canary@h/d?schema=", "postgres://u:canary@h/d?schema=a&schema=b", "postgres://u:canary@h/d?schema=%zz",
		"postgres://u:canary@h/d?schema=a%22b", "postgres://u:canary@h/d?schema=pg_catalog", "postgres://u:canary@h:port/d",
		"postgres://u:canary@@h%/d", "postgres://u:ca nary@h/d\x00", "://", "\x00", strings.Repeat("canary", 1000),
	} {
		store, err := dibs.Open(t.Context(), storeURL, nil)

		require.ErrorIs(t, err, messagestore.ErrInvalid, "%q", storeURL)
		require.Nil(t, store)
		require.Regexp(t, "^open: invalid ", err, "%q", storeURL)
		requireNoCanary(t, err)
	}
}

func TestNoErrorShowsThePassword(t *testing.T) {
	t.Parallel()
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
	defer cancel()

	_, err := dibs.Open(ctx, "postgres://u:canary@127.0.0.1:1/d?sslmode=disable", nil)

	require.Error(t, err)
	requireNoCanary(t, err)
	require.Regexp(t, "^open: [^o]", err, "it is said once that a store was opened")
}

// requireNoCanary looks at all that a logger might.
func requireNoCanary(t *testing.T, err error) {
	t.Helper()
	for _, format := range []string{"%v", "%+v", "%#v", "%q"} {
		for e := err; e != nil; {
			require.NotContains(t, fmt.Sprintf(format, e), "canary")
			unwrapper, ok := e.(interface{ Unwrap() error })
			if !ok {
				break
			}
			e = unwrapper.Unwrap()
		}
	}
}

func requireWorks(t *testing.T, storeURL string) {
	t.Helper()
	store, err := dibs.Open(t.Context(), storeURL, nil)
	require.NoError(t, err)
	defer func() { require.NoError(t, store.Close()) }()

	stream := messagestore.Category(strings.ReplaceAll(t.Name(), "/", "_")).Stream(fmt.Sprint(time.Now().UnixNano()))
	_, err = store.Write(t.Context(), stream, messagestore.NoStream, messagestore.Raw{Type: "Opened", Data: []byte(`{}`)})
	require.NoError(t, err)
	version, err := store.Version(t.Context(), stream)
	require.NoError(t, err)
	require.Equal(t, messagestore.Version(0), version)
}

// postgresURL returns the test server's URL, which need not be given as one.
func postgresURL(t *testing.T) string {
	t.Helper()
	server := pgtest.URL(t)
	if strings.Contains(server, "://") {
		return server
	}
	config, err := pgx.ParseConfig(server)
	require.NoError(t, err)
	u := url.URL{Scheme: "postgres", User: url.UserPassword(config.User, config.Password), Path: "/" + config.Database}
	u.RawQuery = url.Values{"host": {config.Host}, "port": {fmt.Sprint(config.Port)}}.Encode()
	return u.String()
}

func withParameter(storeURL, parameter string) string {
	separator := "?"
	if strings.Contains(storeURL, "?") {
		separator = "&"
	}
	return storeURL + separator + parameter
}
