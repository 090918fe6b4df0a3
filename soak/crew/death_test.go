package crew

import (
	"math/rand/v2"
	"testing"

	"github.com/stretchr/testify/require"
)

func TestAClientDiesAtItsPointAndTurnOnly(t *testing.T) {
	t.Parallel()
	d := &Doom{Death: Death{"sent", 2}}
	require.False(t, d.due("send"))
	require.False(t, d.due("sent"))
	require.False(t, d.due("send"))
	require.True(t, d.due("sent"))
	require.False(t, d.due("sent"))

	require.False(t, (&Doom{}).due("send"))

	lifted := &Doom{Death: Death{"sent", 1}}
	lifted.Lift()
	require.False(t, lifted.due("sent"))
}

func TestAClientDiesAtAPointThatItComesTo(t *testing.T) {
	t.Parallel()
	points := []Point{"send", "sent"}
	p := Place{Random: rand.New(rand.NewPCG(1, 2))}
	for range 1000 {
		d := p.Doom(points, 3, 1000)
		require.Contains(t, points, d.Point)
		require.GreaterOrEqual(t, d.Turn, int64(3))
		require.LessOrEqual(t, d.Turn, int64(1003))
	}
	require.Zero(t, p.Doom(nil, 3, 1000))
	p.Healed = true
	require.Zero(t, p.Doom(points, 3, 1000))
}
