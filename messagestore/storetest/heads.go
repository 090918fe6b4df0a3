package storetest

import (
	"errors"
	"fmt"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/dibs-go/dibs/internal/must"
	"github.com/dibs-go/dibs/messagestore"
)

var headsTests = []test{
	{"Heads/AreWhereCategoriesEnd", telling, func(t *testing.T, f *fixture) {
		typed, empty := f.category.WithType("other"), f.category.WithType("empty")
		f.write(t, f.stream("1"), messagestore.NoStream, Opened{}, Opened{})
		last := f.write(t, f.stream("2"), messagestore.NoStream, Opened{})
		lastTyped := f.write(t, typed.Stream("1"), messagestore.NoStream, Opened{})

		require.Equal(t, []messagestore.GlobalPosition{last.GlobalPosition}, f.heads(t, f.category))
		require.Equal(t, []messagestore.GlobalPosition{0, lastTyped.GlobalPosition}, f.heads(t, empty, typed))
		require.Empty(t, f.heads(t))
	}},
	{"Heads/SeeEveryWriteThatReturned", telling, func(t *testing.T, f *fixture) {
		for range 20 {
			written := f.write(t, f.stream("1"), messagestore.AnyVersion, Opened{})
			require.Equal(t, []messagestore.GlobalPosition{written.GlobalPosition}, f.heads(t, f.category))
		}
	}},
	{"Heads/AreInTheOrderAskedFor", telling, func(t *testing.T, f *fixture) {
		var categories []messagestore.Category
		var want []messagestore.GlobalPosition
		for i := range 300 {
			category := f.category.WithType(fmt.Sprintf("t%d", i))
			var head messagestore.GlobalPosition
			if i%50 == 0 {
				head = f.write(t, category.Stream("1"), messagestore.NoStream, Opened{}).GlobalPosition
			}
			categories, want = append([]messagestore.Category{category}, categories...), append([]messagestore.GlobalPosition{head}, want...)
		}
		require.Equal(t, want, f.heads(t, categories...))

		twice := []messagestore.Category{categories[49], categories[0], categories[49]}
		require.Equal(t, []messagestore.GlobalPosition{want[49], want[0], want[49]}, f.heads(t, twice...))
	}},
	{"Heads/OfManyAreTold", telling, func(t *testing.T, f *fixture) {
		many := make([]messagestore.Category, 1000)
		for i := range many {
			many[i] = f.category
		}
		last := f.write(t, f.stream("1"), messagestore.NoStream, Opened{})
		heads := f.heads(t, many...)
		require.Len(t, heads, len(many))
		require.Equal(t, last.GlobalPosition, heads[len(many)-1])
	}},
}

// tellsHeads reports whether a driver tells where categories end.
func tellsHeads(t *testing.T, driver messagestore.Driver) bool {
	t.Helper()
	_, err := driver.Heads(t.Context(), []messagestore.Category{Category(t)})
	return !errors.Is(err, messagestore.ErrNotSupported)
}

func (f *fixture) heads(t *testing.T, categories ...messagestore.Category) []messagestore.GlobalPosition {
	t.Helper()
	return must.Do(f.driver.Heads(t.Context(), categories))(t)
}
