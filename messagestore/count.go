package messagestore

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"unicode/utf8"
)

// Categories returns the names of the categories that have messages and contain the text
// containing, in order. The text "" is in all of them. Other clients may have written names that
// this package does not allow.
func (s *Store) Categories(ctx context.Context, containing string) ([]Category, error) {
	driver, err := s.use(ctx)
	if err == nil {
		err = validateContaining(containing)
	}
	var found []Category
	if err == nil {
		found, err = driver.Categories(ctx, containing)
	}
	if err != nil {
		return nil, fmt.Errorf("read categories: %w", err)
	}
	return found, nil
}

// Count returns how many messages of a category, from q.From on, pass the filter. It stops at
// q.Limit, which is at least 1 and has no upper bound.
func (s *Store) Count(ctx context.Context, q CategoryQuery) (int64, error) {
	driver, err := s.use(ctx)
	if err == nil {
		err = errors.Join(q.Category.Validate(), validateFrom(q.From), q.Filter.Validate())
	}
	if err == nil && q.Limit < 1 {
		err = NewInvalidError("limit", q.Limit, "must be at least 1")
	}
	var n int64
	if err == nil {
		n, err = driver.Count(ctx, q)
	}
	if err != nil {
		return 0, fmt.Errorf("count category %s: %w", quoteName(q.Category), err)
	}
	return n, nil
}

// validateContaining refuses a text that no name can contain, because a database might not accept
// it in a query.
func validateContaining(text string) error {
	switch {
	case !utf8.ValidString(text):
		return NewInvalidError("containing", text, "must be valid UTF-8")
	case strings.ContainsRune(text, 0):
		return NewInvalidError("containing", text, "must not contain U+0000")
	case len(text) > maxContaining:
		return NewInvalidError("containing", text, fmt.Sprintf("must be at most %d bytes, and is %d", maxContaining, len(text)))
	}
	return nil
}

// maxContaining is above the longest name of this package: other clients may have written longer
// names.
const maxContaining = 8 << 10
