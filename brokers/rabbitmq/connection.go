package rabbitbroker

import (
	"context"
	"errors"
	"fmt"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/dibs-go/dibs/internal/calling"
)

// The limits of a connection, which receivers and sinks share.
const (
	// dialWithin bounds a call of the dial function, and the first requests over a connection: a
	// starting broker accepts connections before it answers.
	dialWithin = 10 * time.Second

	// closeWithin bounds the wait for the broker to end a connection.
	closeWithin = 5 * time.Second

	maxShortString = 255 // bytes, of an exchange, a queue or a routing key
)

var errNoConnection = errors.New("dial returned no connection")

// dialed returns a connection from dial, or an error when ctx is done or dial takes too long. It
// closes a connection that comes later.
func dialed(ctx context.Context, dial func(ctx context.Context) (*amqp.Connection, error)) (*amqp.Connection, error) {
	ctx, cancel := context.WithTimeout(ctx, dialWithin)
	defer cancel()
	var conn *amqp.Connection
	done := calling.Go(func() (err error) {
		conn, err = dial(ctx)
		if err == nil && conn == nil {
			err = errNoConnection
		}
		return err
	})
	select {
	case err := <-done:
		if err != nil {
			return nil, fmt.Errorf("dial: %w", err)
		}
		return conn, nil
	case <-ctx.Done():
		go func() {
			if err := <-done; err == nil {
				closeConnection(conn)
			}
		}()
		return nil, fmt.Errorf("dial: %w", ctx.Err())
	}
}

// within calls ask, and closes the connection if that takes too long.
func within(conn *amqp.Connection, ask func() error) error {
	tooLong := time.AfterFunc(dialWithin, func() { closeConnection(conn) })
	defer tooLong.Stop()
	return ask()
}

// closeConnection ends a connection after the broker has received everything that was sent.
func closeConnection(conn *amqp.Connection) {
	_ = calling.Call(func() error { return conn.CloseDeadline(time.Now().Add(closeWithin)) }) // it is closed even after an error
}

// endOf returns the reason why a channel has ended, from closes.
func endOf(closes <-chan *amqp.Error) error {
	if e := <-closes; e != nil {
		return e
	}
	return amqp.ErrClosed
}
