package queue_test

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"log"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/google/uuid"

	"github.com/dibs-go/dibs/handler"
	"github.com/dibs-go/dibs/internal/testkit"
	"github.com/dibs-go/dibs/logger"
	"github.com/dibs-go/dibs/messagestore"
	"github.com/dibs-go/dibs/messagestore/memory"
	"github.com/dibs-go/dibs/messagestore/sqlite"
	"github.com/dibs-go/dibs/queue"
)

// Two mails to one person go in order, and a report goes once, however often it is inserted.
func Example() {
	ctx, stop := context.WithCancel(context.Background())
	defer stop()
	store := testkit.Must(messagestore.New(memory.New(), nil)) // or dibs.Open(ctx, "postgres://…", nil)
	mail, err := queue.New(store, "mail", nil)
	if err != nil {
		log.Fatal(err)
	}
	for n := range 2 {
		_, err = mail.Insert(ctx, Send{To: "ann", N: n + 1}, &queue.InsertOpts{Key: "ann"})
		if err != nil {
			log.Fatal(err)
		}
	}
	for range 3 {
		report, err := mail.Insert(ctx, Send{To: "bob", N: 3}, &queue.InsertOpts{Unique: "report-2026-11-25"})
		if err != nil {
			log.Fatal(err)
		}
		fmt.Println("inserted before:", report.Duplicate)
	}

	sent := 0
	mux := handler.New()
	handler.On(mux, func(_ context.Context, m handler.Message[Send]) error {
		fmt.Println("mail", m.Body.N, "to", m.Body.To)
		if sent++; sent == 3 {
			stop()
		}
		return nil
	})
	if err := mail.Work(ctx, mux, &queue.WorkConfig{MaxWorkers: 1, Timeout: time.Minute}); err != nil {
		log.Fatal(err)
	}
	// Output:
	// inserted before: false
	// inserted before: true
	// inserted before: true
	// mail 1 to ann
	// mail 2 to ann
	// mail 3 to bob
}

// A program that handles items one by one reserves them itself. What it does not end in time is delivered again.
func ExampleQueue_Receive() {
	ctx := context.Background()
	store := testkit.Must(messagestore.New(memory.New(), nil))
	mail := testkit.Must(queue.New(store, "mail", nil))
	testkit.Must(mail.Insert(ctx, Send{To: "ann"}, nil))

	jobs, err := mail.Receive(ctx, 10, &queue.ReceiveOpts{Wait: 20 * time.Second, VisibilityTimeout: time.Minute})
	if err != nil {
		log.Fatal(err)
	}
	for _, job := range jobs {
		fmt.Printf("%s %s\n", job.Message.Type, job.Message.Data)
		if err := job.Complete(ctx); errors.Is(err, queue.ErrLost) {
			fmt.Println("too late: another has it")
		} else if err != nil {
			log.Fatal(err)
		}
	}
	// Output:
	// Send {"to":"ann"}
}

// A worker that ends its last items as it gets the next ones makes one call of the store for both. It keeps the deliveries, and not
// the jobs, so another process could do the work. If the answer of a call is lost, it calls again with the same ID and the next
// Attempt.
func ExampleQueue_SettleAndReceive() {
	ctx := context.Background()
	store := testkit.Must(messagestore.New(memory.New(), nil))
	mail := testkit.Must(queue.New(store, "mail", nil))
	for _, to := range []string{"ann", "nobody", "bob"} {
		testkit.Must(mail.Insert(ctx, Send{To: to}, nil))
	}

	var settlements []queue.Settlement
	for {
		call := uuid.New()
		outcomes, jobs, err := mail.SettleAndReceive(ctx, settlements, 10, &queue.ReceiveOpts{ID: call, Wait: 20 * time.Second})
		if err != nil {
			log.Fatal(err)
		}
		fmt.Println("settled:", outcomes)
		if len(jobs) == 0 || len(settlements) > 0 {
			return
		}
		settlements = nil
		for _, job := range jobs {
			s := queue.Settlement{Delivery: job.Delivery(), Action: queue.Complete}
			if strings.Contains(string(job.Message.Data), "nobody") {
				s.Action, s.Error = queue.Bury, "no such address"
			}
			settlements = append(settlements, s)
		}
		testkit.Must(mail.Insert(ctx, Send{To: "carol"}, nil))
	}
	// Output:
	// settled: []
	// settled: [<nil> <nil> <nil>]
}

// The mail is sent and its item completed before the line is logged. A disk that is full then fails the log, and sends no
// second mail.
func ExampleJob_Complete() {
	ctx, stop := context.WithCancel(context.Background())
	defer stop()
	store := testkit.Must(messagestore.New(memory.New(), nil))
	mail := testkit.Must(queue.New(store, "mail", &queue.Config{Logger: logger.Silent()}))
	at := testkit.Must(mail.Insert(ctx, Send{To: "ann"}, nil))

	mux := handler.New()
	handler.On(mux, func(ctx context.Context, m handler.Message[Send]) error {
		defer stop()
		fmt.Println("mail to", m.Body.To)
		if err := queue.JobOf(ctx).Complete(ctx); err != nil {
			return err
		}
		return errors.New("write mail.log: no space left on device")
	})
	if err := mail.Work(ctx, mux, nil); err != nil {
		log.Fatal(err)
	}
	item := testkit.Must(mail.Item(context.Background(), at.Position))
	fmt.Println(item.State, "with", item.Failures, "failures")
	// Output:
	// mail to ann
	// finished with 0 failures
}

// A caller inserts an item and waits for its end, and for the message that the handler wrote with the item as its cause.
func ExampleQueue_Await() {
	ctx, stop := context.WithCancel(context.Background())
	defer stop()
	store := testkit.Must(messagestore.New(memory.New(), nil))
	mail := testkit.Must(queue.New(store, "mail", nil))
	mux := handler.New()
	handler.On(mux, func(ctx context.Context, m handler.Message[Send]) error {
		_, err := store.Write(ctx, "receipt-ann", messagestore.AnyVersion, messagestore.Follow(m.Message, Send{To: "ann", N: 250}))
		return err
	})
	worker := make(chan error, 1)
	go func() { worker <- mail.Work(ctx, mux, nil) }()

	at, err := mail.Insert(ctx, Send{To: "ann"}, nil)
	if err != nil {
		log.Fatal(err)
	}
	waiting, cancel := context.WithTimeout(ctx, 30*time.Second)
	defer cancel()
	item, result, err := mail.Await(waiting, at.Position, "receipt-ann")
	if err != nil {
		log.Fatal(err)
	}
	fmt.Printf("%s: %s\n", item.State, result[0].Data)

	stop()
	if err := <-worker; err != nil {
		log.Fatal(err)
	}
	// Output:
	// finished: {"to":"ann","n":250}
}

// A handler notes how far it is, as often as it likes: dibs queue jobs shows the last note.
func ExampleJob_Progress() {
	ctx := context.Background()
	store := testkit.Must(messagestore.New(memory.New(), nil))
	mail := testkit.Must(queue.New(store, "mail", nil))
	at := testkit.Must(mail.Insert(ctx, Send{To: "ann"}, nil))
	jobs := testkit.Must(mail.Receive(ctx, 1, nil))

	if err := jobs[0].Progress("3 of 9 sent"); err != nil {
		log.Fatal(err)
	}
	if err := jobs[0].Extend(ctx, time.Minute); err != nil { // a worker extends by itself
		log.Fatal(err)
	}
	fmt.Println(testkit.Must(mail.Item(ctx, at.Position)).Note)
	// Output:
	// 3 of 9 sent
}

// An order and its mail are in one transaction of the caller's: both are committed, or neither is.
func ExampleQueue_InsertTx() {
	ctx := context.Background()
	dir, err := os.MkdirTemp("", "orders")
	if err != nil {
		log.Fatal(err)
	}
	defer os.RemoveAll(dir)
	file := filepath.Join(dir, "orders.db")
	driver := testkit.Must(sqlite.Open(ctx, file, nil)) // or a pool of pgx, and a pgx.Tx
	defer driver.Close()
	mail := testkit.Must(queue.New(testkit.Must(messagestore.New(driver, nil)), "mail", nil))
	db := testkit.Must(sql.Open("sqlite", "file:"+file+"?_txlock=immediate&_pragma=busy_timeout(10000)"))
	defer db.Close()
	testkit.Must(db.ExecContext(ctx, "create table orders (id text primary key)"))

	order := func(id string, commits bool) error {
		tx, err := db.BeginTx(ctx, nil)
		if err != nil {
			return err
		}
		defer tx.Rollback() //nolint:errcheck // it is committed, or of no effect
		if _, err := tx.ExecContext(ctx, "insert into orders values (?)", id); err != nil {
			return err
		}
		if _, err := mail.InsertTx(ctx, tx, Send{To: id}, &queue.InsertOpts{Unique: id}); err != nil || !commits {
			return err
		}
		return tx.Commit()
	}
	fmt.Println(order("ann", true), order("bob", false))
	waiting := testkit.Must(mail.Items(ctx, queue.Waiting, 0, 10))
	fmt.Printf("%d mail: %s\n", len(waiting), waiting[0].Message.Data)
	// Output:
	// <nil> <nil>
	// 1 mail: {"to":"ann"}
}
