package exactjson

import (
	"bytes"
	"encoding"
	"encoding/json"
	"errors"
	"reflect"
	"strings"
	"unicode/utf8"
)

// errNotUTF8 refuses a value with text that encoding/json would change, without an error, as it
// encodes it.
var errNotUTF8 = errors.New("a string in it is not valid UTF-8")

// coerced reports whether encoding/json has replaced invalid UTF-8 by U+FFFD when it encoded v as
// encoded. It does so silently, which changes the text, and may make two different texts equal.
//
// Without a U+FFFD nothing was replaced. With one, it may have been in v, so coerced looks at v.
func coerced(encoded []byte, v any) bool {
	return (bytes.Contains(encoded, []byte("\ufffd")) || bytes.Contains(encoded, []byte(`\ufffd`))) &&
		invalidText(reflect.ValueOf(v))
}

var (
	jsonMarshaler = reflect.TypeFor[json.Marshaler]()
	textMarshaler = reflect.TypeFor[encoding.TextMarshaler]()
)

// invalidText reports whether encoding/json would encode a string of v that is not valid UTF-8. It
// terminates, because encoding v has terminated.
func invalidText(v reflect.Value) bool {
	if !v.IsValid() {
		return false
	}
	if v.Kind() != reflect.Interface {
		switch {
		case v.Type().Implements(jsonMarshaler):
			return false // it encodes itself, and its bytes are checked directly
		case v.Type().Implements(textMarshaler) && v.CanInterface() && (v.Kind() != reflect.Pointer || !v.IsNil()):
			marshaler, ok := reflect.TypeAssert[encoding.TextMarshaler](v)
			if !ok {
				return false
			}
			text, err := marshaler.MarshalText()
			return err == nil && !utf8.Valid(text)
		}
	}
	switch v.Kind() {
	case reflect.String:
		return !utf8.ValidString(v.String())
	case reflect.Pointer, reflect.Interface:
		return invalidText(v.Elem())
	case reflect.Slice, reflect.Array:
		if v.Type().Elem().Kind() == reflect.Uint8 {
			return false // base64
		}
		for i := range v.Len() {
			if invalidText(v.Index(i)) {
				return true
			}
		}
	case reflect.Map:
		for entries := v.MapRange(); entries.Next(); {
			if invalidText(entries.Key()) || invalidText(entries.Value()) {
				return true
			}
		}
	case reflect.Struct:
		for i := range v.NumField() {
			field := v.Type().Field(i)
			name, _, _ := strings.Cut(field.Tag.Get("json"), ",")
			if name == "-" || !field.IsExported() && !field.Anonymous {
				continue
			}
			if invalidText(v.Field(i)) {
				return true
			}
		}
	}
	return false
}
