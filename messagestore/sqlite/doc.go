// Package sqlite keeps messages in an SQLite file: no server, no cgo. Use it to begin with, for
// tests and demonstrations, and for services on a single machine.
//
//	driver, err := sqlite.Open(ctx, "/var/lib/app/messages.db", nil)
//	...
//	store, err := messagestore.New(driver, nil)
//	...
//	defer store.Close()
//
// # Acknowledged writes are kept
//
// The file is in write-ahead logging mode with synchronous=FULL (and fullfsync, which macOS needs):
// a write that has returned is on the disk, and survives the end of the process or a crash of the
// machine. One goroutine writes. All writes that come while a commit is under way go into the next
// commit, so that many callers share one flush. Each write is checked against the writes before it,
// and does not suffer if another is refused or fails.
//
// If the context of a write ends before its commit has begun, the write returns the context's
// error, and nothing was written. If the commit is under way, the write waits up to half a second
// more for the outcome, and then returns a [*messagestore.OutcomeUnknownError].
//
// # Several processes
//
// Several processes on one machine may open one file. SQLite lets one process write at a time but
// does not make them take turns; the driver does. It works well for a few processes with dozens of
// callers each. For many processes, or several machines, use messagestore/postgres.
//
// The file must be on a local disk. Never put it on NFS, SMB or another network file system, nor in
// a folder that is shared with a virtual machine or synchronised to a cloud: you cannot rely on
// their locks, and the file will be damaged. Never copy or replace it while it is open; make copies
// with "VACUUM INTO" or ".backup" of the sqlite3 program. The files next to it with names that end
// in -wal and -shm belong to it.
//
// A long read transaction, such as an open sqlite3 prompt after BEGIN, prevents SQLite from writing
// the log back, and the -wal file grows meanwhile.
//
// # The caller's transaction
//
// [New] writes in your transaction, so that a change of your own tables and the message about it
// are committed together or not at all. [Schema] adds the store's tables to your database.
package sqlite
