package storetest

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/dibs-go/dibs/messagestore"
)

var lastTests = []test{
	{"Last/OfStream", lastOfStream, 0},
	{"Last/OfType", lastOfType, 0},
	{"Last/NotFound", lastNotFound, 0},
	{"Version/IsTheLastPosition", versionIsTheLastPosition, 0},
}

func lastOfStream(t *testing.T, f *fixture) {
	stream := f.stream()
	for n := range 3 {
		f.write(t, stream, messagestore.AnyVersion, opened(n+1)...)
		f.write(t, f.stream("other"), messagestore.AnyVersion, Opened{})

		last, err := f.driver.Last(t.Context(), stream, "")
		require.NoError(t, err)
		all := f.read(t, stream)
		require.Equal(t, all[len(all)-1], last)
	}
}

func lastOfType(t *testing.T, f *fixture) {
	stream := f.stream()
	f.write(t, stream, messagestore.NoStream, Opened{Name: "0"}, Opened{Name: "1"}, deposited{2}, deposited{3}, raw("opened", `{}`), raw("Open", `{}`))
	f.write(t, f.stream("other"), messagestore.NoStream, Opened{Name: "elsewhere"})

	for messageType, position := range map[string]messagestore.Version{"Opened": 1, "Deposited": 3, "opened": 4, "Open": 5, "": 5} {
		last, err := f.driver.Last(t.Context(), stream, messageType)
		require.NoError(t, err)
		require.Equal(t, f.read(t, stream)[position], last)
	}
}

func lastNotFound(t *testing.T, f *fixture) {
	_, err := f.driver.Last(t.Context(), f.stream(), "")
	require.ErrorIs(t, err, messagestore.ErrNotFound)

	f.fill(t, f.stream(), 1)
	for _, messageType := range []string{"Deposited", "opened", "Open", "Opened "} {
		_, err = f.driver.Last(t.Context(), f.stream(), messageType)
		require.ErrorIs(t, err, messagestore.ErrNotFound, messageType)
	}
}

func versionIsTheLastPosition(t *testing.T, f *fixture) {
	stream := f.stream()
	for version := messagestore.NoStream; version < 3; version++ {
		got, err := f.driver.Version(t.Context(), stream)
		require.NoError(t, err)
		require.Equal(t, version, got)

		f.write(t, stream, got, Opened{})
		f.write(t, f.stream("other"), messagestore.AnyVersion, Opened{}, Opened{})
	}
}
