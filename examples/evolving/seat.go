// Package evolving is a service that has changed its messages since it was first deployed. The page
// docs/evolving.md explains it.
package evolving

import (
	"cmp"
	"context"
	"encoding/json"

	"github.com/dibs-go/dibs/consumer"
	"github.com/dibs-go/dibs/entity"
	"github.com/dibs-go/dibs/handler"
	"github.com/dibs-go/dibs/messagestore"
	"github.com/dibs-go/dibs/outbox"
	"github.com/dibs-go/dibs/reservation"
	"github.com/dibs-go/dibs/upcast"
)

const (
	seats    messagestore.Category = "seat"
	commands messagestore.Category = "seat:command"
)

// HoldSeat is a command.
type HoldSeat struct {
	ID    string `json:"id"`
	Guest string `json:"guest"`
	Note  string `json:"note,omitempty"` // came later: "" in commands from before
}

// MessageType returns the name that is stored.
func (HoldSeat) MessageType() string { return "HoldSeat" }

// Key is the idempotence key.
func (h HoldSeat) Key() string { return h.ID }

// SeatHeld is an event. Its type was SeatReserved once.
type SeatHeld struct {
	Guest string `json:"guest"`
}

// MessageType returns the name that is stored.
func (SeatHeld) MessageType() string { return "SeatHeld" }

// SeatNoted is an event. Its field text was called note once.
type SeatNoted struct {
	Text string `json:"text"`
}

// MessageType returns the name that is stored.
func (SeatNoted) MessageType() string { return "SeatNoted" }

// SeatPriced is an event, in cents. It was in euros once.
type SeatPriced struct {
	Cents int `json:"cents"`
}

// MessageType returns the name that is stored.
func (SeatPriced) MessageType() string { return "SeatPriced" }

// HoldSeatV1 is the form of HoldSeat that named the guest in two fields.
type HoldSeatV1 struct {
	ID    string `json:"id"`
	First string `json:"first"`
	Last  string `json:"last"`
}

// MessageType returns the name that is stored.
func (HoldSeatV1) MessageType() string { return "ReserveSeat" }

func fromV1(old HoldSeatV1) HoldSeat {
	return HoldSeat{ID: old.ID, Guest: old.First + " " + old.Last}
}

func handlers(store *messagestore.Store) (*handler.Mux, error) {
	once, err := reservation.New(store, "seats", nil)
	if err != nil {
		return nil, err
	}
	mux := handler.New()
	handler.Register(mux, reservation.Inline(once, HoldSeat.Key, hold), upcast.From(fromV1))
	return mux, nil
}

func hold(_ context.Context, m handler.Message[HoldSeat]) ([]messagestore.StreamWrite, error) {
	held := messagestore.Follow(m.Message, SeatHeld{Guest: m.Body.Guest})
	return []messagestore.StreamWrite{messagestore.To(seats.Stream(m.Stream.CardinalID()), messagestore.AnyVersion, held)}, nil
}

// Seat is folded from its events.
type Seat struct {
	Guest string `json:"guest"`
	Cents int    `json:"cents"`
	Note  string `json:"note,omitempty"`
}

// SeatSold was one event. Now it is two: SeatHeld and SeatPriced.
type SeatSold struct {
	Guest string `json:"guest"`
	Cents int    `json:"cents"`
}

// MessageType returns the name that is stored.
func (SeatSold) MessageType() string { return "SeatSold" }

// SeatViewed is still written, and changes no seat.
type SeatViewed struct{}

// MessageType returns the name that is stored.
func (SeatViewed) MessageType() string { return "SeatViewed" }

func projection() *entity.Projection[Seat] {
	p := entity.NewProjection[Seat]()
	entity.On(p, held, upcast.Named[SeatHeld]("SeatReserved"))
	entity.On(p, priced, upcast.Raw("SeatPriced", pricedInAnyUnit))
	entity.On(p, func(s Seat, e SeatSold) Seat { // the two that it is now
		return priced(held(s, SeatHeld{Guest: e.Guest}), SeatPriced{Cents: e.Cents})
	})
	entity.On(p, noted, upcast.Raw("SeatNoted", notedUnderEitherName))
	entity.Ignore[SeatViewed](p, "SeatPrinted") // SeatPrinted has no Go type any more
	return p
}

func held(s Seat, e SeatHeld) Seat {
	s.Guest = e.Guest
	return s
}

func priced(s Seat, e SeatPriced) Seat {
	s.Cents = e.Cents
	return s
}

func noted(s Seat, e SeatNoted) Seat {
	s.Note = e.Text
	return s
}

func notedUnderEitherName(m *messagestore.Message) (SeatNoted, error) {
	var data struct {
		Text string `json:"text"`
		Note string `json:"note"` // until the field was renamed
	}
	err := json.Unmarshal(m.Data, &data)
	return SeatNoted{Text: cmp.Or(data.Text, data.Note)}, err
}

// mailer follows the seats, and mails a guest when a seat is held. The consumer reads SeatHeld, and
// SeatReserved, which is its former name.
func mailer(store *messagestore.Store, mail handler.Func[SeatHeld]) (*consumer.Consumer, error) {
	mux := handler.New()
	handler.On(mux, mail, upcast.Named[SeatHeld]("SeatReserved"))
	return consumer.New(store, seats, "mailer", mux, &consumer.Config{OnlyKnown: true, Start: consumer.FromStart()})
}

// partner sends events of seats to a partner, under the names that they are stored with.
func partner(store *messagestore.Store, sink outbox.Sink) (*outbox.Relay, error) {
	return outbox.New(store, seats, "partner", sink, &outbox.Config{
		Types:  []string{"SeatHeld", "SeatReserved", "SeatPriced", "SeatSold"},
		Ignore: []string{"SeatViewed", "SeatPrinted", "SeatNoted"},
	})
}

// priceSchema is the version that SeatPriced is written with.
const priceSchema = "cents"

func price(cents int) messagestore.Envelope {
	return messagestore.Envelope{
		Body:     SeatPriced{Cents: cents},
		Metadata: messagestore.Metadata{SchemaVersion: priceSchema},
	}
}

func pricedInAnyUnit(m *messagestore.Message) (SeatPriced, error) {
	if m.Metadata.SchemaVersion == priceSchema {
		return messagestore.Decode[SeatPriced](m)
	}
	var old struct {
		Euros int `json:"euros"`
	}
	err := json.Unmarshal(m.Data, &old)
	return SeatPriced{Cents: 100 * old.Euros}, err
}

func newSeats(store *messagestore.Store) (*entity.Store[Seat], error) {
	return entity.New(store, seats, projection(), &entity.Config{
		Snapshot: entity.Snapshot{Every: 100, Tag: "3"}, // "2" was without Note
	})
}
