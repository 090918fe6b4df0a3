// Package conflict tells more of the version conflict of a handler's own write, for packages that
// write the result of a handler together with a reservation.
package conflict

import (
	"errors"
	"fmt"

	"github.com/dibs-go/dibs/messagestore"
)

// Explain returns err, and for a conflict at expected version 0, which a forgotten one has, the
// question if another was meant.
func Explain(err error) error {
	conflict, ok := errors.AsType[*messagestore.VersionConflictError](err)
	if !ok || conflict.Expected != 0 || conflict.Actual == 0 {
		return err
	}
	return fmt.Errorf("%w (0 is what a forgotten Expected is: is AnyVersion or NoStream meant?)", err)
}
