package booking

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"strings"

	"github.com/dibs-go/dibs/handler"
	"github.com/dibs-go/dibs/saga"
)

// A Ticket is the airline's answer.
type Ticket struct {
	Reference string `json:"reference"`
}

// An airline is another company's, reached over HTTP. It books each Idempotency-Key once, and
// remembers a key that was cancelled before it was booked.
type airline struct {
	url    string
	client *http.Client
}

// book may be called several times for one trip, by several processes, each time with the same key.
func (a *airline) book(ctx context.Context, city string) (ticket Ticket, err error) {
	body, err := json.Marshal(map[string]string{"city": city})
	if err != nil {
		return Ticket{}, err
	}
	answer, err := a.call(ctx, http.MethodPost, "/bookings", string(body))
	if err != nil {
		return Ticket{}, err
	}
	return ticket, json.Unmarshal(answer, &ticket)
}

// cancel goes by the key of the booking, since the ticket is nil if no answer came.
func (a *airline) cancel(ctx context.Context, _ string, _ *Ticket) error {
	_, err := a.call(ctx, http.MethodDelete, "/bookings/"+url.PathEscape(saga.Key(ctx)), "")
	return err
}

func (a *airline) call(ctx context.Context, method, path, body string) ([]byte, error) {
	r, err := http.NewRequestWithContext(ctx, method, a.url+path, strings.NewReader(body))
	if err != nil {
		return nil, err
	}
	r.Header.Set("Content-Type", "application/json")
	r.Header.Set("Idempotency-Key", saga.Key(ctx))
	response, err := a.client.Do(r)
	if err != nil {
		return nil, err // it may have been booked: the next attempt, or the cancel, has the same key
	}
	defer response.Body.Close()
	answer, err := io.ReadAll(io.LimitReader(response.Body, 1<<16))
	switch {
	case err != nil:
		return nil, err
	case response.StatusCode == http.StatusConflict:
		return nil, handler.Refuse(errors.New("no seat"))
	case response.StatusCode >= 300:
		return nil, fmt.Errorf("airline: %s", response.Status)
	}
	return answer, nil
}
