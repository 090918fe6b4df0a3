package ticketing

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"net/http"

	"github.com/dibs-go/dibs/handler"
	"github.com/dibs-go/dibs/messagestore"
	"github.com/dibs-go/dibs/reservation"
)

// A Mail is sent at least once, and shown once: the mail service knows by the ID that it has had a
// Mail.
type Mail struct {
	ID   string `json:"id"`
	To   string `json:"to"`
	Text string `json:"text"`
}

// mailer returns the handlers of events.
func mailer(service string) *handler.Mux {
	mux := handler.New()
	handler.On(mux, func(ctx context.Context, m handler.Message[SeatHeld]) error {
		return send(ctx, service, m.Message, m.Body.Email, "seat "+m.Body.Seat+" is yours")
	})
	handler.On(mux, func(ctx context.Context, m handler.Message[HoldRefused]) error {
		return send(ctx, service, m.Message, m.Body.Email, "seat "+m.Body.Seat+" is taken")
	})
	return mux
}

func send(ctx context.Context, service string, event *messagestore.Message, to, text string) error {
	body, _ := json.Marshal(Mail{reservation.DeriveID(event, "mail").String(), to, text}) // strings can be encoded
	r, err := http.NewRequestWithContext(ctx, http.MethodPost, service, bytes.NewReader(body))
	if err != nil {
		return err
	}
	response, err := http.DefaultClient.Do(r)
	if err != nil {
		return err
	}
	defer response.Body.Close()
	if response.StatusCode != http.StatusOK {
		return fmt.Errorf("mail service: %s", response.Status) // the consumer delivers the event again
	}
	return nil
}
