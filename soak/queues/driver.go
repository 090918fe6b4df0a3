package queues

import (
	"context"
	"errors"

	"github.com/dibs-go/dibs/internal/queuing"
	"github.com/dibs-go/dibs/messagestore"
	"github.com/dibs-go/dibs/soak/crew"
)

// A recording records a process's calls of a queue, and the answers.
type recording struct {
	next     queuing.Driver
	recorder *recorder
	pass     func(point crew.Point)
}

func answerOf(err error) Record {
	switch {
	case err == nil:
		return Record{Answer: OK}
	case errors.Is(err, messagestore.ErrOutcomeUnknown):
		return Record{Answer: Unknown, Note: err.Error()}
	}
	return Record{Answer: Failed, Note: err.Error()}
}

func given(m *messagestore.Message, version, failures int) Given {
	return Given{int64(m.GlobalPosition), version, failures, m.ID.String(), string(m.Stream)}
}

// QueueTake records takes that end deliveries before they are sent, and other takes if they got
// something.
func (d *recording) QueueTake(ctx context.Context, t queuing.Take) (queuing.Taken, error) {
	began := crew.Now()
	c := Record{Call: Take, Session: t.Session, Lease: t.Lease.Microseconds(), Ticket: t.Ticket, Resume: t.Resume}
	for _, f := range t.Finishes {
		c.Ends = append(c.Ends, End{Position: int64(f.Position), Version: f.Version, Kind: string(f.Kind), Delay: f.Delay.Microseconds()})
	}
	if len(c.Ends) > 0 {
		c = d.recorder.Begin(c)
		d.pass(atEnding)
	}
	taken, err := d.next.QueueTake(ctx, t)
	if len(c.Ends) == 0 {
		if err != nil || len(taken.Items) == 0 {
			return taken, err
		}
		c = d.recorder.Since(began, c)
	}
	a := answerOf(err)
	for i, told := range taken.Endings {
		end := c.Ends[i]
		end.Told = string(told)
		a.Ends = append(a.Ends, end)
	}
	others := map[int64][]Given{}
	for i, item := range taken.Items {
		g := given(item.Message, item.Version, item.Failures)
		if session := t.SessionOf(i); session != t.Session {
			others[session] = append(others[session], g)
		} else {
			a.Items = append(a.Items, g)
		}
	}
	for session, items := range others { // of callers who shared the take
		d.recorder.End(d.recorder.Since(began, Record{Call: Take, Session: session, Lease: c.Lease}), Record{Answer: OK, Items: items})
	}
	if len(a.Items) > 0 {
		a.Ticket = t.Ticket
	}
	d.recorder.End(c, a)
	if len(a.Items) > 0 {
		d.pass(atTaken)
	}
	return taken, err
}

// QueueExtend records extensions.
func (d *recording) QueueExtend(ctx context.Context, e queuing.Extension) ([]queuing.Delivery, error) {
	c := d.recorder.Begin(Record{Call: Extend, Session: e.Session, Lease: e.Lease.Microseconds()})
	lost, err := d.next.QueueExtend(ctx, e)
	d.recorder.End(c, answerOf(err))
	return lost, err
}

// QueueLeave records the ends of sessions.
func (d *recording) QueueLeave(ctx context.Context, l queuing.Leave) error {
	c := d.recorder.Begin(Record{Call: Leave, Session: l.Session, Next: l.Next, Lease: l.Lease.Microseconds()})
	err := d.next.QueueLeave(ctx, l)
	d.recorder.End(c, answerOf(err))
	return err
}
