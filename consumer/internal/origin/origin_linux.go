package origin

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"strconv"
	"strings"
	"sync"
	"syscall"
)

// Self returns this process. It is the zero value where /proc is not there, or is that of another
// namespace.
var Self = sync.OnceValue(func() Origin {
	boot, err := os.ReadFile("/proc/sys/kernel/random/boot_id")
	if err != nil {
		return Origin{}
	}
	namespace, err := os.Readlink("/proc/self/ns/pid")
	if err != nil {
		return Origin{}
	}
	_, itself, err := stat("self")
	if err != nil {
		return Origin{}
	}
	_, started, err := stat(strconv.Itoa(os.Getpid()))
	if err != nil || started != itself {
		return Origin{}
	}
	return Origin{Boot: strings.TrimSpace(string(boot)), Namespace: namespace, PID: os.Getpid(), Started: started}
})

// ended reports whether a process of this boot and namespace has ended. A process that waits to be
// reaped runs no more, unless another of its threads does.
func ended(o Origin) bool {
	if errors.Is(syscall.Kill(o.PID, 0), syscall.ESRCH) {
		return true
	}
	pid := strconv.Itoa(o.PID)
	state, started, err := stat(pid)
	if err != nil {
		return false // it may be hidden from this user
	}
	if started != o.Started {
		return true
	}
	if state != 'Z' && state != 'X' {
		return false
	}
	threads, err := os.ReadDir("/proc/" + pid + "/task")
	return err == nil && len(threads) <= 1
}

// stat returns the state of a process and when it started.
func stat(pid string) (state byte, started uint64, err error) {
	text, err := os.ReadFile("/proc/" + pid + "/stat")
	if err != nil {
		return 0, 0, err
	}
	// The second field is the name in parentheses, which may hold anything.
	fields := bytes.Fields(text[bytes.LastIndexByte(text, ')')+1:])
	if len(fields) < 20 {
		return 0, 0, fmt.Errorf("/proc/%s/stat has %d fields behind the name", pid, len(fields))
	}
	started, err = strconv.ParseUint(string(fields[19]), 10, 64)
	return fields[0][0], started, err
}
