package check_test

import (
	"testing"

	"github.com/anishathalye/porcupine"
	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"github.com/dibs-go/dibs/messagestore"
)

// A step is a write to a stream, or a look at its version.
type step struct {
	at, ended   int64
	first, last messagestore.Version // first is -1 for a look
}

// linearizable asks porcupine.
func linearizable(steps []step) bool {
	operations := make([]porcupine.Operation, len(steps))
	for i := range steps {
		operations[i] = porcupine.Operation{ClientId: i, Input: steps[i], Call: steps[i].at, Return: steps[i].ended}
	}
	return porcupine.CheckOperations(porcupine.Model{
		Init: func() any { return noStream },
		Step: func(state, input, _ any) (bool, any) {
			s := input.(step) //nolint:errcheck // it is given nothing else
			if s.first >= 0 {
				return state == s.first-1, s.last
			}
			return state == s.last, state
		},
	}, operations)
}

func TestTheQueryAndPorcupineAgree(t *testing.T) {
	t.Parallel()
	yes, no := 0, 0
	rapid.Check(t, func(t *rapid.T) {
		var steps []step
		version := noStream
		for range rapid.IntRange(1, 6).Draw(t, "writes") {
			s := step{first: version + 1, last: version + messagestore.Version(rapid.IntRange(1, 2).Draw(t, "messages"))}
			version = s.last
			steps = append(steps, s)
		}
		for range rapid.IntRange(0, 6).Draw(t, "looks") {
			steps = append(steps, step{first: -1, last: messagestore.Version(rapid.IntRange(-1, int(version)).Draw(t, "version"))})
		}
		w := &world{}
		for i := range steps {
			s := &steps[i]
			rank := 2*s.first + 1
			if s.first < 0 {
				rank = 2 * (s.last + 1)
			}
			// Near to where it belongs, so that some of these histories are right. At one moment
			// nothing is before another.
			s.at = max(1, 3*int64(rank)+rapid.Int64Range(-5, 5).Draw(t, "time")) * 100
			s.ended = s.at + rapid.Int64Range(1, 12).Draw(t, "takes")*100 + 50
			if s.first < 0 {
				w.ask(s.at, s.ended, stream, s.last)
				continue
			}
			a := w.write(s.at, s.ended, stream, anyVersion, int(s.last-s.first)+1)
			if rapid.IntRange(0, 9).Draw(t, "unknown") == 0 {
				a.end = nil
				s.ended = never
			}
		}
		v := w.verdict(t)
		right := linearizable(steps)
		require.Equal(t, right, v.Broken["S3c"]+v.Broken["S3d"] == 0, "%+v: %v", steps, v)
		if right {
			yes++
		} else {
			no++
		}
	})
	require.Positive(t, yes)
	require.Positive(t, no)
}
