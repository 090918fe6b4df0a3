// Package delivery has the texts that name deliveries on the wire. They are opaque to other
// clients; package client reads them, because a delivery of package queue has these parts.
package delivery

import (
	"crypto/sha256"
	"encoding/base64"
	"encoding/binary"

	"github.com/dibs-go/dibs/internal/queuing"
	"github.com/dibs-go/dibs/messagestore"
	"github.com/dibs-go/dibs/queue"
)

const (
	checkBytes = 4
	size       = 8 + 4 + 8 + checkBytes
)

// ID returns the text that names a delivery: its position, version and session, and a check that
// finds one of another queue, or a part of one. What keeps others from ending it is the session's
// number, which has 62 bits that nobody can guess.
func ID(of queuing.Queue, d queue.Delivery) string {
	body := binary.BigEndian.AppendUint64(make([]byte, 0, size), uint64(d.Position))
	body = binary.BigEndian.AppendUint32(body, uint32(d.Version))
	body = binary.BigEndian.AppendUint64(body, uint64(d.Session))
	sum := sha256.Sum256(append([]byte(string(of.Category)+"-"+of.Name+"-"), body...))
	return base64.RawURLEncoding.EncodeToString(append(body, sum[:checkBytes]...))
}

// Parse returns the delivery of a queue that an id names, and reports whether there is one. A
// delivery has one id, and every other text names none.
func Parse(of queuing.Queue, id string) (queue.Delivery, bool) {
	raw, err := base64.RawURLEncoding.DecodeString(id)
	if err != nil || len(raw) != size {
		return queue.Delivery{}, false
	}
	d := queue.Delivery{
		Position: messagestore.GlobalPosition(binary.BigEndian.Uint64(raw)), Version: int(binary.BigEndian.Uint32(raw[8:])), Session: int64(binary.BigEndian.Uint64(raw[12:])),
	}
	return d, ID(of, d) == id
}
