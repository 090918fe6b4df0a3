package dibs

import (
	"context"
	"fmt"
	"net/url"
	"strings"

	"github.com/dibs-go/dibs/messagestore"
	"github.com/dibs-go/dibs/messagestore/memory"
	"github.com/dibs-go/dibs/messagestore/postgres"
	"github.com/dibs-go/dibs/messagestore/sqlite"
)

// rule is the whole of what Open knows.
const rule = "must be a postgres://, postgresql:// or sqlite: URL, or memory:"

// Open returns the store that a URL names. Its Close closes the database.
//
//	postgres://user@host:5432/database             see [postgres.Open]
//	postgres://user@host:5432/database?schema=other  in another schema than dibs
//	sqlite:messages.db                             a file, see [sqlite.Open]; the path is taken as it is
//	sqlite:///var/lib/service/messages.db          the same, with an absolute path
//	memory:                                        new and empty, gone with the process
//
// Any other URL is refused with an [*messagestore.InvalidError]. No error shows a
// password.
//
// A program that imports this package links all three drivers, pgx and an SQLite without
// cgo with them. A program that knows its database calls [postgres.Open] or [sqlite.Open],
// and leaves the other out of its binary.
func Open(ctx context.Context, storeURL string, config *messagestore.Config) (*messagestore.Store, error) {
	driver, err := open(ctx, storeURL, config)
	if err != nil {
		return nil, err
	}
	return messagestore.New(driver, config)
}

func open(ctx context.Context, storeURL string, config *messagestore.Config) (messagestore.Driver, error) {
	if ctx == nil {
		return nil, fmt.Errorf("open: %w", messagestore.NewInvalidError("context", nil, "must not be nil"))
	}
	scheme, rest, ok := strings.Cut(storeURL, ":")
	if !ok {
		return nil, invalid(rule)
	}
	switch strings.ToLower(scheme) {
	case "postgres", "postgresql":
		return openPostgres(ctx, storeURL, config)
	case "sqlite":
		path, err := sqlitePath(rest)
		if err != nil {
			return nil, err
		}
		return sqlite.Open(ctx, path, nil)
	case "memory":
		if rest != "" {
			return nil, invalid("must have nothing after memory:")
		}
		return memory.New(), nil
	}
	return nil, invalid(rule)
}

// invalid does not show the URL, which may hold a password.
func invalid(rule string) error {
	return fmt.Errorf("open: %w", messagestore.NewInvalidError("store URL", nil, rule))
}

func openPostgres(ctx context.Context, storeURL string, config *messagestore.Config) (messagestore.Driver, error) {
	driverURL, schema, err := cutSchema(storeURL)
	if err != nil {
		return nil, err
	}
	driverConfig := &postgres.Config{Schema: schema}
	if config != nil {
		driverConfig.Logger = config.Logger
	}
	return postgres.Open(ctx, driverURL, driverConfig)
}

// cutSchema takes the parameter out that PostgreSQL's clients do not know, and
// leaves every other byte as it is.
func cutSchema(storeURL string) (without, schema string, err error) {
	before, query, ok := strings.Cut(storeURL, "?")
	if !ok {
		return storeURL, "", nil
	}
	var kept []string
	named := false
	for parameter := range strings.SplitSeq(query, "&") {
		name, value, _ := strings.Cut(parameter, "=")
		if name != "schema" {
			kept = append(kept, parameter)
			continue
		}
		if named {
			return "", "", invalid("must not name the schema twice")
		}
		named = true
		if schema, err = url.QueryUnescape(value); err != nil || schema == "" {
			return "", "", invalid("must have the name of a schema after schema=")
		}
	}
	if len(kept) == 0 {
		return before, schema, nil
	}
	return before + "?" + strings.Join(kept, "&"), schema, nil
}

// sqlitePath returns the path after sqlite:, which may have the slashes of an
// empty host before it.
func sqlitePath(rest string) (string, error) {
	path := rest
	if strings.HasPrefix(rest, "//") {
		path = rest[2:]
		if !strings.HasPrefix(path, "/") {
			return "", invalid("must have an absolute path after sqlite://, as sqlite:///folder/file; a relative one is sqlite:file")
		}
	}
	switch {
	case path == "":
		return "", invalid("must have a path after sqlite:")
	case strings.Contains(path, "?"):
		return "", invalid("must have a path after sqlite:, and no parameters; for a file with a question mark in its name call sqlite.Open")
	}
	return path, nil
}
