package messagestore_test

import (
	"fmt"
	"math"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"github.com/dibs-go/dibs/internal/testkit"
	"github.com/dibs-go/dibs/internal/text"
	"github.com/dibs-go/dibs/messagestore"
)

func TestStreamNameIsSplitAtItsFirstDash(t *testing.T) {
	for name, want := range map[messagestore.StreamName]struct {
		category messagestore.Category
		entity   string
		types    []string
		id       string
		ids      []string
		cardinal string
	}{
		"account-123":              {"account", "account", nil, "123", []string{"123"}, "123"},
		"account:command-123":      {"account:command", "account", []string{"command"}, "123", []string{"123"}, "123"},
		"cat:command+position-1":   {"cat:command+position", "cat", []string{"command", "position"}, "1", []string{"1"}, "1"},
		"account:command-123+AAA":  {"account:command", "account", []string{"command"}, "123+AAA", []string{"123", "AAA"}, "123"},
		"cat--x":                   {"cat", "cat", nil, "-x", []string{"-x"}, "-x"},
		"cat-a-b+c+d":              {"cat", "cat", nil, "a-b+c+d", []string{"a-b", "c", "d"}, "a-b"},
		"cat-0199-7a+b:c":          {"cat", "cat", nil, "0199-7a+b:c", []string{"0199-7a", "b:c"}, "0199-7a"},
		"cat-a b":                  {"cat", "cat", nil, "a b", []string{"a b"}, "a b"},
		"Cat-1":                    {"Cat", "Cat", nil, "1", []string{"1"}, "1"},
		"cat-1'; DROP TABLE m;--":  {"cat", "cat", nil, "1'; DROP TABLE m;--", []string{"1'; DROP TABLE m;--"}, "1'; DROP TABLE m;--"},
		"cat-%s%d%n":               {"cat", "cat", nil, "%s%d%n", []string{"%s%d%n"}, "%s%d%n"},
		"cat-${jndi:ldap://x}":     {"cat", "cat", nil, "${jndi:ldap://x}", []string{"${jndi:ldap://x}"}, "${jndi:ldap://x}"},
		"caf\u00e9-\u00e9":         {"caf\u00e9", "caf\u00e9", nil, "\u00e9", []string{"\u00e9"}, "\u00e9"},
		"cafe\u0301-e\u0301":       {"cafe\u0301", "cafe\u0301", nil, "e\u0301", []string{"e\u0301"}, "e\u0301"},
		"cat-\U0001F600\uFFFD":     {"cat", "cat", nil, "\U0001F600\uFFFD", []string{"\U0001F600\uFFFD"}, "\U0001F600\uFFFD"},
		"account:a+b+c-\u00b9+\\1": {"account:a+b+c", "account", []string{"a", "b", "c"}, "\u00b9+\\1", []string{"\u00b9", "\\1"}, "\u00b9"},
	} {
		require.NoError(t, name.Validate(), "%q", name)
		require.Equal(t, want.category, name.Category())
		require.NoError(t, want.category.Validate())
		require.Equal(t, want.entity, want.category.Entity())
		require.Equal(t, want.types, want.category.Types())
		require.Equal(t, want.id, name.ID())
		require.Equal(t, want.ids, name.IDs())
		require.Equal(t, want.cardinal, name.CardinalID())
		require.Equal(t, name == "cat-%s%d%n", name != name.Category().Stream(name.IDs()[0]).With(name.IDs()[1:]...), "it is put together as it was taken apart, but for another client's percent sign")
	}
}

func TestNamesAreComparedByteByByte(t *testing.T) {
	require.NotEqual(t, messagestore.StreamName("cat-\u00e9"), messagestore.StreamName("cat-e\u0301"))
	require.NotEqual(t, messagestore.StreamName("Cat-1"), messagestore.StreamName("cat-1"))
}

func TestNameOfTheGreatestLengthIsAccepted(t *testing.T) {
	require.NoError(t, messagestore.Category("cat").Stream(strings.Repeat("x", text.MaxNameBytes-4)).Validate())
	require.NoError(t, messagestore.Category(strings.Repeat("x", text.MaxNameBytes)).Validate())
}

// The rows of hostile names, each with the rule that refuses it. (An invalid one
// in JSON, "\ud800", arrives here as the bytes of a surrogate.)
func TestHostileStreamNamesAreRefused(t *testing.T) {
	store := untouchedStore(t)
	long := "cat-" + strings.Repeat("x", 3000)
	huge := "cat-" + strings.Repeat("é", 5<<20)
	for name, want := range map[string]struct {
		kind        error
		value, rule string
	}{
		"":                        {messagestore.ErrInvalid, `""`, "must not be empty"},
		"account":                 {messagestore.ErrInvalid, `"account"`, "must have a dash and an identifier, and is a category"},
		"-":                       {messagestore.ErrInvalid, `"-"`, "the category must not be empty"},
		"-x":                      {messagestore.ErrInvalid, `"-x"`, "the category must not be empty"},
		"cat-":                    {messagestore.ErrInvalid, `"cat-"`, "the identifier must not be empty"},
		"cat-\n\t\x01":            {messagestore.ErrInvalid, `"cat-\n\t\x01"`, "must not contain a control or format character, and has U+000A at byte 4"},
		"cat-\x00":                {messagestore.ErrInvalid, `"cat-\x00"`, "must not contain a control or format character, and has U+0000 at byte 4"},
		"cat-\xff":                {messagestore.ErrInvalid, `"cat-\xff"`, "must be valid UTF-8: error at byte 4"},
		"cat-\xc0\x80":            {messagestore.ErrInvalid, `"cat-\xc0\x80"`, "must be valid UTF-8: error at byte 4"},
		"cat-\xed\xa0\x80":        {messagestore.ErrInvalid, `"cat-\xed\xa0\x80"`, "must be valid UTF-8: error at byte 4"},
		long:                      {messagestore.ErrInvalid, `"` + long[:48] + `"… (3004 bytes)`, "must be at most 255 bytes, and is 3004"},
		huge:                      {messagestore.ErrInvalid, `"` + huge[:48] + `"… (10485764 bytes)`, "must be at most 255 bytes, and is 10485764"},
		"cat-a\u202eb":            {messagestore.ErrInvalid, `"cat-a\u202eb"`, "must not contain a control or format character, and has U+202E at byte 5"},
		"cat-a\u200db":            {messagestore.ErrInvalid, `"cat-a\u200db"`, "must not contain a control or format character, and has U+200D at byte 5"},
		"\ufeffcat-1":             {messagestore.ErrInvalid, `"\ufeffcat-1"`, "must not contain a control or format character, and has U+FEFF at byte 0"},
		"cat-a\u2028":             {messagestore.ErrInvalid, `"cat-a\u2028"`, "must not contain a control or format character, and has U+2028 at byte 5"},
		"cat-+x":                  {messagestore.ErrInvalid, `"cat-+x"`, "the cardinal id must not be empty"},
		"cat-x+":                  {messagestore.ErrInvalid, `"cat-x+"`, "the identifier must not have an empty part"},
		"cat-x++y":                {messagestore.ErrInvalid, `"cat-x++y"`, "the identifier must not have an empty part"},
		" cat-1":                  {messagestore.ErrInvalid, `" cat-1"`, "must not begin or end with white space"},
		"cat-1 ":                  {messagestore.ErrInvalid, `"cat-1 "`, "must not begin or end with white space"},
		"cat-1\u3000":             {messagestore.ErrInvalid, "\"cat-1\u3000\"", "must not begin or end with white space"},
		"ca t-1":                  {messagestore.ErrInvalid, `"ca t-1"`, "the category must not contain white space"},
		"cat:-1":                  {messagestore.ErrInvalid, `"cat:-1"`, "a type of the category must not be empty"},
		"cat:a+-1":                {messagestore.ErrInvalid, `"cat:a+-1"`, "a type of the category must not be empty"},
		"cat:a:b-1":               {messagestore.ErrInvalid, `"cat:a:b-1"`, "the category must not contain a colon or plus sign out of place"},
		"cat+a-1":                 {messagestore.ErrInvalid, `"cat+a-1"`, "the category must not contain a colon or plus sign out of place"},
		":command-1":              {messagestore.ErrInvalid, `":command-1"`, "the category must not be empty"},
		strings.Repeat("x", 256):  {messagestore.ErrInvalid, `"` + strings.Repeat("x", 48) + `"… (256 bytes)`, "must be at most 255 bytes, and is 256"},
		"cat-" + "\u00ad" + "shy": {messagestore.ErrInvalid, `"cat-\u00adshy"`, "must not contain a control or format character, and has U+00AD at byte 4"},
	} {
		stream := messagestore.StreamName(name)
		refused := func(err error) {
			t.Helper()
			requireInvalid(t, err, want.kind, "stream name", want.value, want.rule)
			require.ErrorIs(t, err, messagestore.ErrInvalid)
		}
		refused(stream.Validate())
		err := messagestore.StreamName(name).Validate()
		refused(err)
		_, err = store.Write(t.Context(), stream, messagestore.AnyVersion, opened{})
		refused(err)
		_, err = store.WriteInitial(t.Context(), stream, opened{})
		refused(err)
		_, err = store.Last(t.Context(), stream)
		refused(err)
		_, err = store.LastOfType(t.Context(), stream, "Opened")
		refused(err)
		_, err = store.Version(t.Context(), stream)
		refused(err)
		for m, err := range store.ReadStream(t.Context(), stream, 0) {
			require.Nil(t, m)
			refused(err)
		}
		for m, err := range store.ReadStreamBackwards(t.Context(), stream, 0) {
			require.Nil(t, m)
			refused(err)
		}
		_, err = store.WriteStreams(t.Context(), messagestore.StreamWrite{Stream: stream, Expected: messagestore.NoStream, Bodies: []messagestore.Body{opened{}}})
		refused(err)
	}
}

func TestHostileCategoriesAreRefused(t *testing.T) {
	store := untouchedStore(t)
	for name, want := range map[string]struct {
		kind        error
		value, rule string
	}{
		"a-1":       {messagestore.ErrInvalid, `"a-1"`, "must be a category, without a dash, and is the name of a stream"},
		"":          {messagestore.ErrInvalid, `""`, "must not be empty"},
		"-":         {messagestore.ErrInvalid, `"-"`, "must be a category, without a dash, and is the name of a stream"},
		"a\x00":     {messagestore.ErrInvalid, `"a\x00"`, "must not contain a control or format character, and has U+0000 at byte 1"},
		"a\xff":     {messagestore.ErrInvalid, `"a\xff"`, "must be valid UTF-8: error at byte 1"},
		"a:":        {messagestore.ErrInvalid, `"a:"`, "a type of the category must not be empty"},
		"a b":       {messagestore.ErrInvalid, `"a b"`, "the category must not contain white space"},
		"a\u00a0b":  {messagestore.ErrInvalid, `"a` + "\u00a0" + `b"`, "the category must not contain white space"},
		":a":        {messagestore.ErrInvalid, `":a"`, "the category must not be empty"},
		"a+b":       {messagestore.ErrInvalid, `"a+b"`, "the category must not contain a colon or plus sign out of place"},
		"a:b:c":     {messagestore.ErrInvalid, `"a:b:c"`, "the category must not contain a colon or plus sign out of place"},
		" a":        {messagestore.ErrInvalid, `" a"`, "must not begin or end with white space"},
		"a\u2069bc": {messagestore.ErrInvalid, `"a\u2069bc"`, "must not contain a control or format character, and has U+2069 at byte 1"},
	} {
		err := messagestore.Category(name).Validate()
		requireInvalid(t, err, want.kind, "category", want.value, want.rule)
		require.ErrorIs(t, err, messagestore.ErrInvalid)
		_, err = store.ReadCategoryPage(t.Context(), messagestore.CategoryQuery{Category: messagestore.Category(name), Limit: 1})
		requireInvalid(t, err, want.kind, "category", want.value, want.rule)
		for m, err := range store.ReadCategory(t.Context(), messagestore.Category(name), 0, messagestore.Filter{}) {
			require.Nil(t, m)
			requireInvalid(t, err, want.kind, "category", want.value, want.rule)
		}
	}
}

func TestCategoryIsBuiltFromItsTypes(t *testing.T) {
	c := messagestore.Category("account")
	require.Equal(t, messagestore.Category("account:command"), c.WithType("command"))
	require.Equal(t, messagestore.Category("account:command+position"), c.WithType("command").WithType("position"))
	require.Equal(t, messagestore.StreamName("account-1"), c.Stream("1"))
	require.Equal(t, messagestore.StreamName("account-1+2+3"), c.Stream("1").With("2", "3"))
	require.Error(t, c.Stream("").Validate())
	require.Empty(t, c.Stream("").IDs())
}

// B2 of the first week: a user chooses the id, and it may neither reach the place of another's key
// nor act on another entity.
func TestAnIdentifierFromOutsideIsOnePartOfTheName(t *testing.T) {
	commands := messagestore.Category("seat:command")
	for id, want := range map[string]messagestore.StreamName{
		"12D+seats+k99": "seat:command-12D%2Bseats%2Bk99",
		"ann+x@y.cz":    "seat:command-ann%2Bx@y.cz",
		"%2B":           "seat:command-%252B",
		"a b":           "seat:command-a b",
		" a":            "seat:command-%20a",
		"a\n":           "seat:command-a%0A",
		"\u00e9":        "seat:command-\u00e9",
		"a\u202eb":      "seat:command-a%E2%80%AEb",
		"-:/":           "seat:command--:/",
	} {
		stream := commands.Stream(id)
		require.NoError(t, stream.Validate())
		require.Equal(t, want, stream)
		require.Equal(t, id, stream.CardinalID())
		require.Equal(t, messagestore.Category("seat").Stream(id), messagestore.Category("seat").Stream(stream.CardinalID()))
	}
	requireInvalid(t, commands.Stream("").Validate(), messagestore.ErrInvalid, "stream name", `"seat:command-"`, "the identifier must not be empty")
	requireInvalid(t, commands.Stream("a+\xff").Validate(), messagestore.ErrInvalid, "stream name", `"seat:command-a+\xff"`, "must be valid UTF-8: error at byte 15")
	requireInvalid(t, commands.Stream("1").With("").Validate(), messagestore.ErrInvalid, "stream name", `"seat:command-1+"`, "the identifier must not have an empty part")
}

// The names of other clients are read as they are, and the ids of nearly all are the same here.
func TestANameOfAnotherClientStaysAsItIs(t *testing.T) {
	for _, id := range []string{"123", "018f4e0c-2b1e-7000-8000-000000000000", "ann b", "\u017eofie", "a/b:c@d.e"} {
		require.Equal(t, messagestore.StreamName("account-"+id), messagestore.Category("account").Stream(id))
	}
	for name, ids := range map[messagestore.StreamName][]string{
		"account-50%":     {"50%"},
		"account-%41":     {"%41"},
		"account-1+ a +%": {"1", " a ", "%"},
	} {
		require.NoError(t, name.Validate())
		require.Equal(t, ids, name.IDs())
	}
}

// M5 of the first week: a store is never asked for a stream of the category before the dash.
func TestAStreamOfACategoryWithADashIsRefused(t *testing.T) {
	store := untouchedStore(t)
	stream := messagestore.Category("my-seat").Stream("1")
	const rule = "must be a category, without a dash, and is the name of a stream"
	_, err := store.Write(t.Context(), stream, messagestore.AnyVersion, opened{})
	requireInvalid(t, err, messagestore.ErrInvalid, "category", `"my-seat"`, rule)
	require.EqualError(t, err, `write my-seat: invalid category "my-seat": `+rule)
	require.NotContains(t, fmt.Sprintf("%q", stream), `\x00`)
	require.ErrorIs(t, testkit.ErrorOf(store.Last(t.Context(), stream.With("2"))), messagestore.ErrInvalid)
	require.ErrorIs(t, messagestore.StreamName("no category: account").Validate(), messagestore.ErrInvalid)
	require.NotEqual(t, messagestore.Category("my"), stream.Category())
}

func TestAnyValidNameComesBackWhole(t *testing.T) {
	part := rapid.StringMatching(`[^\s\pC\pZ:+\-]{1,12}`)
	id := rapid.StringMatching(`[^\s\pC\pZ+]{1,12}`)
	rapid.Check(t, func(t *rapid.T) {
		category := messagestore.Category(part.Draw(t, "entity"))
		types := rapid.SliceOfN(part, 0, 3).Draw(t, "types")
		for _, name := range types {
			category = category.WithType(name)
		}
		ids := rapid.SliceOfN(id, 1, 3).Draw(t, "ids")

		stream := category.Stream(ids[0]).With(ids[1:]...)
		err := stream.Validate()

		if len(category.Stream(ids[0]).With(ids[1:]...)) > text.MaxNameBytes {
			require.ErrorIs(t, err, messagestore.ErrInvalid)
			return
		}
		require.NoError(t, err)
		require.Equal(t, category, stream.Category())
		require.Equal(t, ids, stream.IDs())
		require.Len(t, category.Types(), len(types))
		require.Less(t, stream.GroupMember(7), 7)
		require.Zero(t, stream.GroupMember(0))
		require.Zero(t, stream.GroupMember(-7))
	})
}

func TestGroupMembersAreMessageDBs(t *testing.T) {
	for id, want := range map[string][3]int{
		"1": {0, 0, 1}, "2": {1, 1, 2}, "3": {0, 2, 4}, "4": {1, 0, 4}, "5": {1, 0, 2},
		"6": {1, 2, 1}, "7": {0, 2, 1}, "8": {1, 1, 4}, "9": {1, 1, 3}, "10": {1, 1, 0},
	} {
		for i, size := range []int{2, 3, 5} {
			require.Equal(t, want[i], messagestore.Category("account").Stream(id).GroupMember(size), "id %s of %d", id, size)
			require.Equal(t, want[i], messagestore.Category("account:command").Stream(id).With("other").GroupMember(size), "the cardinal identifier decides")
		}
	}
}

func TestStreamWithoutIdentifierGoesByItsCategory(t *testing.T) {
	for size := 1; size < 20; size++ {
		require.Equal(t, messagestore.StreamName("x-account").GroupMember(size), messagestore.StreamName("account").GroupMember(size))
		require.Equal(t, messagestore.StreamName("x-account").GroupMember(size), messagestore.StreamName("account-").GroupMember(size))
	}
}

func TestPositionAfterTheLastDoesNotWrap(t *testing.T) {
	require.Equal(t, messagestore.GlobalPosition(1), messagestore.GlobalPosition(0).Next())
	require.Equal(t, messagestore.GlobalPosition(math.MaxInt64), messagestore.GlobalPosition(math.MaxInt64).Next())
}
