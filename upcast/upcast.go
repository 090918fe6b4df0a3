// Package upcast reads messages that were written in an older form of a body: under an earlier name
// of the type, or with other fields. Stored messages are never changed; the older form is turned
// into the current one whenever a message is read.
//
//	handler.On(mux, seats.hold,
//		upcast.Named[HoldSeat]("ReserveSeat"),
//		upcast.From(func(old HoldSeatV1) HoldSeat { return HoldSeat{Seat: old.Row + old.Number} }))
//
//	entity.On(seat, func(s Seat, e SeatHeld) Seat { ... }, upcast.Named[SeatHeld]("SeatReserved"))
//
// Handlers and projections accept the same forms, registered with the function for the current
// type: see package handler and package entity.
package upcast

import (
	"errors"
	"fmt"
	"reflect"

	"github.com/dibs-go/dibs/internal/text"
	"github.com/dibs-go/dibs/messagestore"
)

// A Form is a form that messages of the body T have, or had. It is a value, and safe for concurrent
// use if its function is.
type Form[T messagestore.Body] struct {
	name   string
	goType string // into which the data is decoded
	decode func(*messagestore.Message) (T, error)
	err    error // the constructor's mistake
	raw    bool
}

// Named returns the form of T under an older message type. The fields are T's.
func Named[T messagestore.Body](messageType string) Form[T] {
	form := Form[T]{name: messageType, goType: reflect.TypeFor[T]().String()}
	present, err := typeOf[T]()
	if form.err = err; err == nil {
		form.err = checkName(messageType)
	}
	form.decode = func(m *messagestore.Message) (T, error) {
		renamed := *m
		renamed.Type = present
		body, err := messagestore.Decode[T](&renamed)
		return body, fit(err)
	}
	return form
}

// From returns the form of T with the message type and the fields of Old, which f turns into a T.
// The result of f must depend only on its argument: f is called again whenever the same message is
// read.
func From[Old, T messagestore.Body](f func(old Old) T) Form[T] {
	form := Form[T]{goType: reflect.TypeFor[Old]().String()}
	if form.name, form.err = typeOf[Old](); form.err == nil && f == nil {
		form.err = invalid(form.name, "the function must not be nil")
	}
	form.decode = func(m *messagestore.Message) (T, error) {
		old, err := messagestore.Decode[Old](m)
		if err != nil {
			var none T
			return none, fit(err)
		}
		return f(old), nil
	}
	return form
}

// Raw returns a form of T that f makes from the stored message: from its data as JSON, or from its
// metadata. An error of f counts as a decoding error. The message type may be T's own: f then reads
// all messages of T, and may distinguish their forms by [messagestore.Metadata.SchemaVersion].
func Raw[T messagestore.Body](messageType string, f func(m *messagestore.Message) (T, error)) Form[T] {
	form := Form[T]{name: messageType, goType: reflect.TypeFor[T]().String(), decode: f, raw: true}
	if form.err = checkName(messageType); form.err == nil && f == nil {
		form.err = invalid(messageType, "the function must not be nil")
	}
	return form
}

// Forms returns the current form of T and the older ones: all forms that a reader of T registers.
// The error is a [*messagestore.InvalidError] that names the form. Each type occurs once; the
// current form is older[i] if that is [Raw] under T's own type.
func Forms[T messagestore.Body](older ...Form[T]) ([]Form[T], error) {
	goType := reflect.TypeFor[T]().String()
	present, err := typeOf[T]()
	if err != nil {
		return nil, err
	}
	forms := []Form[T]{{name: present, goType: goType, decode: func(m *messagestore.Message) (T, error) {
		body, err := messagestore.Decode[T](m)
		return body, fit(err)
	}}}
	seen := map[string]bool{}
	for _, form := range older {
		switch {
		case form.err != nil:
			return nil, form.err
		case form.decode == nil:
			return nil, invalid("", fmt.Sprintf("must not be the zero Form: use Named, From or Raw to make one of %s", goType))
		case seen[form.name]:
			return nil, invalid(form.name, "must not be given twice")
		case form.name != present:
			forms = append(forms, form)
		case form.raw:
			forms[0] = form
		default:
			return nil, invalid(form.name, fmt.Sprintf("must not be the type of %s itself: use Raw to read all of its messages", goType))
		}
		seen[form.name] = true
	}
	return forms, nil
}

// Type returns the message type of the form.
func (f Form[T]) Type() string { return f.name }

// GoType returns the name of the Go type into which the data of the message is decoded.
func (f Form[T]) GoType() string { return f.goType }

// Decode returns the body of m, which has the form's type, as a T. The error says why the data does
// not fit, and does not name m.
func (f Form[T]) Decode(m *messagestore.Message) (T, error) { return f.decode(m) }

// fit returns the reason why a body does not fit, without the message's name, which the reader
// adds.
func fit(err error) error {
	if err == nil {
		return nil
	}
	return errors.Unwrap(err)
}

func checkName(messageType string) error {
	if rule := text.TypeRule(messageType); rule != "" {
		return invalid(messageType, rule)
	}
	return nil
}

func invalid(messageType, rule string) error {
	var value any
	if messageType != "" {
		value = messageType
	}
	return messagestore.NewInvalidError("older form", value, rule)
}

// typeOf returns the message type of T, from its zero value. A function for messages of type T is
// registered under it.
//
// If T does not have a type, the error is a [*messagestore.InvalidError] that matches
// [messagestore.ErrInvalid] and names T: for an interface, for a pointer whose MessageType
// dereferences it, and for a type without a valid message type in its zero value, such as
// [messagestore.Raw].
func typeOf[T messagestore.Body]() (messageType string, err error) {
	goType := reflect.TypeFor[T]().String()
	defer func() {
		if recover() != nil {
			messageType, err = "", messagestore.NewInvalidError("message type of", goType,
				"must have a zero value whose MessageType does not panic: handle a struct, or do not dereference the pointer")
		}
	}()
	var zero T
	messageType = zero.MessageType()
	if text.TypeRule(messageType) != "" {
		return "", messagestore.NewInvalidError("message type of", goType,
			fmt.Sprintf("must have a zero value with a valid message type, and it is %.48q", messageType))
	}
	return messageType, nil
}
