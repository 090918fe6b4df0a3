//go:build unix

package cli

import (
	"syscall"

	"golang.org/x/sys/unix"
)

// columnsOf returns how wide the terminal at the other end of stream is, 0 if that is not known.
func columnsOf(stream any) (columns int) {
	f, ok := stream.(syscall.Conn)
	if !ok {
		return 0
	}
	conn, err := f.SyscallConn()
	if err != nil {
		return 0
	}
	err = conn.Control(func(fd uintptr) {
		if size, err := unix.IoctlGetWinsize(int(fd), unix.TIOCGWINSZ); err == nil { //nolint:gosec // a file's number
			columns = int(size.Col)
		}
	})
	if err != nil {
		return 0
	}
	return columns
}
