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
	// NoStream is the version of a stream with no messages. Writing with it is an initial write: of
	// any number of writers, one succeeds.
	NoStream Version = -1

	// AnyVersion turns the check off. It is not the zero Version: a write that leaves out the
	// version by mistake expects one message, and conflicts.
	AnyVersion Version = -2

	// StreamExists expects a stream with a message, at any version. A stream without messages
	// conflicts, and so does a deleted stream: only its tombstone is left of it. The name and the
	// number are EventStoreDB's.
	StreamExists Version = -4

	// EndOfStream is where [Store.ReadStreamBackwards] starts for the whole stream.
	EndOfStream Version = math.MaxInt64
)

// existsBelow is the number from which [Version.Below] counts down, far from the versions that are
// mistakes for others.
const existsBelow Version = -1 << 40

// Below returns a version that expects the stream to exist at a version below bound, so that
// writers can limit how many messages a stream gets. It is for [StreamExists] only, with a bound of
// 1 to 1<<40; otherwise the result is invalid and a write refuses it.
func (v Version) Below(bound Version) Version {
	if v != StreamExists || bound < 1 || bound > -existsBelow {
		return existsBelow // which is none
	}
	return existsBelow - bound
}

// Exists reports whether v is [StreamExists], with or without a bound, and if so whether the actual
// version of a stream is below the bound.
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

// A GlobalPosition is the place of a message in its category: a number that grows from message to
// message, in the order in which they were committed. It has gaps, and positions of different
// categories cannot be compared. The first is at least 1, so 0 reads from the start.
type GlobalPosition int64

// Next returns the position at which to go on after p.
func (p GlobalPosition) Next() GlobalPosition {
	if p == math.MaxInt64 {
		return p
	}
	return p + 1
}
