package postgres

import (
	"embed"

	"github.com/dibs-go/dibs/internal/pglink"
)

//go:embed sql/*.sql
var statements embed.FS

// These do not depend on the schema.
var (
	//go:embed sql/now.sql
	nowSQL string
	//go:embed sql/transact_end.sql
	transactEndSQL string
)

// queries are the statements for one schema, each a call of one function.
type queries struct {
	append, appendOne, appendSeveral, appendEach, appendShared, transactAppend, transactAsk, stage, trimCheckpoints    string
	readStream, readStreams, readCategory, last, version, find, heads, report, categories, count, rights, listen, ring string
	queueTake, queueReady, queueExtend, queueLeave, queueFinish, queueChange, queuePark, queueRemove                   string
	queueItems, queueItem, queueStates                                                                                 string
}

func queriesFor(schema string) *queries {
	of := func(name string) string {
		sql, _ := statements.ReadFile("sql/" + name + ".sql") // it is in the program
		return pglink.InSchema(string(sql), schema)
	}
	return &queries{
		append:          of("append"),
		appendOne:       of("append_one"),
		appendSeveral:   of("append_several"),
		appendEach:      of("append_each"),
		appendShared:    of("append_shared"),
		transactAppend:  of("transact_append"),
		transactAsk:     of("transact_ask"),
		stage:           of("stage"),
		trimCheckpoints: of("trim_checkpoints"),
		readStream:      of("read_stream"),
		readStreams:     of("read_streams"),
		readCategory:    of("read_category"),
		last:            of("last"),
		version:         of("version"),
		find:            of("find"),
		heads:           of("heads"),
		report:          of("report"),
		categories:      of("categories"),
		count:           of("count"),
		rights:          of("rights"),
		listen:          of("listen"),
		ring:            of("ring"),
		queueTake:       of("queue_take"),
		queueReady:      of("queue_ready"),
		queueExtend:     of("queue_extend"),
		queueLeave:      of("queue_leave"),
		queueFinish:     of("queue_finish"),
		queueChange:     of("queue_change"),
		queuePark:       of("queue_park"),
		queueRemove:     of("queue_remove"),
		queueItems:      of("queue_items"),
		queueItem:       of("queue_item"),
		queueStates:     of("queue_states"),
	}
}
