package consumer

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"time"

	"github.com/google/uuid"

	"github.com/dibs-go/dibs/messagestore"
)

// resized starts a generation of a consumer's positions: a group size, and where
// members of that size that have no position yet begin. Positions of one size mean
// nothing to another, which splits the category otherwise, so each generation has
// streams of its own, and a size that comes back does not find its old ones.
type resized struct {
	Size  int                         `json:"size"`
	Start messagestore.GlobalPosition `json:"start"`

	// After is the id of the message that Start is right behind, if that is known.
	After uuid.UUID `json:"after,omitzero"`

	// Reset says that an operator had the consumer go on from elsewhere.
	Reset bool `json:"reset,omitempty"`
}

func (resized) MessageType() string { return "Resized" }

type generation struct {
	resized
	version messagestore.Version // of the ledger, and the generation's number
	at      time.Time            // when it began
}

// begin is where members begin that have recorded nothing in g.
func (g *generation) begin() recorded { return recorded{g.Start, g.After} }

func (c *Consumer) ledger() messagestore.StreamName {
	return c.category.WithType("position").Stream(c.name)
}

func (c *Consumer) positionStream(generation messagestore.Version, member int) messagestore.StreamName {
	return c.ledger().With(strconv.FormatInt(int64(generation), 10)).With(strconv.Itoa(member))
}

// joinGeneration returns the current generation, which it starts if the group has
// another size, or none yet.
func (c *Consumer) joinGeneration(ctx context.Context) (generation, error) {
	size := c.config.groupSize()
	for {
		current, err := c.lastGeneration(ctx)
		if err != nil || current.Size == size {
			return current, err
		}
		lowest, err := c.lowestPosition(ctx, current)
		if err != nil {
			return generation{}, err
		}
		next := resized{Size: size, Start: lowest.Position, After: lowest.After}
		writing, cancel := context.WithTimeout(ctx, storeTimeout)
		written, err := c.store.Write(writing, c.ledger(), current.version, next)
		cancel()
		if errors.Is(err, messagestore.ErrVersionConflict) {
			continue // another member was first: see what it wrote
		}
		if err != nil {
			return generation{}, fmt.Errorf("record group size: %w", err)
		}
		return generation{resized: next, version: written.Version}, nil
	}
}

// lastGeneration returns the current generation, of size 0 if there is none.
func (c *Consumer) lastGeneration(ctx context.Context) (generation, error) {
	ctx, cancel := context.WithTimeout(ctx, storeTimeout)
	defer cancel()
	m, err := c.store.Last(ctx, c.ledger())
	if errors.Is(err, messagestore.ErrNotFound) {
		return generation{version: messagestore.NoStream}, nil
	}
	if err != nil {
		return generation{}, fmt.Errorf("read group size: %w", err)
	}
	var body struct {
		Size  int                          `json:"size"`
		Start *messagestore.GlobalPosition `json:"start"`
		After uuid.UUID                    `json:"after"`
	}
	if err := decodePosition(m, resized{}.MessageType(), &body); err != nil {
		return generation{}, err
	}
	switch {
	case body.Size < 1 || body.Size > messagestore.MaxGroupSize:
		return generation{}, corrupt(m, fmt.Sprintf("group size %d is not between 1 and %d", body.Size, messagestore.MaxGroupSize))
	case body.Start == nil:
		return generation{}, corrupt(m, "it has no start")
	case *body.Start < 0:
		return generation{}, corrupt(m, fmt.Sprintf("start %d is less than 0", *body.Start))
	}
	return generation{resized{Size: body.Size, Start: *body.Start, After: body.After}, m.Position, m.Time}, nil
}

// lowestPosition returns the position of the member of a generation that is
// furthest behind: everything before it is finished, whoever read it.
func (c *Consumer) lowestPosition(ctx context.Context, of generation) (lowest recorded, err error) {
	for member := range of.Size {
		at, _, err := c.lastPosition(ctx, c.positionStream(of.version, member), of.begin())
		if err != nil {
			return recorded{}, err
		}
		if member == 0 || at.Position < lowest.Position {
			lowest = at
		}
	}
	return lowest, nil
}
