package migrations

import (
	"context"

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

func inner(files []File) []file {
	all := make([]file, len(files))
	for i, f := range files {
		all[i] = file{f.Name, f.SQL}
	}
	return all
}
