package messagestore_test

import (
	"testing"

	"github.com/stretchr/testify/require"

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

func TestTypeOfIsWhatTheZeroValueTells(t *testing.T) {
	t.Parallel()

	name, err := messagestore.TypeOf[opened]()
	require.NoError(t, err)
	require.Equal(t, "Opened", name)
	name, err = messagestore.TypeOf[*constant]()
	require.NoError(t, err)
	require.Equal(t, "Constant", name)
}

func TestTypeOfRefusesATypeThatCannotTell(t *testing.T) {
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
		{messagestore.TypeOf[messagestore.Body], "messagestore.Body", silent},
		{messagestore.TypeOf[*looksInside], "*messagestore_test.looksInside", silent},
		{messagestore.TypeOf[*opened], "*messagestore_test.opened", silent},
		{messagestore.TypeOf[nameless], "messagestore_test.nameless", invalid},
		{messagestore.TypeOf[messagestore.Raw], "messagestore.Raw", invalid},
	} {
		name, err := test.of()

		require.Empty(t, name)
		require.ErrorIs(t, err, messagestore.ErrInvalid)
		require.ErrorIs(t, err, messagestore.ErrInvalid)
		require.EqualError(t, err, `invalid message type of "`+test.goType+`": `+test.rule)
	}
}
