package idempotency

import (
	"encoding/json"
	"net/http"
	"strconv"
	"strings"
	"time"
)

// A Problem is the body of an answer that the middleware gives by itself: RFC 9457,
// application/problem+json.
type Problem struct {
	// Type is the name of the problem, for programs: one of the constants.
	Type string `json:"type"`
	// Title is the same in words. Status is the answer's.
	Title  string `json:"title"`
	Status int    `json:"status"`
	// Detail is about this request.
	Detail string `json:"detail,omitempty"`
}

// ProblemHeader is the name of the response header by which a middleware knows an answer that another
// one gave by itself: it has the end of the problem's type, such as in-progress. A failure with it is
// never stored, since the next one may be another.
const ProblemHeader = "Idempotency-Problem"

// The types of problems.
const (
	// ProblemKeyMissing is the type of 400: the request has no key.
	ProblemKeyMissing = problems + "key-missing"
	// ProblemKeyInvalid is the type of 400: the header holds no key.
	ProblemKeyInvalid = problems + "key-invalid"
	// ProblemScope is the type of 401: the client is not known.
	ProblemScope = problems + "client-unknown"
	// ProblemBody is the type of 400: the body did not come whole.
	ProblemBody = problems + "body-incomplete"
	// ProblemFingerprint is the type of 400: [Config.Fingerprint] finds nothing in the request by which it
	// could be told from another with its key.
	ProblemFingerprint = problems + "fingerprint-missing"
	// ProblemBodyRead is the type of 500: something in front of the middleware read the body, and
	// did not put it back.
	ProblemBodyRead = problems + "body-read"
	// ProblemLengthRequired is the type of 411: a body of no declared length is empty, as one would
	// be that was read in front of the middleware.
	ProblemLengthRequired = problems + "length-required"
	// ProblemBodyTooLarge is the type of 413.
	ProblemBodyTooLarge = problems + "body-too-large"
	// ProblemInProgress is the type of 409: another request with the key is at work, or was a
	// moment ago. Retry-After says when to send it again.
	ProblemInProgress = problems + "in-progress"
	// ProblemKeyReused is the type of 422: the key was used for another request.
	ProblemKeyReused = problems + "key-reused"
	// ProblemNotKept is the type of 409: the request is done, and its response was too large to
	// keep, or was removed. Where it was too large, the first request has this answer too.
	ProblemNotKept = problems + "response-not-kept"
	// ProblemCorrupt is the type of 500: the stored response cannot be read.
	ProblemCorrupt = problems + "response-corrupt"
	// ProblemUnavailable is the type of 503: the request cannot be told from a repeat now, or
	// its outcome cannot be stored. Retry-After says when to send it again.
	ProblemUnavailable = problems + "unavailable"
	// ProblemHandler is the type of 500: the handler gave less than it had declared, or a response
	// of a status that is not kept had more than MaxResponse bytes. The request may be sent again.
	ProblemHandler = problems + "handler-failed"
)

const problems = "https://github.com/dibs-go/dibs/blob/main/docs/intents.md#problem-"

var titles = map[string]string{
	ProblemKeyMissing:     "Idempotency-Key is missing",
	ProblemKeyInvalid:     "Idempotency-Key is invalid",
	ProblemScope:          "The client is not known",
	ProblemBody:           "The body is incomplete",
	ProblemFingerprint:    "The request has no fingerprint",
	ProblemBodyRead:       "The body was read before it could be compared",
	ProblemLengthRequired: "An empty body needs its length",
	ProblemBodyTooLarge:   "The body is too large",
	ProblemInProgress:     "A request with this Idempotency-Key is in progress",
	ProblemKeyReused:      "Idempotency-Key was used for another request",
	ProblemNotKept:        "The request is done, and its response was not kept",
	ProblemCorrupt:        "The stored response cannot be read",
	ProblemUnavailable:    "The request cannot be handled now",
	ProblemHandler:        "The request has no whole response",
}

// refuse answers with a problem.
func refuse(w http.ResponseWriter, status int, kind, detail string) {
	text, err := json.Marshal(Problem{Type: kind, Title: titles[kind], Status: status, Detail: detail})
	if err != nil {
		text = nil // cannot be: these are texts and a number
	}
	header := w.Header()
	header.Set("Content-Type", "application/problem+json")
	header.Set(ProblemHeader, strings.TrimPrefix(kind, problems))
	header.Set("Content-Length", strconv.Itoa(len(text)))
	w.WriteHeader(status)
	_, _ = w.Write(text) // the client may be gone
}

// refuseFor answers with a problem that passes.
func refuseFor(w http.ResponseWriter, status int, kind, detail string, after time.Duration) {
	w.Header().Set("Retry-After", strconv.FormatInt(seconds(after), 10))
	refuse(w, status, kind, detail)
}

// seconds rounds up, to 1 at least.
func seconds(d time.Duration) int64 {
	return max(1, int64((d+time.Second-1)/time.Second))
}
