package harness

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"os"
	"strings"

	"github.com/google/uuid"

	"github.com/dibs-go/dibs/messagestore"
	"github.com/dibs-go/dibs/soak/check"
	"github.com/dibs-go/dibs/soak/work"
)

// RowsFile is the file beside the histories that has every message there was in the end,
// one JSON object a line.
const RowsFile = "rows.json"

// A Row is a message that there was in the end.
type Row struct {
	Stream   messagestore.StreamName     `json:"stream"`
	Position messagestore.Version        `json:"position"`
	Global   messagestore.GlobalPosition `json:"global"`
	ID       uuid.UUID                   `json:"id"`
	Value    uint64                      `json:"value"`
	Hash     uint64                      `json:"hash"`
	Effect   string                      `json:"effect,omitempty"`
	State    *check.State                `json:"state,omitempty"`
}

// stateOf returns the state of a group that a checkpoint is, nil for any other message.
func stateOf(m *messagestore.Message) *check.State {
	if m.Type != "Recorded" || !strings.HasSuffix(string(m.Stream.Category()), ":position") {
		return nil
	}
	var body struct {
		Position messagestore.GlobalPosition `json:"position"`
		Group    check.State                 `json:"group"`
	}
	if err := json.Unmarshal(m.Data, &body); err != nil {
		return nil // and so the message is none that its writer knows
	}
	s := body.Group
	s.Time, s.Position = m.Time, body.Position
	return &s
}

// writeRows reads everything that is in the store, and returns how much there was.
func writeRows(ctx context.Context, store *messagestore.Store, path string) (count int64, err error) {
	file, err := os.Create(path)
	if err != nil {
		return 0, err
	}
	defer func() { err = errors.Join(err, file.Close()) }()
	buffer := bufio.NewWriter(file)
	encoder := json.NewEncoder(buffer)
	categories, err := store.Categories(ctx, "")
	if err != nil {
		return 0, err
	}
	for _, category := range categories {
		for m, err := range store.ReadCategory(ctx, category, 0, messagestore.Filter{}) {
			if err != nil {
				return 0, err
			}
			known, err := work.Known(m)
			if err != nil {
				return 0, err
			}
			row := Row{
				Stream: m.Stream, Position: m.Position, Global: m.GlobalPosition,
				ID: m.ID, Value: known.Value, Hash: known.Hash, Effect: work.EffectOf(m), State: stateOf(m),
			}
			if err := encoder.Encode(row); err != nil {
				return 0, err
			}
			count++
		}
	}
	return count, buffer.Flush()
}
