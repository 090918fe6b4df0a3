package migrations

import (
	"context"
	"crypto/sha256"
	"fmt"
	"slices"

	"github.com/jackc/pgx/v5"
)

// A File is a migration.
type File struct{ Name, SQL string }

// UpWith is Up for other files than the embedded ones.
func UpWith(ctx context.Context, conn *pgx.Conn, config *Config, files []File) error {
	return up(ctx, conn, config, inner(files))
}

// StatusWith is Status for other files than the embedded ones.
func StatusWith(ctx context.Context, conn *pgx.Conn, config *Config, files []File) ([]Migration, error) {
	return status(ctx, conn, config, inner(files))
}

// Files returns the embedded ones.
func Files() []File {
	all := make([]File, len(files))
	for i, f := range files {
		all[i] = File{f.name, f.sql}
	}
	return all
}

// NewFile returns a migration that does what sql does, and records itself.
func NewFile(name, sql string) File {
	sum := sha256.Sum256([]byte(sql))
	return File{name, fmt.Sprintf("%s\ninsert into dibs.migrations (name, sha256)\nvalues ('%s', '%x');\n", sql, name, sum)}
}

// SHA256 returns what the file says of itself.
func (f File) SHA256() string { return file{f.Name, f.SQL}.sha256() }

// ReadCatalog returns the catalog of two databases, one of them without the schema
// message_store.
func ReadCatalog(ctx context.Context, without, with *pgx.Conn) (text string, err error) {
	var native, all objects
	for conn, to := range map[*pgx.Conn]*objects{without: &native, with: &all} {
		err := pgx.BeginFunc(ctx, conn, func(tx pgx.Tx) (err error) {
			*to, err = readCatalog(ctx, tx, "dibs")
			return err
		})
		if err != nil {
			return "", err
		}
	}
	for object, facts := range native {
		if !slices.Equal(slices.Sorted(slices.Values(facts)), slices.Sorted(slices.Values(all[object]))) {
			return "", fmt.Errorf("%s changes %s", compatible, object)
		}
		delete(all, object)
	}
	return native.String() + "\n" + separator + "\n\n" + all.String(), nil
}

func inner(files []File) []file {
	all := make([]file, len(files))
	for i, f := range files {
		all[i] = file{f.Name, f.SQL}
	}
	return all
}
