package main

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"syscall"
	"time"

	"github.com/dibs-go/dibs/internal/demo"
	"github.com/dibs-go/dibs/queue"
)

const month = "1998-12"

// run is the command, and one run of it.
type run struct {
	demo.Flags
	demo.OrderFlags
	Count int    `default:"1500" placeholder:"N" help:"Pay so many of the orders; 0 for all. Defaults to ${default}."`
	Files string `default:"." placeholder:"DIR" help:"The folder of the module serve, with ts/built and examples."`

	orders  []due
	queue   *queue.Queue
	servers []*demo.Process
	killed  bool
	stopped bool
}

// Help is printed below the command's usage.
func (*run) Help() string {
	return `Clients in Go, TypeScript and a shell send the orders of the file, each more than once. Workers in Go and TypeScript receive them, and pay each under an intent, whose confirmation records the payment in the same step. On SQLite there is one server; on PostgreSQL there are two, and the workers of one share the queue with those of the other. A server is killed with SIGKILL, and one is stopped with SIGSTOP until the leases of its clients are over.

Then the file and the store are compared by code that shares none with the services. The exit code is 0 if all agree, and 1 if not.`
}

// Run runs the processes, and compares the books.
func (d *run) Run(ctx context.Context, o *demo.Output) error {
	for _, program := range []string{"node", "curl", "jq"} {
		if _, err := exec.LookPath(program); err != nil {
			return fmt.Errorf("%w: the demo needs %s", demo.ErrUsage, program)
		}
	}
	all, _, err := d.Read()
	if err != nil {
		return err
	}
	if d.Count > 0 {
		all = all[:min(d.Count, len(all))]
	}
	if len(all) < 100 {
		return fmt.Errorf("%w: there are %d orders, and at least 100 are needed", demo.ErrUsage, len(all))
	}
	for i, one := range all {
		by := "go"
		switch {
		case i%3 == 0:
			by = "typescript"
		case i%50 == 1:
			by = "shell"
		}
		d.orders = append(d.orders, due{one.ID, one.Account, month, int64(one.Amount), by})
	}
	return d.Play(ctx, o, standing, d)
}

// Work implements [demo.Show]: it starts the servers and the clients, disturbs, and waits until all is paid.
func (d *run) Work(ctx context.Context, r *demo.Run) (err error) {
	n := 2
	if r.OnSQLite() {
		n = 1
	}
	fmt.Fprintf(r.Out, "%s standing orders, %d %s, clients in Go, TypeScript and a shell\n", demo.Count(len(d.orders)), n, map[int]string{1: "server on SQLite", 2: "servers on PostgreSQL"}[n])
	if d.queue, err = queue.New(r.Store, standing, nil); err != nil {
		return err
	}
	var urls []string
	for i := range n {
		address, err := free()
		if err != nil {
			return err
		}
		p, err := r.Start(fmt.Sprint("server ", i+1), nil, "serve", "--address", address)
		if err != nil {
			return err
		}
		d.servers, urls = append(d.servers, p), append(urls, "http://"+address)
	}
	files := map[string]string{}
	for _, by := range []string{"go", "typescript", "shell"} {
		if files[by], err = d.write(filepath.Join(r.Dir, by+".jsonl"), by); err != nil {
			return err
		}
	}
	last := urls[n-1]
	ts := func(script string) string { return filepath.Join(d.Files, "ts/built/demo", script) }
	for _, role := range [][]string{
		{"a sender in Go", "produce", "--server", urls[0], "--file", files["go"]},
		{"a sender in TypeScript", "exec", "node", ts("produce.js"), last, files["typescript"]},
		{"a sender in a shell", "exec", filepath.Join(d.Files, "internal/demo/produce.sh"), urls[0], files["shell"]},
		{"a worker in Go", "work", "--server", urls[0]},
		{"another worker in Go", "work", "--server", last},
		{"a worker in TypeScript", "exec", "node", ts("work.js"), urls[0]},
		{"another worker in TypeScript", "exec", "node", ts("work.js"), last},
	} {
		if _, err := r.Start(role[0], nil, role[1:]...); err != nil {
			return err
		}
	}
	return d.disturb(ctx, r)
}

// write writes the orders of one sender to a file.
func (d *run) write(path, by string) (string, error) {
	f, err := os.Create(path)
	if err != nil {
		return "", err
	}
	w := bufio.NewWriter(f)
	lines := json.NewEncoder(w)
	for _, o := range d.orders {
		if o.By == by {
			err = errors.Join(err, lines.Encode(o))
		}
	}
	return path, errors.Join(err, w.Flush(), f.Close())
}

// free returns an address that nobody listens at.
func free() (string, error) {
	l, err := net.Listen("tcp", "127.0.0.1:0") //nolint:noctx // it is closed at once
	if err != nil {
		return "", err
	}
	return l.Addr().String(), l.Close()
}

// disturb kills a server, stops another and lets it go on, and waits until all is paid.
func (d *run) disturb(ctx context.Context, r *demo.Run) error {
	var thaw time.Time
	first, last := d.servers[0], d.servers[len(d.servers)-1]
	return demo.Until(ctx, 100*time.Millisecond, func() (bool, error) {
		if !thaw.IsZero() {
			if time.Now().Before(thaw) {
				return false, nil // on SQLite nobody can read while a writer stands still
			}
			thaw = time.Time{}
			r.Screen.Say("it goes on, past the end of its clients' leases")
			return false, last.Signal(syscall.SIGCONT)
		}
		s, err := d.queue.Status(ctx)
		if err != nil {
			return false, nil //nolint:nilerr // there is no queue yet, or a process has the file
		}
		done, of := int(s.Finished), len(d.orders)
		r.Screen.Show(demo.Progress{Done: done, Of: of, Count: done, Unit: "orders", Tail: fmt.Sprintf("%d dead", s.Dead)})
		switch {
		case !d.killed && done > of/4:
			d.killed = true
			r.Screen.Say("a server killed with SIGKILL, and started again")
			return false, first.KillAndStart()
		case !d.stopped && done > of/2:
			d.stopped, thaw = true, time.Now().Add(lease+time.Second)
			r.Screen.Say("a server stopped with SIGSTOP, until its clients' leases are over")
			return false, last.Signal(syscall.SIGSTOP)
		}
		return done == of && s.Out+s.Later+s.Held+s.Dead == 0 && !s.Waiting, nil
	})
}
