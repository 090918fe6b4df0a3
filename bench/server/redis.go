package server

import (
	"context"
	"errors"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
)

// Redis is a Redis server of this process. It is safe for concurrent use.
type Redis struct{ process *process }

// StartRedis starts redis-server from the PATH, with a folder below base. The caller stops it. sync
// says when its append-only file is synced (always, everysec or no); with "" it persists nothing.
func StartRedis(ctx context.Context, base, sync string) (*Redis, error) {
	bin, err := exec.LookPath("redis-server")
	if err != nil {
		return nil, errors.New("there is no redis-server here: install it (on Debian: apt-get install redis-server)")
	}
	dir, err := folder(base, "redis", nil)
	if err != nil {
		return nil, err
	}
	args := []string{"--port", "0", "--unixsocket", filepath.Join(dir, "redis.sock"), "--dir", dir, "--save", "", "--appendonly", "no"}
	if sync != "" {
		args = append(args, "--appendonly", "yes", "--appendfsync", sync)
	}
	r := &Redis{}
	if r.process, err = start(dir, nil, syscall.SIGKILL, bin, args...); err != nil {
		return nil, errors.Join(err, os.RemoveAll(dir))
	}
	err = r.process.await(ctx, func(ctx context.Context) error {
		conn, err := (&net.Dialer{}).DialContext(ctx, "unix", r.Socket())
		if err != nil {
			return err
		}
		return conn.Close()
	})
	if err != nil {
		return nil, errors.Join(err, r.Stop())
	}
	return r, nil
}

// RedisVersion returns the version that redis-server reports, or "" if it is not installed.
func RedisVersion(ctx context.Context) string {
	said, err := exec.CommandContext(ctx, "redis-server", "--version").Output()
	if err != nil {
		return ""
	}
	for word := range strings.FieldsSeq(string(said)) {
		if version, ok := strings.CutPrefix(word, "v="); ok {
			return version
		}
	}
	return ""
}

// PID returns the server's process id.
func (r *Redis) PID() int { return r.process.PID() }

// Socket returns the path of its Unix socket.
func (r *Redis) Socket() string { return filepath.Join(r.process.dir, "redis.sock") }

// Stop stops the server and removes its data.
func (r *Redis) Stop() error { return r.process.end(syscall.SIGKILL) }
