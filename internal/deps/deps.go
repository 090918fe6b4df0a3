// Package deps keeps the dependencies while the packages that use them are being written.
package deps

import (
	_ "github.com/alecthomas/kong"
	_ "github.com/jackc/pgx/v5/pgxpool"
	_ "github.com/jackc/pgx/v5/stdlib"
	_ "github.com/stretchr/testify/require"
	_ "go.uber.org/goleak"
	_ "modernc.org/sqlite"
	_ "pgregory.net/rapid"
)
