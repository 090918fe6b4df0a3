// Mailer sends mails from a queue: in order for each address, again after a failure, and dead in
// the end.
//
//	go run ./examples/mailer
//
// The mail server refuses one address for good, and another once. The log of sent mails is on a
// disk that is full: a mail is completed before it is logged, so it is not sent again because of
// the log.
package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log"
	"os"
	"sync"
	"time"

	"github.com/dibs-go/dibs"
	"github.com/dibs-go/dibs/handler"
	"github.com/dibs-go/dibs/logger"
	"github.com/dibs-go/dibs/queue"
)

// Mail is an item of the queue.
type Mail struct{ To, Subject string }

// MessageType implements messagestore.Body.
func (Mail) MessageType() string { return "Mail" }

// A server is a mail server that knows no address at nowhere.example, and is busy once.
type server struct {
	mu   sync.Mutex
	out  io.Writer
	busy bool
}

func (s *server) send(m Mail) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	switch {
	case m.To == "bob@nowhere.example":
		return handler.Refuse(errors.New("no such address")) // no other attempt helps
	case m.Subject == "Second" && !s.busy:
		s.busy = true
		return errors.New("try again later")
	}
	fmt.Fprintf(s.out, "%s gets %q\n", m.To, m.Subject)
	return nil
}

// A fullDisk takes no bytes.
type fullDisk struct{}

func (fullDisk) Write([]byte) (int, error) { return 0, errors.New("no space left on device") }

// run sends all mails, and returns the dead items.
func run(ctx context.Context, out io.Writer) ([]queue.Item, error) {
	store, err := dibs.Open(ctx, "memory:", nil) // or sqlite:FILE, or postgres://...
	if err != nil {
		return nil, err
	}
	defer store.Close()
	mails, err := queue.New(store, "mail", &queue.Config{Logger: logger.Silent()})
	if err != nil {
		return nil, err
	}
	var last queue.Inserted
	for _, m := range []Mail{
		{"ann@home.example", "First"}, {"ann@home.example", "Second"}, {"ann@home.example", "Third"}, {"bob@nowhere.example", "Hello"},
	} {
		// The key: the mails to one address go one after the other, even if one of them has to be
		// sent again.
		if last, err = mails.Insert(ctx, m, &queue.InsertOpts{Key: m.To}); err != nil {
			return nil, err
		}
	}

	smtp, sent := &server{out: out}, log.New(fullDisk{}, "", log.LstdFlags)
	mux := handler.New()
	handler.On(mux, func(ctx context.Context, m handler.Message[Mail]) error {
		if err := smtp.send(m.Body); err != nil {
			return err // again after a back-off, or dead
		}
		if err := queue.JobOf(ctx).Complete(ctx); err != nil {
			return err
		}
		return sent.Output(1, "sent to "+m.Body.To) // which fails, and does not matter any more
	})
	working, stop := context.WithCancel(ctx)
	ended := make(chan error, 1)
	go func() { ended <- mails.Work(working, mux, &queue.WorkConfig{MinBackoff: 20 * time.Millisecond}) }()
	for mails.Counts().Completed < 3 || mails.Counts().Buried < 1 {
		select {
		case err := <-ended:
			stop()
			return nil, err
		case <-time.After(10 * time.Millisecond):
		}
	}
	stop()
	if err := <-ended; err != nil {
		return nil, err
	}
	dead, err := mails.Items(ctx, queue.Dead, last.Position, 10)
	return dead, err
}

func main() {
	dead, err := run(context.Background(), os.Stdout)
	if err != nil {
		log.Fatal(err)
	}
	for _, item := range dead {
		fmt.Printf("%s is dead: %s\n", item.Message, item.Error)
	}
}
