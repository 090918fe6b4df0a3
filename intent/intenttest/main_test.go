package intenttest_test

import (
	"testing"

	"go.uber.org/goleak"

	"github.com/dibs-go/dibs/internal/tier"
)

func TestMain(m *testing.M) {
	tier.ManyAtOnce()
	goleak.VerifyTestMain(m)
}
