package cases

import (
	"bytes"
	"encoding/binary"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/stretchr/testify/require"

	"github.com/dibs-go/dibs/messagestore"
)

// A copied is the output of a COPY, one message of the protocol after the other.
type copied struct{ messages [][]byte }

// add is one row, of columns that are nil for null.
func (c *copied) add(columns ...[]byte) {
	var b []byte
	if len(c.messages) == 0 {
		b = append(b, copySignature+"\x00\x00\x00\x00\x00\x00\x00\x00"...)
	}
	b = binary.BigEndian.AppendUint16(b, uint16(len(columns)))
	for _, column := range columns {
		if column == nil {
			b = binary.BigEndian.AppendUint32(b, 0xffffffff)
			continue
		}
		b = append(binary.BigEndian.AppendUint32(b, uint32(len(column))), column...)
	}
	c.messages = append(c.messages, b)
}

func (c *copied) end() { c.messages = append(c.messages, []byte{0xff, 0xff}) }

// send writes it all as pgx does, which reuses its buffer.
func (c *copied) send(d *copyDecoder) error {
	buffer := make([]byte, 4096)
	for _, b := range c.messages {
		n := copy(buffer, b)
		if _, err := d.Write(buffer[:n]); err != nil {
			return err
		}
	}
	clear(buffer)
	return nil
}

func number(n int64) []byte { return binary.BigEndian.AppendUint64(nil, uint64(n)) }

func copiedRow(id uuid.UUID, globalPosition int64) [][]byte {
	return [][]byte{
		id[:], []byte("account-1"), []byte("Transferred"), number(3), number(globalPosition),
		[]byte(`{"amount":1}`), []byte(`{"correlationStreamName":"transfer-7"}`), number(1_500_000),
	}
}

func TestCopyIsDecodedIntoMessages(t *testing.T) {
	id := uuid.Must(uuid.NewV7())
	var c copied
	c.add(copiedRow(id, 5)...)
	withoutMetadata := copiedRow(id, 6)
	withoutMetadata[6] = nil
	c.add(withoutMetadata...)
	c.end()

	var d copyDecoder
	require.NoError(t, c.send(&d))

	require.True(t, d.ended)
	want := messagestore.Message{
		ID: id, Stream: "account-1", Type: "Transferred", Position: 3, GlobalPosition: 5,
		Data: []byte(`{"amount":1}`), Metadata: messagestore.Metadata{CorrelationStream: "transfer-7"},
		Time: time.Date(2000, time.January, 1, 0, 0, 1, 500_000_000, time.UTC),
	}
	second := want
	second.GlobalPosition, second.Metadata = 6, messagestore.Metadata{}
	require.Equal(t, []messagestore.Message{want, second}, d.messages)
}

func TestCopyThatIsNotWholeIsRefused(t *testing.T) {
	id := uuid.Must(uuid.NewV7())
	whole := func() *copied {
		c := &copied{}
		c.add(copiedRow(id, 5)...)
		return c
	}
	for name, broken := range map[string]func() *copied{
		"another format": func() *copied { return &copied{[][]byte{bytes.Repeat([]byte("text"), 20)}} },
		"no header":      func() *copied { return &copied{[][]byte{[]byte(copySignature)}} },
		"a column less": func() *copied {
			c := &copied{}
			c.add(copiedRow(id, 5)[:7]...)
			return c
		},
		"a short number": func() *copied {
			columns := copiedRow(id, 5)
			columns[4] = []byte{1}
			c := &copied{}
			c.add(columns...)
			return c
		},
		"half a row": func() *copied {
			c := whole()
			c.messages[0] = c.messages[0][:len(c.messages[0])-3]
			return c
		},
		"half a length": func() *copied {
			c := whole()
			c.messages[0] = c.messages[0][:len(c.messages[0])-10]
			return c
		},
		"a row after the end": func() *copied {
			c := whole()
			c.end()
			c.add(copiedRow(id, 6)...)
			return c
		},
	} {
		t.Run(name, func(t *testing.T) {
			require.Error(t, broken().send(&copyDecoder{}))
		})
	}
}
