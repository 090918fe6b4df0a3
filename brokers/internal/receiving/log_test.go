package receiving_test

import (
	"bytes"
	"context"
	"errors"
	"strings"
	"testing"
	"testing/synctest"

	"github.com/rs/zerolog"
	"github.com/stretchr/testify/require"

	"github.com/dibs-go/dibs/brokers/internal/receiving"
	"github.com/dibs-go/dibs/internal/testkit"
	"github.com/dibs-go/dibs/logger"
)

// A broker that is away for an hour has some ten lines, and not one for each attempt.
func TestABrokerThatIsAwayIsLoggedEverMoreRarely(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		var log bytes.Buffer
		r := testkit.Must(receiving.New(func(context.Context, int) error { return nil }, func(context.Context, int, error) error { return nil },
			receiving.Config{Logger: logger.Zerolog(zerolog.New(&log))}))

		for failed := 1; failed <= 720; failed++ {
			r.Unasked(t.Context(), failed, errors.New("connection refused"))
		}

		require.Equal(t, 10, strings.Count(log.String(), "no message could be asked for"))
	})
}
