package client

import (
	"context"
	"errors"
	"net"
	"regexp"

	"connectrpc.com/connect"
	"google.golang.org/genproto/googleapis/rpc/errdetails"

	"github.com/dibs-go/dibs/intent"
	"github.com/dibs-go/dibs/internal/calling"
	"github.com/dibs-go/dibs/messagestore"
	"github.com/dibs-go/dibs/queue"
)

// libraryError returns the error of an attempt at a call as the library would return it in the
// server's place, and still as a [*connect.Error]. If the call was a write, and the server may have
// written, it matches [messagestore.ErrOutcomeUnknown].
func libraryError(err error, write bool) error {
	if err == nil {
		return nil
	}
	var kind error
	if coded, ok := errors.AsType[*connect.Error](err); ok {
		kind = kindOf(coded)
	}
	if write && !isDefinite(err) {
		kind = errors.Join(messagestore.ErrOutcomeUnknown, kind)
	}
	if kind == nil {
		return err
	}
	return &wireError{kind, err}
}

// A wireError is an error of the library that came by a call. Its text is the server's.
type wireError struct {
	kind error // of the library
	err  error
}

// Error returns the text that came.
func (e *wireError) Error() string { return e.err.Error() }

// Unwrap returns the error of the library, and the one that came.
func (e *wireError) Unwrap() []error { return []error{e.kind, e.err} }

// kindOf returns the error of the library that package serve sends with this code, or nil.
func kindOf(err *connect.Error) error {
	switch err.Code() {
	case connect.CodeInvalidArgument:
		return refusal(err)
	case connect.CodeUnauthenticated, connect.CodePermissionDenied:
		return messagestore.ErrNotPermitted
	case connect.CodeNotFound:
		return messagestore.ErrNotFound
	case connect.CodeAlreadyExists:
		return messagestore.ErrIDConflict
	case connect.CodeFailedPrecondition:
		return preconditions[reasonOf(err)]
	case connect.CodeUnimplemented:
		if connect.IsWireError(err) { // else it is a 404 of something in front of the server
			return messagestore.ErrNotSupported
		}
	case connect.CodeDataLoss:
		return intent.ErrCorrupt
	case connect.CodeDeadlineExceeded:
		return context.DeadlineExceeded
	case connect.CodeResourceExhausted:
		if _, later := detail[*errdetails.RetryInfo](err); later {
			return nil
		}
		return refusal(err) // the request is too large
	case connect.CodeInternal:
		if connect.IsWireError(err) {
			return calling.ErrLasting
		}
	}
	return nil
}

// preconditions are the errors of the library by their reasons.
var preconditions = map[string]error{
	"QUEUE_REMOVED":   queue.ErrRemoved,
	"TOO_MANY_QUEUES": queue.ErrTooManyQueues,
	"INTENT_DONE":     intent.ErrDone,
	"STREAM_DELETED":  messagestore.ErrDeleted,
	"NOT_PERMITTED":   messagestore.ErrNotPermitted,
}

// refusal returns the refused field, its rule and its value, as far as the server tells them.
func refusal(err *connect.Error) error {
	bad, ok := detail[*errdetails.BadRequest](err)
	if !ok || len(bad.GetFieldViolations()) == 0 {
		return messagestore.ErrInvalid
	}
	v := bad.GetFieldViolations()[0]
	refused := &messagestore.InvalidError{Field: v.GetField(), Rule: v.GetDescription(), Index: -1}
	if parts := ruleAndValue.FindStringSubmatch(v.GetDescription()); parts != nil {
		refused.Rule, refused.Value = parts[1], parts[2]
	}
	return refused
}

// ruleAndValue matches a description: a rule, and a value as [messagestore.NewInvalidError] quotes
// it.
var ruleAndValue = regexp.MustCompile(`(?s)^(.*?): ((?:"(?:[^"\\]|\\.)*"(?:… \(\d+ bytes\))?|-?\d+|true|false)?)$`)

// reasonOf returns the reason in an error's details, or "".
func reasonOf(err *connect.Error) string {
	info, _ := detail[*errdetails.ErrorInfo](err)
	return info.GetReason()
}

// detail returns the first detail of type T.
func detail[T any](err *connect.Error) (found T, ok bool) {
	for _, d := range err.Details() {
		if v, err := d.Value(); err == nil {
			if found, ok = v.(T); ok {
				return found, true
			}
		}
	}
	return found, false
}

// isDefinite reports whether a call that failed has written nothing.
func isDefinite(err error) bool {
	coded, ok := errors.AsType[*connect.Error](err)
	switch {
	case !ok:
		return false
	case !connect.IsWireError(err): // the client's own: no answer came
		dial, ok := errors.AsType[*net.OpError](err)
		return ok && dial.Op == "dial"
	}
	switch coded.Code() {
	case connect.CodeUnavailable:
		reason := reasonOf(coded)
		return reason == "STORE_UNAVAILABLE" || reason == "DRAINING"
	case connect.CodeCanceled, connect.CodeDeadlineExceeded, connect.CodeUnknown, connect.CodeAborted: // a proxy's, perhaps
		return false
	}
	return true
}
