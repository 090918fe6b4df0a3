package reservation_test

import (
	"encoding/json"
	"strings"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/stretchr/testify/require"

	"github.com/dibs-go/dibs/internal/exactjson"
	"github.com/dibs-go/dibs/internal/testkit"
	"github.com/dibs-go/dibs/messagestore"
	"github.com/dibs-go/dibs/reservation"
)

// A part stands for a key if that key has this part, and for no other.
func FuzzAPartStandsForOneKeyOrNone(f *testing.F) {
	r := newReserver(f, newStore(), nil)
	for _, part := range []string{"AAA", "", "%", "%2", "%2b", "%2B", "%41", "%FF", "%00", "%20", "a%20b", "a+b", "a b", "é", "%C3%A9", "%sha256:00", "%E2%80%AE", "a-b:c", strings.Repeat("k", 214), strings.Repeat("k", 215), "%ED%A0%80"} {
		f.Add(part)
	}
	for _, name := range testkit.SeedNames() {
		f.Add(name)
	}
	f.Fuzz(func(t *testing.T, part string) {
		key, ok := reservation.KeyOf(messagestore.StreamName("account:command+reservation+accounts-123+" + part))
		if !ok || strings.Contains(part, "+") { // of which the last part counts
			return
		}
		stream, err := r.Stream(command, key)
		require.NoError(t, err)
		if len(part) <= 214 {
			require.Equal(t, place(command, "accounts")+messagestore.StreamName("+"+part), stream)
		} else {
			require.Contains(t, string(stream), "+%sha256:")
		}
	})
}

type content struct{ Raw json.RawMessage }

func (content) MessageType() string { return "Content" }

func (c content) ReservationContent() any { return c.Raw }

// Contents have one key if they are one value of JSON.
func FuzzContentsHaveOneKeyIfTheyAreEqual(f *testing.F) {
	for _, pair := range [][2]string{
		{`{"a":1.0,"b":[2]}`, `{ "b":[2e0], "a":1}`}, {`{"a":1,"a":2}`, `{"a":2}`}, {`-0`, `0`}, {`1e400`, `10e399`}, {`"\u00e9"`, `"é"`}, {`"é"`, "\"e\u0301\""}, {`{}`, `[]`}, {`null`, `""`}, {`{`, `{}`}, {`"\ud800"`, `"\ufffd"`},
	} {
		f.Add(pair[0], pair[1])
	}
	for _, data := range testkit.SeedJSON("a") {
		f.Add(data, data+" ")
	}
	f.Fuzz(func(t *testing.T, a, b string) {
		one, two := reservation.ContentKey(content{json.RawMessage(a)}), reservation.ContentKey(content{json.RawMessage(b)})
		for raw, key := range map[string]string{a: one, b: two} {
			canonical, err := exactjson.Canonical(json.RawMessage(raw))
			empty := map[string]bool{"null": true, "{}": true, "[]": true, `""`: true}[string(canonical)]
			require.Equal(t, err != nil || empty, key == "", "%q", raw)
			if key != "" {
				require.Len(t, key, 43)
			}
		}
		if one != "" && two != "" {
			require.Equal(t, exactjson.Equal(json.RawMessage(a), json.RawMessage(b)), one == two)
		}
	})
}

// An id that is derived is a valid one, the same each time, and another for another name.
func FuzzADerivedIDIsOneOfVersion7(f *testing.F) {
	f.Add([]byte("0123456789abcdef"), "deposited", "sent", int64(1_700_000_000_000))
	f.Add([]byte{}, "", "\x00", int64(-1))
	f.Add(make([]byte, 16), "\xff", "\xfe", int64(1)<<62)
	for _, name := range testkit.SeedNames() {
		f.Add([]byte(name), name, "x", int64(0))
	}
	f.Fuzz(func(t *testing.T, raw []byte, name, other string, ms int64) {
		m := &messagestore.Message{Time: time.UnixMilli(ms).UTC()}
		copy(m.ID[:], raw)
		id := reservation.DeriveID(m, name)
		require.Equal(t, id, reservation.DeriveID(m, name))
		require.Equal(t, uuid.Version(7), id.Version())
		require.Equal(t, uuid.RFC4122, id.Variant())
		if name != other {
			require.NotEqual(t, id, reservation.DeriveID(m, other))
		}
		if m.ID.Version() == 7 && m.ID.Variant() == uuid.RFC4122 {
			require.Equal(t, m.ID[:6], id[:6])
		}
	})
}
