package outbox_test

import (
	"context"
	"fmt"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/dibs-go/dibs/internal/pgtest"
	"github.com/dibs-go/dibs/logger"
	"github.com/dibs-go/dibs/messagestore"
	"github.com/dibs-go/dibs/outbox"
)

type nowhere struct{ refused string }

func (s nowhere) Send(_ context.Context, m *outbox.Message) error {
	if s.refused != "" && m.Stream.CardinalID() == s.refused {
		return errRefused
	}
	return nil
}

type nowhereAtOnce struct{ nowhere }

func (s nowhereAtOnce) SendAll(ctx context.Context, all []*outbox.Message) []error {
	errs := make([]error, len(all))
	for i, m := range all {
		errs[i] = s.Send(ctx, m)
	}
	return errs
}

// BenchmarkRelay sends the messages of many keys, three of each, to a sink in memory.
func BenchmarkRelay(b *testing.B) {
	const keys, each = 10_000, 3
	for name, sink := range map[string]outbox.Sink{
		"Send": nowhere{}, "SendAll": nowhereAtOnce{}, "OneKeyDead": nowhere{"k77"},
	} {
		b.Run(name, func(b *testing.B) {
			for range b.N {
				b.StopTimer()
				store, end, err := openPlace(b.Context(), "PostgreSQL", pgtest.Migrated(b))
				require.NoError(b, err)
				for range each {
					for first := 0; first < keys; first += messagestore.MaxWriteStreams {
						var writes []messagestore.StreamWrite
						for i := range messagestore.MaxWriteStreams {
							writes = append(writes, messagestore.To(outgoing.Stream(fmt.Sprint("k", first+i)), messagestore.AnyVersion, Paid{i}))
						}
						_, err := store.WriteStreams(b.Context(), writes...)
						require.NoError(b, err)
					}
				}
				relay, err := outbox.New(store, outgoing, "tobank", sink, &outbox.Config{Logger: logger.Silent()})
				require.NoError(b, err)
				b.StartTimer()
				require.NoError(b, relay.CatchUp(b.Context()))
				b.StopTimer()
				end()
			}
			b.ReportMetric(float64(b.N*keys*each)/b.Elapsed().Seconds(), "messages/s")
		})
	}
}
