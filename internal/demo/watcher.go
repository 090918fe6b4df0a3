package demo

import (
	"context"
	"encoding/json"

	"github.com/dibs-go/dibs/examples/account"
	"github.com/dibs-go/dibs/messagestore"
)

// A watcher follows the store from outside, with the rights of a reader: the commands, the
// decisions, and the lag of the consumers.
type watcher struct {
	store *messagestore.Store
	next  map[messagestore.Category]messagestore.GlobalPosition

	messages   int // in all categories looked at
	decided    int // withdrawals with an effect
	duplicates int // commands passed that repeat an earlier one

	commands []command                     // that their consumer has yet to pass
	copies   []messagestore.GlobalPosition // that theirs has
	asked    map[string]bool
	passed   passed
}

// passed are the checkpoints: a consumer has finished all messages before its own.
type passed struct{ commands, copies messagestore.GlobalPosition }

// A command is the watcher's note of a command.
type command struct {
	at  messagestore.GlobalPosition
	key string // what it asks for
}

func newWatcher(store *messagestore.Store) *watcher {
	return &watcher{
		store: store, next: map[messagestore.Category]messagestore.GlobalPosition{},
		asked: map[string]bool{},
	}
}

// look reads the messages written since the last look.
func (w *watcher) look(ctx context.Context) error {
	for category, see := range map[messagestore.Category]func(*messagestore.Message) error{
		account.Commands:                      w.seeCommand,
		account.Copies:                        w.seeCopy,
		account.Category:                      w.seeEvent,
		account.Commands.WithType("position"): seePosition(&w.passed.commands),
		account.Copies.WithType("position"):   seePosition(&w.passed.copies),
	} {
		for m, err := range w.store.ReadCategory(ctx, category, w.next[category], messagestore.Filter{}) {
			if err != nil {
				return err
			}
			if err := see(m); err != nil {
				return err
			}
			w.messages++
			w.next[category] = m.GlobalPosition.Next()
		}
	}
	for len(w.copies) > 0 && w.copies[0] < w.passed.copies {
		w.copies = w.copies[1:]
	}
	for len(w.commands) > 0 && w.commands[0].at < w.passed.commands {
		c := w.commands[0]
		w.commands = w.commands[1:]
		if c.key != "" {
			if w.asked[c.key] {
				w.duplicates++
			}
			w.asked[c.key] = true
		}
	}
	return nil
}

func (w *watcher) seeCommand(m *messagestore.Message) error {
	c := command{at: m.GlobalPosition}
	switch m.Type {
	case account.Withdraw{}.MessageType():
		body, err := messagestore.Decode[account.Withdraw](m)
		if err != nil {
			return err
		}
		c.key = "withdraw " + body.WithdrawalID
	case account.Open{}.MessageType():
		c.key = "open " + m.Stream.CardinalID()
	}
	w.commands = append(w.commands, c)
	return nil
}

func (w *watcher) seeCopy(m *messagestore.Message) error {
	w.copies = append(w.copies, m.GlobalPosition)
	return nil
}

func (w *watcher) seeEvent(m *messagestore.Message) error {
	if m.Type == (account.Withdrawn{}).MessageType() || m.Type == (account.WithdrawalRejected{}).MessageType() {
		w.decided++
	}
	return nil
}

func seePosition(passed *messagestore.GlobalPosition) func(*messagestore.Message) error {
	return func(m *messagestore.Message) error {
		var at struct {
			Position *messagestore.GlobalPosition `json:"position"`
		}
		if err := json.Unmarshal(m.Data, &at); err != nil {
			return err
		}
		if at.Position != nil && len(m.Stream.IDs()) > 1 {
			*passed = *at.Position
		}
		return nil
	}
}

// lag returns how many commands and copies the consumers have yet to pass.
func (w *watcher) lag() int { return len(w.commands) + len(w.copies) }
