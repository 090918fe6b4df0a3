// Package messagetype tells the message type of a Go type, for the packages that register functions
// by it.
package messagetype

import (
	"fmt"
	"reflect"

	"github.com/dibs-go/dibs/internal/text"
	"github.com/dibs-go/dibs/messagestore"
)

// Of returns the message type of T, as its zero value tells it. A function for messages of
// type T is registered under it.
//
// A T that cannot tell is refused with an [*messagestore.InvalidError] that matches
// [messagestore.ErrInvalid] and names T: an interface, a pointer whose MessageType dereferences it, or a
// type whose zero value's message type is not valid, such as [messagestore.Raw].
func Of[T messagestore.Body]() (messageType string, err error) {
	goType := reflect.TypeFor[T]().String()
	defer func() {
		if recover() != nil {
			messageType, err = "", messagestore.NewInvalidError("message type of", goType,
				"its zero value cannot tell its message type: handle a struct, or let MessageType not look into the pointer")
		}
	}()
	var zero T
	messageType = zero.MessageType()
	if text.TypeRule(messageType) != "" {
		return "", messagestore.NewInvalidError("message type of", goType,
			fmt.Sprintf("its zero value's message type, %.48q, is not a valid one", messageType))
	}
	return messageType, nil
}
