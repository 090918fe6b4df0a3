package checkpoint_test

import (
	"errors"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/dibs-go/dibs/consumer/internal/checkpoint"
)

func TestAnErrorShowsTheConsumerAsWhatWasGiven(t *testing.T) {
	t.Parallel()
	for want, c := range map[string]checkpoint.Consumer{
		"consumer mail of account:command: x":                      {Category: "account:command", Name: "mail"},
		`consumer "" of "": x`:                                     {},
		`consumer "a-b" of "account-1": x`:                         {Category: "account-1", Name: "a-b"},
		`consumer "a\nb" of "\u202e": x`:                           {Category: "\u202e", Name: "a\nb"},
		`consumer "` + strings.Repeat("é", 80) + `" of account: x`: {Category: "account", Name: strings.Repeat("é", 5000)},
		"consumer " + strings.Repeat("m", 100) + " of account: x":  {Category: "account", Name: strings.Repeat("m", 100)},
	} {
		require.EqualError(t, c.Wrap(errors.New("x")), want)
	}
}
