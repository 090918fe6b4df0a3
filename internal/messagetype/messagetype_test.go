package messagetype_test

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/dibs-go/dibs/internal/messagetype"
	"github.com/dibs-go/dibs/internal/removal"
	"github.com/dibs-go/dibs/messagestore"
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

	name, err := messagetype.Of[opened]()
	require.NoError(t, err)
	require.Equal(t, "Opened", name)
	name, err = messagetype.Of[*constant]()
	require.NoError(t, err)
	require.Equal(t, "Constant", name)
}

func TestTypeThatCannotTellItsMessageTypeIsRefused(t *testing.T) {
	t.Parallel()
	const (
		silent  = "its zero value cannot tell its message type: handle a struct, or let MessageType not look into the pointer"
		invalid = `its zero value's message type, "", is not a valid one`
	)
	for _, test := range []struct {
		of     func() (string, error)
		goType string
		rule   string
	}{
		{messagetype.Of[messagestore.Body], "messagestore.Body", silent},
		{messagetype.Of[*looksInside], "*messagetype_test.looksInside", silent},
		{messagetype.Of[*opened], "*messagetype_test.opened", silent},
		{messagetype.Of[nameless], "messagetype_test.nameless", invalid},
		{messagetype.Of[messagestore.Raw], "messagestore.Raw", invalid},
		{messagetype.Of[removal.Tombstone], "removal.Tombstone", `its zero value's message type, "dibs:Tombstone", is not a valid one`},
	} {
		name, err := test.of()

		require.Empty(t, name)
		require.ErrorIs(t, err, messagestore.ErrInvalid)
		require.EqualError(t, err, `invalid message type of "`+test.goType+`": `+test.rule)
	}
}
