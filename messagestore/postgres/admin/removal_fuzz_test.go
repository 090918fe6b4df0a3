package admin

import (
	"strings"
	"testing"
	"time"
	"unicode"
	"unicode/utf8"

	"github.com/stretchr/testify/require"

	"github.com/dibs-go/dibs/internal/removal"
	"github.com/dibs-go/dibs/messagestore"
	"github.com/dibs-go/dibs/messagestore/retention"
)

// PostgreSQL takes every accepted removal; a refusal is one line, with the value cut short.
func FuzzARemovalIsRefusedBeforeItIsSentOrCanBe(f *testing.F) {
	f.Add("account:command-1+2", "account:command", "", int64(0), int64(1700000000), int64(86400000000000)) // before
	f.Add("a\x00b", "a\x00", "a\x00", int64(1), int64(-9223372036), int64(1))                               // before all times
	f.Add("-1", "a-b", "a\nb", int64(1), int64(253402300800), int64(-1))                                    // far away
	// long
	f.Add(strings.Repeat("x", 300), strings.Repeat("y", 300), strings.Repeat("z", 256), int64(1<<63-1), int64(9223372036), int64(-1<<63))
	f.Add("a\xff-1", "a\xff", "\xff\xfe", int64(-1), int64(-99999999999999), int64(1<<63-1)) // no text
	f.Add("", "", " ", int64(0), int64(-62135596800), int64(0))                              // nothing
	f.Add("account-1", "account", "GDPR 17, ticket 4711", int64(100), int64(0), int64(0))    // plain
	f.Fuzz(func(t *testing.T, stream, category, reason string, keep, before, minAge int64) {
		o := retention.TrimOptions{Keep: keep, Before: time.Unix(before, 0).UTC(), MinAge: time.Duration(minAge), Reason: reason}
		if err := o.Validate(); err != nil {
			requireRefusal(t, err, messagestore.ErrInvalid)
		} else {
			require.True(t, o.Keep > 0 || !o.Before.IsZero())
			require.GreaterOrEqual(t, o.Before.Year(), 1)
			require.LessOrEqual(t, o.Before.Year(), 9999)
			require.True(t, o.MinAge >= 0 || o.MinAge == retention.AnyAge)
			requireText(t, reason)
			require.LessOrEqual(t, len(reason), 255)
			require.Equal(t, strings.TrimSpace(reason), reason)
			for _, r := range reason {
				require.False(t, unicode.IsControl(r), "%q", reason)
			}
		}
		if err := removal.CheckName(messagestore.StreamName(stream)); err != nil {
			requireRefusal(t, err, messagestore.ErrInvalid)
		} else {
			requireText(t, stream)
			require.NotEmpty(t, messagestore.StreamName(stream).Category())
		}
		v := verifier{config: retention.VerifyConfig{Categories: []messagestore.Category{messagestore.Category(category)}}}
		if err := v.validate(); err != nil {
			requireRefusal(t, err, messagestore.ErrInvalid)
		} else {
			requireText(t, category)
			require.Equal(t, category, string(messagestore.StreamName(category).Category()))
		}
	})
}

func requireRefusal(t *testing.T, err, kind error) {
	t.Helper()
	require.ErrorIs(t, err, kind)
	require.ErrorIs(t, err, messagestore.ErrInvalid)
	require.Less(t, len(err.Error()), 400)
	require.NotContains(t, err.Error(), "\n")
}

// requireText checks that PostgreSQL would take s as text.
func requireText(t *testing.T, s string) {
	t.Helper()
	require.True(t, utf8.ValidString(s) && !strings.ContainsRune(s, 0), "%q", s)
}
