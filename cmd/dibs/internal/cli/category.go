package cli

import (
	"context"
	"errors"
	"slices"
	"strings"

	"github.com/dibs-go/dibs/messagestore"
	"github.com/dibs-go/dibs/operate"
)

// notFoundIn returns err, or that its category is not there in place of what was looked for.
func notFoundIn(ctx context.Context, store *messagestore.Store, category messagestore.Category, err error) error {
	if store != nil && errors.Is(err, messagestore.ErrNotFound) {
		if missing := operate.RequireCategory(ctx, store, category); missing != nil {
			return missing
		}
	}
	return err
}

// hasType reports whether the last type in the name of a category is one, as saga.
func hasType(category messagestore.Category, of string) bool {
	types := category.Types()
	return category.Validate() == nil && len(types) > 0 && types[len(types)-1] == of
}

// inEach calls f with each category of a type, such as saga, under a line with its name. An error of one keeps no other
// from being printed.
func (a *app) inEach(ctx context.Context, kind string, f func(category messagestore.Category) error) error {
	var categories []messagestore.Category
	err := a.withStore(ctx, 1, func(store *messagestore.Store) (err error) {
		categories, err = store.Categories(ctx, kind)
		return err
	})
	if err != nil {
		return err
	}
	// Positions of them have a type more.
	categories = slices.DeleteFunc(categories, func(c messagestore.Category) bool { return !hasType(c, kind) })
	if len(categories) == 0 {
		a.nothing("there is no category of %ss", kind)
	}
	var failed error
	for _, category := range categories {
		a.out.title(string(category))
		failed = errors.Join(failed, f(category))
		if err := a.out.flush(); err != nil { // an error is told behind it
			return err
		}
	}
	return failed
}

// sideOf returns the categories for which something is kept in a category of its own, or only one, if it is named.
func sideOf(ctx context.Context, store *messagestore.Store, only messagestore.Category, side string) ([]messagestore.Category, error) {
	if only != "" {
		return []messagestore.Category{only}, nil
	}
	return operate.SideOf(ctx, store, side)
}

// either joins words: a, b or c.
func either(words []string) string {
	if len(words) < 2 {
		return strings.Join(words, "")
	}
	last := len(words) - 1
	return strings.Join(words[:last], ", ") + " or " + words[last]
}
