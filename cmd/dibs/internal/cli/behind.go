package cli

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"github.com/dibs-go/dibs/consumer/operate"
	"github.com/dibs-go/dibs/internal/text"
	"github.com/dibs-go/dibs/messagestore"
	"github.com/dibs-go/dibs/queue"
)

// warnOfReaders names the consumers that have not read all of a category from which messages are
// to be removed. These messages may be older than the consumers' positions, so nothing is refused.
// The consumers that the removal stops behind are left out.
func (a *app) warnOfReaders(ctx context.Context, store *messagestore.Store, category messagestore.Category, without ...string) {
	if a.JSON {
		return
	}
	all, err := operate.Consumers(ctx, store, category)
	if err != nil && !errors.Is(err, context.Canceled) {
		a.warn("dibs: the positions of consumers of %s cannot be read: %s", category, err)
	}
	for _, status := range all {
		if slices.Contains(without, status.Name) || status.Lag == 0 {
			continue
		}
		a.warn("dibs: consumer %s of %s has not read %s yet, from %d on, and misses messages removed before it reads them",
			status.Name, category, text.Number(status.Lag, "message"), status.Position)
	}
}

// hintOfQueue says, where the name of a consumer that there is not is a queue's, that it need not be named.
func hintOfQueue(ctx context.Context, store *messagestore.Store, category messagestore.Category, name string, unknown error) error {
	all, err := queue.All(ctx, store)
	if err == nil && slices.ContainsFunc(all, func(s queue.Status) bool { return s.Name == name && s.Category == category }) {
		return hinted(unknown, visible(name)+" is a queue or a relay: leave it out, for nothing that it has not finished is removed")
	}
	return unknown
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
			return 0, hintOfQueue(ctx, store, category, name, unknown)
		}
		if all[i].Err != nil {
			return 0, all[i].Err
		}
		if err := all[i].PositionErr; err != nil {
			return 0, fmt.Errorf("consumer %s of %s: %w", visible(name), category, err)
		}
		below = append(below, all[i].Position)
	}
	return slices.Min(below), nil
}
