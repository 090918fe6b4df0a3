package cli

import (
	"context"
	"errors"
	"io/fs"
	"iter"
	"os"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/dibs-go/dibs/messagestore"
	"github.com/dibs-go/dibs/messagestore/postgres"
	"github.com/dibs-go/dibs/messagestore/postgres/admin"
	"github.com/dibs-go/dibs/messagestore/retention"
	"github.com/dibs-go/dibs/messagestore/sqlite"
)

// A keeper removes messages of a store, and verifies the rest.
type keeper interface {
	Trim(ctx context.Context, stream messagestore.StreamName, options *retention.TrimOptions) (retention.Trimmed, error)
	TrimCategory(ctx context.Context, category messagestore.Category, options *retention.TrimOptions) iter.Seq2[retention.Trimmed, error]
	Delete(ctx context.Context, stream messagestore.StreamName, expected messagestore.Version, options *retention.DeleteOptions) (retention.Deleted, error)
	Forget(ctx context.Context, category messagestore.Category, age time.Duration, options *retention.ForgetOptions) (retention.Forgotten, error)
	Verify(ctx context.Context, config *retention.VerifyConfig) (*retention.Verification, error)
}

// withKeeper runs f with the keeper of the store, and a store for what it has to read.
func (a *app) withKeeper(ctx context.Context, command string, f func(k keeper, store *messagestore.Store) error) error {
	u, err := a.storeURL()
	if err != nil {
		return err
	}
	if isPostgres(u) {
		return a.withConn(ctx, func(conn *pgx.Conn) error {
			keeper, err := admin.New(conn, a.postgresConfig())
			if err != nil {
				return err
			}
			driver, err := postgres.New(conn, a.postgresConfig())
			if err != nil {
				return err
			}
			store, err := messagestore.New(driver, quietly)
			if err != nil {
				return err
			}
			return f(keeper, store)
		})
	}
	return a.withFile(ctx, u, command, func(d *sqlite.Driver) error {
		store, err := messagestore.New(d, quietly)
		if err != nil {
			return err
		}
		return f(d, store)
	})
}

// withFile runs f with a store in a file, which has to be there.
func (a *app) withFile(ctx context.Context, u, command string, f func(*sqlite.Driver) error) (err error) {
	path, is := filePath(u)
	if !is {
		return usage("%s needs a store in PostgreSQL or SQLite, and the store of %s is another", command, a.origin)
	}
	if err := a.requireFile(u); err != nil {
		return err
	}
	driver, err := sqlite.Open(ctx, path, nil)
	if err != nil {
		return err
	}
	defer func() {
		if closeErr := driver.Close(); err == nil {
			err = closeErr
		}
	}()
	return f(driver)
}

// filePath returns the path in the URL of a store on SQLite.
func filePath(u string) (path string, is bool) {
	scheme, path, ok := strings.Cut(u, ":")
	if !ok || !strings.EqualFold(scheme, "sqlite") {
		return "", false
	}
	return strings.TrimPrefix(path, "//"), true
}

// requireFile refuses a file that is not there: a mistyped name would be a new, empty store. Only
// dibs write makes one.
func (a *app) requireFile(u string) error {
	path, is := filePath(u)
	if !is || path == "" || a.mayCreate {
		return nil
	}
	if _, err := os.Stat(path); errors.Is(err, fs.ErrNotExist) {
		return hinted(notFound("there is no file %s, which %s names", path, a.origin), "is the name right? dibs write makes a new one")
	}
	return nil
}
