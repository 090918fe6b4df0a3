package client

import (
	"fmt"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"
)

// largest returns the path of the field that makes a message large: "writes[0].messages[2].data_json".
// It is a list if no element has half of it.
func largest(m proto.Message) (path string) {
	size := -1
	for f, v := range m.ProtoReflect().Range {
		if is, n := within(string(f.Name()), v.Interface()); n > size {
			path, size = is, n
		}
	}
	return path
}

// within returns the path of what makes the value of a field large, and the size of the value.
func within(path string, value any) (string, int) {
	switch v := value.(type) {
	case string:
		return path, len(v)
	case protoreflect.Message:
		if field := largest(v.Interface()); field != "" {
			path += "." + field
		}
		return path, proto.Size(v.Interface())
	case protoreflect.List:
		all, most, element := 0, 0, path
		for i := range v.Len() {
			is, n := within(fmt.Sprintf("%s[%d]", path, i), v.Get(i).Interface())
			if all += n; n > most {
				most, element = n, is
			}
		}
		if 2*most >= all {
			path = element
		}
		return path, all
	}
	return path, 0
}
