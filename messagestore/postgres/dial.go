package postgres

import (
	"context"
	"net"
	"time"
)

// silence is how long a connection may be without a sign of its other end: what was sent
// is acknowledged, or a probe is answered. TCP by itself waits for a quarter of an hour
// for the first, so that a call without a deadline of its own, as a handler's may be,
// would hold its message up for as long.
const silence = 30 * time.Second

// dial connects as pgx does, and finds out within silence that the other end is gone.
func dial(ctx context.Context, network, address string) (net.Conn, error) {
	const probes = 3
	d := net.Dialer{
		KeepAliveConfig: net.KeepAliveConfig{
			Enable: true, Idle: silence / 2, Interval: silence / 2 / probes, Count: probes,
		},
		Control: limitSilence,
	}
	return d.DialContext(ctx, network, address)
}
