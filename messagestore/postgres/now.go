package postgres

import (
	"context"
	"time"

	"github.com/jackc/pgx/v5"
)

// Now implements [messagestore.Driver] with the server's clock_timestamp(), which stamps
// messages too.
func (r reader) Now(ctx context.Context) (time.Time, error) {
	var micros int64
	err := r.query(ctx, nowSQL, nil, func(rows pgx.Rows) error { return rows.Scan(&micros) })
	return time.UnixMicro(micros).UTC(), err
}
