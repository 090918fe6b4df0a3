package outbox

import (
	"bytes"
	"context"
	"crypto/hmac"
	"crypto/sha256"
	"crypto/tls"
	"encoding/base64"
	"errors"
	"fmt"
	"io"
	"maps"
	"net"
	"net/http"
	"net/url"
	"os"
	"strconv"
	"strings"
	"time"

	"github.com/dibs-go/dibs/handler"
	"github.com/dibs-go/dibs/internal/text"
	"github.com/dibs-go/dibs/messagestore"
)

// The limits of answers, headers and secrets.
const (
	// maxAnswer is how much of an answer is read, so that its connection can be used again.
	maxAnswer = 64 << 10

	// maxHeaders bounds the headers of an answer.
	maxHeaders = 64 << 10

	// maxHeaderValue bounds a header of HTTPConfig.
	maxHeaderValue = 8 << 10

	secretPrefix           = "whsec_"
	leastSecret, mostBytes = 24, 64
)

// HTTPConfig changes how [HTTP] sends. Nil means all defaults.
type HTTPConfig struct {
	// Secrets sign each message according to Standard Webhooks: whsec_ and 24 to 64 bytes in
	// base64. The receiver accepts a message signed with any one of them, so to rotate a secret,
	// list both for a while.
	//
	// Defaults to none, which means no signature.
	Secrets []string

	// Header is added to each request, for example an Authorization. It cannot set the headers that
	// the sink sets itself. A value has at most 8 KiB and no control character.
	Header http.Header

	// Timeout bounds one attempt, from the connection to the end of the answer: 1 ms to 1 h.
	//
	// Defaults to 15 s.
	Timeout time.Duration

	// Transport makes the requests. It must not follow redirects, and should limit the headers of
	// answers.
	//
	// Defaults to a transport of the sink's own, with the proxies of the environment and up to 64
	// KiB of headers in an answer.
	Transport http.RoundTripper

	// Untrusted says that a customer chose the URL, and might use it to reach systems that only
	// this process can reach. The URL must then use https, port 443 or 8443, and no user. The sink
	// only dials public addresses, after resolving the name, and uses no proxy of the environment.
	// Transport must be nil.
	//
	// Defaults to false.
	Untrusted bool
}

// An HTTPSink posts messages to a URL. It is safe for concurrent use.
type HTTPSink struct {
	url       *url.URL
	config    HTTPConfig
	keys      [][]byte
	client    *http.Client
	transport *http.Transport // of its own, or nil
}

// HTTP returns a sink that posts each message to an http or https URL: its data as the body, with
// the type application/json, and the headers of [Message.Headers].
//
// A request has the headers of Standard Webhooks (https://www.standardwebhooks.com): webhook-id,
// the message's id; webhook-timestamp, the time of the attempt; and, if there are secrets,
// webhook-signature: v1 and the HMAC-SHA256 of id, timestamp and body. It also has the id as
// Idempotency-Key.
//
// An answer of 2xx takes the message. 400, 413, 414, 415, 422 and 431 refuse it for good: the error
// is a handler.Refuse, and the message is dead. With any other answer, and without an answer, the
// message is sent again after the relay's pause, or after the answer's Retry-After, up to
// [MaxRetryAfter]. A date in Retry-After is read by the clock of this process. This includes 404
// and 410, which say that the URL is gone, and nothing about the message. The relay logs them as
// errors, and counts them ([Stats].Gone). It also includes redirects, which are not followed,
// because that would send the message, its signature and the headers to another place.
//
// At most 64 KiB of an answer are read, and no part of it is logged, even if it is malformed. If
// [HTTPConfig].Transport returns an error that net/http does not know, its text only names the
// type; errors.As finds the rest.
//
// Errors only name the scheme and host of the URL: user, password, path and query may be secrets.
// HTTP's own error has all mistakes in its arguments together: errors that match
// [messagestore.ErrInvalid] and contain no secret. HTTP sends nothing.
func HTTP(to string, config *HTTPConfig) (*HTTPSink, error) {
	s := &HTTPSink{}
	if config != nil {
		s.config = *config
	}
	given := s.config.Header.Clone()
	s.config.Header = given
	if s.config.Timeout == 0 {
		s.config.Timeout = 15 * time.Second
	}
	if err := errors.Join(s.parseURL(to), s.parseSecrets(), s.checkHeader(), s.checkTimeout(), s.checkTransport()); err != nil {
		return nil, fmt.Errorf("invalid HTTP sink: %w", err)
	}
	s.config.Header = http.Header{}
	for name, values := range given {
		s.config.Header[http.CanonicalHeaderKey(name)] = values
	}
	transport := s.config.Transport
	if transport == nil {
		s.transport = &http.Transport{
			Proxy: http.ProxyFromEnvironment, ForceAttemptHTTP2: true, DisableCompression: true, MaxResponseHeaderBytes: maxHeaders,
			MaxIdleConnsPerHost: 1024, IdleConnTimeout: 90 * time.Second, TLSHandshakeTimeout: 10 * time.Second,
		}
		if s.config.Untrusted {
			s.transport.Proxy, s.transport.DialContext = nil, dialPublic
		}
		transport = s.transport
	}
	s.client = &http.Client{
		Transport:     transport,
		CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
	}
	return s, nil
}

// Close closes idle connections. You may use the sink again.
func (s *HTTPSink) Close() {
	if s.transport != nil {
		s.transport.CloseIdleConnections()
	}
}

func (s *HTTPSink) parseURL(to string) error {
	u, err := url.Parse(to)
	switch {
	case err != nil: // its text has the URL
		return messagestore.NewInvalidError("URL", nil, "must be a URL")
	case u.Scheme != "http" && u.Scheme != "https":
		return messagestore.NewInvalidError("URL", redacted(u), "must have the scheme http or https")
	case u.Hostname() == "":
		return messagestore.NewInvalidError("URL", redacted(u), "must have a host")
	}
	s.url = u
	if s.config.Untrusted {
		return checkUntrusted(u)
	}
	return nil
}

// redacted returns the parts of a URL that are not secret.
func redacted(u *url.URL) string { return (&url.URL{Scheme: u.Scheme, Host: u.Host}).String() }

func (s *HTTPSink) parseSecrets() error {
	for i, secret := range s.config.Secrets {
		field := fmt.Sprintf("secret %d", i)
		encoded, is := strings.CutPrefix(secret, secretPrefix)
		if !is {
			return messagestore.NewInvalidError(field, nil, "must begin with "+secretPrefix)
		}
		key, err := base64.StdEncoding.DecodeString(encoded)
		if err != nil || len(key) < leastSecret || len(key) > mostBytes {
			return messagestore.NewInvalidError(field, nil, fmt.Sprintf("must be %d to %d bytes in base64", leastSecret, mostBytes))
		}
		s.keys = append(s.keys, key)
	}
	return nil
}

// own are the headers that the sink itself sets.
var own = map[string]bool{
	"Content-Type": true, "Content-Length": true, "Host": true, "Transfer-Encoding": true, "Idempotency-Key": true,
	"Webhook-Id": true, "Webhook-Timestamp": true, "Webhook-Signature": true, "Traceparent": true, "Tracestate": true,
}

func (s *HTTPSink) checkHeader() error {
	for name, values := range s.config.Header {
		canonical := http.CanonicalHeaderKey(name)
		switch {
		case name == "" || strings.IndexFunc(name, func(c rune) bool { return c <= ' ' || c > '~' || strings.ContainsRune(`"(),/:;<=>?@[\]{}`, c) }) >= 0:
			return messagestore.NewInvalidError("header", name, "must have only letters, digits and !#$%&'*+-.^_`|~")
		case own[canonical] || strings.HasPrefix(canonical, "Dibs-"):
			return messagestore.NewInvalidError("header", name, "must not be one that the sink sets")
		}
		for _, value := range values { // it may be a secret
			if len(value) > maxHeaderValue {
				return messagestore.NewInvalidError("header", name, fmt.Sprintf("the value must be at most %d bytes, and is %d", maxHeaderValue, len(value)))
			}
			if strings.IndexFunc(value, func(c rune) bool { return c < ' ' && c != '\t' || c == 0x7f }) >= 0 {
				return messagestore.NewInvalidError("header", name, "the value must not contain a control character")
			}
		}
	}
	return nil
}

func (s *HTTPSink) checkTimeout() error {
	if d := s.config.Timeout; d < time.Millisecond || d > time.Hour {
		return messagestore.NewInvalidError("Timeout", d, "must be between 1ms and 1h0m0s")
	}
	return nil
}

func (s *HTTPSink) checkTransport() error {
	if s.config.Untrusted && s.config.Transport != nil {
		return messagestore.NewInvalidError("Transport", nil, "must be nil if the URL is not trusted: the sink has its own, which dials public addresses only")
	}
	return nil
}

// given returns an error if the message is nil.
func given(m *Message) error {
	if m == nil || m.Message == nil {
		return messagestore.NewInvalidError("message", nil, "must not be nil")
	}
	return nil
}

// refuses are the answers with which a receiver refuses a message for good.
var refuses = map[int]bool{
	http.StatusBadRequest: true, http.StatusRequestEntityTooLarge: true, http.StatusRequestURITooLong: true,
	http.StatusUnsupportedMediaType: true, http.StatusUnprocessableEntity: true, http.StatusRequestHeaderFieldsTooLarge: true,
}

// Send posts m. The error for an answer has a disposition: see [HTTP].
func (s *HTTPSink) Send(ctx context.Context, m *Message) error {
	if err := given(m); err != nil {
		return fmt.Errorf("send: %w", err)
	}
	ctx, cancel := context.WithTimeout(ctx, s.config.Timeout)
	defer cancel()
	answer, err := s.client.Do(s.request(ctx, m))
	if err != nil {
		return s.failed(err)
	}
	defer answer.Body.Close()
	_, _ = io.CopyN(io.Discard, answer.Body, maxAnswer)
	if answer.StatusCode/100 == 2 {
		return nil
	}
	err = &statusError{host: redacted(s.url), status: answer.StatusCode}
	if refuses[answer.StatusCode] {
		return handler.Refuse(err)
	}
	if after := retryAfter(answer.Header.Get("Retry-After")); after > 0 {
		return handler.RetryAfter(after, err)
	}
	return err
}

// request returns a request for m, like http.NewRequestWithContext, for a URL that was already
// parsed.
func (s *HTTPSink) request(ctx context.Context, m *Message) *http.Request {
	body, to := m.Body().Data, *s.url
	content := func() (io.ReadCloser, error) { return io.NopCloser(bytes.NewReader(body)), nil }
	r := (&http.Request{
		Method: http.MethodPost, URL: &to, Host: to.Host, Proto: "HTTP/1.1", ProtoMajor: 1, ProtoMinor: 1,
		Header: s.header(m, body), ContentLength: int64(len(body)), GetBody: content,
	}).WithContext(ctx)
	r.Body, _ = content()
	return r
}

// canonical has the names of a message's headers in the form of net/http.
var canonical = map[string]string{
	HeaderID: "Dibs-Id", HeaderStream: "Dibs-Stream", HeaderPosition: "Dibs-Position", "dibs-type": "Dibs-Type", "dibs-time": "Dibs-Time",
	"dibs-correlation": "Dibs-Correlation", "traceparent": "Traceparent", "tracestate": "Tracestate",
}

// header returns the headers of a request.
func (s *HTTPSink) header(m *Message, body []byte) http.Header {
	const own = 5 // in addition to the message's
	h := make(http.Header, len(s.config.Header)+headerCount+own)
	values := make([]string, 0, headerCount+own)
	set := func(name, value string) {
		n := len(values)
		values = append(values, value)
		h[name] = values[n : n+1 : n+1]
	}
	maps.Copy(h, s.config.Header)
	m.eachHeader(func(name, value string) { set(canonical[name], value) })
	id, now := m.ID.String(), strconv.FormatInt(time.Now().Unix(), 10)
	set("Content-Type", "application/json")
	set("Idempotency-Key", id)
	set("Webhook-Id", id)
	set("Webhook-Timestamp", now)
	var signatures []string
	for _, key := range s.keys {
		mac := hmac.New(sha256.New, key)
		mac.Write([]byte(id + "." + now + "."))
		mac.Write(body)
		signatures = append(signatures, "v1,"+base64.StdEncoding.EncodeToString(mac.Sum(nil)))
	}
	if len(signatures) > 0 {
		set("Webhook-Signature", strings.Join(signatures, " "))
	}
	return h
}

// failed returns err without the URL, which errors of net/http contain, and without text from the
// other side, which they quote: a line of a malformed answer, the status of a proxy, the last words
// of an HTTP/2 connection.
func (s *HTTPSink) failed(err error) error {
	if e, is := errors.AsType[*url.Error](err); is {
		err = e.Err
	}
	said := told(err)
	if said == nil && s.transport == nil {
		said = &transportError{err}
	}
	if said == nil {
		said = errNoAnswer
	}
	return fmt.Errorf("post to %s: %w", redacted(s.url), said)
}

var (
	errNoAnswer = errors.New("there was no HTTP response, or it cannot be read, or its headers are larger than 64 KiB")
	errTimeout  = errors.New("it took too long")
)

// told returns the part of an error that this side has produced, or nil.
func told(err error) error {
	if of, is := errors.AsType[*net.OpError](err); is {
		if of.Op != "proxyconnect" {
			return of // about dialling, reading or writing, and the system's answer
		}
		if said := told(of.Err); said != nil {
			return fmt.Errorf("connect to the proxy: %w", said)
		}
		return errors.New("the proxy refused the connection")
	}
	for _, known := range []error{
		context.DeadlineExceeded, context.Canceled, io.EOF, io.ErrUnexpectedEOF, net.ErrClosed, http.ErrSchemeMismatch, os.ErrDeadlineExceeded,
	} {
		if errors.Is(err, known) {
			return known
		}
	}
	if of, is := errors.AsType[*net.DNSError](err); is {
		return of
	}
	if of, is := errors.AsType[*tls.CertificateVerificationError](err); is {
		return errors.New(text.Shorten(of.Error())) // it lists all names of the certificate
	}
	if of, is := errors.AsType[net.Error](err); is && of.Timeout() {
		return errTimeout
	}
	return nil
}

// A transportError is an error of the caller's transport. Its text may contain a part of the
// answer.
type transportError struct{ cause error }

// Error names the kind of the error.
func (e *transportError) Error() string { return fmt.Sprintf("the transport failed: %T", e.cause) }

// Unwrap returns the transport's error.
func (e *transportError) Unwrap() error { return e.cause }

// A statusError is an answer that is not 2xx.
type statusError struct {
	host   string
	status int
}

// Error names host and status.
func (e *statusError) Error() string {
	words := http.StatusText(e.status)
	if e.status/100 == 3 {
		words += ", a redirect, which is not followed"
	}
	return strings.TrimSpace(fmt.Sprintf("post to %s: the answer is %d %s", e.host, e.status, words))
}

// isGone reports whether an error comes from [HTTP] and says that the URL does not exist.
func isGone(err error) (is bool) {
	defer func() {
		if recover() != nil { // in a method of the error
			is = false
		}
	}()
	e, is := errors.AsType[*statusError](err)
	return is && (e.status == http.StatusNotFound || e.status == http.StatusGone)
}

// retryAfter parses a Retry-After header: seconds, or a date. It returns 0 for any other value, and
// for a time that has passed.
func retryAfter(value string) time.Duration {
	if value != "" && strings.Trim(value, "0123456789") == "" {
		seconds, err := strconv.ParseInt(value, 10, 64)
		if err != nil || seconds > int64(MaxRetryAfter/time.Second) {
			return MaxRetryAfter
		}
		return time.Duration(seconds) * time.Second
	}
	at, err := http.ParseTime(value)
	if err != nil {
		return 0
	}
	return min(max(time.Until(at), 0), MaxRetryAfter)
}
