package cli

import (
	"context"
	"errors"
	"fmt"

	"github.com/dibs-go/dibs/consumer/operate"
	"github.com/dibs-go/dibs/messagestore"
)

// warnOfReaders names the consumers that have not read all of a category from which
// messages are to be removed. These messages may be older than the consumers' positions, so
// nothing is refused.
func (a *app) warnOfReaders(ctx context.Context, store *messagestore.Store, category messagestore.Category) {
	if a.JSON || category.Validate() != nil {
		return
	}
	all, err := operate.Consumers(ctx, store, category)
	if err != nil && !errors.Is(err, context.Canceled) {
		a.warn("dibs: the positions of consumers of %s cannot be read: %s\n", category, visible(err.Error()))
	}
	for _, status := range all {
		for _, m := range status.Members {
			if m.Lag == 0 {
				continue
			}
			name := visible(status.Name)
			if len(status.Members) > 1 {
				name = fmt.Sprintf("%s (%d of %d)", name, m.Member, len(status.Members))
			}
			a.warn("dibs: consumer %s of %s has not read %s yet, from %d on, and misses messages removed before it reads them\n",
				name, category, number(m.Lag, "message", "messages"), m.Position)
		}
	}
}
