package cli

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"github.com/dibs-go/dibs/consumer/operate"
	"github.com/dibs-go/dibs/messagestore"
)

// warnOfReaders names the consumers that have not read all of a category from which
// messages are to be removed. These messages may be older than the consumers' positions, so
// nothing is refused. Those that the removal stops behind are left out.
func (a *app) warnOfReaders(ctx context.Context, store *messagestore.Store, category messagestore.Category, without ...string) {
	if a.JSON || category.Validate() != nil {
		return
	}
	all, err := operate.Consumers(ctx, store, category)
	if err != nil && !errors.Is(err, context.Canceled) {
		a.warn("dibs: the positions of consumers of %s cannot be read: %s\n", category, visible(err.Error()))
	}
	for _, status := range all {
		if slices.Contains(without, status.Name) {
			continue
		}
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

// passed returns the position below which each of the consumers of a category has passed all messages: 0 if
// one has passed none.
func passed(ctx context.Context, store *messagestore.Store, category messagestore.Category, names []string) (messagestore.GlobalPosition, error) {
	if len(names) == 0 {
		return 0, nil
	}
	all, err := operate.Consumers(ctx, store, category)
	if err != nil {
		return 0, err
	}
	var below []messagestore.GlobalPosition
	for _, name := range names {
		i := slices.IndexFunc(all, func(s operate.Status) bool { return s.Name == name && !s.Foreign })
		if i < 0 {
			unknown := &operate.UnknownConsumerError{Category: category, Name: name}
			for _, s := range all {
				unknown.Known = append(unknown.Known, s.Name)
			}
			return 0, unknown
		}
		if all[i].Err != nil {
			return 0, all[i].Err
		}
		for _, m := range all[i].Members {
			if m.Err != nil {
				return 0, fmt.Errorf("consumer %s of %s: %w", visible(name), category, m.Err)
			}
			below = append(below, m.Position)
		}
	}
	if len(below) == 0 {
		return 0, nil
	}
	return slices.Min(below), nil
}
