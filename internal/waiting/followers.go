package waiting

import (
	"context"
	"iter"
	"slices"
	"time"

	"github.com/dibs-go/dibs/messagestore"
)

// A Reader reads a stream from its end.
type Reader interface {
	ReadStreamBackwards(ctx context.Context, stream messagestore.StreamName, from messagestore.Version) iter.Seq2[*messagestore.Message, error]
}

// FollowersIn returns the messages of stream that satisfy is, in their order. It only reads
// messages after a global position, because a message is later than its cause.
func FollowersIn(ctx context.Context, store Reader, stream messagestore.StreamName, after messagestore.GlobalPosition, is func(*messagestore.Message) bool) ([]*messagestore.Message, error) {
	var found []*messagestore.Message
	for m, err := range store.ReadStreamBackwards(ctx, stream, messagestore.EndOfStream) {
		if err != nil {
			return nil, err
		}
		if m.GlobalPosition <= after {
			break
		}
		if is(m) {
			found = append(found, m)
		}
	}
	slices.Reverse(found)
	return found, nil
}

// A Watcher reports writes: a [messagestore.Store].
type Watcher interface {
	Watch(category messagestore.Category, interval time.Duration) (<-chan messagestore.GlobalPosition, func())
}

// WatchStreams returns a channel that receives after writes to the categories of streams, by
// wake-ups or after at most interval, until stop is called.
func WatchStreams(store Watcher, interval time.Duration, streams ...messagestore.StreamName) (changed <-chan struct{}, stop func()) {
	told, left := make(chan struct{}, 1), make(chan struct{})
	var watched []messagestore.Category
	stops := []func(){func() { close(left) }}
	for _, name := range streams {
		if slices.Contains(watched, name.Category()) {
			continue
		}
		watched = append(watched, name.Category())
		bell, end := store.Watch(name.Category(), interval)
		stops = append(stops, end)
		go func() {
			for {
				select {
				case <-bell:
				case <-left:
					return
				}
				select {
				case told <- struct{}{}:
				default: // it is about to be read
				}
			}
		}()
	}
	return told, func() {
		for _, end := range slices.Backward(stops) {
			end()
		}
	}
}
