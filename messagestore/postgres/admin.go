package postgres

// Admin does what members of the role dibs_admin may do beside reading: trim and
// delete streams, and look into the state of the store. It is safe for concurrent use
// if db is; over a connection, its calls take turns, and over a transaction what it
// does is the transaction's, which is at READ COMMITTED.
type Admin struct {
	driver *Driver
}

// NewAdmin returns an administrator of the store in db, which the caller keeps and
// closes. A schema that is no schema's name is the error of every call.
func NewAdmin(db DB, config *Config) *Admin { return &Admin{New(db, config)} }
