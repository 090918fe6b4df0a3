package intenttest_test

import (
	"testing"

	"go.uber.org/goleak"

	"github.com/dibs-go/dibs/internal/testkit"
)

func TestMain(m *testing.M) {
	testkit.ManyAtOnce()
	goleak.VerifyTestMain(m)
}
