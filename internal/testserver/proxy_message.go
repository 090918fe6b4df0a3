package testserver

import (
	"bufio"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
)

// A Side is who sent a message: the client or the server.
type Side int

// The sides.
const (
	FromClient Side = iota
	FromServer
)

// String returns "client" or "server".
func (s Side) String() string {
	if s == FromClient {
		return "client"
	}
	return "server"
}

// A Message is a message that has arrived at the proxy.
type Message struct {
	Conn int    // the connection's number, from 1 on, in the order in which they came
	From Side   // who sent it
	Type byte   // the protocol's type byte, 0 for a message that begins a connection
	Name string // "Bind", of HTTP/2 "HEADERS", or the type of an unknown message
	Size int    // in bytes, with type and length
	Body []byte // the bytes after its header; a [Rule] must not keep them
}

// String returns "client 1: Bind".
func (m Message) String() string { return fmt.Sprintf("%s %d: %s", m.From, m.Conn, m.Name) }

// The codes of messages that begin a connection.
const (
	cancelRequest = 80877102
	sslRequest    = 80877103
	gssRequest    = 80877104
)

var names = map[Side]map[byte]string{
	FromClient: {
		'B': "Bind", 'C': "Close", 'D': "Describe", 'E': "Execute", 'F': "FunctionCall", 'H': "Flush", 'P': "Parse",
		'Q': "Query", 'S': "Sync", 'X': "Terminate", 'c': "CopyDone", 'd': "CopyData", 'f': "CopyFail", 'p': "Password",
	},
	FromServer: {
		'1': "ParseComplete", '2': "BindComplete", '3': "CloseComplete", 'A': "NotificationResponse", 'C': "CommandComplete",
		'D': "DataRow", 'E': "ErrorResponse", 'G': "CopyInResponse", 'H': "CopyOutResponse", 'I': "EmptyQueryResponse",
		'K': "BackendKeyData", 'N': "NoticeResponse", 'R': "Authentication", 'S': "ParameterStatus", 'T': "RowDescription",
		'V': "FunctionCallResponse", 'W': "CopyBothResponse", 'Z': "ReadyForQuery", 'c': "CopyDone", 'd': "CopyData",
		'n': "NoData", 's': "PortalSuspended", 't': "ParameterDescription", 'v': "NegotiateProtocolVersion",
	},
}

// frames are the types of frames of HTTP/2.
var frames = []string{"DATA", "HEADERS", "PRIORITY", "RST_STREAM", "SETTINGS", "PUSH_PROMISE", "PING", "GOAWAY", "WINDOW_UPDATE", "CONTINUATION"}

var errNoMessage = errors.New("what came is no message of the protocol")

// A reader takes a stream of bytes apart into messages.
type reader struct {
	from   Side
	frames bool // of HTTP/2
	source *bufio.Reader
	raw    []byte // the last message
}

// begin reads a message without a type byte: a client's first, and the next after encryption was
// refused.
func (r *reader) begin() (m Message, code uint32, err error) {
	if r.frames {
		const preface = 24 // bytes
		m, err = r.read(preface, func([]byte) int { return 0 })
		m.Name = "PRI"
		return m, 0, err
	}
	if m, err = r.message(0); err != nil {
		return m, 0, err
	}
	if len(m.Body) < 4 {
		return m, 0, errNoMessage
	}
	switch code = binary.BigEndian.Uint32(m.Body); code {
	case cancelRequest:
		m.Name = "CancelRequest"
	case sslRequest:
		m.Name = "SSLRequest"
	case gssRequest:
		m.Name = "GSSENCRequest"
	default:
		m.Name = "StartupMessage"
	}
	return m, code, nil
}

// next reads a message that has a type.
func (r *reader) next() (m Message, err error) {
	if r.frames {
		m, err = r.read(9, func(header []byte) int { return int(binary.BigEndian.Uint32(header) >> 8) })
	} else {
		m, err = r.message(1)
	}
	if err != nil {
		return m, err
	}
	switch {
	case !r.frames:
		m.Type = r.raw[0]
		m.Name = names[r.from][m.Type]
	default:
		m.Type = r.raw[3]
		if int(m.Type) < len(frames) {
			m.Name = frames[m.Type]
		}
	}
	if m.Name == "" {
		m.Name = string(rune(m.Type))
	}
	return m, nil
}

// message reads a message of PostgreSQL's with the given number of bytes before its length.
func (r *reader) message(before int) (Message, error) {
	return r.read(before+4, func(header []byte) int {
		length := binary.BigEndian.Uint32(header[before:])
		if length < 4 || length > 1<<30 {
			return -1
		}
		return int(length) - 4
	})
}

// read reads a header of so many bytes, and the body after it, whose size it tells.
func (r *reader) read(header int, size func(header []byte) int) (Message, error) {
	r.raw = append(r.raw[:0], make([]byte, header)...)
	if _, err := io.ReadFull(r.source, r.raw); err != nil {
		return Message{}, err
	}
	left := size(r.raw)
	if left < 0 {
		return Message{}, errNoMessage
	}
	for left > 0 { // memory is allocated as bytes arrive, and not for the length that the header claims
		at, n := len(r.raw), min(left, 1<<20)
		r.raw = append(r.raw, make([]byte, n)...)
		if _, err := io.ReadFull(r.source, r.raw[at:]); err != nil {
			return Message{}, err
		}
		left -= n
	}
	return Message{From: r.from, Size: len(r.raw), Body: r.raw[header:]}, nil
}
