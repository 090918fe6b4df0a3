package storetest

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/dibs-go/dibs/internal/must"
	"github.com/dibs-go/dibs/messagestore"
)

var lastTests = []test{
	{"Last/OfStream", 0, func(t *testing.T, f *fixture) {
		stream := f.stream()
		for n := range 3 {
			f.write(t, stream, messagestore.AnyVersion, opened(n+1)...)
			f.write(t, f.stream("other"), messagestore.AnyVersion, Opened{})

			last := must.Do(f.driver.Last(t.Context(), stream, ""))(t)
			all := f.read(t, stream)
			require.Equal(t, all[len(all)-1], last)
		}
	}},
	{"Last/OfType", 0, func(t *testing.T, f *fixture) {
		stream := f.stream()
		f.write(t, stream, messagestore.NoStream, Opened{Name: "0"}, Opened{Name: "1"}, deposited{2}, deposited{3}, raw("opened", `{}`), raw("Open", `{}`))
		f.write(t, f.stream("other"), messagestore.NoStream, Opened{Name: "elsewhere"})

		for messageType, position := range map[string]messagestore.Version{"Opened": 1, "Deposited": 3, "opened": 4, "Open": 5, "": 5} {
			last := must.Do(f.driver.Last(t.Context(), stream, messageType))(t)
			require.Equal(t, f.read(t, stream)[position], last)
		}
	}},
	{"Last/NotFound", 0, func(t *testing.T, f *fixture) {
		require.ErrorIs(t, must.ErrorOf(f.driver.Last(t.Context(), f.stream(), "")), messagestore.ErrNotFound)

		f.fill(t, f.stream(), 1)
		for _, messageType := range []string{"Deposited", "opened", "Open", "Opened "} {
			require.ErrorIs(t, must.ErrorOf(f.driver.Last(t.Context(), f.stream(), messageType)), messagestore.ErrNotFound, messageType)
		}
	}},
	{"Version/IsTheLastPosition", 0, func(t *testing.T, f *fixture) {
		stream := f.stream()
		for version := messagestore.NoStream; version < 3; version++ {
			got := must.Do(f.driver.Version(t.Context(), stream))(t)
			require.Equal(t, version, got)

			f.write(t, stream, got, Opened{})
			f.write(t, f.stream("other"), messagestore.AnyVersion, Opened{}, Opened{})
		}
	}},
}
