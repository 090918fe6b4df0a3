package dibs

import (
	"net/url"
	"path"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/dibs-go/dibs/internal/testkit"
	"github.com/dibs-go/dibs/messagestore"
)

// The schema is read as net/url reads it, and every other byte of the URL stays.
func FuzzTheSchemaIsCutOutOfAURL(f *testing.F) {
	for _, seed := range []string{
		"postgres://u:canary@h/d?schema=a", "postgres://h/d?a=1&schema=a%5Fb&b=2", "postgres://h/d?schema=a&schema=b", "postgres://h/d?schema=", "postgres://h/d?schema=%zz",
		"postgres://h/d?Schema=a", "postgres://h/d?sch%65ma=a", "postgres://h/d?schema=a+b", "postgres://h/d?", "postgres://h/d?&&schema=a&", "postgres://h/d?schema=a;b", "postgres://h/d?x?schema=a",
	} {
		f.Add(seed)
	}
	f.Add("postgres://h/d?schema=a&schema=") // twice and empty
	f.Fuzz(func(t *testing.T, storeURL string) {
		without, schema, err := cutSchema(storeURL)
		if err != nil {
			require.ErrorIs(t, err, messagestore.ErrInvalid)
			require.Less(t, len(err.Error()), 100, "the URL is not in it")
			return
		}
		before, query, _ := strings.Cut(storeURL, "?")
		var kept, named []string
		for parameter := range strings.SplitSeq(query, "&") {
			if name, value, _ := strings.Cut(parameter, "="); name == "schema" {
				named = append(named, value)
			} else {
				kept = append(kept, parameter)
			}
		}
		require.LessOrEqual(t, len(named), 1)
		if len(named) == 0 {
			require.Equal(t, storeURL, without)
			require.Empty(t, schema)
			return
		}
		if len(kept) == 0 {
			require.Equal(t, before, without)
		} else {
			require.Equal(t, before+"?"+strings.Join(kept, "&"), without)
		}
		values, err := url.ParseQuery("schema=" + strings.ReplaceAll(named[0], ";", "%3B"))
		require.NoError(t, err)
		require.Equal(t, values.Get("schema"), schema)
		require.NotEmpty(t, schema)
	})
}

func FuzzThePathOfASQLiteURL(f *testing.F) {
	for _, seed := range []string{"sqlite:messages.db", "sqlite:///a/b", "sqlite://a/b", "sqlite:", "sqlite://", "sqlite:////a", "sqlite:/a?mode=memory", "sqlite:a#b%20", "sqlite:\x00"} {
		f.Add(strings.TrimPrefix(seed, "sqlite:"))
	}
	for _, name := range testkit.SeedNames() {
		f.Add(name)
	}
	f.Fuzz(func(t *testing.T, rest string) {
		found, err := sqlitePath(rest)
		if err != nil {
			require.ErrorIs(t, err, messagestore.ErrInvalid)
			require.Less(t, len(err.Error()), 200)
			require.Empty(t, found)
			return
		}
		require.NotEmpty(t, found)
		require.True(t, strings.HasSuffix(rest, found), "no byte of it means anything else")
		cut := strings.TrimSuffix(rest, found)
		require.Contains(t, []string{"", "//"}, cut)
		require.Equal(t, cut == "//", strings.HasPrefix(rest, "//"))
		if cut == "//" {
			require.True(t, path.IsAbs(found))
		}
	})
}

// A text without one of the four schemes opens nothing, and no error shows it.
func FuzzWhatIsNoStoreURLOpensNothing(f *testing.F) {
	for _, seed := range []string{"", "canary", "mysql://u:canary@h/d", "memory:canary", "MEMORY:", "memory", "file:canary", "\x00canary:", "sqlite", "https://canary", strings.Repeat("canary", 1000)} {
		f.Add(seed)
	}
	for _, name := range testkit.SeedNames() {
		f.Add(name)
	}
	f.Fuzz(func(t *testing.T, storeURL string) {
		scheme, rest, _ := strings.Cut(strings.ToLower(storeURL), ":")
		switch scheme {
		case "postgres", "postgresql", "sqlite":
			return // they open files and servers
		}
		store, err := Open(t.Context(), storeURL, nil)
		if scheme == "memory" && rest == "" && strings.Contains(storeURL, ":") {
			require.NoError(t, err)
			require.NoError(t, store.Close())
			return
		}
		require.Nil(t, store)
		require.ErrorIs(t, err, messagestore.ErrInvalid)
		require.NotContains(t, err.Error(), "canary")
		require.Less(t, len(err.Error()), 200)
	})
}
