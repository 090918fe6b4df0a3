package harness

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"os"
	"path/filepath"
	"slices"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"github.com/dibs-go/dibs/internal/must"
	"github.com/dibs-go/dibs/messagestore"
	"github.com/dibs-go/dibs/messagestore/postgres"
	"github.com/dibs-go/dibs/migrations"
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
	if m.Type != "Recorded" || !slices.Contains(m.Stream.Category().Types(), "position") {
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

// removed is the schema to which the checkpoints go that consumers remove, so that their histories
// are checked to the end. It is no part of what is checked.
const removed = "soak_removed"

// keepRemoved keeps the checkpoints that will be removed.
func keepRemoved(ctx context.Context, conn *pgx.Conn) error {
	if err := migrations.Up(ctx, conn, &migrations.Config{Schema: removed}); err != nil {
		return err
	}
	_, err := conn.Exec(ctx, `
		create function soak_removed.keep() returns trigger language plpgsql security definer as $$
		begin
			insert into soak_removed.messages select old.*;
			return old;
		end $$;
		create trigger soak_removed before delete on dibs.messages
		for each row when (old.category ~ '[:+]position$') execute function soak_removed.keep()`)
	return err
}

// keepNoMore leaves the table of messages as it is migrated.
func keepNoMore(ctx context.Context, conn *pgx.Conn) error {
	_, err := conn.Exec(ctx, "drop trigger soak_removed on dibs.messages")
	return err
}

// writeRows writes down everything that is in the store, and the checkpoints that were removed, and
// returns how much there is.
func (r *run) writeRows(ctx context.Context, store *messagestore.Store) (count int64, err error) {
	file, err := os.Create(filepath.Join(r.options.Out, RowsFile))
	if err != nil {
		return 0, err
	}
	defer func() { err = errors.Join(err, file.Close()) }()
	buffer := bufio.NewWriter(file)
	encoder := json.NewEncoder(buffer)
	if count, err = encodeRows(ctx, store, encoder); err != nil {
		return 0, err
	}
	if r.postgres != nil {
		driver, err := postgres.Open(ctx, r.url, &postgres.Config{Schema: removed})
		if err != nil {
			return 0, err
		}
		defer driver.Close()
		if _, err := encodeRows(ctx, must.New(messagestore.New(driver, nil)), encoder); err != nil {
			return 0, err
		}
	}
	return count, buffer.Flush()
}

func encodeRows(ctx context.Context, store *messagestore.Store, encoder *json.Encoder) (count int64, err error) {
	categories, err := store.Categories(ctx, "")
	if err != nil {
		return 0, err
	}
	for _, category := range categories {
		for m, err := range store.ReadCategory(ctx, category, 0, messagestore.Filter{}) {
			if err != nil {
				return 0, err
			}
			if count++; m.Type == "dibs:Trimmed" { // by the store, which keeps no history
				continue
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
		}
	}
	return count, nil
}
