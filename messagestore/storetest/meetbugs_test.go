package storetest

import (
	"cmp"
	"context"
	"errors"
	"slices"
	"time"

	"github.com/google/uuid"

	"github.com/dibs-go/dibs/messagestore"
)

var meetBugs = []bug{
	{"a write does not say when", []string{"Meet/WritesAsAppendDoes", "Meet/EachStreamHasItsLastMessage", "Meet/LoserMeetsTheWinner"}, func(d *driver) {
		d.meets(func(_ context.Context, _ []messagestore.Append, all []written, _ *messagestore.Conflict) {
			for i := range all {
				all[i].Time = time.Time{}
			}
		})
	}},
	{"what is met is an error", []string{"Meet/ConflictTellsTheLastMessageAndTheTime", "Meet/EmptyStreamHasNoLastMessage", "Model/AnyHistoryIsAsTheModelHasIt"}, func(d *driver) {
		d.appendOrMeet = func(ctx context.Context, appends []messagestore.Append) ([]written, *messagestore.Conflict, error) {
			all, err := d.Driver.AppendAll(ctx, appends)
			return all, nil, err
		}
	}},
	{"what is met is read before the lock is taken", []string{"Meet/LoserMeetsTheWinner"}, func(d *driver) {
		d.appendOrMeet = func(ctx context.Context, appends []messagestore.Append) ([]written, *messagestore.Conflict, error) {
			before := make([]*recorded, len(appends))
			for i, a := range appends {
				before[i] = d.lastOf(ctx, a.Stream)
			}
			yieldAWhile()
			all, met, err := d.Driver.TryAppend(ctx, appends)
			if met != nil {
				met.Last = before
			}
			return all, met, err
		}
	}},
	{"the time of a meeting is that of the call's beginning", []string{"Meet/LoserMeetsTheWinner"}, func(d *driver) {
		d.appendOrMeet = func(ctx context.Context, appends []messagestore.Append) ([]written, *messagestore.Conflict, error) {
			begun, err := d.Driver.Now(ctx)
			if err != nil {
				return nil, nil, err
			}
			yieldAWhile()
			all, met, err := d.Driver.TryAppend(ctx, appends)
			if met != nil {
				met.Time = begun
			}
			return all, met, err
		}
	}},
	{"the time of a meeting is that of the message met", []string{"Meet/ConflictTellsTheLastMessageAndTheTime", "Meet/EmptyStreamHasNoLastMessage"}, func(d *driver) {
		d.conflicts(func(met *messagestore.Conflict) {
			if met.Time = (time.Time{}); met.Last[0] != nil {
				met.Time = met.Last[0].Time
			}
		})
	}},
	{"the time of a meeting is after the answer", []string{"Meet/ConflictTellsTheLastMessageAndTheTime"}, func(d *driver) {
		d.conflicts(func(met *messagestore.Conflict) { met.Time = met.Time.Add(time.Second) })
	}},
	{"the time of a meeting has a zone", []string{"Meet/ConflictTellsTheLastMessageAndTheTime"}, func(d *driver) {
		d.conflicts(func(met *messagestore.Conflict) { met.Time = met.Time.In(time.FixedZone("", 3600)) })
	}},
	{"the first message is met", []string{"Meet/ConflictTellsTheLastMessageAndTheTime", "Model/AnyHistoryIsAsTheModelHasIt"}, func(d *driver) {
		d.meets(func(ctx context.Context, appends []messagestore.Append, _ []written, met *messagestore.Conflict) {
			if met == nil {
				return
			}
			for i, a := range appends {
				if page, err := d.Driver.ReadStream(ctx, messagestore.StreamQuery{Stream: a.Stream, Limit: 1}); err == nil && len(page) > 0 {
					met.Last[i] = page[0]
				}
			}
		})
	}},
	{"last messages are in the order of the names", []string{"Meet/EachStreamHasItsLastMessage"}, func(d *driver) {
		d.conflicts(func(met *messagestore.Conflict) {
			slices.SortFunc(met.Last, func(a, b *recorded) int { return cmp.Compare(nameOf(a), nameOf(b)) })
		})
	}},
	{"only the stream in conflict has a last message", []string{"Meet/EachStreamHasItsLastMessage"}, func(d *driver) {
		d.meets(func(ctx context.Context, appends []messagestore.Append, _ []written, met *messagestore.Conflict) {
			conflict, ok := errors.AsType[*messagestore.VersionConflictError](d.conflict(ctx, appends))
			if met == nil || !ok {
				return
			}
			for i, a := range appends {
				if a.Stream != conflict.Stream {
					met.Last[i] = nil
				}
			}
		})
	}},
	{"an empty stream is left out", []string{"Meet/EmptyStreamHasNoLastMessage", "Meet/EachStreamHasItsLastMessage"}, func(d *driver) {
		d.conflicts(func(met *messagestore.Conflict) {
			met.Last = slices.DeleteFunc(met.Last, func(m *recorded) bool { return m == nil })
		})
	}},
	{"an empty stream has an empty message", []string{"Meet/EmptyStreamHasNoLastMessage", "Meet/EachStreamHasItsLastMessage"}, func(d *driver) {
		d.meets(func(_ context.Context, appends []messagestore.Append, _ []written, met *messagestore.Conflict) {
			if met == nil {
				return
			}
			for i, a := range appends {
				if met.Last[i] == nil {
					met.Last[i] = &recorded{Stream: a.Stream, Position: messagestore.NoStream}
				}
			}
		})
	}},
	{"the data of a large message are cut", []string{"Meet/LargeMessageIsMet"}, func(d *driver) {
		d.conflicts(func(met *messagestore.Conflict) {
			if met.Last[0] != nil {
				met.Last[0].Data = met.Last[0].Data[:min(len(met.Last[0].Data), 32<<10)]
			}
		})
	}},
	{"a large message is met without metadata", []string{"Meet/LargeMessageIsMet"}, func(d *driver) {
		d.conflicts(func(met *messagestore.Conflict) {
			if met.Last[0] != nil && len(met.Last[0].Data) > 8<<10 {
				met.Last[0].Metadata = messagestore.Metadata{}
			}
		})
	}},
	{"a repeat is a meeting", []string{"Meet/RepeatMeetsNothing"}, func(d *driver) {
		d.appendOrMeet = func(ctx context.Context, appends []messagestore.Append) ([]written, *messagestore.Conflict, error) {
			all, met, err := d.Driver.TryAppend(ctx, appends)
			if err != nil || met != nil || !all[0].Duplicate {
				return all, met, err
			}
			return nil, &messagestore.Conflict{Time: all[0].Time, Last: []*recorded{d.lastOf(ctx, appends[0].Stream)}}, nil
		}
	}},
	{"an id that is taken is a meeting", []string{"Meet/TakenIDConflicts"}, func(d *driver) {
		d.appendOrMeet = func(ctx context.Context, appends []messagestore.Append) ([]written, *messagestore.Conflict, error) {
			all, met, err := d.Driver.TryAppend(ctx, appends)
			if errors.Is(err, messagestore.ErrIDConflict) {
				return nil, &messagestore.Conflict{Time: time.Now().UTC(), Last: make([]*recorded, len(appends))}, nil
			}
			return all, met, err
		}
	}},
	{"a write that meets another writes all the same", []string{"Meet/ConflictTellsTheLastMessageAndTheTime", "Meet/LoserMeetsTheWinner"}, func(d *driver) {
		d.meets(func(ctx context.Context, appends []messagestore.Append, _ []written, met *messagestore.Conflict) {
			if met == nil {
				return
			}
			appends = slices.Clone(appends)
			for i := range appends {
				appends[i].Expected = messagestore.AnyVersion
			}
			_, _ = d.Driver.AppendAll(ctx, appends)
		})
	}},
}

var pastBugs = []bug{
	{"types that may come in between are not looked at", []string{
		"Past/WritesBehindTheseTypes", "Past/AnotherTypeConflicts", "Past/CheckHasIt", "Model/AnyHistoryIsAsTheModelHasIt",
	}, func(d *driver) {
		d.accepts(func(messagestore.Append, []*recorded) bool { return false })
	}},
	{"messages of any type may come in between", []string{"Past/AnotherTypeConflicts", "Past/CheckHasIt", "Model/AnyHistoryIsAsTheModelHasIt"}, func(d *driver) {
		d.accepts(func(_ messagestore.Append, came []*recorded) bool { return len(came) > 0 })
	}},
	{"of the messages in between the last is looked at", []string{"Past/AnotherTypeConflicts"}, func(d *driver) {
		d.accepts(func(a messagestore.Append, came []*recorded) bool { return allOf(a.Past, came[max(len(came)-1, 0):]) })
	}},
	{"of the messages in between the first is looked at", []string{"Past/AnotherTypeConflicts"}, func(d *driver) {
		d.accepts(func(a messagestore.Append, came []*recorded) bool { return allOf(a.Past, came[:min(len(came), 1)]) })
	}},
	{"of the types that may come in between the first is looked at", []string{"Past/WritesBehindTheseTypes", "Model/AnyHistoryIsAsTheModelHasIt"}, func(d *driver) {
		d.accepts(func(a messagestore.Append, came []*recorded) bool { return allOf(a.Past[:1], came) })
	}},
	{"a version ahead is one that messages came since", []string{"Past/VersionAheadConflicts", "Model/AnyHistoryIsAsTheModelHasIt"}, func(d *driver) {
		d.accepts(func(a messagestore.Append, came []*recorded) bool { return len(came) == 0 || allOf(a.Past, came) })
	}},
	{"nothing comes in between in a new stream", []string{"Past/AnotherTypeConflicts", "Model/AnyHistoryIsAsTheModelHasIt"}, func(d *driver) {
		d.accepts(func(a messagestore.Append, came []*recorded) bool {
			return a.Expected != messagestore.NoStream && allOf(a.Past, came)
		})
	}},
	{"a check does not look at the types that may come in between", []string{"Past/CheckHasIt"}, func(d *driver) {
		d.accepts(func(a messagestore.Append, came []*recorded) bool { return len(a.Records) > 0 && allOf(a.Past, came) })
	}},
	{"a write past others says where it would have been without them", []string{"Past/WritesBehindTheseTypes", "Past/CheckHasIt"}, func(d *driver) {
		d.appendAll = answering(d.Driver.AppendAll, func(appends []messagestore.Append, all *[]written) {
			for i := range *all {
				if a := appends[i]; len(a.Past) > 0 {
					(*all)[i].Version = a.Expected + messagestore.Version(len(a.Records))
				}
			}
		})
	}},
}

var afterBugs = []bug{
	{"the message at the expected version is not looked at", []string{
		"After/AnotherMessageConflicts", "After/GoesWithTypesThatMayCome", "After/CheckHasIt",
	}, func(d *driver) {
		d.appendAll = asking(d.Driver.AppendAll, each(func(a *messagestore.Append) { a.After = uuid.Nil }))
	}},
	{"the message at the expected version is looked for anywhere", []string{"After/AnotherMessageConflicts", "After/GoesWithTypesThatMayCome"}, func(d *driver) {
		d.appendAll = asking(d.Driver.AppendAll, each(func(a *messagestore.Append) {
			if d.recorded(context.Background(), a.Stream, a.After) != nil {
				a.After = uuid.Nil
			}
		}))
	}},
}

var existsBugs = []bug{
	{"a stream that has to exist may be new", []string{"Exists/NoStreamConflicts", "Model/AnyHistoryIsAsTheModelHasIt"}, func(d *driver) {
		d.expectsOther(messagestore.StreamExists, messagestore.AnyVersion)
	}},
	{"a stream that has to exist has one message", []string{
		"Exists/GoesToTheEndOfAnyVersion", "Exists/CheckHasIt", "Model/AnyHistoryIsAsTheModelHasIt",
	}, func(d *driver) {
		d.expectsOther(messagestore.StreamExists, 0)
	}},
	{"a stream that has to exist has no bound", []string{"Exists/BelowABound", "Model/AnyHistoryIsAsTheModelHasIt"}, func(d *driver) {
		d.expectsOther(messagestore.StreamExists.Below(3), messagestore.StreamExists)
	}},
	{"a check that a stream exists tells no version", []string{"Exists/CheckHasIt"}, func(d *driver) {
		d.appendAll = answering(d.Driver.AppendAll, func(appends []messagestore.Append, all *[]written) {
			for i := range *all {
				if a := appends[i]; a.Expected == messagestore.StreamExists && len(a.Records) == 0 {
					(*all)[i].Version = a.Expected
				}
			}
		})
	}},
}

// expectsOther passes an expected version on as another.
func (d *driver) expectsOther(asked, passed messagestore.Version) {
	change := func(a *messagestore.Append) {
		if a.Expected == asked {
			a.Expected = passed
		}
	}
	d.append, d.appendAll = asking(d.Driver.Append, change), asking(d.Driver.AppendAll, each(change))
}

func allOf(types []string, messages []*recorded) bool {
	return len(messages) > 0 && !slices.ContainsFunc(messages, func(m *recorded) bool { return !slices.Contains(types, m.Type) })
}

// accepts replaces how a driver judges the messages that came since the expected version.
func (d *driver) accepts(judge func(a messagestore.Append, came []*recorded) bool) {
	d.appendAll = func(ctx context.Context, appends []messagestore.Append) ([]written, error) {
		appends = slices.Clone(appends)
		for i, a := range appends {
			actual, err := d.Driver.Version(ctx, a.Stream)
			if err != nil {
				return nil, err
			}
			if len(a.Past) == 0 || actual == a.Expected {
				continue
			}
			came, err := d.Driver.ReadStream(ctx, messagestore.StreamQuery{Stream: a.Stream, From: a.Expected + 1, Limit: messagestore.MaxReadMessages})
			if err != nil {
				return nil, err
			}
			if appends[i].Past = nil; judge(a, came) {
				appends[i].Expected = actual
			}
		}
		return d.Driver.AppendAll(ctx, appends)
	}
}

// meets changes the results of a sound TryAppend that is no error.
func (d *driver) meets(change func(context.Context, []messagestore.Append, []written, *messagestore.Conflict)) {
	d.appendOrMeet = func(ctx context.Context, appends []messagestore.Append) ([]written, *messagestore.Conflict, error) {
		all, met, err := d.Driver.TryAppend(ctx, appends)
		if err == nil {
			change(ctx, appends, all, met)
		}
		return all, met, err
	}
}

// conflicts changes the conflicts that it answers.
func (d *driver) conflicts(change func(*messagestore.Conflict)) {
	d.meets(func(_ context.Context, _ []messagestore.Append, _ []written, met *messagestore.Conflict) {
		if met != nil {
			change(met)
		}
	})
}

// lastOf returns the last message of a stream, or nil.
func (d *driver) lastOf(ctx context.Context, stream messagestore.StreamName) *recorded {
	m, err := d.Driver.Last(ctx, stream, "")
	if err != nil {
		return nil
	}
	return m
}

func nameOf(m *recorded) messagestore.StreamName {
	if m == nil {
		return ""
	}
	return m.Stream
}
