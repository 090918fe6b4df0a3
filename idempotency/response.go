package idempotency

import (
	"bytes"
	"crypto/hmac"
	"crypto/sha256"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"unicode/utf8"
)

// errCorrupt is the error for a stored response that cannot be read, was changed, or belongs to
// another key.
var errCorrupt = errors.New("corrupt stored response")

func corrupt(rule string, args ...any) error {
	return fmt.Errorf("%w: %s", errCorrupt, fmt.Sprintf(rule, args...))
}

// A Response is an answer in the form that is stored and replayed.
type Response struct {
	// Status is the status code.
	//
	// Defaults to 200.
	Status int

	// Header has the header fields. Only those in [Config.Headers] and [KeptHeaders] are stored.
	Header http.Header

	// Body is sent byte for byte.
	Body []byte
}

// KeptHeaders returns the names of the header fields that are stored with every response.
func KeptHeaders() []string { return slices.Clone(keptHeaders) }

var keptHeaders = []string{
	"Content-Type", "Content-Language", "Content-Encoding", "Content-Disposition", "Content-Location",
	"Location", "ETag", "Last-Modified", "Link", "Allow", "Accept-Patch", "Accept-Post", "Preference-Applied",
	"Cache-Control", "Expires", "Pragma", "Vary",
	"Accept-Ranges", "Content-Range", "Content-Digest", "Repr-Digest",
	"Access-Control-Allow-Origin", "Access-Control-Allow-Credentials", "Access-Control-Expose-Headers", "Timing-Allow-Origin",
	"Content-Security-Policy", "X-Content-Type-Options", "X-Frame-Options", "Referrer-Policy", "Cross-Origin-Resource-Policy",
	"Cross-Origin-Opener-Policy", "Cross-Origin-Embedder-Policy",
}

// neverKept are the header fields that belong to one client or to one moment.
var neverKept = []string{
	"Set-Cookie", "WWW-Authenticate", "Proxy-Authenticate", "Date", "Content-Length", "Transfer-Encoding", "Connection", "Trailer",
	"Upgrade", "Keep-Alive", Replayed, ProblemHeader, "Retry-After",
}

// formVersion is the version of the form in which responses are stored. Every version that a
// release has written must stay readable: see testdata/stored.
const formVersion = 1

// A form is a stored response: the result of an intent. It has all fields of the version with which
// it was written, and a checksum over them and over its key.
type form struct {
	Version int     `json:"version"`
	Status  int     `json:"status"`
	Header  []field `json:"header,omitempty"`
	Text    string  `json:"text,omitempty"`  // the body, if text is its shorter form
	Bytes   []byte  `json:"bytes,omitempty"` // the body otherwise
	// TooLarge is true if the response was refused as too large. Then the form only has its status.
	TooLarge bool   `json:"tooLarge,omitempty"`
	Sum      string `json:"sum"`
}

// A field is one line of a header. Its value may have any bytes except line ends and NUL.
type field struct {
	Name  string `json:"name"`
	Value string `json:"value,omitempty"`
	Bytes []byte `json:"bytes,omitempty"` // the value, if it is not UTF-8
}

// forms reads and writes the stored responses of a middleware.
type forms struct {
	kept    map[string]bool // canonical names of header fields
	secrets [][]byte        // the first signs, and each may have signed; an empty one means no secret
}

// encode returns the form of the response to a key's request, with the headers to store.
func (s forms) encode(id identity, r Response) form {
	f := form{Version: formVersion, Status: r.Status}
	for _, name := range slices.Sorted(maps.Keys(r.Header)) {
		canonical := http.CanonicalHeaderKey(name)
		if !s.kept[canonical] {
			continue
		}
		for _, value := range r.Header[name] {
			f.Header = append(f.Header, newField(canonical, value))
		}
	}
	f.Text, f.Bytes = pack(r.Body)
	f.Sum = f.sum(id, s.secrets[0])
	return f
}

// tooLarge returns the form of a response that is too large to store.
func (s forms) tooLarge(id identity, status int) form {
	f := form{Version: formVersion, Status: status, TooLarge: true}
	f.Sum = f.sum(id, s.secrets[0])
	return f
}

func newField(name, value string) field {
	value = strings.Trim(oneLine.Replace(value), " \t") // as net/http does
	if !utf8.ValidString(value) || strings.ContainsRune(value, 0) {
		return field{Name: name, Bytes: []byte(value)}
	}
	return field{Name: name, Value: value}
}

var oneLine = strings.NewReplacer("\n", " ", "\r", " ")

func (f field) value() string {
	if len(f.Bytes) > 0 {
		return string(f.Bytes)
	}
	return f.Value
}

// pack returns a body as text if JSON can hold it unchanged, in fewer bytes than Base64.
func pack(body []byte) (text string, raw []byte) {
	if !utf8.Valid(body) || bytes.IndexByte(body, 0) >= 0 {
		return "", body
	}
	length := 0
	for _, c := range body {
		switch {
		case c == '"' || c == '\\':
			length += 2
		case c < ' ' || c == 0xE2: // and U+2028
			length += 6
		default:
			length++
		}
	}
	if length > base64.StdEncoding.EncodedLen(len(body)) {
		return "", body
	}
	return string(body), nil
}

// decode returns the response of a stored result. It only returns headers that may be stored,
// because any writer of the store may have added others. It is not ok if the response was too large
// to store.
func (s forms) decode(id identity, raw json.RawMessage) (r Response, ok bool, err error) {
	var version struct {
		Version *int `json:"version"`
	}
	switch err := json.Unmarshal(raw, &version); {
	case len(raw) == 0:
		return r, false, corrupt("there is none")
	case err != nil:
		return r, false, corrupt("%v", err)
	case version.Version == nil:
		return r, false, corrupt("it has no version: another program confirmed the intent")
	case *version.Version != formVersion:
		return r, false, corrupt("version %d is not known to this release", *version.Version)
	}
	var f form
	strict := json.NewDecoder(bytes.NewReader(raw))
	strict.DisallowUnknownFields()
	if err := strict.Decode(&f); err != nil {
		return r, false, corrupt("%v", err)
	}
	switch {
	case !slices.ContainsFunc(s.secrets, func(secret []byte) bool { return hmac.Equal([]byte(f.Sum), []byte(f.sum(id, secret))) }):
		return r, false, corrupt("its checksum does not match: it was changed, belongs to another key, or was made with another secret")
	case f.Status < 200 || f.Status > 999:
		return r, false, corrupt("status: %d is none", f.Status)
	case f.Text != "" && len(f.Bytes) > 0:
		return r, false, corrupt("it has two bodies")
	}
	if f.TooLarge {
		return Response{Status: f.Status}, false, nil
	}
	r = Response{Status: f.Status, Header: http.Header{}, Body: f.Bytes}
	if f.Text != "" {
		r.Body = []byte(f.Text)
	}
	for _, line := range f.Header {
		if line = newField(http.CanonicalHeaderKey(line.Name), line.value()); s.kept[line.Name] {
			r.Header.Add(line.Name, line.value())
		}
	}
	return r, true, nil
}

// sum covers every field, and the key: a response that is moved to another key is corrupt. With a
// secret it is an HMAC.
func (f form) sum(id identity, secret []byte) string {
	parts := [][]byte{
		[]byte("response"), []byte(strconv.Itoa(f.Version)), []byte(id.scope), []byte(id.key), []byte(strconv.Itoa(f.Status)),
		[]byte(strconv.FormatBool(f.TooLarge)), []byte(f.Text), f.Bytes,
	}
	for _, line := range f.Header {
		parts = append(parts, []byte(line.Name), []byte(line.Value), line.Bytes)
	}
	sum := hash(parts...)
	if len(secret) > 0 {
		mac := hmac.New(sha256.New, secret)
		mac.Write(sum)
		sum = mac.Sum(nil)
	}
	return base64.RawURLEncoding.EncodeToString(sum)
}

// An identity names an intent.
type identity struct{ scope, key string }

// send sends a whole response.
func (r Response) send(w http.ResponseWriter) {
	header := w.Header()
	if _, has := r.Header["Content-Type"]; !has {
		header["Content-Type"] = nil // otherwise net/http would detect one
	}
	maps.Copy(header, r.Header)
	if hasBody(r.Status) {
		header.Set("Content-Length", strconv.Itoa(len(r.Body)))
	}
	w.WriteHeader(r.Status)
	if hasBody(r.Status) && len(r.Body) > 0 {
		_, _ = w.Write(r.Body) // the client may be gone
	}
}
