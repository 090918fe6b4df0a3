package pglink

import (
	"context"
	"net"
	"time"
)

// silence is how long a connection may be without a sign of the server: an acknowledgement of sent
// bytes, or the answer to a probe. By default TCP waits a quarter of an hour for an
// acknowledgement, and so would a call without a deadline.
const silence = 30 * time.Second

// dial connects like pgx, but notices after silence that the server is gone.
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
