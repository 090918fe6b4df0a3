package queuestate

import (
	"math"
	"time"

	"github.com/dibs-go/dibs/internal/queuing"
	"github.com/dibs-go/dibs/internal/text"
	"github.com/dibs-go/dibs/messagestore"
)

// Invalid arguments that would break the state of a queue are refused before anything is read, as
// in the functions of package migrations.

func refuse(field string, value any, rule string) error {
	return messagestore.NewInvalidError(field, value, rule)
}

// CheckQueue refuses an invalid name or category.
func CheckQueue(q queuing.Queue) error { return queuing.ValidateQueue(q) }

func checkSession(q queuing.Queue, session int64, lease time.Duration) error {
	if err := CheckQueue(q); err != nil {
		return err
	}
	if session < 1 {
		return refuse("session", session, "must be more than 0")
	}
	if lease < queuing.MinLease || lease > queuing.MaxLease {
		return refuse("lease", lease, "must be between 10ms and 24h")
	}
	return nil
}

// CheckTake refuses an invalid take.
func CheckTake(t queuing.Take) error {
	if err := checkSession(t.Queue, t.Session, t.Lease); err != nil {
		return err
	}
	switch {
	case t.Want < 0 || t.Want > queuing.MaxItems:
		return refuse("want", t.Want, "must be between 0 and 1000")
	case t.Wait < 0 || t.Wait > queuing.MaxWait:
		return refuse("wait", t.Wait, "must be between 0s and 15m")
	case t.MaxFailures < 1 || t.MaxFailures > queuing.MaxFailures:
		return refuse("max failures", t.MaxFailures, "must be between 1 and 32767")
	case t.MaxOut < 0:
		return refuse("max out", t.MaxOut, "must be at least 1, or 0 for no limit")
	case !(t.Rate >= 0) || math.IsInf(t.Rate, 0): // not a number is neither
		return refuse("rate", t.Rate, "must be more than 0 and finite, or 0 for no limit")
	case t.Rate > 0 && t.Burst < 1:
		return refuse("burst", t.Burst, "must be at least 1")
	case len(t.Finishes) > queuing.MaxItems:
		return refuse("finishes", len(t.Finishes), "must be at most 1000")
	case len(t.Wakes) > queuing.MaxWakes:
		return refuse("wakes", len(t.Wakes), "must be at most 100")
	case len(t.Wakes) > 0 && t.Slots != 0:
		return refuse("slots", t.Slots, "must be 0 for a queue of streams")
	case len(t.Resume) > queuing.MaxResume || len(t.Resume) > 0 && (len(t.Wakes) > 0 || t.Slots != 0):
		return refuse("resume", len(t.Resume), "must be at most 100 sessions, and none of a queue of streams or of parked messages")
	}
	for _, session := range t.Resume {
		if session < 1 || session == t.Session {
			return refuse("resume", session, "must be another session")
		}
	}
	if len(t.Others) > 0 && (t.Want == 0 || t.Wants() > queuing.MaxItems || len(t.Wakes)+len(t.Resume) > 0 || t.Slots != 0) {
		return refuse("others", len(t.Others), "must want at most 1000 items with the caller, and be none of a queue of streams or of parked messages, or with resumed sessions")
	}
	for _, o := range t.Others {
		if o.Session < 1 || o.Session == t.Session || o.Want < 1 {
			return refuse("others", o, "must be other sessions that want items")
		}
	}
	for _, messageType := range t.Wakes {
		if text.TypeRule(messageType) != "" {
			return refuse("wakes", messageType, "must be a message type")
		}
	}
	return checkKinds(t)
}

func checkKinds(t queuing.Take) error {
	for _, f := range t.Finishes {
		switch f.Kind {
		case queuing.Complete, queuing.Retry, queuing.Defer, queuing.Unhandled, queuing.Bury, queuing.Committed:
			continue
		case queuing.Wait, queuing.Suspend:
			if len(t.Wakes) > 0 {
				continue
			}
		case queuing.Behind:
			if len(t.Wakes) == 0 {
				continue
			}
		default:
		}
		return refuse("kind", string(rune(f.Kind)), "must be one of c, r, f, u, x and t, w or s for a queue of streams, or b for a queue of items")
	}
	return nil
}

// CheckExtension refuses an invalid extension.
func CheckExtension(e queuing.Extension) error {
	if len(e.Notes) > queuing.MaxItems {
		return refuse("notes", len(e.Notes), "must be at most 1000")
	}
	if n := len(e.Sessions); n > 0 && (n != len(e.Deliveries) || n > queuing.MaxItems) {
		return refuse("sessions", n, "must be one for each delivery, at most 1000")
	}
	for _, session := range e.Sessions {
		if session < 1 {
			return refuse("session", session, "must be more than 0")
		}
	}
	for _, note := range e.Notes {
		if len(note) > queuing.MaxNoteBytes {
			return refuse("note", note, "must be at most 1024 bytes")
		}
	}
	return checkSession(e.Queue, e.Session, e.Lease)
}

// CheckLeave refuses an invalid leave.
func CheckLeave(l queuing.Leave) error {
	lease := l.Lease
	if l.Next == 0 {
		lease = queuing.MinLease
	}
	if err := checkSession(l.Queue, l.Session, lease); err != nil {
		return err
	}
	if l.Next < 0 || l.Next == l.Session {
		return refuse("next session", l.Next, "must be another session, or 0 for none")
	}
	return nil
}

// CheckFinish refuses an invalid session, and a list of deliveries that is empty or too long.
func CheckFinish(q queuing.Queue, session int64, deliveries []queuing.Delivery) error {
	if n := len(deliveries); n < 1 || n > queuing.MaxItems {
		return refuse("deliveries", n, "must be between 1 and 1000")
	}
	return checkSession(q, session, queuing.MinLease)
}

// CheckChange refuses an invalid change.
func CheckChange(c queuing.Change) error {
	n := len(c.Positions)
	switch c.Action {
	case queuing.Pause, queuing.Resume:
		if n > 0 {
			return refuse("positions", n, "must be empty: a queue is paused and resumed as a whole")
		}
	case queuing.RetryNow, queuing.Drop, queuing.Cancel:
		if n < 1 || n > queuing.MaxItems {
			return refuse("positions", n, "must be between 1 and 1000")
		}
	default:
		return refuse("action", string(c.Action), "must be retry, drop, cancel, pause or resume")
	}
	return CheckQueue(c.Queue)
}

// CheckParking refuses an invalid parking.
func CheckParking(p queuing.Parking) error {
	switch {
	case p.Position < 1:
		return refuse("position", p.Position, "must be more than 0")
	case p.Failures < 0 || p.Failures > queuing.MaxFailures:
		return refuse("failures", p.Failures, "must be between 0 and 32767")
	case p.Asked && p.Finished:
		return refuse("finished", p.Finished, "must not be both asked for and finished")
	}
	return CheckQueue(p.Queue)
}

// CheckList refuses an invalid list.
func CheckList(l queuing.List) error {
	switch l.State {
	case queuing.Waiting, queuing.Out, queuing.Later, queuing.Suspended, queuing.Held, queuing.Dead:
	default:
		return refuse("state", string(l.State), "must be waiting, out, later, suspended, held or dead")
	}
	if l.Limit < 1 || l.Limit > queuing.MaxItems {
		return refuse("limit", l.Limit, "must be between 1 and 1000")
	}
	return CheckQueue(l.Queue)
}
