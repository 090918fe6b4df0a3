package cli

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/dibs-go/dibs/messagestore"
)

// A noCategoryError says that no stream of the store is of a category: its name is wrong, or
// nothing was written to it yet.
type noCategoryError struct{ category messagestore.Category }

func (e *noCategoryError) Error() string {
	return fmt.Sprintf("there is no category %s in this store: no stream is of it", shorten(visible(string(e.category))))
}

// requireCategory returns a [*noCategoryError] if no stream of the store is of category. A command
// that found nothing in a category asks, so that a misspelt name does not look like a good answer.
func requireCategory(ctx context.Context, store *messagestore.Store, category messagestore.Category) error {
	page, err := store.ReadCategoryPage(ctx, messagestore.CategoryQuery{Category: category, Limit: 1})
	if err != nil {
		return err
	}
	if len(page.Messages) == 0 && !page.More {
		return &noCategoryError{category}
	}
	return nil
}

// inEach calls f with each category of a type, such as saga, under a line with its name. An error of one keeps no other
// from being printed.
func (a *app) inEach(ctx context.Context, kind string, f func(category string) error) error {
	var categories []messagestore.Category
	err := a.withStore(ctx, 1, func(store *messagestore.Store) (err error) {
		categories, err = store.Categories(ctx, kind)
		return err
	})
	if err != nil {
		return err
	}
	// Positions of them have a type more.
	categories = slices.DeleteFunc(categories, func(c messagestore.Category) bool {
		types := c.Types()
		return c.Validate() != nil || len(types) == 0 || types[len(types)-1] != kind
	})
	if len(categories) == 0 {
		a.nothing("there is no category of %ss", kind)
	}
	var failed error
	for _, category := range categories {
		if !a.JSON {
			if err := a.out.line("%s", a.out.styled(visible(string(category)), bold)); err != nil {
				return err
			}
		}
		failed = errors.Join(failed, f(string(category)))
		if err := a.out.flush(); err != nil { // what was found in the next is aligned by itself
			return err
		}
		a.out.widths = nil
	}
	return failed
}

// nothing tells a person that there is nothing to print. That is an answer, so it does not begin as
// errors and warnings do; it is on the standard error, since it is no row.
func (a *app) nothing(format string, args ...any) {
	if !a.JSON {
		a.warn(format+"\n", args...)
	}
}

// either joins words: a, b or c.
func either(words []string) string {
	if len(words) < 2 {
		return strings.Join(words, "")
	}
	last := len(words) - 1
	return strings.Join(words[:last], ", ") + " or " + words[last]
}
