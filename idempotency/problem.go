package idempotency

import (
	"encoding/json"
	"net/http"
	"strconv"
	"strings"
	"time"
)

// A Problem is the body of an answer from the middleware itself: RFC 9457,
// application/problem+json.
//
// Its type ends with the name in the header [ProblemHeader]:
//
//	key-missing          400  the request has no key
//	key-invalid          400  the header has no valid key
//	body-incomplete      400  the body did not arrive completely
//	fingerprint-missing  400  [Config.Fingerprint] finds nothing in the request that distinguishes it
//	                          from another with its key
//	client-unknown       401  the client is not known
//	in-progress          409  another request with the key is being handled, or was a moment ago.
//	                          Retry-After says when to send it again
//	response-not-kept    409  the request is done, and its response was too large to keep, or was
//	                          removed. If it was too large, the first request has this answer too
//	length-required      411  a body without a declared length is empty, as it would be if it was read
//	                          in front of the middleware
//	body-too-large       413
//	key-reused           422  the key was used for another request
//	body-read            500  something in front of the middleware read the body, and did not put it
//	                          back
//	response-corrupt     500  the stored response cannot be read
//	handler-failed       500  the handler wrote less than it had declared, or a response with more than
//	                          MaxResponse bytes and a status that is not kept. The request may be sent
//	                          again
//	unavailable          503  the middleware cannot tell now whether the request is a repeat, or cannot
//	                          store its outcome. Retry-After says when to send it again
type Problem struct {
	// Type is the name of the problem, for programs: a URI that ends with #problem-in-progress, for example.
	Type string `json:"type"`
	// Title is the same in words. Status is the status of the answer.
	Title  string `json:"title"`
	Status int    `json:"status"`
	// Detail is about this request.
	Detail string `json:"detail,omitempty"`
}

// ProblemHeader is the name of the response header by which a middleware recognises an answer from
// another middleware: it has the end of the problem's type, such as in-progress. A failure with
// this header is never stored, because the next answer may be different.
const ProblemHeader = "Idempotency-Problem"

// The types of problems: see [Problem].
const (
	problemKeyMissing     = problems + "key-missing"
	problemKeyInvalid     = problems + "key-invalid"
	problemScope          = problems + "client-unknown"
	problemBody           = problems + "body-incomplete"
	problemFingerprint    = problems + "fingerprint-missing"
	problemBodyRead       = problems + "body-read"
	problemLengthRequired = problems + "length-required"
	problemBodyTooLarge   = problems + "body-too-large"
	problemInProgress     = problems + "in-progress"
	problemKeyReused      = problems + "key-reused"
	problemNotKept        = problems + "response-not-kept"
	problemCorrupt        = problems + "response-corrupt"
	problemUnavailable    = problems + "unavailable"
	problemHandler        = problems + "handler-failed"
)

const problems = "https://github.com/dibs-go/dibs/blob/main/docs/intents.md#problem-"

var titles = map[string]string{
	problemKeyMissing:     "Idempotency-Key is missing",
	problemKeyInvalid:     "Idempotency-Key is invalid",
	problemScope:          "The client is not known",
	problemBody:           "The body is incomplete",
	problemFingerprint:    "The request has no fingerprint",
	problemBodyRead:       "The body was read before it could be compared",
	problemLengthRequired: "An empty body needs its length",
	problemBodyTooLarge:   "The body is too large",
	problemInProgress:     "A request with this Idempotency-Key is in progress",
	problemKeyReused:      "Idempotency-Key was used for another request",
	problemNotKept:        "The request is done, and its response was not kept",
	problemCorrupt:        "The stored response cannot be read",
	problemUnavailable:    "The request cannot be handled now",
	problemHandler:        "The request has no whole response",
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

// refuseFor answers with a temporary problem.
func refuseFor(w http.ResponseWriter, status int, kind, detail string, after time.Duration) {
	w.Header().Set("Retry-After", strconv.FormatInt(seconds(after), 10))
	refuse(w, status, kind, detail)
}

// seconds rounds up, to at least 1.
func seconds(d time.Duration) int64 {
	return max(1, int64((d+time.Second-1)/time.Second))
}
