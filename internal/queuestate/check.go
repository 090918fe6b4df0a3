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
		return refuse("session", session, "it is more than 0")
	}
	if lease < queuing.MinLease || lease > queuing.MaxLease {
		return refuse("lease", lease, "it is 10 milliseconds to 24 hours")
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
		return refuse("want", t.Want, "it is 0 to 1000")
	case t.Wait < 0 || t.Wait > queuing.MaxWait:
		return refuse("wait", t.Wait, "it is 0 to 15 minutes")
	case t.MaxFailures < 1 || t.MaxFailures > queuing.MaxFailures:
		return refuse("max failures", t.MaxFailures, "it is 1 to 32767")
	case t.MaxOut < 0:
		return refuse("max out", t.MaxOut, "it is at least 1, or 0 for any number")
	case !(t.Rate >= 0) || math.IsInf(t.Rate, 0): // not a number is neither
		return refuse("rate", t.Rate, "it is more than 0 and finite, or 0 for any")
	case t.Rate > 0 && t.Burst < 1:
		return refuse("burst", t.Burst, "it is at least 1")
	case len(t.Finishes) > queuing.MaxItems:
		return refuse("finishes", len(t.Finishes), "they are at most 1000")
	case len(t.Wakes) > queuing.MaxWakes:
		return refuse("wakes", len(t.Wakes), "they are at most 100")
	case len(t.Wakes) > 0 && t.Slots != 0:
		return refuse("slots", t.Slots, "a queue of streams has none")
	}
	for _, messageType := range t.Wakes {
		if text.TypeRule(messageType) != "" {
			return refuse("wakes", messageType, "it is no type of a message")
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
		return refuse("kind", string(rune(f.Kind)), "it is one of c, r, f, u, x and t, in a queue of streams w and s, and in one of items b")
	}
	return nil
}

// CheckExtension refuses an invalid extension.
func CheckExtension(e queuing.Extension) error {
	if len(e.Notes) > queuing.MaxItems {
		return refuse("notes", len(e.Notes), "they are at most 1000")
	}
	for _, note := range e.Notes {
		if len(note) > queuing.MaxNoteBytes {
			return refuse("note", note, "it is at most 1024 bytes")
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
		return refuse("next session", l.Next, "it is another one, or 0 for none")
	}
	return nil
}

// CheckFinish refuses an invalid session, and a list of deliveries that is empty or too long.
func CheckFinish(q queuing.Queue, session int64, deliveries []queuing.Delivery) error {
	if n := len(deliveries); n < 1 || n > queuing.MaxItems {
		return refuse("deliveries", n, "they are 1 to 1000")
	}
	return checkSession(q, session, queuing.MinLease)
}

// CheckChange refuses an invalid change.
func CheckChange(c queuing.Change) error {
	n := len(c.Positions)
	switch c.Action {
	case queuing.Pause, queuing.Resume:
		if n > 0 {
			return refuse("positions", n, "a queue is paused and resumed as a whole")
		}
	case queuing.RetryNow, queuing.Drop, queuing.Cancel:
		if n < 1 || n > queuing.MaxItems {
			return refuse("positions", n, "they are 1 to 1000")
		}
	default:
		return refuse("action", string(c.Action), "it is retry, drop, cancel, pause or resume")
	}
	return CheckQueue(c.Queue)
}

// CheckParking refuses an invalid parking.
func CheckParking(p queuing.Parking) error {
	switch {
	case p.Position < 1:
		return refuse("position", p.Position, "it is more than 0")
	case p.Failures < 0 || p.Failures > queuing.MaxFailures:
		return refuse("failures", p.Failures, "they are 0 to 32767")
	case p.Asked && p.Finished:
		return refuse("finished", p.Finished, "it is asked for, or finished")
	}
	return CheckQueue(p.Queue)
}

// CheckList refuses an invalid list.
func CheckList(l queuing.List) error {
	switch l.State {
	case queuing.Waiting, queuing.Out, queuing.Later, queuing.Suspended, queuing.Held, queuing.Dead:
	default:
		return refuse("state", string(l.State), "it is waiting, out, later, suspended, held or dead")
	}
	if l.Limit < 1 || l.Limit > queuing.MaxItems {
		return refuse("limit", l.Limit, "it is 1 to 1000")
	}
	return CheckQueue(l.Queue)
}
