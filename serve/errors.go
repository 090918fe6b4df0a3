package serve

import (
	"context"
	"errors"
	"strings"
	"time"

	"connectrpc.com/connect"
	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/dibs-go/dibs/intent"
	"github.com/dibs-go/dibs/internal/waiting"
	"github.com/dibs-go/dibs/messagestore"
	"github.com/dibs-go/dibs/queue"
)

// The reasons in the ErrorInfo of an error with the code unavailable. The remedy for each is to
// send the call again; while a server drains, to another one.
const (
	reasonStore    = "STORE_UNAVAILABLE"
	reasonUnknown  = "OUTCOME_UNKNOWN"
	reasonDraining = "DRAINING"
)

// preconditions are the errors with the code failed_precondition, by the reasons in their ErrorInfo.
var preconditions = map[string]error{
	"QUEUE_REMOVED":   queue.ErrRemoved,
	"TOO_MANY_QUEUES": queue.ErrTooManyQueues,
	"INTENT_DONE":     intent.ErrDone,
	"STREAM_DELETED":  messagestore.ErrDeleted,
	"NOT_PERMITTED":   messagestore.ErrNotPermitted, // to the server, by the database
}

// What ends a call that waits.
var (
	errDraining = newError(connect.CodeUnavailable, reasonDraining, errors.New("the server stops: send the call again"))
	errExpired  = newError(connect.CodeUnauthenticated, "", errors.New("the key has ended"))
	errRevoked  = newError(connect.CodeUnauthenticated, "", errors.New("the key was revoked"))
)

func newError(code connect.Code, reason string, err error, details ...proto.Message) *connect.Error {
	e := connect.NewError(code, err)
	if reason != "" {
		details = append(details, &errdetails.ErrorInfo{Reason: reason, Domain: "dibs"})
	}
	for _, detail := range details {
		if d, err := connect.NewErrorDetail(detail); err == nil {
			e.AddDetail(d)
		}
	}
	return e
}

// exhausted refuses a call that the server could carry out later.
func exhausted(what string, later time.Duration) *connect.Error {
	return newError(connect.CodeResourceExhausted, "", errors.New(what), &errdetails.RetryInfo{RetryDelay: durationpb.New(later)})
}

// invalid refuses a field of a request, by the name that it has in the .proto files.
func invalid(field string, value any, rule string) error {
	return fail(messagestore.NewInvalidError(field, value, rule))
}

// fail returns an error of the library as one with a code, and with details that a program can
// read.
func fail(err error) error {
	var (
		coded   *connect.Error
		refused *messagestore.InvalidError
	)
	switch {
	case err == nil:
		return nil
	case errors.As(err, &coded):
		return coded
	case errors.Is(err, messagestore.ErrOutcomeUnknown): // before all others: an earlier attempt may have written
		return newError(connect.CodeUnavailable, reasonUnknown, &hidden{"the store's answer was lost: send the call again", err})
	case errors.As(err, &refused):
		return newError(connect.CodeInvalidArgument, "", err, violation(refused))
	case errors.Is(err, messagestore.ErrInvalid):
		return connect.NewError(connect.CodeInvalidArgument, err)
	case errors.Is(err, messagestore.ErrNotFound):
		return connect.NewError(connect.CodeNotFound, err)
	case errors.Is(err, messagestore.ErrIDConflict):
		return connect.NewError(connect.CodeAlreadyExists, errors.New("the id is there, with other content"))
	case errors.Is(err, messagestore.ErrNotSupported):
		return connect.NewError(connect.CodeUnimplemented, err)
	case errors.Is(err, intent.ErrCorrupt):
		return connect.NewError(connect.CodeDataLoss, err)
	case errors.Is(err, context.Canceled):
		return connect.NewError(connect.CodeCanceled, err)
	case errors.Is(err, context.DeadlineExceeded):
		return connect.NewError(connect.CodeDeadlineExceeded, err)
	}
	for reason, kind := range preconditions {
		if errors.Is(err, kind) {
			return newError(connect.CodeFailedPrecondition, reason, err)
		}
	}
	if waiting.Lasts(err) { // the same call would fail again
		return connect.NewError(connect.CodeInternal, &hidden{"the server cannot do this: its log says why", err})
	}
	return newError(connect.CodeUnavailable, reasonStore, &hidden{"the store does not answer now", err})
}

// violation returns the detail that names a refused field.
func violation(e *messagestore.InvalidError) *errdetails.BadRequest {
	return &errdetails.BadRequest{FieldViolations: []*errdetails.BadRequest_FieldViolation{{Field: fieldOf(e.Field), Description: e.Rule + ": " + e.Value}}}
}

// A hidden error has a text for clients, who need not know where the store is, and a cause for the
// log.
type hidden struct {
	text  string
	cause error
}

func (e *hidden) Error() string { return e.text }

// wireNames are the fields of the .proto files by the names that they have in the library.
var wireNames = map[string]string{
	"TTL": "ttl", "Wait": "max_wait", "VisibilityTimeout": "visibility_timeout", "RepeatOnly": "repeat_only", "content": "content_json", "result": "result_json", "data": "data_json", "metadata": "metadata_json",
	"stream name": "stream", "category name": "category", "queue name": "queue.queue", "Name": "queue.queue", "fencing token": "lease.fencing_token", "session": "session_id",
	"ID": "id", "Key": "key", "Unique": "unique", "UniqueUntil": "unique_until", "ScheduledAt": "schedule_time", "Delay": "delay", "Error": "error", "message type": "type",
	"MaxFailures": "policy.max_failures", "MaxOut": "policy.max_out", "Rate": "policy.rate", "Burst": "policy.burst",
}

// fieldOf returns the name that a field of the library has in the .proto files.
func fieldOf(name string) string {
	if wire, ok := wireNames[name]; ok {
		return wire
	}
	if i := strings.LastIndexByte(name, '.'); i >= 0 { // for example settlements[3].Delay
		return name[:i+1] + fieldOf(name[i+1:])
	}
	return strings.ReplaceAll(name, " ", "_")
}
