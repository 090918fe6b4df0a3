package kafkabroker_test

import (
	"context"
	"net"
	"os"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/stretchr/testify/require"
	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kfake"
	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/dibs-go/dibs/brokers/internal/brokertest"
	kafkabroker "github.com/dibs-go/dibs/brokers/kafka"
	"github.com/dibs-go/dibs/inbox"
	"github.com/dibs-go/dibs/internal/calling"
	"github.com/dibs-go/dibs/internal/testkit"
	"github.com/dibs-go/dibs/messagestore"
	"github.com/dibs-go/dibs/outbox"
)

const group = "bank"

var topic = kafkabroker.Topic(string(brokertest.Outgoing))

func TestMain(m *testing.M) {
	testkit.ManyAtOnce()
	os.Exit(brokertest.Main(m, func(ctx context.Context, address string, config brokertest.ReceiverConfig) error {
		r, err := newReceiver(address, config)
		if err != nil {
			return err
		}
		return r.Run(ctx)
	}))
}

func TestASinkKeepsItsPromises(t *testing.T) {
	t.Parallel()
	brokertest.Sinks(t, brokertest.SinkOptions{TooLarge: 500_000, Start: func(t testing.TB) brokertest.SinkBroker { return startCluster(t) }})
}

func TestAReceiverKeepsItsPromises(t *testing.T) {
	t.Parallel()
	brokertest.Receivers(t, brokertest.ReceiverOptions{Ordered: true, Start: func(t testing.TB) brokertest.ReceiverBroker { return startCluster(t) }})
}

// A cluster is a fake of one broker, with a folder.
type cluster struct {
	*kfake.Cluster
	dir  string
	port int
}

func startCluster(t testing.TB) *cluster {
	t.Helper()
	l, err := (&net.ListenConfig{}).Listen(t.Context(), "tcp", "127.0.0.1:0")
	require.NoError(t, err)
	port := l.Addr().(*net.TCPAddr).Port //nolint:errcheck // it is one
	require.NoError(t, l.Close())
	c := &cluster{dir: t.TempDir(), port: port}
	c.Start(t)
	t.Cleanup(func() { c.Close() })
	return c
}

func (c *cluster) Start(t testing.TB) {
	t.Helper()
	testkit.Await(t, "the broker listens", func() (bool, any) {
		var err error
		c.Cluster, err = kfake.NewCluster(kfake.NumBrokers(1), kfake.Ports(c.port), kfake.SeedTopics(4, topic), kfake.DataDir(c.dir), kfake.SyncWrites(),
			kfake.GroupMinSessionTimeout(time.Second))
		return err == nil, err
	})
}

func (c *cluster) Kill(testing.TB) { c.Close() }

func (c *cluster) Remake(t testing.TB) {
	admin := kadm.NewClient(c.client(t))
	_, err := admin.DeleteTopics(context.Background(), topic)
	require.NoError(t, err)
	_, err = admin.CreateTopic(context.Background(), 4, 1, nil, topic)
	require.NoError(t, err)
}

func (c *cluster) Address() string { return net.JoinHostPort("127.0.0.1", strconv.Itoa(c.port)) }

func options(address string) []kgo.Opt {
	return []kgo.Opt{
		kgo.SeedBrokers(address), kgo.ProducerBatchMaxBytes(100_000), kgo.RetryBackoffFn(func(int) time.Duration { return 20 * time.Millisecond }),
		kgo.SessionTimeout(2 * time.Second), kgo.HeartbeatInterval(100 * time.Millisecond), kgo.MetadataMinAge(50 * time.Millisecond), kgo.DialTimeout(time.Second),
	}
}

func (c *cluster) client(t testing.TB, more ...kgo.Opt) *kgo.Client {
	client, err := kgo.NewClient(append(options(c.Address()), more...)...)
	require.NoError(t, err)
	t.Cleanup(client.Close)
	return client
}

func (c *cluster) Sink(t testing.TB) outbox.Sink {
	return testkit.Must(kafkabroker.NewSink(c.client(t), &kafkabroker.SinkConfig{Timeout: time.Second}))
}

func (c *cluster) Arrived(t testing.TB) (all []brokertest.Message) {
	ends, err := kadm.NewClient(c.client(t)).ListEndOffsets(context.Background(), topic)
	require.NoError(t, err)
	left := int64(0)
	ends.Each(func(o kadm.ListedOffset) { left += o.Offset })
	consumer := c.client(t, kgo.ConsumeTopics(topic), kgo.ConsumeResetOffset(kgo.NewOffset().AtStart()))
	ctx, cancel := context.WithTimeout(context.Background(), testkit.WaitLimit)
	defer cancel()
	for left > 0 {
		fetches := consumer.PollFetches(ctx)
		require.NoError(t, fetches.Err())
		fetches.EachRecord(func(r *kgo.Record) {
			left--
			m := brokertest.Message{Key: string(r.Key), Data: string(r.Value), Headers: map[string]string{}}
			for _, h := range r.Headers {
				m.Headers[h.Key] = string(h.Value)
			}
			m.ID = m.Headers[outbox.HeaderID]
			all = append(all, m)
		})
	}
	return all
}

func (c *cluster) Publish(t testing.TB, messages ...brokertest.Message) {
	client := c.client(t, kgo.ProducerBatchMaxBytes(4<<20))
	ctx, cancel := context.WithTimeout(context.Background(), testkit.WaitLimit)
	defer cancel()
	for _, m := range messages {
		r := &kgo.Record{Topic: topic, Key: []byte(m.Key), Value: []byte(m.Data)}
		if m.ID != "" {
			r.Headers = []kgo.RecordHeader{{Key: outbox.HeaderID, Value: []byte(m.ID)}}
		}
		require.NoError(t, client.ProduceSync(ctx, r).FirstErr())
	}
}

func (c *cluster) Unsettled(t testing.TB) (messages int) {
	admin := kadm.NewClient(c.client(t))
	defer admin.Close()
	testkit.Await(t, "the broker knows its group", func() (bool, any) {
		ctx, cancel := context.WithTimeout(context.Background(), 2*time.Second)
		defer cancel()
		ends, err := admin.ListEndOffsets(ctx, topic)
		if err != nil || ends.Error() != nil {
			return false, err
		}
		committed, err := admin.FetchOffsets(ctx, group)
		if err != nil {
			return false, err
		}
		messages = 0
		ends.Each(func(o kadm.ListedOffset) {
			at := int64(0)
			if done, is := committed.Lookup(topic, o.Partition); is && done.At > 0 {
				at = done.At
			}
			messages += int(o.Offset - at)
		})
		return true, nil
	})
	return messages
}

func (c *cluster) Receiver(t testing.TB, config brokertest.ReceiverConfig) brokertest.Receiver {
	r, err := newReceiver(c.Address(), config)
	require.NoError(t, err)
	return r
}

type suiteReceiver struct{ *kafkabroker.Receiver }

func (r suiteReceiver) Stats() brokertest.ReceiverStats {
	return brokertest.ReceiverStats(r.Receiver.Stats())
}

func newReceiver(address string, config brokertest.ReceiverConfig) (suiteReceiver, error) {
	r, err := kafkabroker.NewReceiver(options(address), group, []string{topic}, func(ctx context.Context, m *kgo.Record) error {
		r, err := kafkabroker.Request(m, "")
		return config.Receive(ctx, r, err)
	}, func(ctx context.Context, m *kgo.Record, reason error) error {
		r, _ := kafkabroker.Request(m, "")
		return config.Park(ctx, r, reason)
	}, &kafkabroker.ReceiverConfig{
		Concurrency: config.Concurrency, Attempts: config.Attempts, MaxDelay: config.MaxDelay, Grace: config.Grace, Logger: config.Logger,
	})
	return suiteReceiver{r}, err
}

func message(topic string) *outbox.Message {
	return &outbox.Message{Topic: topic, Message: &messagestore.Message{ID: uuid.New(), Stream: brokertest.Outgoing.Stream("k"), Type: "Paid", Data: []byte("1")}}
}

// An offset of a topic that was deleted would pass over the first messages of the one that was made
// in its place.
func TestWhatIsInHandOfADeletedTopicCommitsNoOffset(t *testing.T) {
	t.Parallel()
	c := startCluster(t)
	publish := func(from, to int) {
		for i := from; i < to; i++ {
			c.Publish(t, brokertest.Message{ID: strconv.Itoa(i), Key: "k", Data: "1"})
		}
	}
	began, end, got := make(chan struct{}), make(chan struct{}), make(chan string, 100)
	receive := func(ids ...string) {
		r := testkit.Must(newReceiver(c.Address(), brokertest.ReceiverConfig{
			Receive: func(_ context.Context, r inbox.Request, _ error) error {
				if r.ID == "7" {
					close(began)
					<-end
				}
				got <- r.ID
				return nil
			},
			Park: func(context.Context, inbox.Request, error) error { return nil },
		}))
		ctx, cancel := context.WithCancel(context.Background())
		ended := make(chan error, 1)
		go func() { ended <- r.Run(ctx) }()
		for _, id := range ids {
			require.Equal(t, id, testkit.Receive(t, id, got))
			if id == "6" {
				testkit.Receive(t, "the call with the last message of the topic", began)
				c.Remake(t)
				publish(10, 13)
				close(end)
			}
		}
		cancel()
		require.NoError(t, testkit.Receive(t, "the end of a receiver", ended))
	}
	publish(0, 8)

	receive("0", "1", "2", "3", "4", "5", "6", "7", "10", "11", "12")

	publish(13, 16)
	receive("13", "14", "15")
}

func TestATopicThatKafkaDoesNotTakeIsRefused(t *testing.T) {
	t.Parallel()
	sink := startCluster(t).Sink(t)
	for _, name := range []string{"", ".", "..", "a b", "ä", "a/b", strings.Repeat("x", 250)} {
		err := sink.Send(t.Context(), message(name))
		require.ErrorIs(t, err, messagestore.ErrInvalid, name)
		require.True(t, calling.DispositionOf(err).Asks(calling.Refuse), name)
	}
	require.NoError(t, sink.Send(t.Context(), message("payments:outgoing")))
}

// A topic that is not there may come: the message waits for it.
func TestATopicThatIsMissingIsTriedAgain(t *testing.T) {
	t.Parallel()
	client := startCluster(t).client(t, kgo.UnknownTopicRetries(1))

	err := testkit.Must(kafkabroker.NewSink(client, nil)).Send(t.Context(), message("other"))

	require.ErrorIs(t, err, kerr.UnknownTopicOrPartition)
	require.Nil(t, calling.DispositionOf(err))
}

func TestMistakesAreToldTogether(t *testing.T) {
	t.Parallel()
	c := startCluster(t)
	f := func(context.Context, *kgo.Record) error { return nil }
	park := func(context.Context, *kgo.Record, error) error { return nil }
	topics := []string{topic}
	for field, err := range map[string]error{
		"client":      fault(kafkabroker.NewSink(c.client(t, kgo.DisableIdempotentWrite()), nil)),
		"Timeout":     fault(kafkabroker.NewSink(c.client(t), &kafkabroker.SinkConfig{Timeout: 1})),
		"group":       fault(kafkabroker.NewReceiver(nil, "", topics, f, park, nil)),
		"topics":      fault(kafkabroker.NewReceiver(nil, group, nil, f, park, nil)),
		"topic":       fault(kafkabroker.NewReceiver(nil, group, []string{"a b"}, f, park, nil)),
		"function":    fault(kafkabroker.NewReceiver(nil, group, topics, nil, park, nil)),
		"park":        fault(kafkabroker.NewReceiver(nil, group, topics, f, nil, nil)),
		"Concurrency": fault(kafkabroker.NewReceiver(nil, group, topics, f, park, &kafkabroker.ReceiverConfig{Concurrency: 1025})),
	} {
		var invalid *messagestore.InvalidError
		require.ErrorAs(t, err, &invalid, field)
		require.Equal(t, field, invalid.Field)
	}
	err := fault(kafkabroker.NewReceiver(nil, "", nil, nil, nil, &kafkabroker.ReceiverConfig{Grace: -1}))
	for _, field := range []string{"group", "topics", "function", "park", "Grace"} {
		require.ErrorContains(t, err, field)
	}
	require.ErrorIs(t, fault(kafkabroker.NewSink(nil, nil)), messagestore.ErrInvalid)
	got, err := kafkabroker.Request(&kgo.Record{Topic: "t", Value: []byte("1"), Headers: []kgo.RecordHeader{{Key: "dibs-id", Value: []byte("a")}}}, "")
	require.NoError(t, err)
	require.Equal(t, inbox.Request{ID: "a", Source: "t", Data: []byte("1")}, got)
}

func fault[T any](_ T, err error) error { return err }
