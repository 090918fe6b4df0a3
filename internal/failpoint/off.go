//go:build !failpoint

package failpoint

// Hit does nothing.
func Hit(string) error { return nil }

// Disarm does nothing.
func Disarm() {}
