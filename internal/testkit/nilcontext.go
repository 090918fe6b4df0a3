package testkit

import (
	"context"
	"reflect"
)

// NilContext calls each method of v whose first parameter is a context with nil, and with pointers to
// zero values or zero values for the others. It returns the errors of the methods, by name: nil for a
// method without one.
func NilContext(v any) map[string]error {
	errs := map[string]error{}
	of := reflect.ValueOf(v)
	for i := range of.NumMethod() {
		method := of.Method(i).Type()
		if method.NumIn() == 0 || method.In(0) != reflect.TypeFor[context.Context]() {
			continue
		}
		in := []reflect.Value{reflect.Zero(method.In(0))}
		for j := 1; j < method.NumIn() && (!method.IsVariadic() || j < method.NumIn()-1); j++ {
			arg := reflect.Zero(method.In(j))
			if p := method.In(j); p.Kind() == reflect.Pointer {
				arg = reflect.New(p.Elem())
			}
			in = append(in, arg)
		}
		name := of.Type().Method(i).Name
		errs[name] = nil
		for _, out := range of.Method(i).Call(in) {
			if err, is := reflect.TypeAssert[error](out); is {
				errs[name] = err
			}
		}
	}
	return errs
}
