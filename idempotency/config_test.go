package idempotency_test

import (
	"errors"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/dibs-go/dibs/idempotency"
	"github.com/dibs-go/dibs/messagestore"
)

func TestAConfigurationOutOfBoundsIsRefused(t *testing.T) {
	t.Parallel()
	intents := newManager(t, newStore(), nil)
	for name, test := range map[string]struct {
		config idempotency.Config
		field  string
	}{
		"no scope":            {idempotency.Config{}, "Scope"},
		"long wait":           {idempotency.Config{Scope: idempotency.Public, Wait: 11 * time.Minute}, "Wait"},
		"short timeout":       {idempotency.Config{Scope: idempotency.Public, Timeout: time.Millisecond}, "Timeout"},
		"negative timeout":    {idempotency.Config{Scope: idempotency.Public, Timeout: -1}, "Timeout"},
		"long timeout":        {idempotency.Config{Scope: idempotency.Public, Timeout: 2 * time.Hour}, "Timeout"},
		"negative body":       {idempotency.Config{Scope: idempotency.Public, MaxBody: -1}, "MaxBody"},
		"large body":          {idempotency.Config{Scope: idempotency.Public, MaxBody: 65 << 20}, "MaxBody"},
		"small response":      {idempotency.Config{Scope: idempotency.Public, MaxResponse: 100}, "MaxResponse"},
		"large response":      {idempotency.Config{Scope: idempotency.Public, MaxResponse: 400 << 10}, "MaxResponse"},
		"cookies":             {idempotency.Config{Scope: idempotency.Public, Headers: []string{"set-cookie"}}, "Headers"},
		"a challenge":         {idempotency.Config{Scope: idempotency.Public, Headers: []string{"WWW-Authenticate"}}, "Headers"},
		"the date":            {idempotency.Config{Scope: idempotency.Public, Headers: []string{"Date"}}, "Headers"},
		"the replayed header": {idempotency.Config{Scope: idempotency.Public, Headers: []string{"Idempotent-Replayed"}}, "Headers"},
		"no header":           {idempotency.Config{Scope: idempotency.Public, Headers: []string{""}}, "Headers"},
		"a header of a line":  {idempotency.Config{Scope: idempotency.Public, Headers: []string{"a\nb"}}, "Headers"},
		"a short secret":      {idempotency.Config{Scope: idempotency.Public, Secret: []byte("fifteen letters")}, "Secret"},
		"an empty secret":     {idempotency.Config{Scope: idempotency.Public, Secret: []byte{}}, "Secret"},
		"a short old secret":  {idempotency.Config{Scope: idempotency.Public, OldSecrets: [][]byte{nil, {1}}}, "OldSecrets"},
		"no methods":          {idempotency.Config{Scope: idempotency.Public, Methods: []string{}}, "Methods"},
		"a method that no request has": {
			idempotency.Config{Scope: idempotency.Public, Methods: []string{"post"}}, "Methods",
		},
		"a safe method": {idempotency.Config{Scope: idempotency.Public, Methods: []string{"GET"}}, "Methods"},
		"a method that is none": {
			idempotency.Config{Scope: idempotency.Public, Methods: []string{"PO ST"}}, "Methods",
		},
	} {
		_, err := idempotency.New(intents, &test.config)

		require.ErrorIs(t, err, messagestore.ErrInvalid, name)
		require.ErrorIs(t, err, messagestore.ErrInvalid, name)
		invalid, ok := errors.AsType[*messagestore.InvalidError](err)
		require.True(t, ok)
		require.Equal(t, test.field, invalid.Field, name)
	}
}

func TestAllMistakesOfAConfigurationAreNamed(t *testing.T) {
	t.Parallel()
	_, err := idempotency.New(nil, nil)

	require.ErrorIs(t, err, messagestore.ErrInvalid)
	require.ErrorContains(t, err, "intents: must not be nil")
	require.ErrorContains(t, err, "Scope: must not be nil")
	require.Panics(t, func() {
		once, err := idempotency.New(newManager(t, newStore(), nil), &idempotency.Config{Scope: idempotency.Public})
		require.NoError(t, err)
		once.Handler(nil)
	})
}

func TestHeadersThatAreNamedAreStored(t *testing.T) {
	t.Parallel()
	require.Contains(t, idempotency.KeptHeaders(), "Location")
	idempotency.KeptHeaders()[0] = "Set-Cookie" // a copy
	require.NotContains(t, idempotency.KeptHeaders(), "Set-Cookie")
}
