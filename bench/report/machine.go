package report

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"runtime"
	"runtime/debug"
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
	facts := []Fact{
		{"Processor", fmt.Sprintf("%s, %d cores, shared by client and server", procField("/proc/cpuinfo", "model name"), runtime.NumCPU())},
		{"Memory", procField("/proc/meminfo", "MemTotal")},
		{"Kernel", strings.TrimSpace(read("/proc/sys/kernel/osrelease")) + ", " + runtime.GOARCH},
		{"Disk", fmt.Sprintf("an fdatasync of 8 kB takes %d µs (median of %d, before the run)", sync.Microseconds(), syncs)},
		{"Load before the run", strings.Join(strings.Fields(read("/proc/loadavg") + " ? ? ?")[:3], " ")},
	}
	return facts, nil
}

// read returns the content of a file of the kernel's, or nothing where there is none.
func read(path string) string {
	content, _ := os.ReadFile(path)
	return string(content)
}

func procField(path, name string) string {
	for line := range strings.Lines(read(path)) {
		if field, value, ok := strings.Cut(line, ":"); ok && strings.TrimSpace(field) == name {
			return strings.TrimSpace(value)
		}
	}
	return "unknown"
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

// The modules whose versions a reader wants to know.
var reported = []string{
	"github.com/jackc/pgx/v5", "github.com/redis/go-redis/v9", "github.com/riverqueue/river", "github.com/ThreeDotsLabs/watermill",
	"github.com/ThreeDotsLabs/watermill-sql", "modernc.org/sqlite",
}

// Versions returns the versions of Go and of the modules that take part.
func Versions() map[string]string {
	versions := map[string]string{"Go": strings.TrimPrefix(runtime.Version(), "go")}
	build, ok := debug.ReadBuildInfo()
	if !ok {
		return versions
	}
	for _, dep := range build.Deps {
		for _, module := range reported {
			if dep.Path == module || strings.HasPrefix(dep.Path, module+"/v") {
				versions[dep.Path] = dep.Version
			}
		}
	}
	return versions
}

// Commit returns the commit that the sources are at, and whether they differ from it.
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
