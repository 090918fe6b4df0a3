package outbox

import (
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/dibs-go/dibs/messagestore"
)

// The headers by which a receiver recognises a message that it already has: by its id, or by its
// place. [Message.Headers] lists all headers.
const (
	HeaderID       = "dibs-id"
	HeaderStream   = "dibs-stream"
	HeaderPosition = "dibs-position"
)

// maxHeaderBytes bounds the value of a header before it is escaped.
const maxHeaderBytes = 1024

// A Message is a message of the outbox on its way to a sink. It is read-only.
type Message struct {
	*messagestore.Message

	// Topic is the result of [Config.Topic].
	Topic string
}

// Key returns the identifier of the message's stream, in the form that the stream's name has.
// Messages of one stream are sent in order.
func (m *Message) Key() string { return m.Stream.ID() }

// Headers returns the headers that a sink passes on with the data, to a broker or by HTTP:
//
//   - dibs-id, the message's id, which never changes;
//   - dibs-stream, and dibs-position in that stream, which grows by one from message to message;
//   - dibs-type;
//   - dibs-time, when the store wrote it, in the format of RFC 3339, in UTC;
//   - dibs-correlation, the stream for which the chain of messages was started, if it has one;
//   - traceparent and tracestate of W3C Trace Context, if the metadata has valid ones.
//
// A value is visible ASCII: every other byte, and the percent sign, is percent-encoded, as
// [net/url.PathUnescape] decodes it. A name of more than 1024 bytes, which other clients of the
// database may write, is left out.
func (m *Message) Headers() map[string]string {
	headers := make(map[string]string, headerCount)
	m.eachHeader(func(name, value string) { headers[name] = value })
	return headers
}

// headerCount is how many headers a message has at most.
const headerCount = 8

// eachHeader calls set for each header of Headers.
func (m *Message) eachHeader(set func(name, value string)) {
	set(HeaderID, m.ID.String())
	set(HeaderPosition, strconv.FormatInt(int64(m.Position), 10))
	set("dibs-time", m.Time.UTC().Format(time.RFC3339Nano))
	bounded := func(name, value string) {
		if value != "" && len(value) <= maxHeaderBytes {
			set(name, escape(value))
		}
	}
	bounded(HeaderStream, string(m.Stream))
	bounded("dibs-type", m.Type)
	bounded("dibs-correlation", string(m.Metadata.CorrelationStream))
	parent, state := m.Metadata.Trace()
	var valid messagestore.Metadata
	if parent == "" || valid.SetTrace(parent, "") != nil {
		return
	}
	set("traceparent", parent)
	if valid.SetTrace(parent, state) == nil && state != "" && strings.IndexFunc(state, func(r rune) bool { return r < ' ' || r > '~' }) < 0 {
		set("tracestate", state)
	}
}

// escape percent-encodes each byte that is not visible ASCII, and the percent sign.
func escape(value string) string {
	escaped := func(c byte) bool { return c <= ' ' || c > '~' || c == '%' }
	plain := 0
	for plain < len(value) && !escaped(value[plain]) {
		plain++
	}
	if plain == len(value) {
		return value
	}
	var b strings.Builder
	for i := range len(value) {
		if c := value[i]; escaped(c) {
			fmt.Fprintf(&b, "%%%02X", c)
		} else {
			b.WriteByte(c)
		}
	}
	return b.String()
}
