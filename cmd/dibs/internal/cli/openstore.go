package cli

import (
	"cmp"
	"context"
	"errors"
	"net/url"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"github.com/dibs-go/dibs/logger"
	"github.com/dibs-go/dibs/messagestore"
	"github.com/dibs-go/dibs/messagestore/memory"
)

// storeURL returns the store's URL, for PostgreSQL without the schema, which is the flag's
// or else the URL's. It remembers where that has secrets.
func (a *app) storeURL() (string, error) {
	u, err := a.chooseStore()
	if err != nil {
		return "", err
	}
	a.masks = masksOf(u)
	if !isPostgres(u) {
		if a.Schema != "" {
			return "", usage("--schema is for PostgreSQL only, and the store of %s is another", a.origin)
		}
		return u, nil
	}
	without, schema, err := cutSchema(u)
	if err != nil {
		return "", usage("invalid URL of %s: %w", a.origin, err)
	}
	a.server = without
	if a.Schema == "" {
		a.Schema, a.schemaOfURL = schema, schema != ""
	}
	return without, nil
}

// cutSchema takes schema= out of a URL and leaves every other byte as it is.
func cutSchema(u string) (without, schema string, err error) {
	before, query, ok := strings.Cut(u, "?")
	if !ok {
		return u, "", nil
	}
	var kept []string
	for parameter := range strings.SplitSeq(query, "&") {
		value, ok := strings.CutPrefix(parameter, "schema=")
		if !ok {
			kept = append(kept, parameter)
			continue
		}
		if schema != "" {
			return "", "", errors.New("must not name the schema twice")
		}
		if schema, err = url.QueryUnescape(value); err != nil || schema == "" {
			return "", "", errors.New("must have the name of a schema after schema=")
		}
	}
	if len(kept) > 0 {
		before += "?" + strings.Join(kept, "&")
	}
	return before, schema, nil
}

func (a *app) chooseStore() (string, error) {
	if a.Store != "" {
		a.origin = "--store"
		return a.Store, nil
	}
	for _, name := range []string{"DIBS_STORE", "DATABASE_URL"} {
		if u := a.getenv(name); u != "" {
			a.origin = "$" + name
			return u, nil
		}
	}
	for _, name := range []string{"PGHOST", "PGDATABASE", "PGUSER"} {
		if a.getenv(name) != "" {
			a.origin = "$" + name
			return "postgres://", nil // and the client reads the rest from the environment, as psql does
		}
	}
	return "", usage("which store? Give --store or set DIBS_STORE, for example to sqlite:dibs.db or postgres://user@localhost/database")
}

func isPostgres(u string) bool {
	scheme, _, _ := strings.Cut(u, ":")
	return strings.EqualFold(scheme, "postgres") || strings.EqualFold(scheme, "postgresql")
}

// withStore runs f with the store, which it closes.
func (a *app) withStore(ctx context.Context, batchSize int, f func(*messagestore.Store) error) error {
	return a.withStoreBy(ctx, a.open, batchSize, f)
}

// An opener opens the store of a URL, as [github.com/dibs-go/dibs.Open] does.
type opener = func(ctx context.Context, url string, config *messagestore.Config) (*messagestore.Store, error)

func (a *app) withStoreBy(ctx context.Context, open opener, batchSize int, f func(*messagestore.Store) error) (err error) {
	u, err := a.storeURL()
	if err != nil {
		return err
	}
	if err := a.requireFile(u); err != nil {
		return err
	}
	if a.Schema != "" {
		separator := "?"
		if strings.Contains(u, "?") {
			separator = "&"
		}
		u += separator + "schema=" + url.QueryEscape(a.Schema)
	}
	store, err := open(ctx, u, &messagestore.Config{BatchSize: batchSize, Logger: logger.Silent()})
	if err != nil {
		return err
	}
	defer func() {
		if closeErr := store.Close(); err == nil {
			err = closeErr
		}
	}()
	return f(store)
}

// tried calls f twice: over an empty store in memory, which tells whether the arguments are valid before there is a connection,
// and then over the store.
func (a *app) tried(ctx context.Context, f func(store *messagestore.Store, dry bool) error) error {
	empty, err := messagestore.New(memory.New(), nil)
	if err != nil {
		return err
	}
	if wrong, is := errors.AsType[*messagestore.InvalidError](f(empty, true)); is {
		return wrong
	}
	return a.withStore(ctx, 1000, func(store *messagestore.Store) error { return f(store, false) })
}

// masksOf returns a replacer for the places of a store's URL that must not be shown, however malformed it is: as written
// there, decoded, and as an error might quote them. A secret is replaced with what stands around it in the URL, and so
// nowhere else: a password may be the name of a role.
func masksOf(u string) *strings.Replacer {
	var places []string // each in front of what stands for it
	add := func(before, secret, after string) {
		quoted := strconv.Quote(secret)
		forms := []string{secret, visible(secret), quoted[1 : len(quoted)-1]}
		for _, decode := range []func(string) (string, error){url.PathUnescape, url.QueryUnescape} {
			if decoded, err := decode(secret); err == nil {
				forms = append(forms, decoded)
			}
		}
		// The longest first, so that none leaves the end of another behind.
		slices.SortFunc(forms, func(x, y string) int { return cmp.Or(len(y)-len(x), strings.Compare(x, y)) })
		for _, form := range slices.Compact(forms) {
			if form != "" {
				places = append(places, before+form+after, before+"xxxxx"+after)
			}
		}
	}
	ends := "&" // of a parameter
	_, rest, ok := strings.Cut(u, "://")
	if !ok {
		rest, ends = u, " \t\n" // the keywords and values of libpq
	}
	// A password may hold an @ or a slash that should have been encoded, so it
	// ends at the last one, wherever it begins.
	if at := strings.LastIndexByte(rest, '@'); at >= 0 {
		if _, password, ok := strings.Cut(rest[:at], ":"); ok {
			add(":", password, "@")
		}
		for part := range strings.SplitSeq(rest[:at], "@") {
			if _, password, ok := strings.Cut(part, ":"); ok {
				add(":", password, "@")
			}
		}
	}
	for _, name := range []string{"password=", "sslpassword=", "passfile="} {
		for tail := rest; ; {
			_, value, ok := strings.Cut(tail, name)
			if !ok {
				break
			}
			tail = value
			if end := strings.IndexAny(value, ends); end >= 0 {
				value = value[:end]
			}
			add(name, value, "")
		}
	}
	return strings.NewReplacer(places...)
}

// The places of secrets in URLs and statements that are not the store's, such as one that was given as another argument, and
// the last statement of another session, which may have lost its end.
var (
	urlPassword     = regexp.MustCompile("([A-Za-z][A-Za-z0-9+.-]*://[^\\s:/@\"'`]*:)[^\\s/\"'`]+@")
	quotedPassword  = regexp.MustCompile(`(?i)(password(?:\s*=\s*|\s+))'[^']*'?`)
	keywordPassword = regexp.MustCompile("(?i)(password\\s*=\\s*)[^\\s&'\"`]+")
)

// redact returns text with its secrets masked.
func (a *app) redact(text string) string {
	text = quotedPassword.ReplaceAllString(text, "${1}'xxxxx'")
	if a.masks != nil {
		text = a.masks.Replace(text)
	}
	text = urlPassword.ReplaceAllString(text, "${1}xxxxx@")
	return keywordPassword.ReplaceAllString(text, "${1}xxxxx")
}
