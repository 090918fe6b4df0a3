package entity

import (
	"encoding"
	"encoding/json"
	"errors"
	"fmt"
	"reflect"
	"runtime"
	"slices"
	"strings"
	"time"

	"github.com/dibs-go/dibs/messagestore"
)

// ErrInvalidEntity is matched by the error of [New] for a T that cannot be kept
// as the config asks. It comes as a [*messagestore.InvalidError] whose Value names
// the field.
//
// An entity is a value: not a pointer, not an interface. To be cached, it holds
// no pointer, slice, map, channel, function or interface, or has a method Clone
// that returns a T that shares none of them. To be kept in snapshots, it is encoded
// and decoded by encoding/json with nothing lost: all its fields are exported, none
// is left out by its tag or is an interface, or it has methods of its own for that.
// A method that it has from an embedded field, such as a time.Time, encodes that field
// alone, so no field may stand beside one.
var ErrInvalidEntity = errors.New("invalid entity")

type cloner[T any] interface{ Clone() T }

// clone returns a copy of entity that shares nothing with it; checkType saw to it
// that it can.
func clone[T any](entity T) T {
	if c, ok := any(&entity).(cloner[T]); ok {
		return c.Clone()
	}
	return entity
}

func checkType[T any](cached, snapshot bool) error {
	t := reflect.TypeFor[T]()
	if t.Kind() == reflect.Pointer || t.Kind() == reflect.Interface {
		return invalidEntity(t.String(), "an entity is a value: its zero value is what an empty stream folds to")
	}
	_, clones := reflect.TypeAssert[cloner[T]](reflect.New(t))
	if cached && !clones {
		if path, what := shares(t, t.String()); path != "" {
			return invalidEntity(path, fmt.Sprintf("a copy would share this %s: give %s a method Clone, or turn the cache off", what, t))
		}
	}
	if snapshot {
		if path, why := loses(t, t.String(), nil); path != "" {
			return invalidEntity(path, why+": a snapshot would lose it")
		}
	}
	return nil
}

func invalidEntity(path, rule string) error {
	return messagestore.NewInvalidError(ErrInvalidEntity, "entity", path, rule)
}

// immutable types hold a pointer that nobody can write through.
var immutable = map[reflect.Type]bool{reflect.TypeFor[time.Time](): true}

// shares returns the first field of t that a plain copy would have in common with
// the original, and what kind it is of.
func shares(t reflect.Type, path string) (field, kind string) {
	if immutable[t] {
		return "", ""
	}
	switch t.Kind() {
	case reflect.Pointer, reflect.Slice, reflect.Map, reflect.Chan, reflect.Func, reflect.Interface, reflect.UnsafePointer:
		return path, t.Kind().String()
	case reflect.Array:
		return shares(t.Elem(), path+"[]")
	case reflect.Struct:
		for f := range t.Fields() {
			if field, kind = shares(f.Type, path+"."+f.Name); field != "" {
				return field, kind
			}
		}
	}
	return "", ""
}

// loses returns the first field of t that encoding/json would not bring back, and
// why.
func loses(t reflect.Type, path string, above []reflect.Type) (field, why string) {
	if f, method := promotes(t); method != "" {
		for other := range t.Fields() {
			if other.Name != f.Name {
				return path + "." + other.Name, fmt.Sprintf("the %s of the embedded %s is that of the whole %s", method, f.Name, t)
			}
		}
		return loses(f.Type, path+"."+f.Name, above)
	}
	if encodesItself(t) {
		return "", ""
	}
	if slices.Contains(above, t) {
		return "", "" // it is being looked at
	}
	above = append(above, t)
	switch t.Kind() {
	case reflect.Chan, reflect.Func, reflect.UnsafePointer, reflect.Complex64, reflect.Complex128:
		return path, "JSON has no " + t.Kind().String()
	case reflect.Interface:
		return path, "JSON does not say what is in an interface"
	case reflect.Pointer:
		return loses(t.Elem(), path, above)
	case reflect.Array, reflect.Slice:
		return loses(t.Elem(), path+"[]", above)
	case reflect.Map:
		return loses(t.Elem(), path+"[]", above)
	case reflect.Struct:
		for f := range t.Fields() {
			switch name, _, _ := strings.Cut(f.Tag.Get("json"), ","); {
			case f.Tag.Get("json") == "-" || name == "-" && !strings.Contains(f.Tag.Get("json"), ","):
				return path + "." + f.Name, "its tag leaves it out"
			case !f.IsExported() && !f.Anonymous:
				return path + "." + f.Name, "it is not exported"
			}
			if field, why = loses(f.Type, path+"."+f.Name, above); field != "" {
				return field, why
			}
		}
	}
	return "", ""
}

func encodesItself(t reflect.Type) bool {
	p := reflect.PointerTo(t)
	return p.Implements(reflect.TypeFor[json.Marshaler]()) && p.Implements(reflect.TypeFor[json.Unmarshaler]()) ||
		p.Implements(reflect.TypeFor[encoding.TextMarshaler]()) && p.Implements(reflect.TypeFor[encoding.TextUnmarshaler]())
}

// promotes returns the embedded field that t has its encoding or decoding from, and
// the method that does it: such a method knows nothing of t's other fields.
func promotes(t reflect.Type) (embedded reflect.StructField, method string) {
	if t.Kind() != reflect.Struct {
		return embedded, ""
	}
	p := reflect.PointerTo(t)
	// The names are constants at the calls, so that the linker need not keep every
	// method of a program. The methods for text count only without those for JSON.
	for _, pair := range []struct{ json, text coding }{
		{
			coding{reflect.TypeFor[json.Marshaler](), "MarshalJSON", func(t reflect.Type) (reflect.Method, bool) { return t.MethodByName("MarshalJSON") }},
			coding{reflect.TypeFor[encoding.TextMarshaler](), "MarshalText", func(t reflect.Type) (reflect.Method, bool) { return t.MethodByName("MarshalText") }},
		},
		{
			coding{reflect.TypeFor[json.Unmarshaler](), "UnmarshalJSON", func(t reflect.Type) (reflect.Method, bool) { return t.MethodByName("UnmarshalJSON") }},
			coding{reflect.TypeFor[encoding.TextUnmarshaler](), "UnmarshalText", func(t reflect.Type) (reflect.Method, bool) { return t.MethodByName("UnmarshalText") }},
		},
	} {
		c := pair.json
		if !p.Implements(c.by) {
			c = pair.text
		}
		if !p.Implements(c.by) || c.declared(t) || c.declared(p) {
			continue
		}
		for f := range t.Fields() {
			if f.Anonymous && (f.Type.Implements(c.by) || reflect.PointerTo(f.Type).Implements(c.by)) {
				return f, c.method
			}
		}
	}
	return embedded, ""
}

// A coding is a method by which encoding/json lets a type do its work.
type coding struct {
	by     reflect.Type // the interface
	method string
	find   func(reflect.Type) (reflect.Method, bool)
}

// declared reports whether t's own method is written out in some file. One that comes
// from an embedded field, or from the type that t points to, is made by the compiler.
func (c coding) declared(t reflect.Type) bool {
	m, ok := c.find(t)
	if !ok {
		return false
	}
	pc := m.Func.Pointer()
	file, _ := runtime.FuncForPC(pc).FileLine(pc)
	return file != "<autogenerated>"
}
