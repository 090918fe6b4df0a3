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
	"github.com/dibs-go/dibs/internal/calling"
	"github.com/dibs-go/dibs/messagestore"
	"github.com/dibs-go/dibs/outbox"
)

// HeaderGlobalPosition is the header with a message's global position, in addition to
// [outbox.Message.Headers]. It grows from message to message of a subject.
const HeaderGlobalPosition = "dibs-global-position"

const (
	maxPrefix   = 255
	maxStream   = 255
	maxRemember = 1 << 20

	// maxTopics is the number of topics whose stream is remembered.
	maxTopics = 1024

	// maxConflicts is how many conflicts with the subject's last message one attempt allows. After
	// that another program is probably publishing, and the message waits for the relay's next
	// attempt.
	maxConflicts = 4

	errCodeHeaderTooLarge jetstream.ErrorCode = 10097
)

// SinkConfig configures a sink. nil means the defaults.
type SinkConfig struct {
	// Prefix is a subject of up to 255 bytes at the beginning of all messages' subjects, such as
	// "bank.events".
	//
	// Defaults to no prefix.
	Prefix string

	// Stream is the JetStream stream that has the subjects. If it is set and another stream has a
	// message's subject, the server does not take the message, and the relay sends it again later.
	//
	// Defaults to the stream that the server names for the subject.
	Stream string

	// Timeout bounds one attempt to send a message: 1 ms to 1 h.
	//
	// Defaults to 5 s.
	Timeout time.Duration

	// Remember is the number of subjects whose last sequence is remembered: 1 to 1,048,576. On
	// another subject of a topic that it knows, the sink first publishes a message as the subject's
	// first. If the server refuses that, or if the topic is new, the sink reads the subject's last
	// message.
	//
	// Defaults to 65,536.
	Remember int
}

// A Sink publishes messages to JetStream. It is safe for concurrent use. The caller closes the
// connection.
type Sink struct {
	js     jetstream.JetStream
	async  jetstream.JetStream // over the same connection; it stops waiting for an answer after Timeout
	config SinkConfig

	last    *recent[string, last]             // by subject
	streams *recent[string, jetstream.Stream] // by topic

	published, present, conflicts atomic.Int64
}

var _ outbox.BatchSink = (*Sink)(nil)

// A last is the last message of a subject.
type last struct {
	sequence uint64
	global   messagestore.GlobalPosition // -1 if the subject has no message
}

// NewSink returns a sink that publishes with js. A message is taken when the stream has stored it.
// The package comment has the promises.
//
// If a message is too large for the server or the stream, or its subject is longer than
// [MaxSubjectBytes], it is refused, by handler.Refuse. If the last message of its subject is not
// from this outbox, it is parked ([*ForeignMessageError]): it is dead, and holds its key. After any
// other error it is sent again: no stream has the subject, no connection, no answer.
//
// The error joins all mistakes in the arguments; each matches [messagestore.ErrInvalid]. NewSink
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
	var err error
	if s.async, err = jetstream.New(js.Conn(), jetstream.WithPublishAsyncTimeout(s.config.Timeout)); err != nil {
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
		add("JetStream", nil, "must not be nil")
	}
	if s.config.Prefix != "" {
		if rule := prefixRule(s.config.Prefix); rule != "" {
			add("Prefix", s.config.Prefix, rule)
		}
	}
	if name := s.config.Stream; len(name) > maxStream || strings.IndexFunc(name, func(c rune) bool { return c <= ' ' || c > '~' || strings.ContainsRune(`.*>/\`, c) }) >= 0 {
		add("Stream", name, fmt.Sprintf(`must be at most %d characters, visible ASCII other than . * > / and \`, maxStream))
	}
	if d := s.config.Timeout; d < time.Millisecond || d > time.Hour {
		add("Timeout", d, "must be between 1ms and 1h0m0s")
	}
	if n := s.config.Remember; n < 1 || n > maxRemember {
		add("Remember", n, fmt.Sprintf("must be between 1 and %d", maxRemember))
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
	Present   int64 // messages that the stream had already
	Conflicts int64 // answers that a subject had another last message than expected
}

// Stats returns the current counts.
func (s *Sink) Stats() SinkStats {
	return SinkStats{s.published.Load(), s.present.Load(), s.conflicts.Load()}
}

// SendAll publishes all messages, and then waits for the answers.
func (s *Sink) SendAll(ctx context.Context, messages []*outbox.Message) []error {
	answers := make([]error, len(messages))
	if ctx == nil {
		for i, m := range messages {
			answers[i] = s.Send(ctx, m)
		}
		return answers
	}
	within, cancel := context.WithTimeout(ctx, s.config.Timeout)
	defer cancel()
	began := make([]publication, len(messages))
	for i, m := range messages {
		began[i] = s.begin(m)
	}
	var rest sync.WaitGroup // for the messages with an answer that does not decide yet
	for i, m := range messages {
		done, err := s.end(within, &began[i])
		if answers[i] = err; !done {
			rest.Go(func() {
				answers[i] = calling.Call(func() error { return s.sendAlone(within, m, began[i].answer == nil) })
			})
		}
	}
	rest.Wait()
	return answers
}

// A publication is a published message that waits for its answer.
type publication struct {
	message *outbox.Message
	subject string
	guessed bool                   // a guess that the subject has no message
	answer  jetstream.PubAckFuture // nil if it was not published
	err     error                  // why not
}

// begin publishes m if the last message of its subject is remembered or can be guessed.
func (s *Sink) begin(m *outbox.Message) (p publication) {
	if p.message = m; m == nil || m.Message == nil {
		return p
	}
	if p.subject, p.err = s.subject(m); p.err != nil {
		return p
	}
	before, guessed, is := s.expected(p.subject, m, true)
	if !is {
		return p
	}
	p.guessed = guessed
	if p.answer, p.err = s.async.PublishMsgAsync(s.prepare(p.subject, m, before.sequence), jetstream.WithRetryAttempts(0)); p.err != nil {
		p.err = refusal(p.err)
	}
	return p
}

// end waits for the answer to a message, and reports whether the answer decides the message's
// outcome.
func (s *Sink) end(ctx context.Context, p *publication) (decides bool, err error) {
	if p.err == nil && p.answer == nil {
		return false, nil
	}
	if err = p.err; err == nil {
		var ack *jetstream.PubAck
		select {
		case ack = <-p.answer.Ok():
		case err = <-p.answer.Err():
		case <-ctx.Done():
			err = context.Cause(ctx)
		}
		if decides, err = s.settle(p.subject, p.message, ack, err); !decides {
			s.conflict(p.message, p.guessed)
			return false, nil
		}
	}
	if err != nil {
		err = fmt.Errorf("publish to %s: %w", p.subject, err)
	}
	return true, err
}

// Send publishes m, unless the stream has it already.
func (s *Sink) Send(ctx context.Context, m *outbox.Message) error { return s.sendAlone(ctx, m, true) }

// sendAlone publishes m. With guess it may guess that the subject is empty.
func (s *Sink) sendAlone(ctx context.Context, m *outbox.Message, guess bool) error {
	switch {
	case ctx == nil:
		return fmt.Errorf("publish: %w", messagestore.NewInvalidError("context", nil, "must not be nil"))
	case m == nil || m.Message == nil:
		return fmt.Errorf("publish: %w", messagestore.NewInvalidError("message", nil, "must not be nil"))
	}
	subject, err := s.subject(m)
	if err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, s.config.Timeout)
	defer cancel()
	if err := s.send(ctx, subject, m, guess); err != nil {
		return fmt.Errorf("publish to %s: %w", subject, err)
	}
	return nil
}

func (s *Sink) send(ctx context.Context, subject string, m *outbox.Message, guess bool) error {
	var conflict error
	for attempt := range maxConflicts + 1 {
		before, guessed, is := s.expected(subject, m, guess && attempt == 0)
		if !is {
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
		ack, err := s.js.PublishMsg(ctx, s.prepare(subject, m, before.sequence), jetstream.WithRetryAttempts(0))
		decides, err := s.settle(subject, m, ack, err)
		if decides {
			return err
		}
		s.conflict(m, guessed)
		conflict = err
	}
	return fmt.Errorf("the subject goes on: %w", conflict)
}

// expected returns the message that should be the subject's last before m. If guessed, nothing is
// known of the subject, and it is taken to be empty; if that is wrong, the server refuses m.
// Expected reports false if the last message must be read first.
func (s *Sink) expected(subject string, m *outbox.Message, guess bool) (before last, guessed, is bool) {
	before, known := s.last.get(subject)
	if known {
		return before, false, before.global < m.GlobalPosition
	}
	_, topicKnown := s.streams.get(m.Topic)
	guessed = guess && topicKnown
	return last{global: -1}, guessed, guessed
}

// settle handles the server's answer to m, and reports whether it decides the outcome of m: it does
// not if the subject's last message is not the expected one.
func (s *Sink) settle(subject string, m *outbox.Message, ack *jetstream.PubAck, err error) (decides bool, _ error) {
	switch {
	case err == nil && ack.Duplicate: // by its id; perhaps the sequence is not the subject's last
		s.last.drop(subject)
		s.present.Add(1)
		return true, nil
	case err == nil:
		s.last.put(subject, last{ack.Sequence, m.GlobalPosition})
		s.published.Add(1)
		return true, nil
	}
	s.last.drop(subject)
	if !wrongSequence(err) {
		return true, refusal(err)
	}
	return false, err
}

// conflict handles the answer that a subject's last message is not the expected one.
func (s *Sink) conflict(m *outbox.Message, guessed bool) {
	if !guessed {
		s.conflicts.Add(1)
		s.streams.drop(m.Topic) // perhaps another stream has the subject
	}
}

// prepare returns m for publishing after the message of its subject with this sequence, or 0 for an
// empty subject.
func (s *Sink) prepare(subject string, m *outbox.Message, sequence uint64) *nats.Msg {
	own := m.Headers()
	header, values := make(nats.Header, len(own)+4), make([]string, 0, len(own)+4)
	set := func(name, value string) {
		n := len(values)
		values = append(values, value)
		header[name] = values[n : n+1 : n+1]
	}
	for name, value := range own {
		set(name, value)
	}
	set(HeaderGlobalPosition, strconv.FormatInt(int64(m.GlobalPosition), 10))
	set(jetstream.MsgIDHeader, own[outbox.HeaderID])
	set(jetstream.ExpectedLastSubjSeqHeader, strconv.FormatUint(sequence, 10))
	if s.config.Stream != "" {
		set(jetstream.ExpectedStreamHeader, s.config.Stream)
	}
	return &nats.Msg{Subject: subject, Header: header, Data: m.Body().Data}
}

// read returns the last message of m's subject, if it is from m's outbox.
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

// categoryOf returns the category in the headers of m.
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

// wrongSequence reports whether err means that a subject's last message is not the expected one.
func wrongSequence(err error) bool {
	e, is := errors.AsType[*jetstream.APIError](err)
	return is && (e.ErrorCode == jetstream.JSErrCodeStreamWrongLastSequence || e.ErrorCode == jetstream.JSErrCodeStreamWrongLastSequenceConstant)
}

// refusal returns err as a refusal if the message will never be taken.
func refusal(err error) error {
	if errors.Is(err, nats.ErrMaxPayload) || errors.Is(err, nats.ErrBadSubject) || errors.Is(err, nats.ErrBadHeaderMsg) {
		return handler.Refuse(err)
	}
	if e, is := errors.AsType[*jetstream.APIError](err); is && (e.ErrorCode == jetstream.JSErrCodeStreamMessageExceedsMaximum || e.ErrorCode == errCodeHeaderTooLarge) {
		return handler.Refuse(err)
	}
	return err
}
