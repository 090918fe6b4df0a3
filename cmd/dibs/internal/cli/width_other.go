//go:build !unix

package cli

// columnsOf returns how wide the terminal at the other end of stream is: 0, which is not known.
func columnsOf(any) int { return 0 }
