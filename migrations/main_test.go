package migrations_test

import (
	"context"
	"fmt"
	"os"
	"testing"

	"go.uber.org/goleak"

	"github.com/dibs-go/dibs/migrations"
)

// adoptHere makes this program one that adopts the database of the URL, for a test that
// kills it.
const adoptHere = "DIBS_TEST_ADOPT"

func TestMain(m *testing.M) {
	if url := os.Getenv(adoptHere); url != "" {
		_, err := migrations.Adopt(context.Background(), connector(url), &migrations.AdoptConfig{
			RangeMessages: 50,
			Progress:      func(p migrations.AdoptionProgress) { fmt.Println(p.Phase, p.Done) },
		})
		if err != nil {
			fmt.Println(err)
			os.Exit(1)
		}
		os.Exit(0)
	}
	goleak.VerifyTestMain(m)
}
