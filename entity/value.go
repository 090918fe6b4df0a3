package entity

import (
	"encoding/json"
	"errors"
	"fmt"
	"reflect"
	"time"

	"github.com/dibs-go/dibs/messagestore"
)

// A cloner is an entity that copies itself, because a plain copy might share something with it.
type cloner[T any] interface{ Clone() T }

// clone returns a copy of entity that shares nothing with it; New has checked that this is
// possible.
func clone[T any](entity T) T {
	if c, ok := any(&entity).(cloner[T]); ok {
		return c.Clone()
	}
	return entity
}

// checkType returns the reason why a T cannot be an entity, or nil.
func checkType[T any](cached bool) error {
	t := reflect.TypeFor[T]()
	if t.Kind() == reflect.Pointer || t.Kind() == reflect.Interface {
		return invalidEntity(t.String(), "must be a value and not a pointer: the fold of an empty stream is the zero value")
	}
	if _, clones := reflect.TypeAssert[cloner[T]](reflect.New(t)); !cached || clones {
		return nil
	}
	if path, kind := shared(t, t.String()); path != "" {
		return invalidEntity(path, fmt.Sprintf("a copy would share this %s: give %s a method Clone, or turn the cache off", kind, t))
	}
	return nil
}

func invalidEntity(path, rule string) error {
	return messagestore.NewInvalidError("entity", path, rule)
}

// shared returns the first field of t that a plain copy would share with the original, and its
// kind. A time.Time has a pointer, but nothing is ever written through it.
func shared(t reflect.Type, path string) (field, kind string) {
	switch t.Kind() {
	case reflect.Pointer, reflect.Slice, reflect.Map, reflect.Chan, reflect.Func, reflect.Interface, reflect.UnsafePointer:
		return path, t.Kind().String()
	case reflect.Array:
		return shared(t.Elem(), path+"[]")
	case reflect.Struct:
		if t == reflect.TypeFor[time.Time]() {
			return "", ""
		}
		for f := range t.Fields() {
			if field, kind = shared(f.Type, path+"."+f.Name); field != "" {
				return field, kind
			}
		}
	}
	return "", ""
}

var errLossy = errors.New("the entity's JSON does not decode to an equal entity: a field is not exported, is left out by its tag, or has an encoding of another type")

// encode returns the JSON of entity, if it decodes to an equal entity.
func encode[T any](entity T) (json.RawMessage, error) {
	raw, err := json.Marshal(entity)
	if err != nil {
		return nil, err
	}
	var decoded T
	if err := json.Unmarshal(raw, &decoded); err != nil {
		return nil, err
	}
	if !reflect.DeepEqual(decoded, entity) {
		return nil, errLossy
	}
	return raw, nil
}
