package sqlite_test

import (
	"encoding/json"
	"net/url"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/uuid"
	"github.com/stretchr/testify/require"

	"github.com/dibs-go/dibs/internal/testkit"
	"github.com/dibs-go/dibs/messagestore"
	"github.com/dibs-go/dibs/messagestore/memory"
	"github.com/dibs-go/dibs/messagestore/sqlite"
)

// A path is all path in the URI that SQLite is given: nothing in it is a parameter.
func FuzzAPathIsOnlyAPath(f *testing.F) {
	for _, seed := range []string{"/a/messages.db", "/a b?mode=memory&_pragma=x#y%41%zz", "/\xff", "/é\u202e", "//host/a", "/a\\b", "/%00", "/a\nb", "/;'\"", "/" + strings.Repeat("x", 5000)} {
		f.Add(seed)
	}
	for _, name := range testkit.SeedNames() {
		f.Add("/" + name)
	}
	f.Fuzz(func(t *testing.T, path string) {
		if !strings.HasPrefix(path, "/") || strings.ContainsRune(path, 0) {
			return // checkPath makes it so
		}
		u := testkit.Do(url.Parse(sqlite.DataSource(filepath.Clean(path), "a=b", "c(d)")))(t)
		require.Equal(t, "file", u.Scheme)
		require.Equal(t, filepath.Clean(path), u.Path)
		require.Empty(t, u.Host)
		require.Empty(t, u.Fragment)
		require.Nil(t, u.User)
		require.Equal(t, url.Values{"_pragma": {"a=b", "c(d)"}}, u.Query())
	})
}

// A file keeps every message that memory keeps, and returns it byte for byte.
func FuzzAFileKeepsWhatMemoryKeeps(f *testing.F) {
	for _, seed := range []string{`{}`, ` {"a" : 1.10, "a" : -0} `, `{"a":"\ud83d\ude00\u2028"}`, `{"a":1e400}`, `[]`, `{"a":"\u0000"}`} {
		f.Add("account-1", "Opened", seed, "", "x")
		f.Add("a:b+c-\u00e9 1+2", "T\u00a0x", `{}`, "b-1", seed)
	}
	driver := testkit.Do(sqlite.Open(f.Context(), newFile(f), nil))(f)
	f.Cleanup(func() { require.NoError(f, driver.Close()) })
	for _, data := range testkit.SeedJSON("a") {
		f.Add("account-1", "Opened", data, "", "x")
	}
	f.Fuzz(func(t *testing.T, stream, messageType, data, correlation, property string) {
		m := messagestore.Envelope{
			ID: uuid.New(), Body: messagestore.Raw{Type: messageType, Data: json.RawMessage(data)},
			Metadata: messagestore.Metadata{CorrelationStream: messagestore.StreamName(correlation), Properties: messagestore.Properties{property: property}},
		}
		inMemory, inFile := testkit.Must(messagestore.New(memory.New(), nil)), testkit.Must(messagestore.New(driver, nil))
		_, refused := inMemory.Write(t.Context(), messagestore.StreamName(stream), messagestore.AnyVersion, m)
		written, err := inFile.Write(t.Context(), messagestore.StreamName(stream), messagestore.AnyVersion, m)
		if refused != nil {
			require.EqualError(t, err, refused.Error())
			require.ErrorIs(t, err, messagestore.ErrInvalid)
			return
		}
		require.NoError(t, err)
		want := testkit.Do(inMemory.Last(t.Context(), messagestore.StreamName(stream)))(t)
		got := testkit.Do(inFile.Last(t.Context(), messagestore.StreamName(stream)))(t)
		require.Equal(t, written.Version, got.Position)
		require.Equal(t, data, string(got.Data))
		got.Position, got.GlobalPosition, got.Time = want.Position, want.GlobalPosition, want.Time
		require.Equal(t, want, got)
		require.True(t, testkit.Do(inFile.Write(t.Context(), messagestore.StreamName(stream), messagestore.AnyVersion, m))(t).Duplicate)
	})
}
