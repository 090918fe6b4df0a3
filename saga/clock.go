package saga

import (
	"context"
	"time"

	"github.com/dibs-go/dibs/internal/queuing"
)

// A sample is a reading of the store's clock, between two readings of this process's clock. Only
// the time since then is used, because the clock of the process may jump.
type sample struct {
	at            time.Time
	before, after time.Time
}

// sampleAge is how old another turn's sample may be if it is to show that a time has not come yet.
const sampleAge = time.Second

// readClock reads the store's clock.
func (l *life) readClock(ctx context.Context) error {
	s := &sample{before: time.Now()}
	var err error
	if s.at, err = l.store.Now(ctx); err != nil {
		return err
	}
	s.after = time.Now()
	l.clock = s
	l.sample.Store(s)
	return nil
}

// earliest returns a time that the store's clock has reached.
func (s *sample) earliest() time.Time { return s.at.Add(time.Since(s.after)) }

// soon returns a time that the store's clock has not passed yet, and a time that it has reached. If
// the store was slow, the first may be far ahead of the clock.
func (l *life) soon(ctx context.Context) (now, reached time.Time, err error) {
	if l.clock == nil {
		if err := l.readClock(ctx); err != nil {
			return now, reached, err
		}
	}
	now = l.clock.at.Add(time.Since(l.clock.before) + time.Microsecond) // the store's time is cut to microseconds
	return now, l.clock.earliest(), nil
}

// over reports whether a time has come by the store's clock. If not, the saga waits for it, or for
// less.
func (l *life) over(ctx context.Context, t time.Time) (bool, error) {
	shared := l.sample.Load()
	if l.clock == nil && (shared == nil || time.Since(shared.after) > sampleAge || !shared.earliest().Before(t)) {
		if err := l.readClock(ctx); err != nil {
			return false, err
		}
	}
	if l.clock != nil && !l.clock.earliest().Before(t) {
		return true, nil
	}
	l.waitUntil(t)
	return false, nil
}

// setsBack lets a waiting saga follow the store's clock if that was ahead, and reports whether the
// saga has to decide again. Otherwise times computed while the clock was ahead would come late by
// the same amount.
func (l *life) setsBack(ctx context.Context) (again bool, err error) {
	now := l.clock
	if now == nil {
		now = l.sample.Load() // that the time was held against
	}
	if now == nil || l.ended != "" || l.next.IsZero() || !l.latest.After(now.earliest().Add(queuing.ClockTolerance)) {
		return false, nil
	}
	if err := l.readClock(ctx); err != nil || !l.latest.After(l.clock.at.Add(queuing.ClockTolerance)) {
		return false, err
	}
	l.config.Logger.Warn().Str("saga", string(l.stream)).Stringer("by", l.latest.Sub(l.clock.at).Round(time.Millisecond)).Msg("the store's clock was ahead, or was set back")
	l.note(setBackEvent{From: l.latest.UnixMicro(), To: l.clock.at.UnixMicro()})
	return true, nil
}

// waitUntil has the saga wait until a time, or for less. The zero time is never.
func (l *life) waitUntil(t time.Time) {
	if !t.IsZero() && (l.next.IsZero() || t.Before(l.next)) {
		l.next = t
	}
}

// waitFor has the saga wait for d, or for less.
func (l *life) waitFor(ctx context.Context, d time.Duration) error {
	now, _, err := l.soon(ctx)
	if err == nil {
		l.waitUntil(now.Add(d))
	}
	return err
}

// pause returns how long nothing happens without a message, at least 0.
func (l *life) pause() time.Duration {
	now := l.clock
	if now == nil {
		now = l.sample.Load() // by which the time has not come
	}
	if now == nil {
		return 0
	}
	return max(l.next.Sub(now.earliest()), 0)
}
