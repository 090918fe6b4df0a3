package serve

import (
	"fmt"

	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/proto"
)

// A jsonCodec refuses fields that it does not know: otherwise a misspelt field would get its default.
// It also writes fields with their zero value, so that readers need not know the defaults.
type jsonCodec struct{ name string }

var writeJSON = protojson.MarshalOptions{EmitDefaultValues: true}

// Name returns the subtype of the content type that the codec is for.
func (c jsonCodec) Name() string { return c.name }

// Marshal returns a message as JSON.
func (jsonCodec) Marshal(v any) ([]byte, error) { return jsonCodec{}.MarshalAppend(nil, v) }

// MarshalAppend appends a message as JSON.
func (jsonCodec) MarshalAppend(dst []byte, v any) ([]byte, error) {
	m, ok := v.(proto.Message)
	if !ok {
		return nil, fmt.Errorf("%T is not a message of protobuf", v)
	}
	return writeJSON.MarshalAppend(dst, m)
}

// MarshalStable returns a message as JSON.
func (c jsonCodec) MarshalStable(v any) ([]byte, error) { return c.Marshal(v) }

// Unmarshal reads JSON into a message.
func (jsonCodec) Unmarshal(data []byte, v any) error {
	m, ok := v.(proto.Message)
	if !ok {
		return fmt.Errorf("%T is not a message of protobuf", v)
	}
	if len(data) == 0 {
		return fmt.Errorf("the body must be a JSON object")
	}
	if err := protojson.Unmarshal(data, m); err != nil { // which may quote a whole value
		return fmt.Errorf("%.300s", err.Error())
	}
	return nil
}

// IsBinary reports that JSON is text.
func (jsonCodec) IsBinary() bool { return false }
