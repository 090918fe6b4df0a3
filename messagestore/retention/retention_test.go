package retention_test

import (
	"testing"

	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	"github.com/dibs-go/dibs/internal/tier"
	"github.com/dibs-go/dibs/messagestore"
	"github.com/dibs-go/dibs/messagestore/retention"
)

func TestMain(m *testing.M) {
	tier.ManyAtOnce()
	goleak.VerifyTestMain(m)
}

// "-1ns: it is not negative" would read as the opposite.
func TestANumberBelowZeroIsToldSo(t *testing.T) {
	t.Parallel()
	for want, options := range map[string]retention.TrimOptions{
		"invalid below -1: it is less than 0":           {Below: -1},
		`invalid minimum age "-2ns": it is less than 0`: {Keep: 1, MinAge: -2},
	} {
		err := options.Validate()

		require.ErrorIs(t, err, messagestore.ErrInvalid)
		require.EqualError(t, err, want)
	}
}
