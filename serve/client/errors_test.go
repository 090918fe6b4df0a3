package client

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"connectrpc.com/connect"
	"github.com/stretchr/testify/require"
	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/dibs-go/dibs/intent"
	"github.com/dibs-go/dibs/internal/calling"
	"github.com/dibs-go/dibs/internal/waiting"
	"github.com/dibs-go/dibs/logger"
	"github.com/dibs-go/dibs/messagestore"
	"github.com/dibs-go/dibs/messagestore/memory"
	"github.com/dibs-go/dibs/queue"
	"github.com/dibs-go/dibs/serve"
	v1 "github.com/dibs-go/dibs/serve/gen/dibs/v1"
)

// A failing driver answers each read of a last message with an error.
type failing struct {
	messagestore.Driver

	with atomic.Pointer[error]
}

func (f *failing) Last(context.Context, messagestore.StreamName, string) (*messagestore.Message, error) {
	return nil, *f.with.Load()
}

// Each error that a server sends is the library's again at the client.
func TestAnErrorIsTheSameBeyondTheWire(t *testing.T) {
	t.Parallel()
	driver := &failing{Driver: memory.New()}
	store, err := messagestore.New(driver, nil)
	require.NoError(t, err)
	server, err := serve.New(store, &serve.Config{Logger: logger.Silent()})
	require.NoError(t, err)
	h := httptest.NewUnstartedServer(server.Handler())
	h.EnableHTTP2 = true
	h.StartTLS()
	defer h.Close()
	transport, ok := h.Client().Transport.(*http.Transport)
	require.True(t, ok)
	c, err := New(h.URL, &Config{TLS: transport.TLSClientConfig, Patience: -1})
	require.NoError(t, err)
	defer c.Close()
	all := []error{
		messagestore.ErrNotFound, messagestore.ErrIDConflict, messagestore.ErrNotPermitted, messagestore.ErrNotSupported, messagestore.ErrDeleted, messagestore.ErrInvalid,
		queue.ErrRemoved, queue.ErrTooManyQueues, intent.ErrDone, intent.ErrCorrupt,
	}
	for i, sent := range all {
		wrapped := fmt.Errorf("the store says: %w", sent)
		driver.with.Store(&wrapped)
		_, err := c.Intents.GetIntent(t.Context(), &v1.GetIntentRequest{Name: &v1.IntentName{Category: "pay:intent", Key: "k"}})
		require.ErrorIs(t, err, sent)
		for j, other := range all {
			require.Equal(t, i == j, errors.Is(err, other), "%v is %v", err, other)
		}
		require.Equal(t, waiting.Lasts(sent), waiting.Lasts(err), "%v", err)
		require.NotErrorIs(t, err, messagestore.ErrOutcomeUnknown, "it was a read")
	}

	closed := messagestore.ErrClosed
	driver.with.Store(&closed)
	_, err = c.Intents.GetIntent(t.Context(), &v1.GetIntentRequest{Name: &v1.IntentName{Category: "pay:intent", Key: "k"}})
	require.ErrorIs(t, err, calling.ErrLasting, "another attempt does not help")
	away := errors.New("the database is away")
	driver.with.Store(&away)
	_, err = c.Intents.GetIntent(t.Context(), &v1.GetIntentRequest{Name: &v1.IntentName{Category: "pay:intent", Key: "k"}})
	require.Equal(t, connect.CodeUnavailable, connect.CodeOf(err))
	require.False(t, waiting.Lasts(err), "%v", err)
}

// A refused field comes with its rule and its value.
func TestARefusalNamesFieldRuleAndValue(t *testing.T) {
	t.Parallel()
	for _, sent := range []*messagestore.InvalidError{
		messagestore.NewInvalidError("ttl", 5*time.Second, "must be between 100ms and 24h0m0s"),
		messagestore.NewInvalidError("reason", "a: \"b\": c", "must not contain a control character: it has one"),
		messagestore.NewInvalidError("reason", fmt.Sprintf("%050d", 1), "must be shorter: at most 9"),
		messagestore.NewInvalidError("page_size", 0, "must be at least 1"),
		messagestore.NewInvalidError("content_json", nil, "must not be empty: any two requests with one key would be the same"),
	} {
		err := libraryError(wire(connect.CodeInvalidArgument, &errdetails.BadRequest{FieldViolations: []*errdetails.BadRequest_FieldViolation{
			{Field: sent.Field, Description: sent.Rule + ": " + sent.Value},
		}}), true)
		require.ErrorIs(t, err, messagestore.ErrInvalid)
		got, ok := errors.AsType[*messagestore.InvalidError](err)
		require.True(t, ok)
		require.Equal(t, sent, got)
	}
}

func must[T any](v T, err error) T {
	if err != nil {
		panic(err)
	}
	return v
}

func wire(code connect.Code, details ...proto.Message) error {
	e := connect.NewWireError(code, errors.New("as the server says"))
	for _, d := range details {
		e.AddDetail(must(connect.NewErrorDetail(d)))
	}
	return e
}

// A write that may have happened is an unknown outcome, also if a later attempt fails otherwise,
// until an attempt has shown what is there.
func TestAWriteThatMayHaveHappenedIsUnknown(t *testing.T) {
	t.Parallel()
	var (
		lost     = connect.NewError(connect.CodeCanceled, io.ErrUnexpectedEOF)
		unknown  = wire(connect.CodeUnavailable, &errdetails.ErrorInfo{Reason: "OUTCOME_UNKNOWN"})
		proxy    = wire(connect.CodeUnavailable)
		away     = wire(connect.CodeUnavailable, &errdetails.ErrorInfo{Reason: "STORE_UNAVAILABLE"})
		draining = wire(connect.CodeUnavailable, &errdetails.ErrorInfo{Reason: "DRAINING"})
		refused  = connect.NewError(connect.CodeUnavailable, &net.OpError{Op: "dial", Err: errors.New("connection refused")})
		busy     = wire(connect.CodeResourceExhausted, &errdetails.RetryInfo{RetryDelay: durationpb.New(time.Second)})
		notFound = wire(connect.CodeNotFound)
		noRight  = wire(connect.CodePermissionDenied)
		conflict = wire(connect.CodeAlreadyExists)
	)
	for name, c := range map[string]struct {
		attempts []error // and then the last again
		read     bool
		unknown  bool
		also     error
	}{
		"the connection is lost":               {attempts: []error{lost}, unknown: true, also: io.ErrUnexpectedEOF},
		"the connection is lost, for a read":   {attempts: []error{lost}, read: true, also: io.ErrUnexpectedEOF},
		"the server does not know":             {attempts: []error{unknown}, unknown: true},
		"a proxy does not know":                {attempts: []error{proxy}, unknown: true},
		"its time is over at the server":       {attempts: []error{wire(connect.CodeDeadlineExceeded)}, unknown: true, also: context.DeadlineExceeded},
		"the store is away":                    {attempts: []error{away}},
		"the server drains":                    {attempts: []error{draining}},
		"nobody listens":                       {attempts: []error{refused}},
		"the server is busy":                   {attempts: []error{busy}},
		"lost, and nobody listens":             {attempts: []error{lost, refused}, unknown: true},
		"lost, and the store is away":          {attempts: []error{lost, away}, unknown: true},
		"lost, and the key was revoked":        {attempts: []error{lost, noRight}, unknown: true, also: messagestore.ErrNotPermitted},
		"lost, and written":                    {attempts: []error{lost, nil}},
		"lost, and a conflict":                 {attempts: []error{lost, conflict}, also: messagestore.ErrIDConflict},
		"nothing is there":                     {attempts: []error{notFound}, also: messagestore.ErrNotFound},
		"the store is away, and then it works": {attempts: []error{away, away, nil}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				made := 0
				next := func(context.Context, connect.AnyRequest) (connect.AnyResponse, error) {
					made++
					return nil, c.attempts[min(made, len(c.attempts))-1]
				}
				began := time.Now()
				_, err := (&repeats{patience: time.Minute, most: 4 << 20}).call(t.Context(), connect.NewRequest(&v1.ConfirmRequest{}), !c.read, next)

				require.Equal(t, c.attempts[len(c.attempts)-1] == nil, err == nil)
				require.Equal(t, c.unknown, errors.Is(err, messagestore.ErrOutcomeUnknown), "%v", err)
				if c.also != nil {
					require.ErrorIs(t, err, c.also)
				}
				require.LessOrEqual(t, time.Since(began), time.Minute)
			})
		})
	}
}

// Nothing of a call whose time is over before it begins was written.
func TestNothingIsSentAfterTheEnd(t *testing.T) {
	t.Parallel()
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	_, err := (&repeats{}).call(ctx, connect.NewRequest(&v1.ConfirmRequest{}), true, nil)
	require.ErrorIs(t, err, context.Canceled)
	require.NotErrorIs(t, err, messagestore.ErrOutcomeUnknown)
}

// A call that waits for longer than the patience is sent again when its server ends, for the rest
// of its time.
func TestAWaitGoesOnAtAnotherServer(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		request := &v1.ReserveRequest{MaxWait: durationpb.New(10 * time.Minute)}
		var waits []time.Duration
		next := func(context.Context, connect.AnyRequest) (connect.AnyResponse, error) {
			waits = append(waits, request.GetMaxWait().AsDuration())
			time.Sleep(4 * time.Minute)
			if len(waits) == 3 {
				return connect.NewResponse(&v1.ReserveResponse{}), nil
			}
			return nil, wire(connect.CodeUnavailable, &errdetails.ErrorInfo{Reason: "DRAINING"})
		}

		_, err := (&repeats{patience: 30 * time.Second, most: 4 << 20}).call(t.Context(), connect.NewRequest(request), true, next)

		require.NoError(t, err)
		require.Len(t, waits, 3)
		for i, wait := range waits {
			require.InDelta(t, (10 - 4*float64(i)), wait.Minutes(), 0.01)
		}
		require.Equal(t, 10*time.Minute, request.GetMaxWait().AsDuration(), "the request is the caller's again")
	})
}
