package cli

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"math"
	"strconv"
	"strings"

	"github.com/google/uuid"

	"github.com/dibs-go/dibs/internal/text"
	"github.com/dibs-go/dibs/messagestore"
)

// A writeCommand is dibs write: it writes one message, or many from lines of JSON.
type writeCommand struct {
	Stream *messagestore.StreamName `arg:"" optional:"" help:"Name of the stream, like account-123."`
	Type   string                   `arg:"" optional:"" help:"Type of the message, like Deposited."`
	Data   string                   `arg:"" optional:"" help:"Its data, a JSON object; - reads it from the standard input. Defaults to {}."`

	ID       string `name:"id" placeholder:"UUID" help:"The message's id. Writing it again changes nothing. Defaults to a new one."`
	Expected string `placeholder:"VERSION" help:"no-stream, exists, any, or the position of the stream's last message. Defaults to any."`
	Metadata string `placeholder:"JSON" help:"The message's metadata, a JSON object."`
	Follow   string `placeholder:"STREAM@POSITION" help:"The message that this one follows, which becomes its cause."`

	From   string `placeholder:"FILE" help:"Write the messages of this file of JSON lines; - is the standard input."`
	NewIDs bool   `name:"new-ids" help:"Give lines without an id a new one each time."`
}

func (c *writeCommand) Run(ctx context.Context, a *app) error {
	a.mayCreate = true
	if c.Stream == nil || c.From != "" {
		return c.many(ctx, a)
	}
	if c.Type == "" {
		return usage("expected a type: dibs write STREAM TYPE [DATA]")
	}
	if c.NewIDs {
		return usage("--new-ids is for lines; a message without --id has a new one anyway")
	}
	m, err := c.message(ctx, a)
	if err != nil {
		return err
	}
	expected := messagestore.AnyVersion
	if c.Expected != "" {
		if expected, err = parseExpected(c.Expected); err != nil {
			return err
		}
	}
	follow, position, err := parsePlace(c.Follow)
	if err != nil {
		return err
	}
	return a.withStore(ctx, 1, func(store *messagestore.Store) error {
		if follow != "" {
			prev, err := messageAt(ctx, store, follow, position)
			if err != nil {
				return fmt.Errorf("follow: %w", err)
			}
			m = messagestore.Follow(prev, m)
		}
		written, err := store.Write(ctx, *c.Stream, expected, m)
		if err != nil {
			return err
		}
		return a.printWritten(0, written)
	})
}

func (c *writeCommand) message(ctx context.Context, a *app) (messagestore.Envelope, error) {
	var m messagestore.Envelope
	if rule := text.TypeRule(c.Type); rule != "" {
		return m, messagestore.NewInvalidError("message type", c.Type, rule)
	}
	data := []byte(c.Data)
	switch c.Data {
	case "":
		data = []byte("{}")
	case "-":
		input, err := promptly(ctx, func() ([]byte, error) {
			return io.ReadAll(io.LimitReader(a.stdin, messagestore.MaxMessageBytes+64<<10))
		})
		if err != nil {
			return m, fmt.Errorf("read the standard input: %w", err)
		}
		data = bytes.TrimSpace(bytes.TrimPrefix(input, bom))
	}
	m.Body = messagestore.Raw{Type: c.Type, Data: data}
	if c.ID != "" {
		id, err := parseID(c.ID)
		if err != nil {
			return m, err
		}
		m.ID = id
	}
	if c.Metadata != "" {
		metadata, err := parseMetadata([]byte(c.Metadata))
		if err != nil {
			return m, err
		}
		m.Metadata = metadata
	}
	return m, nil
}

// printWritten prints where a message is, and the line of the input that it came from.
func (a *app) printWritten(line int, w messagestore.Written) error {
	what := "wrote"
	if w.Duplicate {
		what = "had been written:"
	}
	object := fields{"line?", line, "stream", w.Stream, "position", w.Version, "globalPosition", w.GlobalPosition, "id", w.IDs[0], "duplicate", w.Duplicate}
	return a.out.tell(object, "%s %s with id %s", what, placeOf(w.Stream, w.Version), w.IDs[0])
}

// parseExpected reads an expected version, from the command line or a line of input.
func parseExpected(s string) (messagestore.Version, error) {
	switch s {
	case "no-stream":
		return messagestore.NoStream, nil
	case "any":
		return messagestore.AnyVersion, nil
	case "exists":
		return messagestore.StreamExists, nil
	}
	n, err := strconv.ParseInt(s, 10, 64)
	if err != nil || n < 0 || strconv.FormatInt(n, 10) != s {
		return 0, messagestore.NewInvalidError("expected version", s,
			fmt.Sprintf("must be no-stream, exists, any, or a position from 0 to %d", int64(math.MaxInt64)))
	}
	return messagestore.Version(n), nil
}

// parseID reads an id in the one form in which ids are printed.
func parseID(s string) (uuid.UUID, error) {
	id, err := uuid.Parse(s)
	if err != nil || id.String() != s {
		return uuid.Nil, messagestore.NewInvalidError("message id", s, "must be a UUID in lower case, like 0190b2c8-2f5e-7cc3-98c4-dc0c0c07398f")
	}
	if id == uuid.Nil {
		return uuid.Nil, messagestore.NewInvalidError("message id", s, "must not be the nil UUID")
	}
	return id, nil
}

// parsePlace reads a message's place as it is printed: "account-123@4". An empty text is no place.
func parsePlace(s string) (messagestore.StreamName, messagestore.Version, error) {
	if s == "" {
		return "", 0, nil
	}
	i := strings.LastIndexByte(s, '@') // an identifier may hold one too
	if i < 0 {
		return "", 0, usage("--follow=%.80q: must be a stream and a position, like account-123@4", s)
	}
	n, err := strconv.ParseInt(s[i+1:], 10, 64)
	if err != nil || n < 0 || strconv.FormatInt(n, 10) != s[i+1:] {
		return "", 0, usage("--follow=%.80q: must have a position after the last @", s)
	}
	stream := messagestore.StreamName(s[:i])
	return stream, messagestore.Version(n), stream.Validate()
}

func messageAt(ctx context.Context, store *messagestore.Store, stream messagestore.StreamName, position messagestore.Version) (*messagestore.Message, error) {
	for m, err := range store.ReadStream(ctx, stream, position) {
		if err != nil {
			return nil, err
		}
		if m.Position == position {
			return m, nil
		}
		break
	}
	return nil, fmt.Errorf("%s: %w", placeOf(stream, position), messagestore.ErrNotFound)
}

func parseMetadata(raw json.RawMessage) (messagestore.Metadata, error) {
	var m messagestore.Metadata
	if err := checkText(raw); err != nil {
		return m, messagestore.NewInvalidError("metadata", []byte(raw), err.Error())
	}
	if !json.Valid(raw) || bytes.TrimLeft(raw, " \t\r\n")[0] != '{' {
		return m, messagestore.NewInvalidError("metadata", []byte(raw), "must be a JSON object")
	}
	if err := json.Unmarshal(raw, &m); err != nil {
		return m, messagestore.NewInvalidError("metadata", []byte(raw), err.Error())
	}
	return m, nil
}
