package messagestore

import (
	"bytes"
	"encoding/json"
	"fmt"
	"maps"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"github.com/dibs-go/dibs/internal/exactjson"
	"github.com/dibs-go/dibs/internal/text"
)

// Properties are free values that travel with a message, by name. A value has the type that
// encoding/json gives it, except that numbers are [json.Number], so that they are not rounded.
type Properties map[string]any

// Get returns the property if it is a string, else "".
func (p Properties) Get(name string) string {
	s, _ := p[name].(string)
	return s
}

// UnmarshalJSON keeps numbers as they are written.
func (p *Properties) UnmarshalJSON(raw []byte) error {
	d := json.NewDecoder(bytes.NewReader(raw))
	d.UseNumber()
	var values map[string]any
	if err := d.Decode(&values); err != nil {
		return err
	}
	*p = values
	return nil
}

func merge(under, over Properties) Properties {
	if len(under) == 0 && len(over) == 0 {
		return nil
	}
	merged := make(Properties, len(under)+len(over))
	for name, value := range under {
		merged[name] = deepCopy(value)
	}
	for name, value := range over {
		merged[name] = deepCopy(value)
	}
	return merged
}

func deepCopy(value any) any {
	switch v := value.(type) {
	case map[string]any:
		c := make(map[string]any, len(v))
		for name, element := range v {
			c[name] = deepCopy(element)
		}
		return c
	case []any:
		c := make([]any, len(v))
		for i, element := range v {
			c[i] = deepCopy(element)
		}
		return c
	}
	return value
}

// Metadata says where a message came from and goes with it. Its JSON names are
// message-db's and Eventide's, so that their clients read ours and we theirs.
type Metadata struct {
	// The message that this one follows. Set all three or leave all three: without a stream there
	// is no cause.
	CausationStream         StreamName
	CausationPosition       Version
	CausationGlobalPosition GlobalPosition

	// CorrelationStream is the stream of the process that began the chain of messages.
	// [Filter.Correlation] selects by it. It may be a category.
	CorrelationStream StreamName

	// ReplyStream is where the sender wants its answer. It may be a category.
	ReplyStream StreamName

	// Properties pass to the messages that follow; Local ones do not.
	Properties Properties
	Local      Properties

	// SchemaVersion is the version of the body's schema, in words of your own.
	SchemaVersion string

	// Extra holds the fields of other clients that this package does not know, and known fields
	// with values that do not fit. They are kept but not interpreted.
	Extra map[string]json.RawMessage
}

// The names of metadata's fields in JSON, in the order in which they are written.
const (
	causationStreamField         = "causationMessageStreamName"
	causationPositionField       = "causationMessagePosition"
	causationGlobalPositionField = "causationMessageGlobalPosition"
	correlationStreamField       = "correlationStreamName"
	replyStreamField             = "replyStreamName"
	propertiesField              = "properties"
	localPropertiesField         = "localProperties"
	schemaVersionField           = "schemaVersion"
)

var metadataFields = []string{
	causationStreamField, causationPositionField, causationGlobalPositionField, correlationStreamField,
	replyStreamField, propertiesField, localPropertiesField, schemaVersionField,
}

// IsZero reports whether m is empty.
func (m Metadata) IsZero() bool {
	return m.CausationStream == "" && m.CausationPosition == 0 && m.CausationGlobalPosition == 0 &&
		m.CorrelationStream == "" && m.ReplyStream == "" && m.SchemaVersion == "" &&
		len(m.Properties) == 0 && len(m.Local) == 0 && len(m.Extra) == 0
}

// Correlated reports whether the message's correlation is name: a stream, or a category, which
// stands for each of its streams.
func (m Metadata) Correlated(name string) bool {
	if m.CorrelationStream == "" {
		return false
	}
	if strings.Contains(name, "-") {
		return string(m.CorrelationStream) == name
	}
	return string(m.CorrelationStream.Category()) == name
}

// MarshalJSON leaves out fields that are not set, but never a position 0.
func (m Metadata) MarshalJSON() ([]byte, error) {
	const names = 192 // of the fields, with two numbers
	o := objectEncoder{text: make([]byte, 0, names+len(m.CausationStream)+len(m.CorrelationStream)+len(m.ReplyStream))}
	o.text = append(o.text, '{')
	if m.CausationStream != "" {
		o.addText(causationStreamField, string(m.CausationStream))
		o.addNumber(causationPositionField, int64(m.CausationPosition))
		o.addNumber(causationGlobalPositionField, int64(m.CausationGlobalPosition))
	}
	if m.CorrelationStream != "" {
		o.addText(correlationStreamField, string(m.CorrelationStream))
	}
	if m.ReplyStream != "" {
		o.addText(replyStreamField, string(m.ReplyStream))
	}
	if len(m.Properties) > 0 {
		o.add(propertiesField, m.Properties)
	}
	if len(m.Local) > 0 {
		o.add(localPropertiesField, m.Local)
	}
	if m.SchemaVersion != "" {
		o.addText(schemaVersionField, m.SchemaVersion)
	}
	if len(m.Extra) > 0 {
		for _, name := range slices.Sorted(maps.Keys(m.Extra)) {
			quoted, err := exactjson.Marshal(name)
			if err != nil {
				return nil, err
			}
			o.add(string(quoted[1:len(quoted)-1]), m.Extra[name])
		}
	}
	if o.err != nil {
		return nil, o.err
	}
	return append(o.text, '}'), nil
}

// An objectEncoder appends fields to a JSON object after the opening brace. It encodes text and
// numbers, which are all that most metadata has, without encoding/json.
type objectEncoder struct {
	text []byte
	err  error // the first
}

func (o *objectEncoder) name(name string) {
	if len(o.text) > 1 {
		o.text = append(o.text, ',')
	}
	o.text = append(append(append(o.text, '"'), name...), '"', ':')
}

func (o *objectEncoder) addNumber(name string, value int64) {
	o.name(name)
	o.text = strconv.AppendInt(o.text, value, 10)
}

func (o *objectEncoder) addText(name, value string) {
	if !plain(value) {
		o.add(name, value)
		return
	}
	o.name(name)
	o.text = append(append(append(o.text, '"'), value...), '"')
}

func (o *objectEncoder) add(name string, value any) {
	text, err := exactjson.Marshal(value)
	if err != nil && o.err == nil {
		o.err = fmt.Errorf("%s: %w", name, err)
	}
	o.name(name)
	o.text = append(o.text, text...)
}

// UnmarshalJSON reads the metadata of any client. A field that does not fit is kept in Extra:
// the metadata of a foreign client must not stop a reader.
func (m *Metadata) UnmarshalJSON(raw []byte) error {
	*m = Metadata{}
	var fields map[string]json.RawMessage
	if err := json.Unmarshal(raw, &fields); err != nil {
		return fmt.Errorf("metadata: %w", err)
	}
	take := func(name string, into any) {
		value, ok := fields[name]
		if ok && string(value) != "null" && json.Unmarshal(value, into) == nil {
			delete(fields, name)
		}
	}
	if isString(fields[causationStreamField]) && isWhole(fields[causationPositionField]) && isWhole(fields[causationGlobalPositionField]) {
		take(causationStreamField, &m.CausationStream)
		take(causationPositionField, &m.CausationPosition)
		take(causationGlobalPositionField, &m.CausationGlobalPosition)
	}
	take(correlationStreamField, &m.CorrelationStream)
	take(replyStreamField, &m.ReplyStream)
	take(propertiesField, &m.Properties)
	take(localPropertiesField, &m.Local)
	take(schemaVersionField, &m.SchemaVersion)
	for _, name := range metadataFields {
		if string(fields[name]) == "null" {
			delete(fields, name) // nothing, spelled out
		}
	}
	if len(fields) > 0 {
		m.Extra = fields
	}
	return nil
}

func isString(raw json.RawMessage) bool { return len(raw) > 2 && raw[0] == '"' }

func isWhole(raw json.RawMessage) bool {
	var n int64
	return len(raw) > 0 && raw[0] != 'n' && json.Unmarshal(raw, &n) == nil
}

// ParseMetadata is for authors of drivers: it parses metadata in stored form. Empty input gives the
// zero Metadata, and so does a text that is not a JSON object: message-db's clients may have
// written anything. The result may refer to parts of a string; bytes are copied.
func ParseMetadata[T string | []byte | json.RawMessage](raw T) Metadata {
	if len(raw) == 0 {
		return Metadata{}
	}
	if m, ok := scanMetadata(string(raw)); ok {
		return m
	}
	var m Metadata
	if json.Unmarshal([]byte(raw), &m) != nil {
		return Metadata{}
	}
	return m
}

func (m Metadata) validate() error {
	fail := func(name string, value any, rule string) error {
		return NewInvalidError("metadata "+name, value, rule)
	}
	if m.CausationStream == "" && (m.CausationPosition != 0 || m.CausationGlobalPosition != 0) {
		return fail(causationPositionField, int64(m.CausationPosition), "must have a causation stream too")
	}
	if m.CausationPosition < 0 {
		return fail(causationPositionField, int64(m.CausationPosition), "must be at least 0")
	}
	if m.CausationGlobalPosition < 0 {
		return fail(causationGlobalPositionField, int64(m.CausationGlobalPosition), "must be at least 0")
	}
	for _, stream := range []struct {
		name  string
		value StreamName
	}{
		{causationStreamField, m.CausationStream},
		{correlationStreamField, m.CorrelationStream},
		{replyStreamField, m.ReplyStream},
	} {
		if stream.value == "" {
			continue
		}
		// Another client may have named the stream, so only the text is checked, not the grammar.
		if rule := text.NameRule(string(stream.value)); rule != "" {
			return fail(stream.name, string(stream.value), rule)
		}
	}
	if m.SchemaVersion != "" {
		if rule := text.NameRule(m.SchemaVersion); rule != "" {
			return fail(schemaVersionField, m.SchemaVersion, rule)
		}
	}
	for name := range m.Extra {
		if slices.Contains(metadataFields, name) {
			return fail(name, string(m.Extra[name]), "must not be a field that Metadata has: set that one")
		}
	}
	return nil
}

// The names of the properties that hold a trace: W3C Trace Context
// (https://www.w3.org/TR/trace-context/).
const (
	traceParent = "traceparent"
	traceState  = "tracestate"
)

var traceParentForm = regexp.MustCompile(`^[0-9a-f]{2}-[0-9a-f]{32}-[0-9a-f]{16}-[0-9a-f]{2}$`)

// SetTrace sets the properties of a W3C trace context; they pass to the messages that follow. An
// empty parent removes it. The state may be empty.
func (m *Metadata) SetTrace(parent, state string) error {
	if parent == "" {
		m.Properties = merge(m.Properties, nil) // others may hold the map
		delete(m.Properties, traceParent)
		delete(m.Properties, traceState)
		return nil
	}
	if !traceParentForm.MatchString(parent) || strings.HasPrefix(parent, "ff") ||
		strings.Contains(parent, "-"+strings.Repeat("0", 32)+"-") || strings.Contains(parent, "-"+strings.Repeat("0", 16)+"-") {
		return NewInvalidError("metadata properties.traceparent", parent, "must be a W3C traceparent")
	}
	if len(state) > 512 {
		return NewInvalidError("metadata properties.tracestate", state, "must be at most 512 bytes")
	}
	m.Properties = merge(m.Properties, Properties{traceParent: parent})
	delete(m.Properties, traceState)
	if state != "" {
		m.Properties[traceState] = state
	}
	return nil
}

// Trace returns the W3C trace context of the properties, or empty strings.
func (m Metadata) Trace() (parent, state string) {
	return m.Properties.Get(traceParent), m.Properties.Get(traceState)
}
