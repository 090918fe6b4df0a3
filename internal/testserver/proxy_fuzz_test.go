package testserver

import (
	"bufio"
	"bytes"
	"encoding/binary"
	"errors"
	"io"
	"net"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// A talker is a connection that delivers its input in pieces and keeps everything written to it.
type talker struct {
	net.Conn
	says  [][]byte
	said  int    // so many bytes
	asked func() // before each piece
	heard bytes.Buffer
}

func (c *talker) Read(p []byte) (int, error) {
	if c.asked != nil {
		c.asked()
	}
	if len(c.says) == 0 {
		return 0, io.EOF
	}
	n := copy(p, c.says[0])
	if c.says[0] = c.says[0][n:]; len(c.says[0]) == 0 {
		c.says = c.says[1:]
	}
	c.said += n
	return n, nil
}

func (c *talker) Write(p []byte) (int, error) { return c.heard.Write(p) }

// pieces cuts raw into pieces that are one byte longer than the sizes say, over and over.
func pieces(raw, sizes []byte) (all [][]byte) {
	if len(sizes) == 0 {
		sizes = []byte{0xff}
	}
	for i := 0; len(raw) > 0; i++ {
		n := min(int(sizes[i%len(sizes)])+1, len(raw))
		all, raw = append(all, raw[:n]), raw[n:]
	}
	return all
}

// first returns the first message of raw, of which so many bytes come before its length,
// nil if it is not all there; and the length that it says, -1 if it does not.
func first(raw []byte, before int) (message []byte, length int) {
	if len(raw) < before+4 {
		return nil, -1
	}
	length = int(binary.BigEndian.Uint32(raw[before:]))
	if length >= 4 && length <= len(raw)-before {
		message = raw[:before+length]
	}
	return message, length
}

const longest = 1 << 30

// The reader returns each message byte for byte, in whatever pieces it arrives. A malformed message
// is an error, and allocates no more than the bytes before it.
func FuzzAMessageIsWhatCameOrRefused(f *testing.F) {
	// answer byte by byte
	f.Add(false, []byte("D\x00\x00\x00\v\x00\x01\x00\x00\x00\x011C\x00\x00\x00\rSELECT 1\x00Z\x00\x00\x00\x05I"), []byte("\x00"))
	// beginning of a client
	f.Add(true, []byte("\x00\x00\x00%\x00\x03\x00\x00user\x00canary\x00database\x00canary\x00\x00Q\x00\x00\x00\rselect 1\x00X\x00\x00\x00\x04"), []byte(""))
	f.Add(true, []byte("\x00\x00\x00\aabc"), []byte(""))                                                  // beginning without a code
	f.Add(true, []byte("\x00\x00\x00\x10\x04\xd2\x16.\x00\x00\x12g\xde\xad\xbe\xef"), []byte("\x02\x05")) // cancel request
	f.Add(false, []byte("Z\x00\x00\x00\x05IZ\x00\x00\x00\x05"), []byte(""))                               // cut off after the length
	f.Add(false, []byte("Z\x00\x00\x00\x05IZ\x00\x00\x00"), []byte("\x01\x04"))                           // cut off in the length
	// encryption asked for
	f.Add(true, []byte("\x00\x00\x00\b\x04\xd2\x16/\x00\x00\x00%\x00\x03\x00\x00user\x00canary\x00database\x00canary\x00\x00"), []byte("\a"))
	f.Add(false, []byte("C\x00\x00\x00\rSELECT 1\x00Z\x00\x00\x00\x03I"), []byte("\x03")) // length less than its own
	f.Add(false, []byte("Z\xff\xff\xff\xffZ\x00\x00\x00\x05I"), []byte(""))               // length that lies
	f.Add(false, []byte("\xff\x00\x00\x00\x05x\x00\x00\x00\x00\x04"), []byte("\x05\x00")) // unknown type
	f.Fuzz(func(t *testing.T, client bool, raw, sizes []byte) {
		r := &reader{from: FromServer, source: bufio.NewReader(&talker{says: pieces(raw, sizes)})}
		before := 1
		if client {
			r.from, before = FromClient, 0
		}
		for rest := raw; ; before = 1 {
			want, length := first(rest, before)
			var m Message
			var code uint32
			var err error
			if before == 0 {
				m, code, err = r.begin()
			} else {
				m, err = r.next()
			}

			switch {
			case length >= 0 && length < 4, length > longest:
				require.ErrorIs(t, err, errNoMessage)
				require.LessOrEqual(t, cap(r.raw), 4*len(raw)+64)
				return
			case len(rest) == 0:
				require.ErrorIs(t, err, io.EOF)
				return
			case want == nil:
				require.LessOrEqual(t, cap(r.raw), 4*len(raw)+4<<20)
				require.True(t, errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF), "%v", err)
				return
			case before == 0 && length < 8: // it has no code
				require.ErrorIs(t, err, errNoMessage)
				return
			}
			require.NoError(t, err)
			require.Equal(t, want, r.raw)
			require.NotEmpty(t, m.Name)
			whole := Message{From: r.from, Name: m.Name, Size: len(want), Body: want[before+4:]}
			if before == 0 {
				require.Equal(t, binary.BigEndian.Uint32(want[4:]), code)
			} else {
				whole.Type = want[0]
			}
			require.Equal(t, whole, m)
			rest = rest[len(want):]
		}
	})
}

// The proxy forwards all complete messages unchanged, and has forwarded them whenever it waits for
// more.
func FuzzWhatCameWholeIsPassedOnBeforeMoreIsWaitedFor(f *testing.F) {
	// byte by byte
	f.Add(false, []byte("P\x00\x00\x00\x10\x00select 1\x00\x00\x00B\x00\x00\x00\f\x00\x00\x00\x00\x00\x00\x00\x00E\x00\x00\x00\t\x00\x00\x00\x00\x00S\x00\x00\x00\x04"), []byte("\x00"))
	f.Add(false, []byte("Q\x00\x00\x00\rselect 1\x00Q\x00\x00\x00\rselect 1"), []byte("\x03")) // cut off
	// dripped
	f.Add(true, []byte("P\x00\x00\x00\x10\x00select 1\x00\x00\x00B\x00\x00\x00\f\x00\x00\x00\x00\x00\x00\x00\x00E\x00\x00\x00\t\x00\x00\x00\x00\x00S\x00\x00\x00\x04X\x00\x00\x00\x04"), []byte("\x06"))
	f.Add(false, []byte("S\x00\x00\x00\x04Q\x00\x00\x00\x00S\x00\x00\x00\x04"), []byte("\x02"))                 // length less than its own
	f.Add(true, []byte("S\x00\x00\x00\x04Q\xff\xff\xff\xffQ\x00\x00\x00\rselect 1\x00"), []byte(""))            // length that lies
	f.Add(false, []byte("d\x00\x00\x13\x8c"+strings.Repeat("x", 5000)+"c\x00\x00\x00\x04"), []byte("\xff\x10")) // longer than the buffer
	f.Add(false, []byte(""), []byte(""))                                                                        // nothing
	f.Add(false, []byte("Q\x00\x00\x00\rselect 1\x00S\x00\x00\x00\x04X\x00\x00\x00\x04"), []byte("\x0f\x02"))   // split within a message
	// together
	f.Add(false, []byte("P\x00\x00\x00\x10\x00select 1\x00\x00\x00B\x00\x00\x00\f\x00\x00\x00\x00\x00\x00\x00\x00E\x00\x00\x00\t\x00\x00\x00\x00\x00S\x00\x00\x00\x04"), []byte(""))
	f.Fuzz(func(t *testing.T, drip bool, raw, sizes []byte) {
		ends := []int{0} // of the messages that come whole
		for rest := raw; ; {
			message, _ := first(rest, 1)
			if message == nil {
				break
			}
			rest = rest[len(message):]
			ends = append(ends, len(raw)-len(rest))
		}
		proxy := &Proxy{ctx: t.Context(), release: make(chan struct{}), rule: func(Message) Fault {
			if drip {
				return Drip
			}
			return Pass
		}}
		from, to := &talker{says: pieces(raw, sizes)}, &talker{}
		whole, left := 0, ends
		from.asked = func() {
			for len(left) > 0 && left[0] <= from.said {
				whole, left = left[0], left[1:]
			}
			require.Equal(t, whole, to.heard.Len())
		}
		s := &side{from: from}
		s.reached(to)

		(&conn{proxy: proxy, number: 1}).pump(&reader{from: FromClient, source: bufio.NewReader(s)}, s)

		require.Equal(t, string(raw[:ends[len(ends)-1]]), to.heard.String())
	})
}
