// Command demo shows the page over a shop in which five things are broken, and waits. Its page is at
// the address that it prints. Enter mends the three of them that no operator can: a handler's bug, a
// webhook that is down, and an airline that refuses. The rest is up to you.
package main

import (
	"bufio"
	"cmp"
	"context"
	"errors"
	"flag"
	"fmt"
	"net"
	"net/http"
	"os"
	"os/signal"
	"slices"
	"time"

	"github.com/dibs-go/dibs"
	"github.com/dibs-go/dibs/logger"
	"github.com/dibs-go/dibs/messagestore"
	"github.com/dibs-go/dibs/operate"
	"github.com/dibs-go/dibs/ui"
)

func main() {
	listen := flag.String("listen", "127.0.0.1:7072", "where the page is")
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	defer stop()
	if err := run(ctx, *listen); err != nil {
		fmt.Fprintln(os.Stderr, "demo:", err)
		os.Exit(1)
	}
}

func run(ctx context.Context, listen string) error {
	dir, err := os.MkdirTemp("", "dibs-ui-")
	if err != nil {
		return err
	}
	defer os.RemoveAll(dir)
	url := cmp.Or(os.Getenv("DIBS_STORE"), "sqlite:"+dir+"/shop.db")
	store, err := dibs.Open(ctx, url, &messagestore.Config{Logger: logger.Silent()})
	if err != nil {
		return err
	}
	defer store.Close()
	s, err := broken(ctx, store)
	if err != nil {
		return err
	}
	defer s.close()
	page, err := ui.New(store, &ui.Config{Operate: true, User: func(*http.Request) string { return "demo" }})
	if err != nil {
		return err
	}
	listener, err := (&net.ListenConfig{}).Listen(ctx, "tcp", listen)
	if err != nil {
		return err
	}
	server := &http.Server{Handler: page, ReadHeaderTimeout: 10 * time.Second}
	go func() {
		<-ctx.Done()
		_ = server.Close()
	}()
	go func() {
		if _, err := bufio.NewReader(os.Stdin).ReadString('\n'); err == nil {
			s.repair()
			fmt.Println("The handler, the webhook and the airline are mended. What waits for a person is on the page.")
		}
	}()
	fmt.Printf("The page is at http://%s/, and five things are broken:\n"+
		"  a handler with a bug for %s, a webhook that is down, trips that the airline refuses,\n"+
		"  mail that is paused, and statistics that were stopped.\n"+
		"The command sees the same: dibs doctor --store %s\n"+
		"Enter mends the bug, the webhook and the airline; Ctrl-C ends it.\n", listener.Addr(), badSKU, url)
	if err := server.Serve(listener); !errors.Is(err, http.ErrServerClosed) {
		return err
	}
	return nil
}

// broken returns a shop that has worked for a while, and in which all five things have shown.
func broken(ctx context.Context, store *messagestore.Store) (*shop, error) {
	s, err := open(ctx, store)
	if err != nil {
		return nil, err
	}
	fill := func() error {
		if err := s.work(ctx, 60); err != nil {
			return err
		}
		if err := s.pay(ctx); err != nil {
			return err
		}
		if err := shows(ctx, store, "parked", "dead", "suspended", "retrying"); err != nil {
			return err
		}
		if err := s.breakDown(ctx); err != nil {
			return err
		}
		if err := s.work(ctx, 10); err != nil {
			return err
		}
		return shows(ctx, store, "paused")
	}
	if err := fill(); err != nil {
		s.close()
		return nil, err
	}
	return s, nil
}

// shows waits until the store says that all of these are wrong.
func shows(ctx context.Context, store *messagestore.Store, causes ...string) error {
	end := time.Now().Add(time.Minute)
	for {
		all, err := operate.Healths(ctx, store)
		if err != nil {
			return err
		}
		there := map[string]bool{}
		for _, h := range all {
			for _, c := range h.Causes {
				there[c.What] = true
			}
		}
		missing := slices.DeleteFunc(slices.Clone(causes), func(cause string) bool { return there[cause] })
		switch {
		case len(missing) == 0:
			return nil
		case time.Now().After(end):
			return fmt.Errorf("after a minute nothing is %v", missing)
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-time.After(100 * time.Millisecond):
		}
	}
}
