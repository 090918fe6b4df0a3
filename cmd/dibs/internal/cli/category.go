package cli

import (
	"context"
	"fmt"
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
