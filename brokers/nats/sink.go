package natsbroker

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"reflect"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/dibs-go/dibs/handler"
	"github.com/dibs-go/dibs/messagestore"
	"github.com/dibs-go/dibs/outbox"
)

// HeaderGlobalPosition is the header with a message's global position, beside the headers of
// [outbox.Message.Headers]. It grows from message to message of a subject.
const HeaderGlobalPosition = "dibs-global-position"

const (
	maxPrefix   = 255
	maxStream   = 255
	maxRemember = 1 << 20

	// maxTopics bounds the streams of topics that are remembered.
	maxTopics = 1024

	// maxConflicts is how often a message is published against the subject's last message before it waits for the
	// relay's next attempt: another program is publishing.
	maxConflicts = 4

	errCodeHeaderTooLarge jetstream.ErrorCode = 10097
)

// SinkConfig changes how a sink publishes. Nil means all defaults.
type SinkConfig struct {
	// Prefix is a subject of up to 255 bytes with which the subjects of all messages begin, such as
	// "bank.events".
	//
	// Defaults to none.
	Prefix string

	// Stream is the JetStream stream that has the subjects. A message is then refused where another
	// stream has them.
	//
	// Defaults to the stream that the server names for the subject.
	Stream string

	// Timeout bounds one attempt to send a message: 1 ms to 1 h.
	//
	// Defaults to 5 s.
	Timeout time.Duration

	// Remember is the number of subjects whose last sequence is remembered: 1 to 1,048,576. For any other
	// a message is published as the first of its subject; if the server refuses it, the last message is read.
	//
	// Defaults to 65,536.
	Remember int
}

// A Sink publishes messages to JetStream. It is safe for concurrent use. The caller closes the connection.
type Sink struct {
	js     jetstream.JetStream
	config SinkConfig

	last    *recent[string, last]             // by subject
	streams *recent[string, jetstream.Stream] // by topic

	published, present, conflicts atomic.Int64
}

var _ outbox.BatchSink = (*Sink)(nil)

// A last is the last message of a subject.
type last struct {
	sequence uint64
	global   messagestore.GlobalPosition // -1 if there is none
}

// NewSink returns a sink that publishes over js. A message is taken when the stream has stored it. The
// package comment has the promises.
//
// A message that is too large for the server or the stream, or whose subject is longer than
// [MaxSubjectBytes], is refused, by handler.Refuse, and one is parked if the last message of its subject is not of
// this outbox ([*ForeignMessageError]): it is dead, and holds its key. After any other error it is sent again: no stream
// has the subject, no connection, no answer.
//
// The error has all mistakes in the arguments together: errors that match [messagestore.ErrInvalid]. NewSink
// calls no server.
func NewSink(js jetstream.JetStream, config *SinkConfig) (*Sink, error) {
	s := &Sink{js: js}
	if config != nil {
		s.config = *config
	}
	s.config.Timeout = cmp.Or(s.config.Timeout, 5*time.Second)
	s.config.Remember = cmp.Or(s.config.Remember, 1<<16)
	if err := s.check(); err != nil {
		return nil, fmt.Errorf("invalid sink: %w", err)
	}
	s.last = newRecent[string, last](s.config.Remember)
	s.streams = newRecent[string, jetstream.Stream](maxTopics)
	return s, nil
}

func (s *Sink) check() error {
	var all []error
	add := func(field string, value any, rule string) {
		all = append(all, messagestore.NewInvalidError(field, value, rule))
	}
	if isNil(s.js) {
		add("JetStream", nil, "there is none")
	}
	if s.config.Prefix != "" {
		if rule := prefixRule(s.config.Prefix); rule != "" {
			add("Prefix", s.config.Prefix, rule)
		}
	}
	if name := s.config.Stream; len(name) > maxStream || strings.IndexFunc(name, func(c rune) bool { return c <= ' ' || c > '~' || strings.ContainsRune(`.*>/\`, c) }) >= 0 {
		add("Stream", name, fmt.Sprintf(`it has up to %d visible ASCII characters other than . * > / and \`, maxStream))
	}
	if d := s.config.Timeout; d < time.Millisecond || d > time.Hour {
		add("Timeout", d, "it is between 1ms and 1h0m0s")
	}
	if n := s.config.Remember; n < 1 || n > maxRemember {
		add("Remember", n, fmt.Sprintf("it is between 1 and %d", maxRemember))
	}
	return errors.Join(all...)
}

func isNil(i any) bool {
	v := reflect.ValueOf(i)
	return i == nil || v.Kind() == reflect.Pointer && v.IsNil()
}

// SinkStats are a sink's counts since [NewSink].
type SinkStats struct {
	Published int64 // messages that the server stored
	Present   int64 // messages that the stream had
	Conflicts int64 // answers that a subject had gone on
}

// Stats returns the counts of this moment.
func (s *Sink) Stats() SinkStats {
	return SinkStats{s.published.Load(), s.present.Load(), s.conflicts.Load()}
}

// SendAll publishes the messages side by side.
func (s *Sink) SendAll(ctx context.Context, messages []*outbox.Message) []error {
	answers := make([]error, len(messages))
	var all sync.WaitGroup
	for i, m := range messages {
		all.Go(func() { answers[i] = s.Send(ctx, m) })
	}
	all.Wait()
	return answers
}

// Send publishes m, unless the stream has it.
func (s *Sink) Send(ctx context.Context, m *outbox.Message) error {
	switch {
	case ctx == nil:
		return fmt.Errorf("publish: %w", messagestore.NewInvalidError("context", nil, "it is nil"))
	case m == nil || m.Message == nil:
		return fmt.Errorf("publish: %w", messagestore.NewInvalidError("message", nil, "it is nil"))
	}
	subject, err := s.subject(m)
	if err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, s.config.Timeout)
	defer cancel()
	if err := s.send(ctx, subject, m); err != nil {
		return fmt.Errorf("publish to %s: %w", subject, err)
	}
	return nil
}

func (s *Sink) send(ctx context.Context, subject string, m *outbox.Message) error {
	var conflict error
	for attempt := range maxConflicts + 1 {
		before, known := s.last.get(subject)
		_, topicKnown := s.streams.get(m.Topic)
		guessed := !known && topicKnown && attempt == 0
		switch {
		case guessed: // that the subject has no message: the server refuses m if it has one, and then it is read
			before = last{global: -1}
		case !known || before.global >= m.GlobalPosition:
			var err error
			if before, err = s.read(ctx, subject, m); err != nil {
				return err
			}
			s.last.put(subject, before)
			if before.global >= m.GlobalPosition {
				s.present.Add(1)
				return nil
			}
		}
		ack, err := s.publish(ctx, subject, m, before.sequence)
		switch {
		case err == nil && ack.Duplicate: // by its id; the sequence is not the subject's last, perhaps
			s.last.drop(subject)
			s.present.Add(1)
			return nil
		case err == nil:
			s.last.put(subject, last{ack.Sequence, m.GlobalPosition})
			s.published.Add(1)
			return nil
		}
		s.last.drop(subject)
		if !wrongSequence(err) {
			return refusal(err)
		}
		if guessed {
			continue
		}
		s.conflicts.Add(1)
		s.streams.drop(m.Topic) // another stream has the subject, perhaps
		conflict = err
	}
	return fmt.Errorf("the subject goes on: %w", conflict)
}

// publish publishes m behind the message of its subject that has a sequence, 0 for none.
func (s *Sink) publish(ctx context.Context, subject string, m *outbox.Message, sequence uint64) (*jetstream.PubAck, error) {
	header := nats.Header{}
	for name, value := range m.Headers() {
		header[name] = []string{value}
	}
	header[HeaderGlobalPosition] = []string{strconv.FormatInt(int64(m.GlobalPosition), 10)}
	options := []jetstream.PublishOpt{
		jetstream.WithMsgID(m.ID.String()), jetstream.WithExpectLastSequencePerSubject(sequence),
		jetstream.WithRetryAttempts(0), // the relay's
	}
	if s.config.Stream != "" {
		options = append(options, jetstream.WithExpectStream(s.config.Stream))
	}
	return s.js.PublishMsg(ctx, &nats.Msg{Subject: subject, Header: header, Data: m.Body().Data}, options...)
}

// read returns the last message of m's subject, if it is one of m's outbox.
func (s *Sink) read(ctx context.Context, subject string, m *outbox.Message) (last, error) {
	stream, err := s.stream(ctx, m.Topic, subject)
	if err != nil {
		return last{}, err
	}
	found, err := stream.GetLastMsgForSubject(ctx, subject)
	switch {
	case errors.Is(err, jetstream.ErrMsgNotFound):
		return last{global: -1}, nil
	case err != nil:
		s.streams.drop(m.Topic)
		return last{}, err
	}
	foreign := func(reason string) (last, error) {
		return last{}, &ForeignMessageError{Subject: subject, Sequence: found.Sequence, Reason: reason}
	}
	global, err := strconv.ParseInt(found.Header.Get(HeaderGlobalPosition), 10, 64)
	if err != nil || global < 0 {
		return foreign("it has no global position: no relay of Dibs has sent it")
	}
	if category, _, _ := strings.Cut(found.Header.Get(outbox.HeaderStream), "-"); category != categoryOf(m) {
		return foreign("it is of another category")
	}
	if global == int64(m.GlobalPosition) && found.Header.Get(outbox.HeaderID) != m.ID.String() {
		return foreign("it has the global position of the message that is sent: it is of another database, or of a time that the database has lost")
	}
	return last{found.Sequence, messagestore.GlobalPosition(global)}, nil
}

// categoryOf returns the category of m as its headers have it.
func categoryOf(m *outbox.Message) string {
	category, _, _ := strings.Cut(m.Headers()[outbox.HeaderStream], "-")
	return category
}

// stream returns the stream that takes a topic.
func (s *Sink) stream(ctx context.Context, topic, subject string) (jetstream.Stream, error) {
	if stream, known := s.streams.get(topic); known {
		return stream, nil
	}
	name := s.config.Stream
	if name == "" {
		var err error
		if name, err = s.js.StreamNameBySubject(ctx, subject); err != nil {
			return nil, err
		}
	}
	stream, err := s.js.Stream(ctx, name)
	if err != nil {
		return nil, err
	}
	s.streams.put(topic, stream)
	return stream, nil
}

// wrongSequence reports whether the server says that a subject's last message is not the expected one.
func wrongSequence(err error) bool {
	e, is := errors.AsType[*jetstream.APIError](err)
	return is && (e.ErrorCode == jetstream.JSErrCodeStreamWrongLastSequence || e.ErrorCode == jetstream.JSErrCodeStreamWrongLastSequenceConstant)
}

// refusal returns a refusal, if a message will never be taken.
func refusal(err error) error {
	if errors.Is(err, nats.ErrMaxPayload) || errors.Is(err, nats.ErrBadSubject) || errors.Is(err, nats.ErrBadHeaderMsg) {
		return handler.Refuse(err)
	}
	if e, is := errors.AsType[*jetstream.APIError](err); is && (e.ErrorCode == jetstream.JSErrCodeStreamMessageExceedsMaximum || e.ErrorCode == errCodeHeaderTooLarge) {
		return handler.Refuse(err)
	}
	return err
}
