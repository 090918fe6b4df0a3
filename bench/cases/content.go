package cases

import (
	"context"
	"encoding/json"
	"fmt"

	"github.com/google/uuid"

	"github.com/dibs-go/dibs/messagestore"
)

// perStream is how many messages a stream has: a writer begins another after that.
const perStream = 20

// A transferred is the message that all cases write: some 200 bytes of JSON, with 150
// bytes of metadata.
type transferred struct {
	TransferID  string `json:"transferId"`
	AccountID   string `json:"accountId"`
	Counterpart string `json:"counterpart"`
	Amount      int64  `json:"amount"`
	Currency    string `json:"currency"`
	Reference   string `json:"reference"`
	Time        string `json:"time"`
}

const messageType = "Transferred"

func (transferred) MessageType() string { return messageType }

// A writer makes one caller's messages: one stream after the other, each at the version
// that its messages so far make.
type writer struct {
	category messagestore.Category
	stream   messagestore.StreamName
	version  messagestore.Version // of stream, before the next message
	id       string
	written  int64
}

func newWriter(category messagestore.Category) *writer {
	return &writer{category: category, version: perStream}
}

// next returns the next message. Earlier ones are not remembered, so that a caller that
// was refused one can go on.
func (w *writer) next() messagestore.Envelope {
	if w.version++; w.version >= perStream-1 {
		w.id = uuid.Must(uuid.NewV7()).String()
		w.stream, w.version = w.category.Stream(w.id), messagestore.NoStream
	}
	w.written++
	return message(w.id, w.written)
}

// write writes the next message, which no other caller can be in the way of.
func (w *writer) write(ctx context.Context, s store) error {
	m := w.next()
	wrote, err := s.write(ctx, w.stream, w.version, m)
	if err == nil && !wrote {
		err = fmt.Errorf("%s: a conflict without another writer", w.stream)
	}
	return err
}

func message(id string, n int64) messagestore.Envelope {
	return messagestore.Envelope{
		ID: uuid.Must(uuid.NewV7()),
		Body: transferred{
			TransferID: id, AccountID: fmt.Sprintf("%08d", n%100_000_000), Counterpart: "CZ6508000000192000145399",
			Amount: n * 7 % 100_000, Currency: "CZK", Reference: "rent", Time: "2026-11-21T18:17:38.000000Z",
		},
		Metadata: messagestore.Metadata{
			CausationStream: messagestore.StreamName("transfer:command-" + id), CausationPosition: messagestore.Version(n % perStream),
			CausationGlobalPosition: messagestore.GlobalPosition(n),
		},
	}
}

// A row is a message as the other contenders send it.
type row struct {
	id             uuid.UUID
	stream         messagestore.StreamName
	position       int64 // that it gets; one more than is expected
	data, metadata []byte
}

// metadata has message-db's names, like the metadata of Dibs.
type metadata struct {
	CausationStream         messagestore.StreamName     `json:"causationMessageStreamName"`
	CausationPosition       messagestore.Version        `json:"causationMessagePosition"`
	CausationGlobalPosition messagestore.GlobalPosition `json:"causationMessageGlobalPosition"`
}

// encode does for the others the work that Dibs does in Write.
func encode(stream messagestore.StreamName, expected messagestore.Version, m messagestore.Envelope) (r row, err error) {
	r = row{id: m.ID, stream: stream, position: int64(expected) + 1}
	if r.data, err = json.Marshal(m.Body); err != nil {
		return r, err
	}
	r.metadata, err = json.Marshal(metadata{m.Metadata.CausationStream, m.Metadata.CausationPosition, m.Metadata.CausationGlobalPosition})
	return r, err
}
