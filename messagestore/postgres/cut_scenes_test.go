package postgres_test

import (
	"bytes"
	"context"
	"database/sql"
	"errors"
	"fmt"
	"net/url"
	"reflect"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/stdlib"

	"github.com/dibs-go/dibs/internal/report"
	"github.com/dibs-go/dibs/internal/testkit"
	"github.com/dibs-go/dibs/messagestore"
	"github.com/dibs-go/dibs/messagestore/postgres"
	"github.com/dibs-go/dibs/messagestore/postgres/admin"
	"github.com/dibs-go/dibs/messagestore/retention"
)

// A way is one in which the statements of a call are sent.
type way struct {
	name string
	mode pgx.QueryExecMode
	warm bool // the connection has done such a call before
}

var (
	prepared = way{"prepared", pgx.QueryExecModeCacheStatement, true}
	first    = way{"first", pgx.QueryExecModeCacheStatement, false}
	unnamed  = way{"exec", pgx.QueryExecModeExec, true}

	everyChange = []way{prepared, unnamed}
	longTier    = []way{
		first,
		{"described", pgx.QueryExecModeCacheDescribe, true},
		{"describe and exec", pgx.QueryExecModeDescribeExec, true},
	}
)

// scenes are the calls that are cut, sent in these ways. A call that is sent in one way only
// comes with the prepared ones.
func scenes(ways []way) (all []scene) {
	for _, w := range ways {
		all = append(all,
			writes("append one", w, appendOneMessage),
			writes("append several", w, appendSeveral),
			writes("append to streams", w, appendToStreams),
			writes("append each", w, appendGroup),
			writes("append or meet", w, appendOrMeet),
			meets("append or meet that meets", w, 1),
			writes("append or meet each", w, appendOrMeetGroup),
			transaction(w),
			transacts("transact", w, false, overPgx),
			transacts("transact that looks at nothing", w, false, unlooked),
			transacts("transact with *sql.Tx", w, false, overSQL),
		)
	}
	for _, w := range ways {
		if w != prepared && w != first {
			continue
		}
		all = append(all,
			reads("read stream", w, upwards),
			reads("read streams together", w, together),
			reads("read category", w, filtered(messagestore.Filter{})),
			reads("last", w, func(ctx context.Context, d *postgres.Driver, c *attempt) (any, error) {
				return d.Last(ctx, c.category.Stream("read"), "Cut")
			}),
			reads("version", w, func(ctx context.Context, d *postgres.Driver, c *attempt) (any, error) {
				return d.Version(ctx, c.category.Stream("read"))
			}),
			reads("heads", w, func(ctx context.Context, d *postgres.Driver, c *attempt) (any, error) {
				return d.Heads(ctx, []messagestore.Category{c.category, c.category + "x"})
			}),
			reads("find", w, func(ctx context.Context, d *postgres.Driver, c *attempt) (any, error) {
				return d.Find(ctx, c.category.Stream("read"), []uuid.UUID{idOf(c, 0), idOf(c, 7), idOf(c, 2)})
			}),
			reads("count", w, func(ctx context.Context, d *postgres.Driver, c *attempt) (any, error) {
				return d.Count(ctx, messagestore.CategoryQuery{Category: c.category, Limit: 10})
			}),
			reads("categories", w, func(ctx context.Context, d *postgres.Driver, c *attempt) (any, error) {
				return d.Categories(ctx, string(c.category))
			}),
			reads("report", w, func(ctx context.Context, d *postgres.Driver, c *attempt) (any, error) {
				return d.Report(ctx, report.Query{By: []report.Key{report.ByStream}, Category: string(c.category), Sort: report.SortByName, Limit: 10})
			}),
			reads("now", w, func(ctx context.Context, d *postgres.Driver, _ *attempt) (any, error) {
				_, err := d.Now(ctx)
				return nil, err
			}),
			reads("epoch", w, func(ctx context.Context, d *postgres.Driver, _ *attempt) (any, error) { return d.Epoch(ctx) }),
			reads("now", w, func(ctx context.Context, d *postgres.Driver, _ *attempt) (any, error) {
				now, err := d.Now(ctx)
				return now.Year() > 2000, err
			}),
		)
	}
	for _, w := range ways {
		if w != prepared && w != first {
			continue
		}
		all = append(all, trims(w), trimsAll(w), deletes(w, false), deletes(w, true), forgets(w), raises(w))
		all = append(all, queueChanges(w)...)
		all = append(all, queueReads(w)...)
	}
	if !slices.Contains(ways, prepared) {
		return all
	}
	all = append(all,
		reads("read stream backwards", prepared, backwards),
		reads("read category by types", prepared, filtered(messagestore.Filter{Types: []string{"Cut", "Uncut"}})),
		reads("read category by correlation", prepared, filtered(messagestore.Filter{Correlation: "correlated"})),
		reads("read category by group", prepared, func(ctx context.Context, d *postgres.Driver, c *attempt) (any, error) {
			const size = 2
			member := c.category.Stream("read").GroupMember(size)
			return filtered(messagestore.Filter{GroupSize: size, GroupMember: member})(ctx, d, c)
		}),
	)
	cold := writes("append one", first, appendOneMessage)
	cold.name, cold.warm = "append one: new connection", nil
	return append(all, cold,
		writes("append one that conflicts", prepared, func(ctx context.Context, c *attempt, key string) []ended {
			a := messages(c, key, 7, 1)
			_, err := c.driver.Append(ctx, a)
			return []ended{{appends: []messagestore.Append{a}, refused: true, err: err}}
		}),
		meets("append or meet a large message", prepared, 20_000),
		transacts("transact that conflicts", prepared, true, overPgx),
		writes("append one twice", prepared, appendTwice),
		writes("Write", prepared, write1),
		writes("WriteStreams", prepared, writeStreams),
		opens(), listens(),
	)
}

// messages are so many to a stream.
func messages(c *attempt, stream string, expected messagestore.Version, n int) messagestore.Append {
	a := messagestore.Append{Stream: c.category.Stream(stream), Expected: expected}
	for range n {
		a.Records = append(a.Records, messagestore.Encoded{ID: uuid.New(), Type: "Cut", Data: []byte(`{"n":1}`), Metadata: []byte(`{"by":"us"}`)})
	}
	return a
}

// writes is a scene of writes to streams whose names begin with key.
func writes(name string, w way, call func(ctx context.Context, c *attempt, key string) []ended) scene {
	return scene{
		name: name + ": " + w.name, mode: w.mode, thorough: w == prepared,
		warm: func(ctx context.Context, c *attempt) error {
			if !w.warm {
				return ping(ctx, c)
			}
			for _, e := range call(ctx, c, "warm") {
				if e.err != nil && !e.refused {
					return e.err
				}
			}
			return nil
		},
		call: func(ctx context.Context, c *attempt) ([]ended, error) { return call(ctx, c, "cut"), nil },
	}
}

// ping makes the driver check the server.
func ping(ctx context.Context, c *attempt) error {
	conn, err := c.pool.Acquire(ctx)
	if err != nil {
		return err
	}
	defer conn.Release()
	_, err = testkit.Must(postgres.New(conn, &postgres.Config{Schema: c.schema})).Version(ctx, c.category.Stream("ping"))
	return err
}

func appendOneMessage(ctx context.Context, c *attempt, key string) []ended {
	a := messages(c, key, messagestore.NoStream, 1)
	_, err := c.driver.Append(ctx, a)
	return []ended{{appends: []messagestore.Append{a}, err: err}}
}

func appendSeveral(ctx context.Context, c *attempt, key string) []ended {
	a := messages(c, key, messagestore.NoStream, 3)
	_, err := c.driver.Append(ctx, a)
	return []ended{{appends: []messagestore.Append{a}, err: err}}
}

func appendToStreams(ctx context.Context, c *attempt, key string) []ended {
	all := []messagestore.Append{messages(c, key+"a", messagestore.NoStream, 2), messages(c, key+"b", messagestore.AnyVersion, 1)}
	_, err := c.driver.AppendAll(ctx, all)
	return []ended{{appends: all, err: err}}
}

// appendGroup writes a group with one in it that conflicts, and with writes to several streams.
func appendGroup(ctx context.Context, c *attempt, key string) (list []ended) {
	other := *c
	other.category += "x"
	group := [][]messagestore.Append{
		{messages(c, key+"a", messagestore.NoStream, 1)},
		{messages(c, key+"c", messagestore.AnyVersion, 1), messages(c, key+"b", 7, 1)},
		{messages(c, key+"a", 0, 3), messages(&other, key+"d", messagestore.NoStream, 1)},
		{messages(&other, key, messagestore.AnyVersion, 1)},
	}
	for i, answer := range c.driver.AppendAllEach(ctx, group) {
		list = append(list, ended{appends: group[i], refused: i == 1, err: answer.Err})
	}
	return list
}

func appendOrMeet(ctx context.Context, c *attempt, key string) []ended {
	a := messages(c, key, messagestore.NoStream, 1)
	_, met, err := c.driver.TryAppend(ctx, []messagestore.Append{a})
	if met != nil {
		err = metWrongly(met.Last)
	}
	return []ended{{appends: []messagestore.Append{a}, err: err}}
}

// appendOrMeetGroup writes a group in which the second write to a new stream meets the first.
func appendOrMeetGroup(ctx context.Context, c *attempt, key string) (list []ended) {
	group := []messagestore.Append{
		messages(c, key+"a", messagestore.NoStream, 1),
		messages(c, key+"a", messagestore.NoStream, 1),
		messages(c, key+"b", messagestore.NoStream, 1),
	}
	for i, answer := range c.driver.AppendOrMeetEach(ctx, group, 0, 1) {
		e := ended{appends: group[i : i+1], refused: i == 1, err: answer.Err}
		switch met := answer.Met; {
		case met != nil && (i != 1 || met.Last[0] == nil || met.Last[0].ID != group[0].Records[0].ID):
			e.err = metWrongly(met.Last)
		case met != nil:
			e.err = errMet
		}
		list = append(list, e)
	}
	return list
}

// errMet stands for a [messagestore.Conflict], which tells more than the error.
var errMet = &messagestore.VersionConflictError{}

// metWrongly fails the scene, with any outcome.
func metWrongly(last []*messagestore.Message) error {
	return &messagestore.OutcomeUnknownError{Cause: fmt.Errorf("it met %v", last)}
}

// meets is a scene of a write that meets a message with this much data, and gets it completely.
func meets(name string, w way, size int) scene {
	s := writes(name, w, func(ctx context.Context, c *attempt, key string) []ended {
		a := messages(c, key, 7, 1)
		before := messages(c, key, messagestore.NoStream, 1)
		before.Records[0].Data = []byte(`{"n":"` + strings.Repeat("x", size) + `"}`)
		if _, err := testkit.Must(postgres.New(c.direct, nil)).Append(context.WithoutCancel(ctx), before); err != nil {
			return []ended{{err: err}}
		}
		e := ended{appends: []messagestore.Append{a}, refused: true}
		_, met, err := c.driver.TryAppend(ctx, []messagestore.Append{a})
		switch {
		case met == nil:
			e.err = err
		case len(met.Last) != 1 || met.Last[0] == nil || met.Last[0].ID != before.Records[0].ID || !bytes.Equal(met.Last[0].Data, before.Records[0].Data):
			e.err = metWrongly(met.Last)
		default:
			e.err = errMet
		}
		return []ended{e}
	})
	return s
}

// appendTwice repeats a write.
func appendTwice(ctx context.Context, c *attempt, key string) []ended {
	a := messages(c, key, messagestore.AnyVersion, 1)
	if _, err := testkit.Must(postgres.New(c.direct, nil)).Append(ctx, a); err != nil {
		return []ended{{err: err}}
	}
	_, err := c.driver.Append(ctx, a)
	return []ended{{appends: []messagestore.Append{a}, err: err}}
}

// write1 writes by a store, which resolves the outcome, at the version of the last write.
func write1(ctx context.Context, c *attempt, key string) []ended {
	before, a := messages(c, key, messagestore.NoStream, 1), messages(c, key, 0, 1)
	if _, err := testkit.Must(postgres.New(c.direct, nil)).Append(context.WithoutCancel(ctx), before); err != nil {
		return []ended{{err: err}}
	}
	_, err := testkit.Must(messagestore.New(c.driver, nil)).Write(ctx, a.Stream, 0, bodiesOf(a)...)
	return []ended{{appends: []messagestore.Append{a}, err: err}}
}

func writeStreams(ctx context.Context, c *attempt, key string) []ended {
	all := []messagestore.Append{messages(c, key+"a", messagestore.NoStream, 1), messages(c, key+"b", messagestore.NoStream, 2)}
	_, err := testkit.Must(messagestore.New(c.driver, nil)).WriteStreams(ctx,
		messagestore.To(all[0].Stream, messagestore.NoStream, bodiesOf(all[0])...),
		messagestore.To(all[1].Stream, messagestore.NoStream, bodiesOf(all[1])...))
	return []ended{{appends: all, err: err}}
}

func bodiesOf(a messagestore.Append) (bodies []messagestore.Body) {
	for _, r := range a.Records {
		bodies = append(bodies, messagestore.Envelope{ID: r.ID, Body: messagestore.Raw{Type: r.Type, Data: r.Data}})
	}
	return bodies
}

// transaction writes in a transaction of the caller's, which the caller commits.
func transaction(w way) scene {
	s := writes("in a transaction", w, func(ctx context.Context, c *attempt, key string) []ended {
		a := messages(c, key, messagestore.NoStream, 1)
		e := ended{appends: []messagestore.Append{a}}
		tx, err := c.pool.Begin(ctx)
		if err != nil {
			e.err = err
			return []ended{e}
		}
		defer tx.Rollback(ctx) //nolint:errcheck // there is nothing to undo, or it is broken
		if _, err := testkit.Must(postgres.New(tx, nil)).Append(ctx, a); err != nil {
			if c.got = err; errors.Is(err, messagestore.ErrOutcomeUnknown) {
				e.err = nil // which is found out to be wrong
				return []ended{e}
			}
			e.err = err
			return []ended{e}
		}
		if err := tx.Commit(ctx); err != nil {
			e.err = &messagestore.OutcomeUnknownError{Cause: err, Writes: []messagestore.Append{{Stream: a.Stream, Records: []messagestore.Encoded{{ID: a.Records[0].ID}}}}}
		}
		return []ended{e}
	})
	return s
}

// idOf returns the id of a message that reads find.
func idOf(c *attempt, n int) uuid.UUID {
	return uuid.NewSHA1(uuid.NameSpaceOID, []byte(string(c.category)+strconv.Itoa(n)))
}

// reads is a scene of a call that answers as it does past the proxy, or fails.
func reads(name string, w way, ask func(ctx context.Context, d *postgres.Driver, c *attempt) (any, error)) scene {
	return scene{
		name: name + ": " + w.name, mode: w.mode, thorough: w == prepared,
		before: func(ctx context.Context, c *attempt) (err error) {
			a := messages(c, "read", messagestore.NoStream, 3)
			for i := range a.Records {
				a.Records[i].ID = idOf(c, i)
			}
			a.Records[1].Metadata = []byte(`{"correlationStreamName":"correlated-1"}`)
			direct := testkit.Must(postgres.New(c.direct, nil))
			if _, err := direct.AppendAll(ctx, []messagestore.Append{a, messages(c, "other", messagestore.NoStream, 1)}); err != nil {
				return err
			}
			c.fact, err = ask(ctx, direct, c)
			return err
		},
		warm: func(ctx context.Context, c *attempt) error {
			if !w.warm {
				return ping(ctx, c)
			}
			_, err := ask(ctx, c.driver, c)
			return err
		},
		call: func(ctx context.Context, c *attempt) (_ []ended, err error) {
			c.got, err = ask(ctx, c.driver, c)
			return nil, err
		},
		judge: func(_ context.Context, c *attempt) error {
			if c.err == nil && !reflect.DeepEqual(c.got, c.fact) {
				return fmt.Errorf("it answered %v, and not %v", c.got, c.fact)
			}
			return nil
		},
	}
}

func upwards(ctx context.Context, d *postgres.Driver, c *attempt) (any, error) {
	return d.ReadStream(ctx, messagestore.StreamQuery{Stream: c.category.Stream("read"), Limit: 10})
}

func together(ctx context.Context, d *postgres.Driver, c *attempt) (any, error) {
	of := func(name string) messagestore.StreamName { return c.category.Stream(name) }
	return d.ReadTogether(ctx,
		messagestore.StreamQuery{Stream: of("read"), Limit: 10}, messagestore.StreamQuery{Stream: of("none"), Limit: 10},
		messagestore.StreamQuery{Stream: of("other"), Limit: 10}, messagestore.StreamQuery{Stream: of("read"), From: 1, Limit: 10, Backwards: true})
}

func backwards(ctx context.Context, d *postgres.Driver, c *attempt) (any, error) {
	return d.ReadStream(ctx, messagestore.StreamQuery{Stream: c.category.Stream("read"), From: 1, Limit: 10, Backwards: true})
}

func filtered(filter messagestore.Filter) func(ctx context.Context, d *postgres.Driver, c *attempt) (any, error) {
	return func(ctx context.Context, d *postgres.Driver, c *attempt) (any, error) {
		page, err := d.ReadCategory(ctx, messagestore.CategoryQuery{Category: c.category, Limit: 10, Filter: filter})
		if err == nil && len(page.Messages) == 0 {
			return nil, errors.New("it found no message")
		}
		return page, err
	}
}

// removes is a scene of a call that removes from a stream of five messages.
func removes(name string, w way, remove func(ctx context.Context, a *admin.Admin, c *attempt, key string) error, judge func(ctx context.Context, c *attempt) error) scene {
	return scene{
		name: name + ": " + w.name, mode: w.mode, thorough: w == prepared,
		before: func(ctx context.Context, c *attempt) error {
			_, err := testkit.Must(postgres.New(c.direct, nil)).AppendAll(ctx, []messagestore.Append{
				messages(c, "warm", messagestore.NoStream, 5), messages(c, "cut", messagestore.NoStream, 5),
			})
			return err
		},
		warm: func(ctx context.Context, c *attempt) error {
			if !w.warm {
				return ping(ctx, c)
			}
			return remove(ctx, testkit.Must(admin.New(c.pool, nil)), c, "warm")
		},
		call: func(ctx context.Context, c *attempt) ([]ended, error) {
			return nil, remove(ctx, testkit.Must(admin.New(c.pool, nil)), c, "cut")
		},
		again: func(ctx context.Context, c *attempt, db postgres.DB) error {
			return remove(ctx, testkit.Must(admin.New(db, nil)), c, "cut")
		},
		judge: func(ctx context.Context, c *attempt) error {
			if removed, ok := c.got.(int64); c.err == nil && (!ok || removed == 0) {
				return errors.New("it says that it removed nothing")
			}
			return judge(ctx, c)
		},
	}
}

func trims(w way) scene {
	options := &retention.TrimOptions{Keep: 2, MinAge: retention.AnyAge}
	return removes("trim", w, func(ctx context.Context, a *admin.Admin, c *attempt, key string) error {
		trimmed, err := a.Trim(ctx, c.category.Stream(key), options)
		c.got = trimmed.Removed
		return err
	}, func(ctx context.Context, c *attempt) error {
		var left, records int
		err := c.direct.QueryRow(ctx, `select count(*) filter (where stream_name = $1 and position >= 3),
			count(*) filter (where type = 'dibs:Trimmed' and stream_name = $2)
			from dibs.messages where stream_name in ($1, $2)`, string(c.category.Stream("cut")), string(c.category)+":retention-cut").Scan(&left, &records)
		if err == nil && (left != 2 || records != 1) {
			err = fmt.Errorf("%d messages are left, and %d are on record", left, records)
		}
		return err
	})
}

// trimsAll trims the category of two streams, the other one before, past the proxy.
func trimsAll(w way) scene {
	options := &retention.TrimOptions{Keep: 2, MinAge: retention.AnyAge}
	return removes("trim a category", w, func(ctx context.Context, a *admin.Admin, c *attempt, key string) error {
		category := c.category
		if key != "cut" { // which would go with the other
			category += "x"
		}
		removed := int64(0)
		defer func() { c.got = removed }()
		for trimmed, err := range a.TrimCategory(ctx, category, options) {
			if err != nil {
				return err
			}
			removed += trimmed.Removed
		}
		return nil
	}, func(ctx context.Context, c *attempt) error {
		var left, records int
		err := c.direct.QueryRow(ctx, `select count(*) filter (where stream_name in ($1, $2)), count(*) filter (where type = 'dibs:Trimmed')
			from dibs.messages where category in ($3, $4)`,
			string(c.category.Stream("cut")), string(c.category.Stream("warm")), string(c.category), string(c.category)+":retention").Scan(&left, &records)
		if err == nil && (left != 4 || records != 2) {
			err = fmt.Errorf("%d messages are left, and %d are on record", left, records)
		}
		return err
	})
}

func deletes(w way, erase bool) scene {
	name := "delete"
	if erase {
		name = "erase"
	}
	remove := func(ctx context.Context, a *admin.Admin, c *attempt, key string) error {
		deleted, err := a.Delete(ctx, c.category.Stream(key), 4, &retention.DeleteOptions{EraseName: erase})
		c.got = deleted.Messages
		return err
	}
	return removes(name, w, remove, func(ctx context.Context, c *attempt) error {
		deleted, err := testkit.Must(admin.New(c.direct, nil)).Delete(ctx, c.category.Stream("cut"), 4, &retention.DeleteOptions{EraseName: erase})
		if err != nil {
			return err
		}
		if !deleted.Already || deleted.Version != 5 {
			return fmt.Errorf("it was not deleted once: %+v", deleted)
		}
		var left int
		err = c.direct.QueryRow(ctx, "select count(*) from dibs.messages where stream_name = $1 and position < 5", string(c.category.Stream("cut"))).Scan(&left)
		if err == nil && left != 0 {
			err = fmt.Errorf("%d messages are left", left)
		}
		return err
	})
}

// forgets is a scene of an intent that was confirmed two hours ago, in a category whose keys live
// for a minute.
func forgets(w way) scene {
	s := removes("forget", w, func(ctx context.Context, a *admin.Admin, c *attempt, key string) error {
		category := c.category
		if key != "cut" {
			category += "x"
		}
		forgotten, err := a.Forget(ctx, category, time.Hour, nil)
		c.got = forgotten.Messages
		return err
	}, func(ctx context.Context, c *attempt) error {
		var left, records int
		err := c.direct.QueryRow(ctx, `select count(*) filter (where stream_name = $1), count(*) filter (where type = 'dibs:Forgotten')
			from dibs.messages where stream_name in ($1, $2)`, string(c.category.Stream("cut")), string(c.category.WithType("forgotten").Stream("1"))).Scan(&left, &records)
		if err == nil && (left != 0 || records != 1) {
			err = fmt.Errorf("%d messages are left, and %d are on record", left, records)
		}
		return err
	})
	s.before = func(ctx context.Context, c *attempt) error {
		var all []messagestore.Append
		for _, category := range []messagestore.Category{c.category, c.category + "x"} {
			for _, m := range []struct {
				stream messagestore.StreamName
				types  []string
			}{
				{category.WithType("life").Stream("1"), []string{"KeyLifeDeclared"}},
				{category.Stream("cut"), []string{"Reserved", "Confirmed"}},
				{category.Stream("last"), []string{"Reserved"}},
			} {
				a := messagestore.Append{Stream: m.stream, Expected: messagestore.NoStream}
				for _, messageType := range m.types {
					a.Records = append(a.Records, messagestore.Encoded{ID: uuid.New(), Type: messageType, Data: []byte(`{"seconds":60}`)})
				}
				all = append(all, a)
			}
		}
		if _, err := testkit.Must(postgres.New(c.direct, nil)).AppendAll(ctx, all); err != nil {
			return err
		}
		_, err := c.direct.Exec(ctx, fmt.Sprintf(`begin; set local session_replication_role = replica;
			update dibs.messages set time = time - interval '2 hours' where stream_name in ('%s', '%s'); commit`, c.category.Stream("cut"), (c.category+"x").Stream("cut")))
		return err
	}
	return s
}

// raises raises the epoch, in a schema of its own: the epoch of the others stays.
func raises(w way) scene {
	raise := func(ctx context.Context, c *attempt, db postgres.DB) (string, error) {
		return testkit.Must(admin.New(db, &postgres.Config{Schema: c.schema})).RaiseEpoch(ctx)
	}
	now := func(ctx context.Context, c *attempt) (number int64, epoch string, err error) {
		err = c.direct.QueryRow(ctx, fmt.Sprintf("select number, %[1]s.epoch() from %[1]s.epochs", c.schema)).Scan(&number, &epoch)
		return number, epoch, err
	}
	return scene{
		name: "raise epoch: " + w.name, mode: w.mode, thorough: w == prepared, own: true,
		warm: func(ctx context.Context, c *attempt) error {
			err := ping(ctx, c)
			if err == nil && w.warm {
				_, err = raise(ctx, c, c.pool)
			}
			if err != nil {
				return err
			}
			c.fact, _, err = now(ctx, c)
			return err
		},
		call: func(ctx context.Context, c *attempt) (_ []ended, err error) {
			c.got, err = raise(ctx, c, c.pool)
			return nil, err
		},
		again: func(ctx context.Context, c *attempt, db postgres.DB) error {
			_, err := raise(ctx, c, db)
			return err
		},
		judge: func(ctx context.Context, c *attempt) error {
			number, epoch, err := now(ctx, c)
			if err != nil {
				return err
			}
			before, _ := c.fact.(int64)
			least, most := before+1, before+1
			if c.err != nil { // it may be both, that failed and again
				most++
			}
			switch {
			case number < least || number > most:
				return fmt.Errorf("it was raised %d times", number-before)
			case c.err == nil && c.got != epoch:
				return fmt.Errorf("it answered %v, and the epoch is %s", c.got, epoch)
			}
			raised, err := raise(ctx, c, c.direct)
			if err != nil {
				return fmt.Errorf("raise it later: %w", err)
			}
			after, latest, err := now(ctx, c)
			if err == nil && (after != number+1 || raised != latest || raised == epoch) {
				err = fmt.Errorf("it was %s, and later it was raised to %s, and is %s", epoch, raised, latest)
			}
			return err
		},
	}
}

// opens opens a driver of its own.
func opens() scene {
	return scene{
		name: "open", mode: pgx.QueryExecModeCacheStatement, thorough: true,
		call: func(ctx context.Context, c *attempt) ([]ended, error) {
			conn := c.config.ConnConfig
			u := url.URL{
				Scheme: "postgres", User: url.UserPassword(conn.User, conn.Password), Host: fmt.Sprintf("%s:%d", conn.Host, conn.Port),
				Path: "/" + conn.Database, RawQuery: url.Values{"sslmode": {"disable"}, "application_name": {string(c.category)}}.Encode(),
			}
			driver, err := postgres.Open(ctx, u.String(), nil)
			if err != nil {
				return nil, err
			}
			return nil, driver.Close()
		},
	}
}

// listens hears of one message that is written once it listens.
func listens() scene {
	return scene{
		name: "listen", mode: pgx.QueryExecModeCacheStatement, thorough: true,
		call: func(ctx context.Context, c *attempt) ([]ended, error) {
			ctx, leave := context.WithCancel(ctx)
			defer leave()
			var failed error
			err := c.driver.Listen(ctx, func(category messagestore.Category, head messagestore.GlobalPosition) {
				switch category {
				case "":
					var written messagestore.Written
					written, failed = testkit.Must(postgres.New(c.direct, nil)).Append(context.WithoutCancel(ctx), messages(c, "heard", messagestore.NoStream, 1))
					c.fact = written.GlobalPosition
				case c.category:
					c.got = head
					leave()
				}
			})
			if failed != nil || c.got == nil {
				return nil, errors.Join(failed, err)
			}
			return nil, nil
		},
		judge: func(_ context.Context, c *attempt) error {
			if c.err == nil && c.got != c.fact {
				return fmt.Errorf("it heard of %v, and not of %v", c.got, c.fact)
			}
			return nil
		},
	}
}

const (
	cutTableSQL = "create table if not exists public.cut_transactions (id uuid primary key)"
	cutRowSQL   = "insert into public.cut_transactions values ($1)"
)

// A transactCall calls Transact with a function that inserts a row and returns an append.
type transactCall func(ctx context.Context, c *attempt, first messagestore.StreamName, row uuid.UUID, a messagestore.Append) error

func overPgx(ctx context.Context, c *attempt, first messagestore.StreamName, row uuid.UUID, a messagestore.Append) error {
	_, err := c.driver.Transact(ctx, first, func(ctx context.Context, tx pgx.Tx, _ *messagestore.Message) ([]messagestore.Append, error) {
		_, err := tx.Exec(ctx, cutRowSQL, row)
		return []messagestore.Append{a}, err
	})
	return err
}

// unlooked has BEGIN travel with the function's statement.
func unlooked(ctx context.Context, c *attempt, _ messagestore.StreamName, row uuid.UUID, a messagestore.Append) error {
	return overPgx(ctx, c, "", row, a)
}

func overSQL(ctx context.Context, c *attempt, first messagestore.StreamName, row uuid.UUID, a messagestore.Append) error {
	db := stdlib.OpenDBFromPool(c.pool)
	defer db.Close()
	_, err := testkit.Must(postgres.NewSQL(db, nil)).Transact(ctx, first, func(ctx context.Context, tx *sql.Tx, _ *messagestore.Message) ([]messagestore.Append, error) {
		_, err := tx.ExecContext(ctx, cutRowSQL, row.String())
		return []messagestore.Append{a}, err
	})
	return err
}

// transacts is a scene of Transact: the caller's row and the message are there, or neither is.
func transacts(name string, w way, conflicts bool, call transactCall) scene {
	rows := func(c *attempt) uuid.UUID {
		return uuid.NewSHA1(uuid.NameSpaceOID, []byte("row of "+string(c.category)))
	}
	expected := messagestore.NoStream
	if conflicts {
		expected = 7
	}
	s := writes(name, w, func(ctx context.Context, c *attempt, key string) []ended {
		a, row := messages(c, key, expected, 1), rows(c)
		if key != "cut" {
			row = uuid.New()
		}
		return []ended{{appends: []messagestore.Append{a}, refused: conflicts, err: call(ctx, c, c.category.Stream("none"), row, a)}}
	})
	s.judge = func(ctx context.Context, c *attempt) error {
		var there, messages int
		err := c.direct.QueryRow(ctx, `select
			(select count(*) from public.cut_transactions where id = $1),
			(select count(*) from dibs.messages where stream_name = $2)`, rows(c), string(c.category.Stream("cut"))).Scan(&there, &messages)
		if err == nil && there != messages {
			err = fmt.Errorf("%d rows of the caller's and %d messages are there", there, messages)
		}
		return err
	}
	return s
}
