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
	Name string // "Bind", or the type of an unknown message
	Size int    // in bytes, with type and length
	Body []byte // the bytes after type and length; a [Rule] must not keep them
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

var errNoMessage = errors.New("what came is no message of PostgreSQL's")

// A reader takes a stream of bytes apart into messages.
type reader struct {
	from   Side
	source *bufio.Reader
	raw    []byte // the last message
}

// begin reads a message without a type byte: a client's first, and the next after encryption was
// refused.
func (r *reader) begin() (m Message, code uint32, err error) {
	if m, err = r.read(0); err != nil {
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
func (r *reader) next() (Message, error) {
	m, err := r.read(1)
	if err != nil {
		return m, err
	}
	m.Type = r.raw[0]
	if m.Name = names[r.from][m.Type]; m.Name == "" {
		m.Name = string(rune(m.Type))
	}
	return m, nil
}

// read reads a message with the given number of bytes before its length.
func (r *reader) read(before int) (Message, error) {
	header := before + 4
	r.raw = append(r.raw[:0], make([]byte, header)...)
	if _, err := io.ReadFull(r.source, r.raw); err != nil {
		return Message{}, err
	}
	length := int(binary.BigEndian.Uint32(r.raw[before:]))
	if length < 4 || length > 1<<30 {
		return Message{}, errNoMessage
	}
	for left := length - 4; left > 0; { // memory is allocated as bytes arrive, and not for the length that the header claims
		at, n := len(r.raw), min(left, 1<<20)
		r.raw = append(r.raw, make([]byte, n)...)
		if _, err := io.ReadFull(r.source, r.raw[at:]); err != nil {
			return Message{}, err
		}
		left -= n
	}
	return Message{From: r.from, Size: len(r.raw), Body: r.raw[header:]}, nil
}
