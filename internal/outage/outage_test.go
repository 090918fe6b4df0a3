package outage_test

import (
	"bytes"
	"encoding/json"
	"testing"
	"testing/synctest"
	"time"

	"github.com/rs/zerolog"
	"github.com/stretchr/testify/require"

	"github.com/dibs-go/dibs/internal/outage"
	"github.com/dibs-go/dibs/logger"
)

// A caller that goes away during an outage leaves its end to the next success of another.
func TestACallerThatGoesLeavesTheEndOfAnOutageToAnother(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		var text bytes.Buffer
		log := logger.Zerolog(zerolog.New(&text).Level(zerolog.WarnLevel))
		var o outage.Outage
		one, two, three := outage.Key{By: "lease 1", To: "extend"}, outage.Key{By: "lease 2", To: "extend"}, outage.Key{By: "lease 3", To: "extend"}

		o.Failed(one, log)
		o.Ends(one.By)
		time.Sleep(4 * time.Second)
		o.Failed(two, log)
		o.Ends(two.By)
		time.Sleep(30 * time.Second)
		o.Works(three)
		o.Works(three)
		require.Equal(t, []string{"store failed: trying again", "store is back"}, said(t, &text))

		// Nobody has asked for an hour: what failed then is over, and what fails now is another outage.
		time.Sleep(time.Hour)
		o.Failed(one, log)
		o.Ends(one.By)
		time.Sleep(time.Hour)
		o.Failed(two, log)
		time.Sleep(time.Second)
		o.Works(two)
		require.Equal(t, []string{"store failed: trying again", "store failed: trying again", "store is back"}, said(t, &text))

		// What still fails is not over because another works.
		time.Sleep(time.Hour)
		o.Failed(one, log)
		o.Failed(two, log)
		o.Ends(one.By)
		o.Works(three)
		require.Equal(t, []string{"store failed: trying again"}, said(t, &text))
		o.Works(two)
		require.Equal(t, []string{"store is back"}, said(t, &text))
	})
}

// said returns the messages of the lines since the last call.
func said(t *testing.T, text *bytes.Buffer) (messages []string) {
	t.Helper()
	for d := json.NewDecoder(text); d.More(); {
		var line struct{ Message string }
		require.NoError(t, d.Decode(&line))
		messages = append(messages, line.Message)
	}
	return messages
}
