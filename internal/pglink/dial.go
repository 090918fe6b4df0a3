package pglink

import (
	"context"
	"net"
	"time"
)

// silence is how long a connection may be without a sign of its other end: an acknowledgement
// of the bytes that were sent, or the answer to a probe. TCP by itself waits a quarter of an
// hour for an acknowledgement, and a call without a deadline would wait as long.
const silence = 30 * time.Second

// dial connects as pgx does. An other end that is gone is noticed after silence.
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
