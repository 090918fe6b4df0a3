package operate

import (
	"context"
	"crypto/sha256"
	"encoding/json"
	"errors"
	"fmt"
	"strconv"

	"github.com/google/uuid"

	"github.com/dibs-go/dibs/logger"
	"github.com/dibs-go/dibs/messagestore"
	"github.com/dibs-go/dibs/queue/cron"
)

// schedule returns the schedule of an act, and the version of the stream of its items.
func (a Act) schedule(ctx context.Context, store *messagestore.Store) (cron.Status, messagestore.Version, error) {
	kept, err := cron.New(store, a.Category, &cron.Config{Logger: logger.Silent()})
	if err != nil {
		return cron.Status{}, 0, err
	}
	found, err := kept.Status(ctx, a.Name)
	if err == nil && len(found) == 0 {
		err = &NotFoundError{Text: fmt.Sprintf("category %s has no schedule %.80q", a.Category, a.Name)}
	}
	if err != nil {
		return cron.Status{}, 0, err
	}
	version, err := store.Version(ctx, a.Category.Stream(a.Name))
	return found[0], version, err
}

// runSchedule writes an item of a schedule now, without a tick: the schedule goes on as if there were
// none. ID is the version of the items' stream that was seen: the item comes after it, and once,
// however often the act is made.
func (a Act) runSchedule(ctx context.Context, store *messagestore.Store, reason string) error {
	s, version, err := a.schedule(ctx, store)
	if err != nil {
		return err
	}
	if a.ID != "" {
		n, err := strconv.ParseInt(a.ID, 10, 64)
		if err != nil || n < int64(messagestore.NoStream) {
			return messagestore.NewInvalidError("ID", a.ID, "must be the version of the schedule's items")
		}
		version = messagestore.Version(n)
	}
	stream := a.Category.Stream(a.Name)
	why, err := json.Marshal(reason)
	if err != nil {
		return err
	}
	_, err = store.Write(ctx, stream, version, messagestore.Envelope{
		ID: runID(stream, version), Body: s.Body,
		Metadata: messagestore.Metadata{Extra: map[string]json.RawMessage{"runBy": why}},
	})
	if errors.Is(err, messagestore.ErrIDConflict) { // another has run it at the same time, for another reason
		return nil
	}
	return err
}

// runID is the id of an item that an operator has written after a version.
func runID(stream messagestore.StreamName, version messagestore.Version) (id uuid.UUID) {
	sum := sha256.Sum256(fmt.Appendf(nil, "run\x00%s\x00%d", stream, version))
	copy(id[:], sum[:])
	id[6], id[8] = id[6]&0x0F|0x80, id[8]&0x3F|0x80
	return id
}
