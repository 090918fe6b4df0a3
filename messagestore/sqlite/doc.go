// Package sqlite keeps messages in an SQLite file: no server, no cgo. It is the driver to begin
// with, to test and to demonstrate with, and enough for a service that lives on one machine.
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
// a write that returned is on the disk, also if the process or the machine ends then. One goroutine
// writes. All writes that come while a commit is under way go into the next, so that many callers
// share one flush. Each is checked against the writes before it, and none is harmed by another that
// is refused or fails.
//
// A write whose context ends before its commit has begun returns the context's error, and nothing
// was written. A write whose commit is under way waits up to half a second more for the outcome,
// and then returns a [*messagestore.OutcomeUnknownError].
//
// # Several processes
//
// Several processes on one machine may open one file. SQLite lets one write at a time, and gives
// none of them a turn by itself; the driver leaves the others theirs. A few processes get on well,
// with dozens of callers each. For many, or for many machines, there is messagestore/postgres.
//
// The file must be on a local disk. Never put it on NFS, SMB or another network file system, nor in
// a folder that is shared with a virtual machine or synchronised to a cloud: their locks are not to
// be relied on, and the file will be damaged. Never copy or replace it while it is open; "VACUUM
// INTO" and ".backup" of the sqlite3 program make copies. The files beside it whose names end in
// -wal and -shm belong to it.
//
// A process that reads for long in one transaction, as an open sqlite3 prompt after BEGIN does,
// keeps the log from being written back, and the -wal file grows for as long.
//
// # The caller's transaction
//
// [New] writes within a transaction of the caller's, so that a change of the application's own
// tables and the message that tells of it are both there or neither. [Schema] puts the tables into
// the application's database.
package sqlite
