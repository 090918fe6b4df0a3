package outbox_test

import (
	"bufio"
	"context"
	"crypto/hmac"
	"crypto/sha256"
	"encoding/base64"
	"errors"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"net/url"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/stretchr/testify/require"

	"github.com/dibs-go/dibs/internal/calling"
	"github.com/dibs-go/dibs/internal/testkit"
	"github.com/dibs-go/dibs/messagestore"
	"github.com/dibs-go/dibs/outbox"
)

// A secret of the examples of Standard Webhooks.
const (
	secret      = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw"
	otherSecret = "whsec_C2FVsBQIhrscChlQIMV+b5sSYspob7oD"
)

func message() *outbox.Message {
	return &outbox.Message{Message: &messagestore.Message{
		ID: uuid.Must(uuid.NewV7()), Stream: "payments:outgoing-42", Position: 3, Time: time.Now(), Type: "Paid", Data: []byte(`{"amount": 7}`),
	}}
}

func sinkTo(t *testing.T, url string, config *outbox.HTTPConfig) *outbox.HTTPSink {
	t.Helper()
	sink, err := outbox.HTTP(url, config)
	require.NoError(t, err)
	t.Cleanup(sink.Close)
	return sink
}

func serve(t *testing.T, handler http.HandlerFunc) string {
	t.Helper()
	server := httptest.NewServer(handler)
	t.Cleanup(server.Close)
	return server.URL
}

func answering(status int, header ...string) http.HandlerFunc {
	return func(w http.ResponseWriter, _ *http.Request) {
		for i := 0; i < len(header); i += 2 {
			w.Header().Set(header[i], header[i+1])
		}
		w.WriteHeader(status)
	}
}

// The vector of https://github.com/standard-webhooks/standard-webhooks: the signature of a message by
// the reference implementations. Ours has the time of the attempt, so the test signs again with it.
func TestAMessageIsSignedAsStandardWebhooksHasIt(t *testing.T) {
	t.Parallel()
	require.Equal(t, "v1,g0hM9SsE+OTPJTGt/tmIKtSyZlE3uFJELVlNIOLJ1OE=",
		signature(t, secret, "msg_p5jXN8AQM9LWM0D4loKWxJek", "1614265330", `{"test": 2432232314}`))
	var got *http.Request
	var body []byte
	url := serve(t, func(_ http.ResponseWriter, r *http.Request) {
		got = r
		body, _ = io.ReadAll(r.Body)
	})
	m := message()
	sink := sinkTo(t, url+"/hook?a=b", &outbox.HTTPConfig{Secrets: []string{secret, otherSecret}, Header: http.Header{"Authorization": {"Bearer x"}}})

	require.NoError(t, sink.Send(t.Context(), m))

	require.Equal(t, http.MethodPost, got.Method)
	require.Equal(t, "/hook?a=b", got.RequestURI)
	require.Equal(t, string(m.Data), string(body))
	require.Equal(t, "application/json", got.Header.Get("Content-Type"))
	require.Equal(t, "Bearer x", got.Header.Get("Authorization"))
	require.Equal(t, m.ID.String(), got.Header.Get("Webhook-Id"))
	require.Equal(t, m.ID.String(), got.Header.Get("Idempotency-Key"))
	at, err := strconv.ParseInt(got.Header.Get("Webhook-Timestamp"), 10, 64)
	require.NoError(t, err)
	require.InDelta(t, time.Now().Unix(), at, 60)
	signed := []string{
		signature(t, secret, m.ID.String(), got.Header.Get("Webhook-Timestamp"), string(body)),
		signature(t, otherSecret, m.ID.String(), got.Header.Get("Webhook-Timestamp"), string(body)),
	}
	require.Equal(t, strings.Join(signed, " "), got.Header.Get("Webhook-Signature"))
	for name, value := range m.Headers() {
		require.Equal(t, value, got.Header.Get(name))
	}
}

func signature(t *testing.T, secret, id, at, body string) string {
	t.Helper()
	key, err := base64.StdEncoding.DecodeString(strings.TrimPrefix(secret, "whsec_"))
	require.NoError(t, err)
	mac := hmac.New(sha256.New, key)
	mac.Write([]byte(id + "." + at + "." + body))
	return "v1," + base64.StdEncoding.EncodeToString(mac.Sum(nil))
}

func TestWithoutASecretThereIsNoSignature(t *testing.T) {
	t.Parallel()
	signed := true
	url := serve(t, func(_ http.ResponseWriter, r *http.Request) { _, signed = r.Header["Webhook-Signature"] })

	require.NoError(t, sinkTo(t, url, nil).Send(t.Context(), message()))

	require.False(t, signed)
}

// asks returns the disposition of an error.
func asks(err error) (refuses bool, after time.Duration) {
	found := calling.DispositionOf(err)
	if found.Asks(calling.Retry) {
		after = found.After
	}
	return found.Asks(calling.Refuse), after
}

func TestTheStatusDecides(t *testing.T) {
	t.Parallel()
	permanent := map[int]bool{400: true, 413: true, 414: true, 415: true, 422: true, 431: true}
	for status := 200; status < 600; status++ {
		url := serve(t, answering(status))
		err := sinkTo(t, url, nil).Send(t.Context(), message())
		if status < 300 {
			require.NoError(t, err)
			continue
		}
		require.ErrorContains(t, err, strconv.Itoa(status))
		refuses, after := asks(err)
		require.Equal(t, permanent[status], refuses, "%d", status)
		require.Zero(t, after)
	}
}

func TestRetryAfterIsHonouredAndBounded(t *testing.T) {
	t.Parallel()
	in := func(d time.Duration) string { return time.Now().Add(d).UTC().Format(http.TimeFormat) }
	for _, test := range []struct {
		value       string
		least, most time.Duration
	}{
		{"7", 7 * time.Second, 7 * time.Second},
		{"0", 0, 0},
		{"-5", 0, 0},
		{"+5", 0, 0},
		{"1.5", 0, 0},
		{"soon", 0, 0},
		{"", 0, 0},
		{"315360000", outbox.MaxRetryAfter, outbox.MaxRetryAfter},
		{strings.Repeat("9", 1000), outbox.MaxRetryAfter, outbox.MaxRetryAfter},
		{in(10 * time.Minute), 5 * time.Minute, 10 * time.Minute},
		{in(-time.Hour), 0, 0},
		{in(10 * 365 * 24 * time.Hour), outbox.MaxRetryAfter, outbox.MaxRetryAfter},
	} {
		for _, status := range []int{429, 503} {
			url := serve(t, answering(status, "Retry-After", test.value))
			refuses, after := asks(sinkTo(t, url, nil).Send(t.Context(), message()))

			require.False(t, refuses)
			require.GreaterOrEqual(t, after, test.least, test.value)
			require.LessOrEqual(t, after, test.most, test.value)
		}
	}
}

func TestARedirectIsNotFollowed(t *testing.T) {
	t.Parallel()
	var followed atomic.Bool
	elsewhere := serve(t, func(http.ResponseWriter, *http.Request) { followed.Store(true) })
	for _, status := range []int{301, 302, 303, 307, 308} {
		url := serve(t, answering(status, "Location", elsewhere))

		err := sinkTo(t, url, nil).Send(t.Context(), message())

		require.ErrorContains(t, err, "a redirect, which is not followed")
		refuses, _ := asks(err)
		require.False(t, refuses)
		require.False(t, followed.Load())
	}
}

// raw serves one answer to each connection, and reports how many bytes of it were written.
func raw(t *testing.T, answer func(c net.Conn)) string {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	// A client that gave up while it dialled leaves a connection on which nothing comes, so each is served by itself.
	var all sync.WaitGroup
	all.Go(func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			end := context.AfterFunc(t.Context(), func() { c.Close() })
			all.Go(func() {
				defer end()
				defer c.Close()
				if _, err := http.ReadRequest(bufio.NewReader(c)); err == nil {
					answer(c)
				}
			})
		}
	})
	t.Cleanup(func() { l.Close(); all.Wait() })
	return "http://" + l.Addr().String()
}

func TestAnAnswerOfTenGigabytesIsNotRead(t *testing.T) {
	t.Parallel()
	wrote := make(chan int64, 1)
	url := raw(t, func(c net.Conn) {
		_, _ = io.WriteString(c, "HTTP/1.1 200 OK\r\nContent-Length: 10737418240\r\n\r\n")
		n, _ := io.CopyN(c, zeros{}, 10<<30)
		wrote <- n
	})

	require.NoError(t, sinkTo(t, url, nil).Send(t.Context(), message()))

	require.Less(t, testkit.Receive(t, "the end of the answer", wrote), int64(64<<20), "the rest is in the buffers of the connection")
}

type zeros struct{}

func (zeros) Read(p []byte) (int, error) { clear(p); return len(p), nil }

func TestAnAnswerThatDripsIsBoundedByTheTimeout(t *testing.T) {
	t.Parallel()
	drip := func(c net.Conn, begin string) {
		drops := time.NewTicker(5 * time.Millisecond)
		defer drops.Stop()
		for _, err := io.WriteString(c, begin); err == nil; <-drops.C {
			_, err = io.WriteString(c, "x")
		}
	}
	headers := raw(t, func(c net.Conn) { drip(c, "HTTP/1.1 200 OK\r\nx: ") })
	body := raw(t, func(c net.Conn) { drip(c, "HTTP/1.1 200 OK\r\nContent-Length: 60000\r\n\r\n") })
	timeout := 100 * time.Millisecond

	require.ErrorIs(t, sinkTo(t, headers, &outbox.HTTPConfig{Timeout: timeout}).Send(t.Context(), message()), context.DeadlineExceeded)
	testkit.Await(t, "a status of 200 counts on a machine that is in time for it", func() (bool, any) {
		err := sinkTo(t, body, &outbox.HTTPConfig{Timeout: timeout}).Send(t.Context(), message())
		if err != nil {
			require.ErrorIs(t, err, context.DeadlineExceeded)
			timeout *= 2
		}
		return err == nil, err
	})
}

func TestHeadersOfAnAnswerAreBounded(t *testing.T) {
	t.Parallel()
	url := raw(t, func(c net.Conn) {
		_, _ = io.WriteString(c, "HTTP/1.1 200 OK\r\nx: "+strings.Repeat("x", 1<<20)+"\r\n\r\n")
	})

	err := sinkTo(t, url, nil).Send(t.Context(), message())

	require.Error(t, err)
	require.Less(t, len(err.Error()), 500)
}

// What the other side sends is not this side's to keep: neither in an error's text nor anywhere in the error.
func TestErrorsOfHTTPHoldNothingOfAMalformedAnswer(t *testing.T) {
	t.Parallel()
	canary := strings.Repeat("canary", 9000)
	for name, answer := range map[string]string{
		"no HTTP":               canary + "\r\n\r\n",
		"a status that is none": "HTTP/1.1 " + canary + "\r\n\r\n",
		"a header without end":  "HTTP/1.1 200 OK\r\n" + canary + "\r\n\r\n",
		"a header of no name":   "HTTP/1.1 200 OK\r\n: " + canary + "\r\n\r\n",
		"an odd encoding":       "HTTP/1.1 200 OK\r\nTransfer-Encoding: " + canary + "\r\n\r\n",
		"an odd length":         "HTTP/1.1 200 OK\r\nContent-Length: " + canary + "\r\n\r\n",
		"two lengths":           "HTTP/1.1 200 OK\r\nContent-Length: 1\r\nContent-Length: 2" + canary + "\r\n\r\n",
		"too many headers":      "HTTP/1.1 200 OK\r\nX-A: " + canary + "\r\nX-B: " + canary + "\r\n\r\n",
		"a proxy that refuses":  "HTTP/1.1 407 " + canary + "\r\n\r\n",
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			l, err := net.Listen("tcp", "127.0.0.1:0")
			require.NoError(t, err)
			t.Cleanup(func() { l.Close() })
			go func() {
				for {
					conn, err := l.Accept()
					if err != nil {
						return
					}
					_, _ = http.ReadRequest(bufio.NewReader(conn))
					_, _ = io.WriteString(conn, answer)
					conn.Close()
				}
			}()
			address := &url.URL{Scheme: "http", Host: l.Addr().String()}
			to, proxy := address.String(), func(*http.Request) (*url.URL, error) { return nil, nil }
			if name == "a proxy that refuses" {
				to, proxy = "https://bank.example", http.ProxyURL(address)
			}
			transport := &http.Transport{Proxy: proxy, MaxResponseHeaderBytes: 64 << 10}
			t.Cleanup(transport.CloseIdleConnections)
			configs := map[string]*outbox.HTTPConfig{"its own transport": nil, "a transport of the caller's": {Transport: transport}}
			if to != address.String() {
				delete(configs, "its own transport") // which has the proxies of the environment
			}
			for whose, config := range configs {
				err = sinkTo(t, to, config).Send(t.Context(), message())

				require.ErrorContains(t, err, "post to "+to, whose)
				require.NotContains(t, err.Error(), "canary", whose)
				require.Less(t, len(err.Error()), 300, whose)
				for inner := err; inner != nil && config == nil; inner = errors.Unwrap(inner) {
					require.NotContains(t, inner.Error(), "canary", whose)
				}
			}
		})
	}
}

type tokenError struct{ answer string }

func (e *tokenError) Error() string { return "no token: " + e.answer }

type failing struct{ err error }

func (f failing) RoundTrip(*http.Request) (*http.Response, error) { return nil, f.err }

func TestAnErrorOfTheCallersTransportIsFound(t *testing.T) {
	t.Parallel()
	cause := &tokenError{"canary"}

	err := sinkTo(t, "http://bank.example", &outbox.HTTPConfig{Transport: failing{cause}}).Send(t.Context(), message())

	require.ErrorIs(t, err, cause)
	require.ErrorContains(t, err, "post to http://bank.example: the transport failed: *outbox_test.tokenError")
	require.NotContains(t, err.Error(), "canary")
}

// An operator reads what this side knows.
func TestErrorsOfHTTPSayWhatThisSideKnows(t *testing.T) {
	t.Parallel()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	closed := "http://" + l.Addr().String()
	l.Close()
	hangs := serve(t, func(_ http.ResponseWriter, r *http.Request) {
		_, _ = io.Copy(io.Discard, r.Body) // or the server does not see the client go
		<-r.Context().Done()
	})
	for to, words := range map[string]string{
		closed:                              "connection refused",
		"https://" + hangs[len("http://"):]: "HTTP response to HTTPS client",
		hangs:                               "deadline exceeded",
		"http://nobody.invalid":             "lookup nobody.invalid",
	} {
		err := sinkTo(t, to, &outbox.HTTPConfig{Timeout: 500 * time.Millisecond}).Send(t.Context(), message())
		require.ErrorContains(t, err, words)
	}
}

func TestErrorsOfHTTPHoldNoSecret(t *testing.T) {
	t.Parallel()
	refusing := serve(t, answering(400))
	host := strings.TrimPrefix(refusing, "http://")
	l, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	closed := l.Addr().String()
	l.Close()
	for _, to := range []string{host, closed} {
		sink := sinkTo(t, "http://user:canary1@"+to+"/canary2?token=canary3#canary4", &outbox.HTTPConfig{
			Secrets: []string{secret}, Header: http.Header{"X-Token": {"canary5"}},
		})

		err := sink.Send(t.Context(), message())

		require.ErrorContains(t, err, "post to http://"+to)
		require.NotContains(t, err.Error(), "canary")
	}
}

func TestTheCredentialsOfAURLAreSent(t *testing.T) {
	t.Parallel()
	var user, password string
	url := serve(t, func(_ http.ResponseWriter, r *http.Request) { user, password, _ = r.BasicAuth() })

	require.NoError(t, sinkTo(t, strings.Replace(url, "http://", "http://ann:pw@", 1), nil).Send(t.Context(), message()))

	require.Equal(t, "ann pw", user+" "+password)
}

func TestMistakesOfHTTPAreNamed(t *testing.T) {
	t.Parallel()
	for _, test := range []struct {
		url    string
		config outbox.HTTPConfig
		text   string
	}{
		{"", outbox.HTTPConfig{}, "must have the scheme http or https"},
		{"ftp://user:canary@host/canary", outbox.HTTPConfig{}, `invalid URL "ftp://host": must have the scheme http or https`},
		{"http://user:canary@", outbox.HTTPConfig{}, "must have a host"},
		{"http://canary\x7f", outbox.HTTPConfig{}, "must be a URL"},
		{"http://h", outbox.HTTPConfig{Secrets: []string{secret, "canary"}}, "invalid secret 1: must begin with whsec_"},
		{"http://h", outbox.HTTPConfig{Secrets: []string{"whsec_canary"}}, "invalid secret 0: must be 24 to 64 bytes in base64"},
		{"http://h", outbox.HTTPConfig{Secrets: []string{"whsec_" + strings.Repeat("A", 92)}}, "24 to 64 bytes"},
		{"http://h", outbox.HTTPConfig{Header: http.Header{"X": {"canary\r\nY: z"}}}, `invalid header "X": the value must not contain a control character`},
		{"http://h", outbox.HTTPConfig{Header: http.Header{"X": {"canary\n"}}}, "control character"},
		{"http://h", outbox.HTTPConfig{Header: http.Header{"X": {"canary\x00"}}}, "control character"},
		{"http://h", outbox.HTTPConfig{Header: http.Header{"X": {strings.Repeat("canary", 1<<20)}}}, "the value must be at most 8192 bytes, and is 6291456"},
		{"http://h", outbox.HTTPConfig{Header: http.Header{"X: y": {"canary"}}}, `invalid header "X: y": must have only letters`},
		{"http://h", outbox.HTTPConfig{Header: http.Header{"": {"canary"}}}, "must have only letters"},
		{"http://h", outbox.HTTPConfig{Header: http.Header{"webhook-id": {"canary"}}}, "must not be one that the sink sets"},
		{"http://h", outbox.HTTPConfig{Header: http.Header{"dibs-any": {"canary"}}}, "must not be one that the sink sets"},
		{"http://h", outbox.HTTPConfig{Timeout: -1}, "invalid Timeout"},
		{"http://h", outbox.HTTPConfig{Timeout: 2 * time.Hour}, "invalid Timeout"},
	} {
		sink, err := outbox.HTTP(test.url, &test.config)
		require.Nil(t, sink)
		require.ErrorIs(t, err, messagestore.ErrInvalid)
		require.ErrorContains(t, err, test.text)
		require.NotContains(t, err.Error(), "canary")
	}
	_, err := outbox.HTTP("ftp://x", &outbox.HTTPConfig{Secrets: []string{"x"}, Header: http.Header{"": nil}, Timeout: -1})
	for _, text := range []string{"invalid HTTP sink: invalid URL", "invalid secret 0", "invalid header", "invalid Timeout"} {
		require.ErrorContains(t, err, text)
	}
}

func TestNoDataIsAnEmptyObject(t *testing.T) {
	t.Parallel()
	var body []byte
	url := serve(t, func(_ http.ResponseWriter, r *http.Request) { body, _ = io.ReadAll(r.Body) })
	m := message()
	m.Data = nil

	require.NoError(t, sinkTo(t, url, nil).Send(t.Context(), m))

	require.Equal(t, "{}", string(body))
}
