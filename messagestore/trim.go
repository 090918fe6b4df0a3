package messagestore

import (
	"context"
	"fmt"
	"strconv"
	"strings"
)

// minCheckpoints is the least number of checkpoints that [Store.TrimCheckpoints] keeps.
const minCheckpoints = 100

// TrimCheckpoints removes old checkpoints of a consumer: all messages of the stream but the last
// keep, which is at least 100. It removes at most some 10,000 in one call, and returns how many.
// The version of the stream stays, and so do the positions of the messages that are left, without a
// gap. Their ids are forgotten.
//
// Consumers call it themselves, so their users need only the right to write. The stream must be a
// consumer's stream of checkpoints, like account:position-accounts+0; otherwise the error matches
// [ErrInvalid]. The error matches [ErrNotSupported] if the driver is over a transaction that cannot
// see the latest messages.
func (s *Store) TrimCheckpoints(ctx context.Context, stream StreamName, keep int) (removed int64, err error) {
	driver, err := s.use(ctx)
	if err == nil {
		err = validateCheckpoints(stream, keep)
	}
	if err == nil {
		removed, err = driver.TrimCheckpoints(ctx, stream, keep)
	}
	if err != nil {
		return 0, fmt.Errorf("trim checkpoints %s: %w", quoteName(stream), err)
	}
	return removed, nil
}

// validateCheckpoints refuses a stream that is not named like a stream of checkpoints: category,
// consumer and generation.
func validateCheckpoints(stream StreamName, keep int) error {
	if err := stream.Validate(); err != nil {
		return err
	}
	types := stream.Category().Types()
	ids := strings.Split(stream.ID(), "+")
	if len(types) == 0 || types[len(types)-1] != "position" || len(ids) != 2 || strings.Contains(ids[0], "-") || !isNumber(ids[1], 18) {
		return NewInvalidError("stream name", string(stream), "must be a stream of a consumer's checkpoints, like account:position-accounts+0")
	}
	if keep < minCheckpoints {
		return NewInvalidError("keep", keep, fmt.Sprintf("must be at least %d", minCheckpoints))
	}
	return nil
}

// Forgets reports whether an operator can remove the keys of intents and reservations from the
// store, as dibs forget does: on PostgreSQL and SQLite. It makes no round trip, and returns false
// for a store without a driver. If it returns false, keys stay taken for ever.
func (s *Store) Forgets() bool {
	return s != nil && s.driver != nil && s.driver.Forgets()
}

func isNumber(s string, digits int) bool {
	if s == "" || len(s) > digits || strings.Trim(s, "0123456789") != "" {
		return false
	}
	_, err := strconv.ParseInt(s, 10, 64)
	return err == nil
}
