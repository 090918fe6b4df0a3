// Package schema holds the SQL of the schema message_store: the functions, types and views
// that message-db's clients call, over the tables of the schema dibs. Package migrations
// applies it behind its own.
package schema

import "embed"

// Files are the folders tables and functions, and catalog.txt.
//
//go:embed tables functions catalog.txt
var Files embed.FS

// Taken is SQL for whether message_store.messages is a table, as it is in message-db. Here
// it is a view.
const Taken = `exists (select from pg_catalog.pg_class where relnamespace = to_regnamespace('message_store') and relname = 'messages' and relkind in ('r', 'p'))`

// LeftOut is the reason for which migrations leave the schema message_store out where it is message-db's own, until
// dibs migrate adopt takes its messages over.
const LeftOut = "message_store is message-db's own, until it is adopted"
