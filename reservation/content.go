package reservation

import (
	"crypto/sha256"
	"encoding/base64"
	"encoding/hex"
	"fmt"

	"github.com/google/uuid"

	"github.com/dibs-go/dibs/handler"
	"github.com/dibs-go/dibs/internal/keys"
	"github.com/dibs-go/dibs/messagestore"
)

// A contenter is a body that chooses its content: see [New].
type contenter interface {
	ReservationContent() any
}

// ContentKey returns a key computed from body: from its type, and from its content as JSON, or from
// the part that its method ReservationContent chooses. Equal commands have equal keys. You can pass
// it to [Copy] and [Inline]:
//
//	handler.Register(mux, reservation.Copy(once, reservation.ContentKey[Deposit], accounts.deposit))
//
// If the body does not encode, such as nil, or its content is empty, the key is "", which is
// refused.
func ContentKey[T messagestore.Body](body T) string {
	if isNil(body) {
		return ""
	}
	content, narrows := contentOf(body)
	if !narrows {
		content = body
	}
	sum, err := sumOf(body.MessageType(), content, narrows)
	if err != nil {
		return ""
	}
	return base64.RawURLEncoding.EncodeToString(sum[:])
}

// A digest is a hash of the compared part of a message.
type digest func(m *messagestore.Message) (string, error)

// wholeDigest compares the whole message: the type, and the data as JSON.
func wholeDigest(m *messagestore.Message) (string, error) {
	sum, err := sumOf(m.Type, m.Body().Data, false)
	if err != nil {
		return "", fmt.Errorf("digest of %s: %w", m, err)
	}
	return hex.EncodeToString(sum[:]), nil
}

// digestOf compares the part that T chooses, or the whole message. The body of m may have been
// stored in an older form than T.
func digestOf[T messagestore.Body](m handler.Message[T]) digest {
	var none T
	_, narrows := any(none).(contenter)
	if _, byPointer := any(&none).(contenter); !narrows && !byPointer {
		return wholeDigest
	}
	return func(other *messagestore.Message) (string, error) {
		body := m.Body
		if other != m.Message {
			var err error
			if body, err = messagestore.Decode[T](other); err != nil {
				return "", err
			}
		}
		content, ok := contentOf(body)
		if !ok {
			return wholeDigest(other)
		}
		sum, err := sumOf(other.Type, content, true)
		if err != nil {
			return "", fmt.Errorf("digest of %s: %w", other, err)
		}
		return hex.EncodeToString(sum[:]), nil
	}
}

func contentOf[T messagestore.Body](body T) (content any, ok bool) {
	c, ok := any(body).(contenter)
	if !ok {
		c, ok = any(&body).(contenter)
	}
	if !ok {
		return nil, false
	}
	return c.ReservationContent(), true
}

// sumOf hashes a type and a content. No type contains the byte between them. Content that a method
// chose may not be empty. A body may: the type alone says everything about some commands.
func sumOf(messageType string, content any, narrowed bool) ([sha256.Size]byte, error) {
	c, err := keys.Canonical(content)
	if err != nil {
		return [sha256.Size]byte{}, err
	}
	if narrowed && c.Empty() {
		return [sha256.Size]byte{}, messagestore.NewInvalidError("reservation content of "+messageType, c.Canonical,
			"must not be empty: any two of the type with one key would be duplicates")
	}
	return sha256.Sum256(append(append([]byte(messageType), 0), c.Canonical...)), nil
}

// DeriveID returns an id for a message that follows m, under the given name. The id is always the
// same for the same message and name, and different for any others. A message with such an id is
// written once, even if m is delivered many times:
//
//	_, err = store.Write(ctx, stream, version, messagestore.Follow(m.Message, messagestore.Envelope{
//		ID:   reservation.DeriveID(m.Message, "deposited"),
//		Body: Deposited{m.Body.Amount},
//	}))
//
// If the handler decides differently the second time, the write matches
// [messagestore.ErrIDConflict]: the first decision stays.
//
// The id is a version 7 id with the time of m's id, or with the time at which m was written if its
// id has no time. So ids stay roughly in the order of time.
//
// It panics if m is nil, because all callers without a message would get the same id.
func DeriveID(m *messagestore.Message, name string) uuid.UUID {
	if m == nil {
		panic("reservation: DeriveID of a nil message")
	}
	h := sha256.New()
	h.Write(m.ID[:])
	h.Write([]byte(name))
	var id uuid.UUID
	copy(id[6:], h.Sum(nil))
	if m.ID.Version() == 7 && m.ID.Variant() == uuid.RFC4122 {
		copy(id[:6], m.ID[:6])
	} else {
		ms := uint64(max(m.Time.UnixMilli(), 0))
		for i := range 6 {
			id[i] = byte(ms >> (8 * (5 - i)))
		}
	}
	id[6] = id[6]&0x0F | 0x70
	id[8] = id[8]&0x3F | 0x80
	return id
}
