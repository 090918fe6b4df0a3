package messagestore

import (
	"math"
	"strconv"
)

// A Version is a place in a stream: of a message, its position; of a stream,
// the position of its last message.
type Version int64

const (
	// NoStream is the version of a stream with no messages. Writing with it is an initial
	// write: of any number of writers one succeeds, once.
	NoStream Version = -1

	// AnyVersion turns the check off. The zero Version is not it: a version left
	// out of a write by mistake expects one message, and conflicts.
	AnyVersion Version = -2

	// StreamExists expects a stream with a message, at whatever version. A stream without messages
	// conflicts, and so does a deleted stream: only its tombstone is left of it. The name and the
	// number are EventStoreDB's.
	StreamExists Version = -4

	// EndOfStream is where [Store.ReadStreamBackwards] starts for the whole stream.
	EndOfStream Version = math.MaxInt64
)

// String returns the version in words or digits, as error texts show it.
func (v Version) String() string {
	switch v {
	case NoStream:
		return "no stream"
	case AnyVersion:
		return "any version"
	case StreamExists:
		return "an existing stream"
	}
	return strconv.FormatInt(int64(v), 10)
}

// A GlobalPosition is a category's cursor: a number that grows from message to
// message of one category, in the order in which they were committed. It is not
// dense, and two of them from different categories say nothing about each other.
// The first is at least 1, so 0 reads from the start.
type GlobalPosition int64

// Next returns the position from which to go on after p.
func (p GlobalPosition) Next() GlobalPosition {
	if p == math.MaxInt64 {
		return p
	}
	return p + 1
}
