package upcast_test

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/dibs-go/dibs/internal/removal"
	"github.com/dibs-go/dibs/messagestore"
	"github.com/dibs-go/dibs/upcast"
)

// looksInside is a body whose pointer does not know its type without a value.
type looksInside struct{ name string }

func (b *looksInside) MessageType() string { return b.name }

// constant is one whose nil pointer does.
type constant struct{}

func (*constant) MessageType() string { return "Constant" }

// nameless is one whose zero value has no type yet.
type nameless struct{ Name string }

func (b nameless) MessageType() string { return b.Name }

type opened struct{}

func (opened) MessageType() string { return "Opened" }

func TestMessageTypeIsWhatTheZeroValueTells(t *testing.T) {
	t.Parallel()

	name, err := presentType[opened]()
	require.NoError(t, err)
	require.Equal(t, "Opened", name)
	name, err = presentType[*constant]()
	require.NoError(t, err)
	require.Equal(t, "Constant", name)
}

func TestTypeThatCannotTellItsMessageTypeIsRefused(t *testing.T) {
	t.Parallel()
	const (
		silent  = "must have a zero value whose MessageType does not panic: handle a struct, or do not dereference the pointer"
		invalid = `must have a zero value with a valid message type, and it is ""`
	)
	for _, test := range []struct {
		of     func() (string, error)
		goType string
		rule   string
	}{
		{presentType[messagestore.Body], "messagestore.Body", silent},
		{presentType[*looksInside], "*upcast_test.looksInside", silent},
		{presentType[*opened], "*upcast_test.opened", silent},
		{presentType[nameless], "upcast_test.nameless", invalid},
		{presentType[messagestore.Raw], "messagestore.Raw", invalid},
		{presentType[removal.Tombstone], "removal.Tombstone", `must have a zero value with a valid message type, and it is "dibs:Tombstone"`},
	} {
		name, err := test.of()

		require.Empty(t, name)
		require.ErrorIs(t, err, messagestore.ErrInvalid)
		require.EqualError(t, err, `invalid message type of "`+test.goType+`": `+test.rule)
	}
}

// presentType returns the type that a reader of T registers.
func presentType[T messagestore.Body]() (string, error) {
	forms, err := upcast.Forms[T]()
	if err != nil {
		return "", err
	}
	return forms[0].Type(), nil
}
