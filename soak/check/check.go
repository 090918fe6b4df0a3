package check

import (
	"context"
	"iter"
	"time"

	"github.com/google/uuid"

	"github.com/dibs-go/dibs/messagestore"
	"github.com/dibs-go/dibs/soak/history"
)

// Inputs are the files that a run left.
type Inputs struct {
	// Histories is the directory that the processes wrote their histories to.
	Histories string

	// Rows yields every message that there is after the run, in any order: the final table.
	// It is gone through once. The row is valid until the next.
	Rows iter.Seq2[*Row, error]

	// Facts are the harness's own measurements. Without them the run does not pass.
	Facts *Facts
}

// A Row is a message of the final table.
type Row struct {
	Stream   messagestore.StreamName
	Position messagestore.Version
	Global   messagestore.GlobalPosition
	ID       uuid.UUID
	Value    uint64 // the same of its data as in history.Message
	Hash     uint64 // of its content, by history.Hash

	// Effect is the idempotence key whose effect in the store this message is, "" for a
	// message that is no effect.
	Effect string

	// State is what a checkpoint says, nil for any other message.
	State *State
}

// Config changes the set of checks. A nil *Config is a good one.
type Config struct {
	// Unrecorded are the categories whose messages are written without a history, such as
	// the positions of consumers: their writers are not checked.
	//
	// Defaults to none.
	Unrecorded []messagestore.Category

	// Guards are how much must have happened for a run to say anything.
	//
	// Defaults to [DefaultGuards].
	Guards *Guards

	// HealLimit is how long it may take until everything is quiet after the last fault.
	//
	// Defaults to 2 minutes.
	HealLimit time.Duration

	// AllowedSQLStates are the errors that PostgreSQL's log may hold; a name of two
	// characters allows a class.
	//
	// Defaults to [DefaultSQLStates].
	AllowedSQLStates []string

	// AllowedTexts are other errors that it may log, whole.
	AllowedTexts []string

	// Stories is how many violations of each invariant are told at length; the others
	// are counted.
	//
	// Defaults to 3.
	Stories int
}

// Run holds the files of a run against the invariants. The error says that the inputs
// cannot be read; a run that broke a promise, or in which too little happened, is no error
// but a Verdict that does not pass.
//
// It keeps the fate of each message and each operation as numbers, some 200 bytes together, and
// everything else on the disk: a run of 4,000,000 operations takes one or two gigabytes.
func Run(ctx context.Context, in Inputs, cfg *Config) (*Verdict, error) {
	c := Config{}
	if cfg != nil {
		c = *cfg
	}
	if c.Guards == nil {
		c.Guards = DefaultGuards(1)
	}
	if c.HealLimit == 0 {
		c.HealLimit = 2 * time.Minute
	}
	if c.AllowedSQLStates == nil {
		c.AllowedSQLStates = DefaultSQLStates()
	}
	if c.Stories == 0 {
		c.Stories = 3
	}
	r, err := load(ctx, in, &c)
	if err != nil {
		return nil, err
	}
	for _, check := range []func(*run){
		checkTable, checkWrites, checkOrder, checkVersions, checkConsumers, checkReads, checkReservations, checkRewinds,
	} {
		if err := ctx.Err(); err != nil {
			return nil, err
		}
		check(r)
	}
	checkFacts(r, in.Facts)
	checkGuards(r, in.Facts)
	if err := tell(ctx, r, in.Histories); err != nil {
		return nil, err
	}
	return r.verdict, nil
}

// A run is all that happened, with numbers instead of names.
type run struct {
	cfg     *Config
	verdict *Verdict

	streams    names
	categories names
	procs      names
	keys       names // number 0 is no key
	consumers  names // name and category

	category   []uint32 // of each stream
	unrecorded []bool   // by category

	rows     []row   // by id
	byStream []int32 // rows by stream and position
	byGlobal []int32 // rows by category and global position
	last     []int64 // version of each stream, by number

	ops      []op
	appends  []attempt
	messages []message
	resolved []resolution
	byID     []int32 // messages by id
	written  writers
	losses   []int32 // operations that are undone

	runs       map[history.Ref]int32
	lives      []life
	deliveries []delivery
	puts       []put
	fetches    []put
	parks      []delivery
	reads      []reading
	reserves   []reserve
	states     []stored
	seatWrites []seatWrite
	effects    []int32 // how many outside the store, by key
	acked      []ack

	faults    []fault
	failovers []failover
	overtakes []failover
	heals     []fault
	begin     int64 // when the first event was
	counts    map[history.Func]int
}

// A row is a Row.
type row struct {
	id       uuid.UUID
	stream   uint32
	effect   uint32
	position int64
	global   int64
	value    uint64
	hash     uint64
}

// An op is an operation of a writer.
type op struct {
	number    uint64
	time, end int64
	actual    int64
	proc      uint32
	conflict  uint32 // the stream that was at another version
	first, n  int32  // of its appends
	fn        fn
	kind      kind
	class     class
	resolved  class // the answer of a later Resolve
	undone    bool  // by a failover, as it may be
}

type attempt struct {
	op              int32
	stream          uint32
	expected        int64
	version, global int64 // as answered
	first, n        int32 // of its messages
	duplicate       bool
}

type message struct {
	id      uuid.UUID
	value   uint64
	hash    uint64
	row     int32 // -1 for none
	attempt int32
}

type (
	fn    uint8
	kind  uint8
	class uint8
)

const (
	isWrite fn = iota
	isVersion
	isResolve
)

const (
	ok kind = iota
	fail
	info
)

const (
	other class = iota
	conflict
	written
	notWritten
	idConflict
	won
	duplicate
	keyReused
	ahead
	anotherEpoch
	rolledBack
)

// A life is one run of a consumer.
type life struct {
	ref          history.Ref
	consumer     uint32
	category     uint32
	alone        bool
	allowance    int64
	start        int64
	time, end    int64
	class        class
	known, ended bool
}

// A resolution is operation number by, which found out about another.
type resolution struct {
	ref history.Ref
	by  int32
}

// A delivery is a message in flight, or a parked message.
type delivery struct {
	time, end int64
	number    uint64
	life      int32
	global    int64
	position  int64
	row       int32 // -1 for none
	kind      kind
	again     bool  // not the first attempt of this life
	class     class // of a park that failed
	key       uint32
}

type put struct {
	time, end int64
	number    uint64
	position  int64
	life      int32
	kind      kind
	class     class
}

// A reading is a message that a process saw otherwise than it is in the final table, or
// that is not there.
type reading struct {
	ref      history.Ref
	id       uuid.UUID
	category uint32
	global   int64
	position int64
	time     int64
	life     int32 // of the consumer, -1 for none
	what     string
}

type reserve struct {
	ref       history.Ref
	time, end int64
	key       uint32
	stream    uint32
	source    uuid.UUID
	value     uint64
	kind      kind
	class     class
}

type ack struct {
	key       uint32
	source    uuid.UUID
	life      int32
	global    int64
	time, end int64
}

type fault struct {
	ref       history.Ref
	name      string
	target    string
	time, end int64
	kind      kind
}

type failover struct {
	fault
	heads map[uint32]int64 // by category
}

func (r *run) streamName(n uint32) messagestore.StreamName {
	return messagestore.StreamName(r.streams.list[n])
}

func (r *run) recorded(stream uint32) bool {
	return !r.unrecorded[r.category[stream]]
}

func (r *run) ref(o *op) history.Ref {
	return history.Ref{Proc: r.procs.list[o.proc], Op: o.number}
}

// names gives numbers to names.
type names struct {
	numbers map[string]uint32
	list    []string
}

func (n *names) number(name string) uint32 {
	if n.numbers == nil {
		n.numbers = map[string]uint32{}
	}
	number, known := n.numbers[name]
	if !known {
		number = uint32(len(n.list))
		n.numbers[name] = number
		n.list = append(n.list, name)
	}
	return number
}
