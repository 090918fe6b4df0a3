//go:build !linux

package pglink

import "syscall"

// limitSilence does nothing: the system decides when to close a connection if sent bytes are not
// acknowledged.
func limitSilence(string, string, syscall.RawConn) error { return nil }
