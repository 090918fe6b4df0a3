package check

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"sort"

	"github.com/google/uuid"

	"github.com/dibs-go/dibs/messagestore"
	"github.com/dibs-go/dibs/soak/history"
)

// load reads the table and then the histories, whose messages are looked up in it.
func load(ctx context.Context, in Inputs, cfg *Config) (*run, error) {
	r := &run{cfg: cfg, verdict: newVerdict(cfg), runs: map[history.Ref]int32{}, counts: map[history.Func]int{}, begin: history.Never}
	r.keys.number("")
	r.effects = append(r.effects, 0)
	if err := r.loadRows(ctx, in); err != nil {
		return nil, fmt.Errorf("reading the final table: %w", err)
	}
	files, err := history.Files(in.Histories)
	if err != nil {
		return nil, err
	}
	if len(files) == 0 {
		return nil, fmt.Errorf("no histories in %s", in.Histories)
	}
	for _, path := range files {
		for o, err := range history.Operations(path) {
			if err != nil {
				return nil, err
			}
			if err := cmp.Or(ctx.Err(), r.add(o)); err != nil {
				return nil, err
			}
		}
	}
	r.settle()
	return r, nil
}

func (r *run) loadRows(ctx context.Context, in Inputs) error {
	if in.Rows == nil {
		return errors.New("there is none")
	}
	for x, err := range in.Rows {
		if err := cmp.Or(err, ctx.Err()); err != nil {
			return err
		}
		if x.State != nil {
			r.states = append(r.states, stored{State: *x.State, id: x.ID, stream: r.stream(x.Stream), at: int64(x.Position)})
		}
		r.rows = append(r.rows, row{
			id: x.ID, stream: r.stream(x.Stream), effect: r.key(x.Effect), position: int64(x.Position),
			global: int64(x.Global), value: x.Value, hash: x.Hash,
		})
	}
	slices.SortFunc(r.rows, func(a, b row) int {
		return cmp.Or(bytes.Compare(a.id[:], b.id[:]), cmp.Compare(a.global, b.global))
	})
	r.byStream = make([]int32, len(r.rows))
	for i := range r.rows {
		r.byStream[i] = int32(i)
	}
	r.byGlobal = slices.Clone(r.byStream)
	slices.SortFunc(r.byStream, func(i, j int32) int {
		a, b := &r.rows[i], &r.rows[j]
		return cmp.Or(cmp.Compare(a.stream, b.stream), cmp.Compare(a.position, b.position), cmp.Compare(a.global, b.global))
	})
	slices.SortFunc(r.byGlobal, func(i, j int32) int {
		a, b := &r.rows[i], &r.rows[j]
		return cmp.Or(cmp.Compare(r.category[a.stream], r.category[b.stream]), cmp.Compare(a.global, b.global))
	})
	return nil
}

func (r *run) stream(name messagestore.StreamName) uint32 {
	n := r.streams.number(string(name))
	if int(n) == len(r.category) {
		r.category = append(r.category, r.categoryOf(name.Category()))
		r.last = append(r.last, -1)
	}
	return n
}

func (r *run) categoryOf(name messagestore.Category) uint32 {
	n := r.categories.number(string(name))
	if int(n) == len(r.unrecorded) {
		r.unrecorded = append(r.unrecorded, slices.Contains(r.cfg.Unrecorded, name))
	}
	return n
}

func (r *run) key(key string) uint32 {
	n := r.keys.number(key)
	if int(n) == len(r.effects) {
		r.effects = append(r.effects, 0)
	}
	return n
}

// find returns the row with the id, or -1.
func (r *run) find(id uuid.UUID) int32 {
	i, found := sort.Find(len(r.rows), func(i int) int { return bytes.Compare(id[:], r.rows[i].id[:]) })
	if !found {
		return -1
	}
	return int32(i)
}

func kindOf(k history.Kind) kind {
	switch k {
	case history.OK:
		return ok
	case history.Fail:
		return fail
	}
	return info
}

func classOf(c string) class {
	switch c {
	case history.Conflict:
		return conflict
	case history.Written:
		return written
	case history.NotWritten:
		return notWritten
	case history.IDConflict:
		return idConflict
	case history.Won:
		return won
	case history.Duplicate:
		return duplicate
	case history.KeyReused:
		return keyReused
	case history.Ahead:
		return ahead
	case history.RolledBack:
		return rolledBack
	case history.Epoch:
		return anotherEpoch
	}
	return other
}

// add adds one operation.
func (r *run) add(o *history.Operation) error {
	r.begin = min(r.begin, o.Time)
	if o.Kind == history.OK || o.Func == history.Fault {
		r.counts[o.Func]++
	}
	ref := history.Ref{Proc: o.Proc, Op: o.Op}
	switch o.Func {
	case history.Write, history.WriteTx:
		return r.addOp(o, isWrite)
	case history.Version:
		return r.addOp(o, isVersion)
	case history.Resolve:
		return r.addOp(o, isResolve)
	case history.Read:
		for i := range o.Answer {
			for j := range o.Answer[i].Messages {
				r.seen(ref, o.Time, -1, o.Answer[i].Stream, &o.Answer[i].Messages[j])
			}
		}
		if o.Kind == history.OK && len(o.Appends) == 1 && len(o.Answer) == 1 {
			return r.addRead(ref, o)
		}
	case history.Run:
		r.addLife(ref, o)
	case history.Handle, history.Park:
		return r.addDelivery(ref, o)
	case history.Position, history.Fetch:
		p := put{
			time: o.Time, end: o.End, number: o.Op, position: int64(o.Position), life: r.life(o), kind: kindOf(o.Kind), class: classOf(o.Class),
		}
		if o.Func == history.Fetch {
			r.fetches = append(r.fetches, p)
		} else {
			r.puts = append(r.puts, p)
			r.addSeatWrite(o, &p)
		}
	case history.Reserve:
		if len(o.Appends) != 1 || len(o.Appends[0].Messages) != 1 || o.Key == "" {
			return fmt.Errorf("%v: a reservation names a key, a stream and a source", ref)
		}
		r.reserves = append(r.reserves, reserve{
			ref: ref, time: o.Time, end: o.End, key: r.key(o.Key), stream: r.stream(o.Appends[0].Stream),
			source: o.Appends[0].Messages[0].ID, value: o.Value, kind: kindOf(o.Kind), class: classOf(o.Class),
		})
	case history.Effect:
		r.effects[r.key(o.Key)]++
	case history.Fault:
		r.faults = append(r.faults, fault{ref: ref, name: o.Class, target: o.Target, time: o.Time, end: o.End, kind: kindOf(o.Kind)})
	case history.Heal:
		r.heals = append(r.heals, fault{ref: ref, name: o.Class, time: o.Time, end: o.End, kind: kindOf(o.Kind)})
	case history.Failover:
		r.failovers = append(r.failovers, failover{fault: fault{ref: ref, name: o.Class, time: o.Time, end: o.End, kind: kindOf(o.Kind)}, heads: r.heads(o)})
	case history.Overtake:
		r.overtakes = append(r.overtakes, failover{fault: fault{ref: ref, time: o.Time, end: o.End, kind: kindOf(o.Kind)}, heads: r.heads(o)})
	default:
		return fmt.Errorf("%v: unknown function %q", ref, o.Func)
	}
	return nil
}

// addRead checks that a stream was read from one position on without a gap. At its end, the
// reader saw the stream's version.
func (r *run) addRead(ref history.Ref, o *history.Operation) error {
	next, messages := o.Appends[0].Expected, o.Answer[0].Messages
	for i := range messages {
		if messages[i].Position != next {
			r.verdict.broken(ReadHonesty, subject{ids: []uuid.UUID{messages[i].ID}, ops: []history.Ref{ref}},
				"%s was read from position %d on, and after %d came %d", o.Appends[0].Stream, o.Appends[0].Expected, next-1, messages[i].Position)
			return nil
		}
		next++
	}
	if len(messages) == 0 && next > 0 {
		return nil // before it was another epoch
	}
	asked := *o
	asked.Actual = next - 1
	return r.addOp(&asked, isVersion)
}

// heads reads the last global position of each category.
func (r *run) heads(o *history.Operation) map[uint32]int64 {
	heads := make(map[uint32]int64, len(o.Answer))
	for _, a := range o.Answer {
		heads[r.categoryOf(messagestore.Category(a.Stream))] = int64(a.Global)
	}
	return heads
}

func (r *run) addOp(o *history.Operation, f fn) error {
	n := int32(len(r.ops))
	x := op{
		number: o.Op, time: o.Time, end: o.End, actual: int64(o.Actual), proc: r.procs.number(o.Proc),
		first: int32(len(r.appends)), n: int32(len(o.Appends)), fn: f, kind: kindOf(o.Kind), class: classOf(o.Class),
	}
	if len(o.Appends) == 0 {
		return fmt.Errorf("%s:%d: a %s of no stream", o.Proc, o.Op, o.Func)
	}
	if x.kind == fail && x.class == conflict {
		x.conflict = r.stream(o.Appends[0].Stream)
		if len(o.Answer) > 0 {
			x.conflict = r.stream(o.Answer[0].Stream)
		}
	}
	for i := range o.Appends {
		a := &o.Appends[i]
		r.appends = append(r.appends, attempt{
			op: n, stream: r.stream(a.Stream), expected: int64(a.Expected), version: int64(a.Version), global: int64(a.Global),
			first: int32(len(r.messages)), n: int32(len(a.Messages)), duplicate: a.Duplicate,
		})
		for j := range a.Messages {
			m := &a.Messages[j]
			r.messages = append(r.messages, message{
				id: m.ID, value: m.Value, hash: m.Hash, row: r.find(m.ID), attempt: int32(len(r.appends) - 1),
			})
		}
	}
	r.ops = append(r.ops, x)
	if f == isResolve && o.Ref != (history.Ref{}) {
		r.resolved = append(r.resolved, resolution{ref: o.Ref, by: n})
	}
	return nil
}

func (r *run) addLife(ref history.Ref, o *history.Operation) {
	l := &r.lives[r.lifeOf(ref)]
	l.consumer = r.consumers.number(o.Consumer + " of " + string(o.Category))
	l.category = r.categoryOf(o.Category)
	l.alone = o.Alone
	l.allowance, l.start = int64(o.Interval+o.Batch), int64(o.Position)
	l.time, l.end, l.class = o.Time, o.End, classOf(o.Class)
	l.known, l.ended = true, o.End != history.Never
}

// life returns the number of the life that o is of.
func (r *run) life(o *history.Operation) int32 {
	return r.lifeOf(history.Ref{Proc: o.Proc, Op: o.Run})
}

// lifeOf makes room for a life that has not been told of yet: it is told of when it ends.
func (r *run) lifeOf(ref history.Ref) int32 {
	n, known := r.runs[ref]
	if !known {
		n = int32(len(r.lives))
		r.runs[ref] = n
		r.lives = append(r.lives, life{ref: ref})
	}
	return n
}

func (r *run) addDelivery(ref history.Ref, o *history.Operation) error {
	if len(o.Appends) != 1 || len(o.Appends[0].Messages) != 1 {
		return fmt.Errorf("%v: a %s is of one message", ref, o.Func)
	}
	a, m := &o.Appends[0], &o.Appends[0].Messages[0]
	d := delivery{
		time: o.Time, end: o.End, number: o.Op, life: r.life(o), global: int64(m.Global), position: int64(m.Position), row: r.find(m.ID), kind: kindOf(o.Kind),
		class: classOf(o.Class), again: o.Attempt > 1, key: r.key(o.Key),
	}
	r.seen(ref, o.Time, d.life, a.Stream, m)
	if o.Func == history.Park {
		r.parks = append(r.parks, d)
		return nil
	}
	r.deliveries = append(r.deliveries, d)
	if o.Kind == history.OK && o.Key != "" {
		r.acked = append(r.acked, ack{key: d.key, source: m.ID, life: d.life, global: d.global, time: o.Time, end: o.End})
	}
	return nil
}

// seen compares a message that a process saw with the final table.
func (r *run) seen(ref history.Ref, at int64, life int32, stream messagestore.StreamName, m *history.Message) {
	r.verdict.checked(ReadHonesty, 1)
	var what string
	if n := r.find(m.ID); n < 0 {
		what = "it is not in the final table"
	} else {
		x := &r.rows[n]
		switch {
		case r.streams.list[x.stream] != string(stream):
			what = fmt.Sprintf("in the final table it is in %s", r.streams.list[x.stream])
		case x.position != int64(m.Position):
			what = fmt.Sprintf("it was read at position %d, and is at %d", m.Position, x.position)
		case x.global != int64(m.Global):
			what = fmt.Sprintf("it was read at global position %d, and is at %d", m.Global, x.global)
		case x.value != m.Value || x.hash != m.Hash:
			what = "its content is another in the final table"
		default:
			return
		}
	}
	r.reads = append(r.reads, reading{
		ref: ref, id: m.ID, category: r.category[r.stream(stream)], global: int64(m.Global), position: int64(m.Position), time: at, life: life, what: what,
	})
}

// settle does the work that needs all lines to be read.
func (r *run) settle() {
	for i := range r.rows {
		x := &r.rows[i]
		r.last[x.stream] = max(r.last[x.stream], x.position)
	}
	r.linkResolutions()
	if len(r.failovers) > 0 {
		r.forgetUndone(r.deliveries)
		r.forgetUndone(r.parks)
	}
	for _, all := range [][]failover{r.failovers, r.overtakes} {
		slices.SortFunc(all, func(a, b failover) int { return cmp.Compare(a.time, b.time) })
	}
	byTime := func(a, b put) int { return cmp.Compare(a.time, b.time) }
	slices.SortFunc(r.puts, byTime)
	slices.SortFunc(r.fetches, byTime)
	slices.SortFunc(r.deliveries, func(a, b delivery) int { return cmp.Compare(a.time, b.time) })
}

// forgetUndone leaves messages alone that were delivered, undone by a failover, and written again:
// it is another message that is in the final table.
func (r *run) forgetUndone(all []delivery) {
	for i := range all {
		if d := &all[i]; d.row >= 0 && (r.rows[d.row].global != d.global || r.rows[d.row].position != d.position) {
			d.row = -1
		}
	}
}

// linkResolutions tells operations of unknown outcome the outcome that was found.
func (r *run) linkResolutions() {
	if len(r.resolved) == 0 {
		return
	}
	wanted := make(map[history.Ref]class, len(r.resolved))
	for _, x := range r.resolved {
		switch o := &r.ops[x.by]; {
		case o.kind == ok:
			wanted[x.ref] = o.class
		case o.kind == fail && o.class == idConflict:
			wanted[x.ref] = notWritten // something else has the id
		}
	}
	for i := range r.ops {
		o := &r.ops[i]
		if o.fn != isWrite || o.kind != info {
			continue
		}
		if said, found := wanted[r.ref(o)]; found {
			o.resolved = said
		}
	}
}
