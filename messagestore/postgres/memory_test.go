package postgres_test

import (
	"encoding/json"
	"fmt"
	"os"
	"strconv"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/dibs-go/dibs/internal/must"
	"github.com/dibs-go/dibs/internal/pgtest"
	"github.com/dibs-go/dibs/messagestore"
	"github.com/dibs-go/dibs/messagestore/postgres"
	"github.com/dibs-go/dibs/messagestore/storetest"
)

// pageFaults returns how many pages of memory the process of a session has asked the system for.
func pageFaults(t *testing.T, pid uint32) int {
	t.Helper()
	stat, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil || !strings.Contains(string(stat), "(postgres)") {
		t.Skip("the server's processes are not on this machine, or not in /proc")
	}
	const minorFaults = 7 // behind the name: see proc(5)
	fields := strings.Fields(string(stat[strings.LastIndexByte(string(stat), ')')+1:]))
	return must.Do(strconv.Atoi(fields[minorFaults]))(t)
}

// glibc gives the memory of a page's result back to the system behind each statement.
func TestASessionKeepsTheMemoryOfAPageForTheNext(t *testing.T) {
	t.Parallel()
	category := storetest.Category(t)
	store := must.New(messagestore.New(must.New(postgres.New(pgtest.Pool(t), nil)), nil))
	body := messagestore.Raw{Type: "T", Data: json.RawMessage(fmt.Sprintf(`{"note": %q}`, strings.Repeat("x", 300)))}
	bodies := make([]messagestore.Body, 1000)
	for i := range bodies {
		bodies[i] = body
	}
	must.Do(store.Write(t.Context(), category.Stream("1"), messagestore.AnyVersion, bodies...))(t)
	perPage := func(config *postgres.Config) int {
		pool, pid := pgtest.PoolOfOne(t, nil)
		store := must.New(messagestore.New(must.New(postgres.New(pool, config)), nil))
		const pages = 20
		before := 0
		for i := range 2 * pages {
			if i == pages { // by now it has what it keeps
				before = pageFaults(t, pid)
			}
			require.Len(t, must.Do(store.ReadCategoryPage(t.Context(), messagestore.CategoryQuery{Category: category, Limit: len(bodies)}))(t).Messages, len(bodies))
		}
		return (pageFaults(t, pid) - before) / pages
	}

	given := perPage(&postgres.Config{GiveMemoryBack: true})
	if given < 20 {
		t.Skipf("the server's allocator keeps memory by itself: %d faults a page", given)
	}
	require.Less(t, perPage(nil), given/4)
}
