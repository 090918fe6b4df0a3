package messagestore

import (
	"fmt"
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

// existsBelow is the number from which [Version.Below] counts down, far from the versions that are
// mistakes for others.
const existsBelow Version = -1 << 40

// Below returns, for [StreamExists] alone, a version that also expects the stream to be at a
// version below a bound of 1 to 1<<40: for messages of which a stream is to have so many at most,
// whoever writes them. With another bound, or of another version, it is no version, and refused.
func (v Version) Below(bound Version) Version {
	if v != StreamExists || bound < 1 || bound > -existsBelow {
		return existsBelow // which is none
	}
	return existsBelow - bound
}

// Exists reports whether v is [StreamExists], with a bound or without one, and then whether a
// stream at an actual version is within its bound.
func (v Version) Exists(actual Version) (is, within bool) {
	if v == StreamExists {
		return true, true
	}
	is = v < existsBelow && v >= 2*existsBelow
	return is, is && actual < existsBelow-v
}

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
	if is, _ := v.Exists(NoStream); is {
		return fmt.Sprintf("an existing stream below version %d", int64(existsBelow-v))
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
