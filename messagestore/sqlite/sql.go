package sqlite

import _ "embed"

// The statements, one per file, so that they can be read and explained as SQL.
var (
	//go:embed sql/schema_1.sql
	schema1SQL string
	//go:embed sql/schema_2.sql
	schema2SQL string
	//go:embed sql/schema_3.sql
	schema3SQL string
	//go:embed sql/schema_4.sql
	schema4SQL string
	//go:embed sql/schema_5.sql
	schema5SQL string
	//go:embed sql/lock.sql
	lockSQL string
	//go:embed sql/append.sql
	appendSQL string
	//go:embed sql/is_at.sql
	isAtSQL string
	//go:embed sql/past.sql
	pastSQL string
	//go:embed sql/by_id.sql
	byIDSQL string
	//go:embed sql/settle.sql
	settleSQL string
	//go:embed sql/version.sql
	versionSQL string
	//go:embed sql/stream.sql
	streamSQL string
	//go:embed sql/stream_backwards.sql
	streamBackwardsSQL string
	//go:embed sql/last_of_type.sql
	lastOfTypeSQL string
	//go:embed sql/category.sql
	categorySQL string
	//go:embed sql/category_horizon.sql
	categoryHorizonSQL string
	//go:embed sql/category_filtered.sql
	categoryFilteredSQL string
	//go:embed sql/heads.sql
	headsSQL string
	//go:embed sql/report.sql
	reportSQL string
	//go:embed sql/categories.sql
	categoriesSQL string
	//go:embed sql/ends.sql
	endsSQL string
	//go:embed sql/other_type.sql
	otherTypeSQL string
	//go:embed sql/records.sql
	recordsSQL string
	//go:embed sql/remove.sql
	removeSQL string
	//go:embed sql/young.sql
	youngSQL string
	//go:embed sql/streams.sql
	streamsSQL string
	//go:embed sql/forgettable.sql
	forgettableSQL string
	//go:embed sql/lasts.sql
	lastsSQL string
	//go:embed sql/own_last.sql
	ownLastSQL string
	//go:embed sql/all.sql
	allSQL string
	//go:embed sql/verify_queues.sql
	verifyQueuesSQL string
	//go:embed sql/count.sql
	countSQL string
)

const (
	beginSQL       = "BEGIN IMMEDIATE"
	commitSQL      = "COMMIT"
	rollbackSQL    = "ROLLBACK"
	savepointSQL   = "SAVEPOINT dibs"
	rollbackToSQL  = "ROLLBACK TO dibs"
	releaseSQL     = "RELEASE dibs"
	dataVersionSQL = "PRAGMA data_version"
)
