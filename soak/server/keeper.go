package server

import (
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"

	"github.com/dibs-go/dibs/internal/testserver"
)

// keeperVariable is set in the environment of the keeper: the folder it keeps.
const keeperVariable = "DIBS_SOAK_KEEP"

// A Keeper removes a folder, with everything that runs or is mounted below it, when the harness
// ends, even by kill -9. Pdeathsig alone does not reach a paused server.
type Keeper struct {
	dir  string
	cmd  *exec.Cmd
	in   io.WriteCloser
	once func() error
}

// NewKeeper makes a folder for a run below base and starts a process that keeps it. main must call
// [RunKeeper] first.
func NewKeeper(base string) (*Keeper, error) {
	owner, err := testserver.Unprivileged()
	if err != nil {
		return nil, err
	}
	dir, err := os.MkdirTemp(base, "dibs-soak.")
	if err != nil {
		return nil, err
	}
	if err := testserver.Own(dir, owner); err != nil {
		return nil, errors.Join(err, os.RemoveAll(dir))
	}
	self, err := os.Executable()
	if err != nil {
		return nil, errors.Join(err, os.RemoveAll(dir))
	}
	k := &Keeper{dir: dir, cmd: exec.Command(self)} //nolint:noctx // ends with its input
	k.cmd.Env = append(os.Environ(), keeperVariable+"="+dir)
	k.cmd.Stderr = os.Stderr
	k.cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true} // the end of this session does not end it
	if k.in, err = k.cmd.StdinPipe(); err == nil {
		err = k.cmd.Start()
	}
	if err != nil {
		return nil, errors.Join(err, os.RemoveAll(dir))
	}
	k.once = sync.OnceValue(func() error { return errors.Join(k.in.Close(), k.cmd.Wait()) })
	return k, nil
}

// Dir returns the folder of the run.
func (k *Keeper) Dir() string { return k.dir }

// Close removes the folder and ends the processes below it. It may be called twice.
func (k *Keeper) Close() error { return k.once() }

// RunKeeper does the work of a keeper, if this process is a keeper, and then exits.
func RunKeeper() {
	dir := os.Getenv(keeperVariable)
	if dir == "" {
		return
	}
	_, _ = io.Copy(io.Discard, os.Stdin) // until the harness is gone
	if err := remove(dir); err != nil {
		fmt.Fprintln(os.Stderr, "soak: clean up:", err)
		os.Exit(1) //nolint:forbidigo // it is main's, here
	}
	os.Exit(0) //nolint:forbidigo // it is main's, here
}

func remove(dir string) error {
	err := killBelow(dir)
	for _, mounted := range mountsBelow(dir) {
		err = errors.Join(err, syscall.Unmount(mounted, 0))
	}
	return errors.Join(err, os.RemoveAll(dir))
}

// mountsBelow returns the mounts below dir, the innermost first.
func mountsBelow(dir string) []string {
	mounts, _ := os.ReadFile("/proc/self/mounts") // or else nothing
	var found []string
	for line := range strings.Lines(string(mounts)) {
		fields := strings.Fields(line)
		if len(fields) > 1 && strings.HasPrefix(fields[1], dir+string(filepath.Separator)) {
			found = append(found, fields[1])
		}
	}
	slices.Reverse(found)
	return found
}
