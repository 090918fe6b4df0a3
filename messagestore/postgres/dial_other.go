//go:build !linux

package postgres

import "syscall"

// limitSilence can do nothing here: what was sent and is not acknowledged is given up when
// the system does.
func limitSilence(string, string, syscall.RawConn) error { return nil }
