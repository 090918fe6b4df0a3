package messagestore_test

import (
	"context"
	"errors"
	"fmt"

	"github.com/google/uuid"

	"github.com/dibs-go/dibs/messagestore"
	"github.com/dibs-go/dibs/messagestore/memory"
)

const account messagestore.Category = "account"

type Deposited struct {
	Amount int `json:"amount"`
}

func (Deposited) MessageType() string { return "Deposited" }

type Withdrawn struct {
	Amount int `json:"amount"`
}

func (Withdrawn) MessageType() string { return "Withdrawn" }

func ExampleStore_Write() {
	ctx := context.Background()
	store, err := messagestore.New(memory.New(), nil)
	if err != nil {
		fmt.Println(err)
		return
	}

	written, err := store.Write(ctx, account.Stream("123"), messagestore.NoStream, Deposited{10})
	fmt.Println("at version", written.Version, err)

	// Another writer has read the stream before that, and is too late.
	_, err = store.Write(ctx, account.Stream("123"), messagestore.NoStream, Withdrawn{10})
	fmt.Println(err)
	fmt.Println(errors.Is(err, messagestore.ErrVersionConflict))

	// Output:
	// at version 0 <nil>
	// write account-123: version conflict: expected no stream, found 0
	// true
}

// A message with an id of its own may be written as often as one likes.
func ExampleStore_Write_again() {
	ctx := context.Background()
	store, err := messagestore.New(memory.New(), nil)
	if err != nil {
		fmt.Println(err)
		return
	}
	deposited := messagestore.Envelope{ID: uuid.New(), Body: Deposited{10}}

	for range 2 {
		written, err := store.Write(ctx, account.Stream("123"), messagestore.NoStream, deposited)
		fmt.Println("at version", written.Version, "again:", written.Duplicate, err)
	}

	// Output:
	// at version 0 again: false <nil>
	// at version 0 again: true <nil>
}

func ExampleStore_WriteInitial() {
	ctx := context.Background()
	store, err := messagestore.New(memory.New(), nil)
	if err != nil {
		fmt.Println(err)
		return
	}

	for range 2 {
		wrote, err := store.WriteInitial(ctx, "deposit-4711", Deposited{10})
		fmt.Println("first:", wrote, err)
	}

	// Output:
	// first: true <nil>
	// first: false <nil>
}

// The loser of a race learns in the same round trip what it lost to, and the time.
func ExampleStore_TryWrite() {
	ctx := context.Background()
	store, err := messagestore.New(memory.New(), nil)
	if err != nil {
		fmt.Println(err)
		return
	}

	for _, amount := range []int{10, 20} {
		written, met, err := store.TryWrite(ctx, "deposit-4711", messagestore.NoStream, Deposited{amount})
		switch {
		case err != nil:
			fmt.Println(err)
		case met != nil:
			fmt.Printf("met %s %s\n", met.Last[0].Type, met.Last[0].Data)
		default:
			fmt.Println("at version", written.Version)
		}
	}

	// Output:
	// at version 0
	// met Deposited {"amount":10}
}

func ExampleStore_ReadStream() {
	ctx := context.Background()
	store, err := messagestore.New(memory.New(), nil)
	if err != nil {
		fmt.Println(err)
		return
	}
	if _, err := store.Write(ctx, account.Stream("123"), messagestore.NoStream, Deposited{10}, Withdrawn{3}); err != nil {
		fmt.Println(err)
	}

	balance := 0
	for m, err := range store.ReadStream(ctx, account.Stream("123"), 0) {
		if err != nil {
			fmt.Println(err)
			return
		}
		switch m.Type {
		case "Deposited":
			body, err := messagestore.Decode[Deposited](m)
			if err != nil {
				fmt.Println(err)
				return
			}
			balance += body.Amount
		case "Withdrawn":
			body, err := messagestore.Decode[Withdrawn](m)
			if err != nil {
				fmt.Println(err)
				return
			}
			balance -= body.Amount
		}
	}
	fmt.Println("balance", balance)

	// Output:
	// balance 7
}

func ExampleStore_ReadCategory() {
	ctx := context.Background()
	store, err := messagestore.New(memory.New(), nil)
	if err != nil {
		fmt.Println(err)
		return
	}
	for _, id := range []string{"123", "456", "123"} {
		if _, err := store.Write(ctx, account.Stream(id), messagestore.AnyVersion, Deposited{10}, Withdrawn{1}); err != nil {
			fmt.Println(err)
		}
	}

	for m, err := range store.ReadCategory(ctx, account, 0, messagestore.Filter{Types: []string{"Deposited"}}) {
		if err != nil {
			fmt.Println(err)
			return
		}
		fmt.Println(m)
	}

	// Output:
	// Deposited account-123@0
	// Deposited account-456@0
	// Deposited account-123@2
}

// After a write of unknown outcome, another process asks again later.
func ExampleStore_Resolve() {
	ctx := context.Background()
	store, err := messagestore.New(memory.New(), nil)
	if err != nil {
		fmt.Println(err)
		return
	}
	lost := &messagestore.OutcomeUnknownError{
		Writes: []messagestore.Append{{Stream: account.Stream("123"), Records: []messagestore.Encoded{{ID: uuid.New()}}}},
		Cause:  errors.New("connection reset"),
	}

	_, err = store.Resolve(ctx, lost)
	switch {
	case err == nil:
		fmt.Println("it was written")
	case errors.Is(err, messagestore.ErrNotWritten):
		fmt.Println("it was not, and never will be")
	default:
		fmt.Println("still unknown")
	}

	// Output:
	// it was not, and never will be
}

func ExampleFollow() {
	deposit := &messagestore.Message{
		Stream: "account:command-123", Position: 4, GlobalPosition: 1234,
		Metadata: messagestore.Metadata{CorrelationStream: "transfer-99", Properties: messagestore.Properties{"tenant": "acme"}},
	}

	deposited := messagestore.Follow(deposit, Deposited{10})

	fmt.Println(deposited.Metadata.CausationStream, deposited.Metadata.CausationPosition)
	fmt.Println(deposited.Metadata.CorrelationStream, deposited.Metadata.Properties.Get("tenant"))
	fmt.Println(deposited.Metadata.Follows(deposit))

	// Output:
	// account:command-123 4
	// transfer-99 acme
	// true
}

func ExampleStreamName() {
	name := messagestore.StreamName("account:command-123+AAA")

	fmt.Println(name.Category(), name.Category().Types(), name.Validate())
	fmt.Println(name.ID(), name.CardinalID())
	fmt.Println(account.WithType("command").Stream("123").With("AAA") == name)

	fmt.Println(messagestore.StreamName("account-").Validate())

	// Output:
	// account:command [command] <nil>
	// 123+AAA 123
	// true
	// invalid stream name "account-": the identifier must not be empty
}
