package account

import (
	"context"
	"time"

	"github.com/dibs-go/dibs/consumer"
	"github.com/dibs-go/dibs/messagestore"
)

// Serve handles commands until ctx ends: the part of a service's main function that
// follows opening the store.
func Serve(ctx context.Context, store *messagestore.Store, config *consumer.Config) error {
	var c consumer.Config
	if config != nil {
		c = *config
	}
	// Another consumer may have handled the account since it was read, as may be while
	// one takes over from another: the handler reads and decides again.
	c.Errors = consumer.ErrorPolicy{Retry: consumer.Retry{For: 10 * time.Second, MaxBackoff: time.Second}}
	mux, err := Handlers(store, &Config{Logger: c.Logger})
	if err != nil {
		return err
	}
	accounts, err := consumer.New(store, Commands, "accounts", mux, &c)
	if err != nil {
		return err
	}
	return accounts.Run(ctx)
}
