package report

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"runtime"
	"slices"
	"strings"
	"syscall"
	"time"
)

// Machine describes the machine of the run; dir is where the servers keep their data.
func Machine(dir string) ([]Fact, error) {
	sync, err := syncTime(dir)
	if err != nil {
		return nil, err
	}
	cpu, _ := os.ReadFile("/proc/cpuinfo")  // or nothing
	load, _ := os.ReadFile("/proc/loadavg") // as well
	_, model, _ := strings.Cut(string(cpu), "model name\t: ")
	model, _, _ = strings.Cut(model, "\n")
	return []Fact{
		{"Processor", fmt.Sprintf("%s, %d cores, shared by client and server", model, runtime.NumCPU())},
		{"Disk", fmt.Sprintf("an fdatasync of 8 kB takes %d µs (median of %d, before the run)", sync.Microseconds(), syncs)},
		{"Load before the run", strings.Join(strings.Fields(string(load) + " ? ? ?")[:3], " ")},
		{"Go", runtime.Version()},
	}, nil
}

const syncs = 101

// syncTime returns how long it takes until 8 kB that were added to a file are on the
// disk.
func syncTime(dir string) (time.Duration, error) {
	f, err := os.CreateTemp(dir, "dibs-bench-sync.")
	if err != nil {
		return 0, err
	}
	defer os.Remove(f.Name())
	defer f.Close()
	page := make([]byte, 8192)
	times := make([]time.Duration, syncs)
	for i := range times {
		if _, err := f.Write(page); err != nil {
			return 0, err
		}
		began := time.Now()
		if err := syscall.Fdatasync(int(f.Fd())); err != nil { //nolint:gosec // a small number
			return 0, err
		}
		times[i] = time.Since(began)
	}
	slices.Sort(times)
	return times[syncs/2], nil
}

// Commit returns the commit of the sources, and whether they differ from it.
func Commit(ctx context.Context) string {
	commit, err := exec.CommandContext(ctx, "git", "rev-parse", "--short=12", "HEAD").Output()
	if err != nil {
		return "unknown"
	}
	at := strings.TrimSpace(string(commit))
	if changed, err := exec.CommandContext(ctx, "git", "status", "--porcelain", "--", ":/").Output(); err != nil || len(changed) > 0 {
		at += " with changes"
	}
	return at
}
