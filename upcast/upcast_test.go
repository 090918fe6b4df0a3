package upcast_test

import (
	"encoding/json"
	"errors"
	"testing"

	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	"github.com/dibs-go/dibs/messagestore"
	"github.com/dibs-go/dibs/upcast"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

type hold struct {
	Seat string `json:"seat"`
}

func (hold) MessageType() string { return "Hold" }

type holdV1 struct {
	Row    string `json:"row"`
	Number string `json:"number"`
}

func (holdV1) MessageType() string { return "HoldV1" }

func stored(messageType, data string) *messagestore.Message {
	return &messagestore.Message{Stream: "seat-1", Type: messageType, Data: json.RawMessage(data)}
}

func TestEachFormIsReadAsThePresentOne(t *testing.T) {
	t.Parallel()
	forms, err := upcast.Forms(
		upcast.Named[hold]("Reserve"),
		upcast.From(func(old holdV1) hold { return hold{old.Row + old.Number} }),
		upcast.Raw("HoldV0", func(m *messagestore.Message) (hold, error) {
			var seat string
			err := json.Unmarshal(m.Data, &seat)
			return hold{seat}, err
		}),
	)
	require.NoError(t, err)

	messages := map[string]*messagestore.Message{
		"Hold": stored("Hold", `{"seat":"12A"}`), "Reserve": stored("Reserve", `{"seat":"12A"}`),
		"HoldV1": stored("HoldV1", `{"row":"12","number":"A"}`), "HoldV0": stored("HoldV0", `"12A"`),
	}
	require.Len(t, forms, len(messages))
	for _, form := range forms {
		m := messages[form.Type()]
		read, err := form.Decode(m)
		require.NoError(t, err, form.Type())
		require.Equal(t, hold{"12A"}, read, form.Type())
		require.Equal(t, form.Type(), m.Type) // the message is as it was

		_, err = form.Decode(stored(form.Type(), `7`))
		require.ErrorContains(t, err, "json: cannot unmarshal number into", form.Type())
		require.NotContains(t, err.Error(), "seat-1", "the reader names the message")
	}
}

// Raw under the present type reads every version of it.
func TestRawMayReadAllMessagesOfThePresentType(t *testing.T) {
	t.Parallel()
	forms, err := upcast.Forms(upcast.Raw("Hold", func(m *messagestore.Message) (hold, error) {
		if m.Metadata.SchemaVersion == "2" {
			return messagestore.Decode[hold](m)
		}
		return hold{"first version"}, nil
	}))
	require.NoError(t, err)
	require.Len(t, forms, 1)
	m := stored("Hold", `{"seat":"12A"}`)

	first, err := forms[0].Decode(m)
	require.NoError(t, err)
	m.Metadata.SchemaVersion = "2"
	second, err := forms[0].Decode(m)
	require.NoError(t, err)

	require.Equal(t, []hold{{"first version"}, {"12A"}}, []hold{first, second})
}

func TestFormThatIsNoneIsRefused(t *testing.T) {
	t.Parallel()
	v1 := func(holdV1) hold { return hold{} }
	for want, older := range map[string][]upcast.Form[hold]{
		`invalid older form: must not be the zero Form: use Named, From or Raw to make one of upcast_test.hold`:           {{}},
		`invalid older form "Hold": must not be the type of upcast_test.hold itself: use Raw to read all of its messages`: {upcast.Named[hold]("Hold")},
		`invalid older form "HoldV1": the function must not be nil`:                                                       {upcast.From[holdV1, hold](nil)},
		`invalid older form "HoldV0": the function must not be nil`:                                                       {upcast.Raw[hold]("HoldV0", nil)},
		`invalid older form "HoldV1": must not be given twice`:                                                            {upcast.From(v1), upcast.Named[hold]("HoldV1")},
		`invalid message type of "messagestore.Raw": must have a zero value with a valid message type, and it is ""`:      {upcast.From(func(messagestore.Raw) hold { return hold{} })},
		`invalid older form "dibs:Trimmed": must not be one of the store's own types, which begin with dibs:`:             {upcast.Named[hold]("dibs:Trimmed")},
	} {
		forms, err := upcast.Forms(older...)

		require.Empty(t, forms)
		require.ErrorIs(t, err, messagestore.ErrInvalid)
		require.EqualError(t, err, want)
	}
}

func TestTypeThatCannotTellItsMessageTypeHasNoForms(t *testing.T) {
	t.Parallel()

	_, err := upcast.Forms[messagestore.Raw]()
	_, named := upcast.Forms(upcast.Named[messagestore.Raw]("Hold"))

	require.ErrorIs(t, errors.Join(err, named), messagestore.ErrInvalid)
	require.EqualError(t, err, named.Error())
}
