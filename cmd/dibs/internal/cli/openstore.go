package cli

import (
	"cmp"
	"context"
	"errors"
	"net/url"
	"slices"
	"strconv"
	"strings"

	"github.com/dibs-go/dibs/logger"
	"github.com/dibs-go/dibs/messagestore"
)

// storeURL returns the store's URL, for PostgreSQL without the schema, which is the flag's
// or else the URL's. It remembers the secrets in it.
func (a *app) storeURL() (string, error) {
	u, err := a.chooseStore()
	if err != nil {
		return "", err
	}
	a.secrets = append(secretsOf(u), a.getenv("PGPASSWORD"))
	// The longest first, so that none leaves the end of another behind.
	slices.SortFunc(a.secrets, func(x, y string) int { return cmp.Or(len(y)-len(x), strings.Compare(x, y)) })
	a.secrets = slices.Compact(a.secrets)
	if !isPostgres(u) {
		if a.Schema != "" {
			return "", usage("--schema is for PostgreSQL only, and the store of %s is another", a.origin)
		}
		return u, nil
	}
	without, schema, err := cutSchema(u)
	if err != nil {
		return "", usage("the URL of %s: %w", a.origin, err)
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
			return "", "", errors.New("it names the schema twice")
		}
		if schema, err = url.QueryUnescape(value); err != nil || schema == "" {
			return "", "", errors.New("schema= has the name of a schema after it")
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
func (a *app) withStore(ctx context.Context, batchSize int, f func(*messagestore.Store) error) (err error) {
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
	store, err := a.open(ctx, u, &messagestore.Config{BatchSize: batchSize, Logger: logger.Silent()})
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

// secretsOf returns the parts of a store's URL that must not be shown, however malformed it
// is: as written there, decoded, and as an error might quote them.
func secretsOf(u string) []string {
	var secrets []string
	add := func(s string) {
		quoted := strconv.Quote(s)
		secrets = append(secrets, s, visible(s), quoted[1:len(quoted)-1])
		if decoded, err := url.PathUnescape(s); err == nil {
			secrets = append(secrets, decoded)
		}
		if decoded, err := url.QueryUnescape(s); err == nil {
			secrets = append(secrets, decoded)
		}
	}
	_, rest, ok := strings.Cut(u, "://")
	if !ok {
		rest = u
	}
	// A password may hold an @ or a slash that should have been encoded, so it
	// ends at the last one, wherever it begins.
	if at := strings.LastIndexByte(rest, '@'); at >= 0 {
		if _, password, ok := strings.Cut(rest[:at], ":"); ok {
			add(password)
		}
		for part := range strings.SplitSeq(rest[:at], "@") {
			if _, password, ok := strings.Cut(part, ":"); ok {
				add(password)
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
			if end := strings.IndexAny(value, "& \t\n"); end >= 0 {
				value = value[:end]
			}
			add(strings.Trim(value, "'"))
		}
	}
	return secrets
}

// redact returns text without a secret.
func (a *app) redact(text string) string {
	for _, secret := range a.secrets {
		if secret != "" {
			text = strings.ReplaceAll(text, secret, "xxxxx")
		}
	}
	return text
}
