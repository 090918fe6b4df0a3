package ticketing

import (
	"context"

	"github.com/jackc/pgx/v5"

	"github.com/dibs-go/dibs/entity"
	"github.com/dibs-go/dibs/handler"
	"github.com/dibs-go/dibs/messagestore"
	"github.com/dibs-go/dibs/reservation"
)

// The categories of seats.
const (
	seats    messagestore.Category = "seat"         // events: seat-12A has the events of seat 12A
	commands messagestore.Category = "seat:command" // commands: seat:command-12A
)

// HoldSeat is a command: a customer wants a seat.
type HoldSeat struct {
	Key   string `json:"key"`
	Seat  string `json:"seat"`
	Email string `json:"email"`
}

// MessageType returns "HoldSeat".
func (HoldSeat) MessageType() string { return "HoldSeat" }

// SeatHeld is an event: the customer has the seat.
type SeatHeld struct {
	Seat  string `json:"seat"`
	Email string `json:"email"`
}

// MessageType returns "SeatHeld".
func (SeatHeld) MessageType() string { return "SeatHeld" }

// HoldRefused is an event: another customer has the seat.
type HoldRefused struct {
	Seat  string `json:"seat"`
	Email string `json:"email"`
}

// MessageType returns "HoldRefused".
func (HoldRefused) MessageType() string { return "HoldRefused" }

// An Answer is the outcome of a request.
type Answer struct {
	Seat string `json:"seat"`
	Held bool   `json:"held"`
}

// A seat is folded from its events.
type seat struct{ Held bool }

func projection() *entity.Projection[seat] {
	p := entity.NewProjection[seat]()
	entity.On(p, func(seat, SeatHeld) seat { return seat{Held: true} })
	entity.On(p, func(s seat, _ HoldRefused) seat { return s })
	return p
}

// boxOffice returns the handlers of commands. The reservation of the key, the event and the row
// are one transaction, and the version of the seat has one of two customers win.
func boxOffice(store *messagestore.TxStore[pgx.Tx]) (*handler.Mux, error) {
	once, err := reservation.New(store, "seats", nil)
	if err != nil {
		return nil, err
	}
	theatre, err := entity.New(store, seats, projection(), nil)
	if err != nil {
		return nil, err
	}
	mux := handler.New()
	handler.Register(mux, reservation.Transact(store, once, func(h HoldSeat) string { return h.Key },
		func(ctx context.Context, tx pgx.Tx, m handler.Message[HoldSeat]) ([]messagestore.StreamWrite, error) {
			c := m.Body
			taken, version, err := theatre.Get(ctx, c.Seat)
			if err != nil {
				return nil, err
			}
			var event messagestore.Body = SeatHeld{c.Seat, c.Email}
			if taken.Held {
				event = HoldRefused{c.Seat, c.Email}
			}
			_, err = tx.Exec(ctx, "insert into holds (seat, key, email, held) values ($1, $2, $3, $4)", c.Seat, c.Key, c.Email, !taken.Held)
			return []messagestore.StreamWrite{
				reservation.Answer(Answer{c.Seat, !taken.Held}),
				messagestore.To(theatre.Stream(c.Seat), version, messagestore.Follow(m.Message, event)),
			}, err
		}))
	return mux, nil
}
