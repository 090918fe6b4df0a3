package cli

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"io"
	"regexp"
	"strconv"
	"strings"
	"testing"
	"unicode"
	"unicode/utf8"

	"github.com/google/uuid"
	"github.com/stretchr/testify/require"

	"github.com/dibs-go/dibs/internal/testkit"
	"github.com/dibs-go/dibs/messagestore"
	"github.com/dibs-go/dibs/messagestore/memory"
)

// requireInvalid checks an error that refuses an input: its kind, and that it is one short line.
func requireInvalid(t *testing.T, err, kind error) {
	t.Helper()
	require.ErrorIs(t, err, messagestore.ErrInvalid)
	require.ErrorIs(t, err, kind)
	require.Less(t, len(err.Error()), 1000)
	require.False(t, strings.ContainsFunc(err.Error(), unicode.IsControl), "%q", err)
}

// A line is one message as encoding/json reads it, with each name once and exact, or is
// refused: nothing in it is lost or changed without a word.
func FuzzALineIsAMessageOrRefused(f *testing.F) {
	for _, seed := range []string{
		`{"stream":"account-1","type":"Opened"}`, ` { "type" : "Opened" , "stream" : "account-1" , "data" : { } } `, `{"stream":"account-1","type":"Opened","data":{"n":1e400},"metadata":{"properties":{"a":1.10}},"id":"0190b2c8-2f5e-7cc3-98c4-dc0c0c07398f","expected":0}`,
		`{"stream":"account-1","type":"Opened","expected":"no-stream"}`, `{"stream":"account-1","type":"Opened","expected":"any","position":3,"globalPosition":"x","time":null}`, `{"stream":"account-1","type":"Opened","expected":-1}`, `{"stream":"account-1","type":"Opened","expected":1.0}`,
		`{"stream":"account-1","stream":"account-2","type":"Opened"}`, `{"Stream":"account-1","type":"Opened"}`, `{"stream":null,"type":"Opened"}`, `{"stream":"account-1","type":1}`, `{"stream":"account-1"}`, `[]`, `{}`, ``, `null`, `{"stream":"account-1","type":"Opened"}{}`,
		`{"stream":"account-\ud800","type":"Opened"}`, `{"stream":"account-\ud83d\ude00","type":"Opened"}`, "{\"stream\":\"account-\xff\",\"type\":\"Opened\"}", `{"stream":"account-1","type":"Opened","data":[]}`, `{"stream":"account-1","type":"Opened","data":null}`, `{"stream":"account-1","type":"Opened","metadata":null}`, `{"stream":"account-1","type":"Opened","metadata":[]}`,
		`{"stream":"account-1","type":"Opened","id":"{0190B2C8-2F5E-7CC3-98C4-DC0C0C07398F}"}`, `{"stream":"account-1","type":"Opened","id":"00000000-0000-0000-0000-000000000000"}`, `{"\u0073tream":"account-1","type":"Opened"}`, `{"stream":"account-1","type":"Opened","x\u0000":1}`, "\ufeff{}",
		strings.Repeat(`{"data":`, 11_000),
	} {
		f.Add([]byte(seed))
	}
	for _, data := range testkit.SeedJSON("a") {
		f.Add([]byte(`{"stream":"account-1","type":"Opened","data":` + data + `}`))
	}
	f.Fuzz(func(t *testing.T, raw []byte) {
		l, err := parseLine(raw)
		if err != nil {
			requireInvalid(t, err, messagestore.ErrInvalid)
			return
		}
		require.True(t, utf8.Valid(raw))
		var want struct {
			Stream   string
			Type     string
			Data     json.RawMessage
			Metadata *messagestore.Metadata
			ID       string
			Expected json.RawMessage
		}
		d := json.NewDecoder(bytes.NewReader(raw))
		require.NoError(t, d.Decode(&want))
		_, err = d.Token()
		require.ErrorIs(t, err, io.EOF)
		require.Equal(t, want.Stream, string(l.stream))
		require.NoError(t, l.stream.Validate())
		body, ok := l.message.Body.(messagestore.Raw)
		require.True(t, ok)
		require.Equal(t, want.Type, body.Type)
		if want.Data == nil {
			want.Data = json.RawMessage("{}")
		}
		require.Equal(t, string(want.Data), string(body.Data))
		if want.Metadata != nil {
			require.Equal(t, *want.Metadata, l.message.Metadata)
		}
		if want.ID != "" {
			require.Equal(t, want.ID, l.message.ID.String())
			require.NotEqual(t, uuid.Nil, l.message.ID)
		}
		switch expected := strings.Trim(string(want.Expected), `"`); expected {
		case "", "any":
			require.Equal(t, messagestore.AnyVersion, l.expected)
		case "no-stream":
			require.Equal(t, messagestore.NoStream, l.expected)
		default:
			if !strings.Contains(expected, `\`) {
				require.Equal(t, expected, strconv.FormatInt(int64(l.expected), 10))
			}
			require.GreaterOrEqual(t, l.expected, messagestore.Version(0))
		}

		// The id that it gets is its content's: the same for the same, and after an equal one another.
		ids := deriver{seen: map[uuid.UUID]uint64{}}
		first, second := ids.derive(l), ids.derive(l)
		require.NotEqual(t, first, second)
		require.Equal(t, first, (&deriver{seen: map[uuid.UUID]uint64{}}).derive(l))
		require.Equal(t, uuid.Version(8), first.Version())
	})
}

// Input is split at line ends of any kind, however its pieces arrive.
func FuzzLinesAreWhatIsBetweenTheirEnds(f *testing.F) {
	f.Add([]byte("a\r\nb\n\nc"), 1)
	f.Add([]byte("\xef\xbb\xbfa\n\r\r\n\x00\n"), 3)
	f.Add([]byte("\n"), 64<<10)
	f.Add(bytes.Repeat([]byte("x"), 20), 16)
	f.Add([]byte("a\r\r\n\r\nb\r"), 16) // carriage returns
	f.Fuzz(func(t *testing.T, input []byte, size int) {
		r := bufio.NewReaderSize(bytes.NewReader(input), min(max(size, 16), 1<<17))
		var got []string
		for {
			line, err := readLine(r)
			if errors.Is(err, io.EOF) {
				break
			}
			require.NoError(t, err)
			got = append(got, string(line))
		}
		var want []string
		for line := range strings.Lines(string(input)) {
			want = append(want, strings.TrimRight(line, "\r\n"))
		}
		require.Equal(t, want, got)
	})
}

func FuzzArgumentsAreReadAsTheyArePrinted(f *testing.F) {
	for _, seed := range []string{
		"account-1@4", "account-a@b@0", "account-1", "@", "account-1@", "account-1@-1", "account-1@+1", "account-1@01", "account-1@9223372036854775807", "account-1@9223372036854775808", "@0", "account@0", "a-\n@0",
		"no-stream", "any", "0", "-1", "-2", "00", "+1", "1.0", "0x1", "١", "9223372036854775808", "",
		"0190b2c8-2f5e-7cc3-98c4-dc0c0c07398f", "0190B2C8-2F5E-7CC3-98C4-DC0C0C07398F", "{0190b2c8-2f5e-7cc3-98c4-dc0c0c07398f}", "urn:uuid:0190b2c8-2f5e-7cc3-98c4-dc0c0c07398f", "0190b2c82f5e7cc398c4dc0c0c07398f", "00000000-0000-0000-0000-000000000000", "nope\x00",
	} {
		f.Add(seed)
	}
	number := regexp.MustCompile(`^(0|[1-9][0-9]*)$`)
	idForm := regexp.MustCompile(`^[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}$`)
	for _, name := range testkit.SeedNames() {
		f.Add(name + "@1")
	}
	f.Fuzz(func(t *testing.T, s string) {
		stream, position, err := parsePlace(s)
		if err == nil && s != "" {
			require.Equal(t, s, placeOf(stream, position), "it is read as it is printed")
			require.NoError(t, stream.Validate())
		}
		if err != nil {
			_, mistake := errors.AsType[*hintedError](err)
			require.True(t, mistake || errors.Is(err, messagestore.ErrInvalid))
			require.Less(t, len(err.Error()), 1000)
		}
		version, err := parseExpected(s)
		n, overflow := strconv.ParseInt(s, 10, 64)
		require.Equal(t, s == "any" || s == "no-stream" || number.MatchString(s) && overflow == nil, err == nil, "%v", err)
		if err != nil {
			requireInvalid(t, err, messagestore.ErrInvalid)
		} else if s != "any" && s != "no-stream" {
			require.Equal(t, n, int64(version))
		}
		id, err := parseID(s)
		require.Equal(t, idForm.MatchString(s) && s != uuid.Nil.String(), err == nil, "%v", err)
		if err != nil {
			requireInvalid(t, err, messagestore.ErrInvalid)
		} else {
			require.Equal(t, s, id.String())
		}
	})
}

// Text is refused if encoding/json would put another character into it.
func FuzzTextIsRefusedIfItWouldChange(f *testing.F) {
	for _, seed := range []string{`"a"`, `"\ud800"`, `"\ud83d\ude00"`, `"\ud83d\u0041"`, `"\ud83dx\ude00"`, `"\\ud800"`, `"\udc00"`, "\"\xff\"", `"\ufffd"`, "\"\ufffd\"", `"\u0000"`, `"\`, `"\u`, `"\ud83d\`, `{"a":"\ud800"}`, `{}`, ` [1] `, `null`, ``} {
		f.Add([]byte(seed))
	}
	for _, data := range testkit.SeedJSON("a") {
		f.Add([]byte(data))
	}
	f.Fuzz(func(t *testing.T, raw []byte) {
		err := checkText(raw)
		_, wrong := parseMetadata(raw)
		if wrong != nil {
			requireInvalid(t, wrong, messagestore.ErrInvalid)
		}
		var text string
		if !json.Valid(raw) || json.Unmarshal(raw, &text) != nil {
			return
		}
		require.Error(t, wrong, "a text is no object")
		// The replacement would be U+FFFD: without those that the input spells itself, none may be left.
		meant := strings.ReplaceAll(strings.ReplaceAll(strings.ReplaceAll(string(raw), `\\`, ""), `\ufffd`, ""), `\uFFFD`, "")
		if utf8.Valid(raw) {
			meant = strings.ReplaceAll(meant, "\ufffd", "")
		}
		if regexp.MustCompile(`(?i)\\ufffd`).MatchString(meant) || json.Unmarshal([]byte(meant), &text) != nil {
			return
		}
		require.Equal(t, strings.Contains(text, "\ufffd"), err != nil, "%s", raw)
	})
}

// Stored text may hold any character; printed text is visible, and unambiguous.
func FuzzWhatIsPrintedCanBeSeen(f *testing.F) {
	for _, seed := range []string{"plain", "\x1b[31mred", "a\nb", "\u202eabc", "\U000e0041", "\U0001f600", "\u2028", "\ufeff", "\xff", "\u009b31m", "\\u001b", "é", strings.Repeat("x", 200)} {
		f.Add(seed)
	}
	for _, name := range testkit.SeedNames() {
		f.Add(name)
	}
	f.Fuzz(func(t *testing.T, text string) {
		shown := visible(text)
		require.True(t, utf8.ValidString(shown) || !utf8.ValidString(text) && shown == text)
		for _, r := range shown {
			require.False(t, unicode.In(r, unicode.Cc, unicode.Cf, unicode.Zl, unicode.Zp), "%q", shown)
		}
		short := shorten(shown)
		require.LessOrEqual(t, utf8.RuneCountInString(short), 72)
		require.True(t, short == shown || strings.HasPrefix(shown, strings.TrimSuffix(short, "…")))
		if !utf8.ValidString(text) {
			return
		}
		line, err := oneLine(map[string]string{"text": text})
		require.NoError(t, err)
		require.Equal(t, 1, bytes.Count(line, []byte("\n")))
		require.Equal(t, strings.TrimSuffix(string(line), "\n"), visible(strings.TrimSuffix(string(line), "\n")))
		var back map[string]string
		require.NoError(t, json.Unmarshal(line, &back))
		require.Equal(t, text, back["text"])
		require.NotContains(t, dataText(json.RawMessage(text)), "\n")
	})
}

// No password of any URL, however malformed, is in anything that is printed.
func FuzzNoSecretIsPrinted(f *testing.F) {
	f.Add("user", "p@ss/w:rd", "host:5432/db")
	f.Add("", "%41%zz", "?password=other")
	f.Add("u", "a b\x00\u202e", "h")
	f.Add("u:v", "::@@", "@h@i")
	for _, name := range testkit.SeedNames() {
		f.Add("user", name+"secret", "host/db")
	}
	f.Fuzz(func(t *testing.T, user, password, rest string) {
		if password == "" || strings.ContainsAny(rest, "@") || strings.ContainsAny(user, "@:") || strings.ContainsRune(password, utf8.RuneError) || strings.HasPrefix(password, "xxxxx") {
			return
		}
		u := "postgres://" + user + ":" + password + "@" + rest
		a := &app{masks: masksOf(u)}
		for _, text := range []string{u, "cannot parse " + u + "!", strconv.Quote(u), visible(u), "parse `" + u + "`: x"} {
			text = a.redact(visible(a.redact(text)))
			require.NotContains(t, text, user+":"+password+"@")
		}
		value := strings.NewReplacer("'", "", " ", "", "&", "", "\t", "", "\n", "", "@", "", "\\", "").Replace(password)
		if value == "" || strings.HasPrefix("xxxxx", value) {
			return
		}
		a = &app{masks: masksOf("host=h password='" + value + "' user=u")}
		require.NotContains(t, a.redact("failed: password="+value+" user=u"), "password="+value)
		require.NotContains(t, a.redact("failed: password='"+value+"' user=u"), "password='"+value)
	})
}

// The schema is taken out of a URL as dibs.Open does.
func FuzzTheSchemaIsCutOut(f *testing.F) {
	for _, seed := range []string{"postgres://h/d?schema=a", "postgres://h/d?schema=a&schema=b", "postgres://h/d?schema=%zz", "postgres://h/d?schema=", "postgres://h/d?x=schema=a&y", "postgres://h/d?schema", "?"} {
		f.Add(seed)
	}
	f.Add("postgres://h/d?schema=a&schema=b") // twice
	f.Fuzz(func(t *testing.T, u string) {
		without, schema, err := cutSchema(u)
		_, query, _ := strings.Cut(u, "?")
		named := 0
		for parameter := range strings.SplitSeq(query, "&") {
			if strings.HasPrefix(parameter, "schema=") {
				named++
			}
		}
		if named > 1 {
			require.Error(t, err, "which of them is meant?")
		}
		if err != nil {
			require.Less(t, len(err.Error()), 100, "the URL is not in it")
			return
		}
		require.Equal(t, named == 1, schema != "")
		if named == 0 {
			require.Equal(t, u, without)
		}
		_, query, _ = strings.Cut(without, "?")
		require.NotContains(t, "&"+query, "&schema=")
	})
}

// Any command line ends with one of the documented exit codes, and reports a mistake in one short line.
func FuzzACommandLineEndsWithACode(f *testing.F) {
	for _, seed := range []string{
		"", "--help", "version", "write\x00account-1\x00Opened", "write\x00account-1\x00Opened\x00{\x00--expected\x00-1", "stream\x00account-1\x00--from\x00-5", "stream\x00account-1\x00--limit\x000", "category\x00account\x00--member\x001", "category\x00account\x00--size\x0032768\x00--member\x000",
		"tail\x00account\x00--interval\x000s", "tail\x00a-1", "explain\x00account-1", "explain\x00\x00--category\x00account", "report\x00\xff", "report\x00streams\x00--sort\x00x", "consumers\x00list", "parked\x00list\x00account", "parked\x00redrive\x00account\x00ledger\x00nope", "trim\x00account-1\x00--keep\x00-1",
		"delete\x00account-1", "doctor", "verify", "migrate\x00up", "migrate\x00adopt\x00--workers\x00-1", "write\x00--from\x00/nonexistent", "--store", "--store\x00x", "--schema\x00a", "\xff", "-\x00-", "--json\x00stream\x00\u202e", "write\x00a\nb-1\x00T", "--\x00write", "write\x00account-1\x00" + strings.Repeat("x", 5000),
	} {
		f.Add(seed, "")
		f.Add(seed+"\x00--json", `{"stream":"account-1","type":"Opened"}`+"\n{")
	}
	for _, name := range testkit.SeedNames() {
		f.Add("write\x00"+name+"\x00Opened", "")
	}
	f.Fuzz(func(t *testing.T, joined, stdin string) {
		args := strings.Split(joined, "\x00")
		for _, arg := range args {
			// Such a command would wait for messages, read a file, or open a database.
			if strings.HasPrefix("tail", arg) && arg != "" || strings.HasPrefix(arg, "tail") || strings.Contains(arg, "from") || strings.Contains(arg, "/") {
				return
			}
		}
		open := func(context.Context, string, *messagestore.Config) (*messagestore.Store, error) {
			return testkit.Must(messagestore.New(memory.New(), nil)), nil
		}
		var stdout, stderr bytes.Buffer
		a := &app{stdin: strings.NewReader(stdin), stderr: &stderr, getenv: func(name string) string { return map[string]string{"DIBS_STORE": "memory:"}[name] }, open: open}

		code := a.run(t.Context(), args, &stdout)

		require.Contains(t, []int{exitOK, exitFailure, exitUsage, exitConflict}, code)
		require.Equal(t, code == exitOK, code == exitOK && !strings.HasPrefix(stderr.String(), "dibs: invalid"))
		if code == exitOK {
			return
		}
		require.NotEmpty(t, stderr.String(), "%q", args)
		for line := range strings.Lines(stderr.String()) {
			line = strings.TrimSuffix(line, "\n")
			require.False(t, strings.ContainsFunc(line, unicode.IsControl), "%q", line)
			if a.JSON {
				var object problem
				require.NoError(t, json.Unmarshal([]byte(line), &object), "%q", line)
				require.Equal(t, code, object.Exit)
				require.NotEmpty(t, object.Kind)
			}
		}
	})
}
