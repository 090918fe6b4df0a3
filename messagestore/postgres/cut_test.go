package postgres_test

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"os"
	"reflect"
	"regexp"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/stretchr/testify/require"

	"github.com/dibs-go/dibs/internal/pgtest"
	"github.com/dibs-go/dibs/internal/testkit"
	"github.com/dibs-go/dibs/internal/testserver"
	"github.com/dibs-go/dibs/messagestore"
	"github.com/dibs-go/dibs/messagestore/postgres"
	"github.com/dibs-go/dibs/messagestore/postgres/admin"
)

// A fault is an event at a boundary of the protocol.
type fault struct {
	name   string
	fault  testserver.Fault
	leaves bool // the caller leaves, since it would wait for ever
	every  bool // it happens at every boundary at once, and the caller notices nothing

	// at reports whether it happens to a message of this side, which the message of the
	// next side follows.
	at func(s scene, side, next testserver.Side) bool
}

const nobody testserver.Side = -1 // follows the last message

var faults = []fault{
	{name: "cut before", fault: testserver.CloseBefore, at: func(scene, testserver.Side, testserver.Side) bool { return true }},
	// Else it is the same as before the next message.
	{name: "cut after", fault: testserver.CloseAfter, at: func(_ scene, side, next testserver.Side) bool { return side != next }},
	{name: "cut within", fault: testserver.CloseWithin, at: func(s scene, _, _ testserver.Side) bool { return s.thorough }},
	{name: "reset", fault: testserver.ResetBefore, at: func(scene, testserver.Side, testserver.Side) bool { return true }},
	{name: "reply lost", fault: testserver.Lose, leaves: true, at: func(_ scene, side, _ testserver.Side) bool { return side == testserver.FromServer }},
	{name: "arrives late", fault: testserver.Hold, leaves: true, at: func(_ scene, side, _ testserver.Side) bool { return side == testserver.FromClient }},
	{name: "server gone", fault: testserver.Forsake, leaves: true, at: func(s scene, side, _ testserver.Side) bool { return s.thorough && side == testserver.FromClient }},
	{name: "dripped", fault: testserver.Drip, every: true, at: func(_ scene, _, next testserver.Side) bool { return next == nobody }},
}

// A scene is a call of the driver's, and the conditions that hold however it ends.
type scene struct {
	name     string
	mode     pgx.QueryExecMode
	thorough bool // all faults happen to it
	own      bool // it has a schema of its own meanwhile
	changes  bool // its outcome may be unknown though it appends nothing

	// before prepares the data of the call, past the proxy, and warm uses its connection once.
	// Both may be nil.
	before, warm func(ctx context.Context, c *attempt) error

	// call is the call that is cut. It returns the ends of the writes in it, or none.
	call func(ctx context.Context, c *attempt) ([]ended, error)

	// again is a retry after an error, on a good connection, while the held message is still on
	// its way.
	again func(ctx context.Context, c *attempt, db postgres.DB) error

	// judge returns an error for a wrong result: it is called when no message is on its way any
	// more.
	judge func(ctx context.Context, c *attempt) error
}

// An ended is a write that is there whole or not at all, and the outcome that its caller got.
type ended struct {
	appends []messagestore.Append
	refused bool // it meets a conflict
	err     error
	found   error // the result of Resolve, if the outcome was unknown
}

// An attempt is one time that a scene is played.
type attempt struct {
	direct   *pgxpool.Pool // past the proxy
	proxy    *testserver.Proxy
	config   *pgxpool.Config // through it
	pool     *pgxpool.Pool
	driver   *postgres.Driver // over pool
	category messagestore.Category
	schema   string // "" for the one that all share
	writes   []ended
	err      error
	fact     any // what before found out
	got      any // what the call did
}

// A matrix plays every scene once for each boundary and each fault.
type matrix struct {
	direct  *pgxpool.Pool
	base    *pgxpool.Config
	schemas chan string // that nobody has now

	mu    sync.Mutex
	count map[string]map[string]int // endings of each fault
}

// play plays a scene, has its message number at, from 1 on, meet f, and returns the messages of
// the protocol. Nothing happens to message 0.
func (m *matrix) play(ctx context.Context, s scene, at int, f fault) (_ []testserver.Message, err error) {
	ctx, cancel := context.WithTimeout(ctx, testkit.WaitLimit)
	defer cancel()
	c := &attempt{direct: m.direct, category: messagestore.Category("cut" + strings.ReplaceAll(uuid.NewString(), "-", ""))}
	if s.own {
		c.schema = <-m.schemas
		defer func() { m.schemas <- c.schema }()
	}
	if c.proxy, err = testserver.NewProxy(pgconn.NetworkAddress(m.base.ConnConfig.Host, m.base.ConnConfig.Port)); err != nil {
		return nil, err
	}
	defer c.proxy.Close()
	c.config = through(c.proxy, m.base)
	c.config.ConnConfig.DefaultQueryExecMode = s.mode
	c.config.ConnConfig.RuntimeParams["application_name"] = string(c.category)
	if c.pool, err = pgxpool.NewWithConfig(ctx, c.config); err != nil {
		return nil, err
	}
	defer c.pool.Close()
	c.driver = testkit.Must(postgres.New(c.pool, nil))
	for _, prepare := range []func(context.Context, *attempt) error{s.before, s.warm} {
		if prepare != nil {
			if err := prepare(ctx, c); err != nil {
				return nil, fmt.Errorf("prepare: %w", err)
			}
		}
	}

	met := make(chan struct{})
	var mu sync.Mutex
	var said []testserver.Message
	c.proxy.SetRule(func(message testserver.Message) testserver.Fault {
		switch {
		case message.Name == "CancelRequest":
			return testserver.Drop // or a late statement would be cancelled, sometimes
		case message.Name == "Terminate", // it is after the call, sometimes
			message.Name == "NotificationResponse" && !strings.Contains(string(message.Body), string(c.category)):
			return testserver.Pass
		}
		mu.Lock()
		defer mu.Unlock()
		message.Body = nil // which is the proxy's
		said = append(said, message)
		if len(said) == at {
			close(met)
		}
		if len(said) == at || f.every && at > 0 {
			return f.fault
		}
		return testserver.Pass
	})
	callCtx, leave := context.WithCancel(ctx)
	defer leave()
	over := make(chan struct{})
	var watch sync.WaitGroup
	watch.Go(func() {
		select {
		case <-met:
			if f.leaves {
				leave()
			}
		case <-over:
		}
	})
	c.writes, c.err = s.call(callCtx, c)
	mu.Lock()
	whole := slices.Clone(said)
	mu.Unlock()
	close(over)
	watch.Wait()
	select {
	case <-met:
	default:
		if at > 0 {
			return whole, errors.New("the fault was not met")
		}
	}

	if err := m.goOn(ctx, s, c); err != nil {
		return whole, err
	}
	if f.fault == testserver.Hold {
		c.pool.Close() // which returns once all that was on its way has arrived
	}
	c.proxy.Close()
	c.pool.Close()
	if err := m.awaitEnd(ctx, c.category); err != nil {
		return whole, err
	}
	return whole, m.judge(ctx, s, c, f)
}

// goOn acts as a caller does after an error, and then releases the held message: once the caller
// knows, or when it waits for it.
func (m *matrix) goOn(ctx context.Context, s scene, c *attempt) error {
	conn, err := m.direct.Acquire(ctx)
	if err != nil {
		return err
	}
	defer conn.Release()
	done := make(chan error, 1)
	go func() {
		store := testkit.Must(messagestore.New(testkit.Must(postgres.New(conn, nil)), nil))
		for i := range c.writes {
			if w := &c.writes[i]; errors.Is(w.err, messagestore.ErrOutcomeUnknown) {
				_, w.found = store.Resolve(ctx, w.err)
			}
		}
		if c.err != nil && s.again != nil {
			done <- s.again(ctx, c, conn)
			return
		}
		done <- nil
	}()
	ticker := time.NewTicker(2 * time.Millisecond)
	defer ticker.Stop()
	for blocked := false; ; {
		select {
		case err := <-done:
			c.proxy.Release()
			return err
		case <-ticker.C:
			if blocked {
				continue
			}
			if err := m.direct.QueryRow(ctx, "select cardinality(pg_blocking_pids($1)) > 0", conn.Conn().PgConn().PID()).Scan(&blocked); err != nil {
				return fmt.Errorf("wait until the caller knows the outcome, or waits for the held message: %w", err)
			}
			if blocked {
				c.proxy.Release()
			}
		}
	}
}

// awaitEnd returns when the server has finished all that it was sent.
func (m *matrix) awaitEnd(ctx context.Context, name messagestore.Category) error {
	ticker := time.NewTicker(2 * time.Millisecond)
	defer ticker.Stop()
	for {
		var busy bool
		err := m.direct.QueryRow(ctx, "select exists (select from pg_stat_activity where application_name = $1)", string(name)).Scan(&busy)
		if err != nil {
			return fmt.Errorf("wait until the server has no session of the call any more: %w", err)
		}
		if !busy {
			return nil
		}
		<-ticker.C
	}
}

// judge compares the outcome with the store.
func (m *matrix) judge(ctx context.Context, s scene, c *attempt, f fault) error {
	for _, w := range c.writes {
		ending, err := m.ending(ctx, w)
		if err != nil {
			return err
		}
		if f.every && w.err != nil && !w.refused {
			return fmt.Errorf("nothing was lost, and it failed: %w", w.err)
		}
		m.add(f.name, ending)
	}
	if f.every && c.err != nil {
		return fmt.Errorf("nothing was lost, and it failed: %w", c.err)
	}
	if len(c.writes) == 0 {
		if errors.Is(c.err, messagestore.ErrOutcomeUnknown) && !s.changes {
			return fmt.Errorf("it wrote nothing, and says: %w", c.err)
		}
		ending := "other calls: OK"
		if c.err != nil {
			ending = "other calls: error"
		}
		m.add(f.name, ending)
	}
	if s.judge == nil {
		return nil
	}
	return s.judge(ctx, c)
}

// The endings that there are.
const (
	endedOK         = "OK"
	endedConflict   = "conflict"
	endedDefinite   = "definite failure"
	endedWritten    = "unknown: written"
	endedNotWritten = "unknown: not written"
)

func (m *matrix) ending(ctx context.Context, w ended) (string, error) {
	var ids []uuid.UUID
	for _, a := range w.appends {
		for _, r := range a.Records {
			ids = append(ids, r.ID)
		}
	}
	var there int
	if err := m.direct.QueryRow(ctx, "select count(*) from dibs.messages where id = any($1)", ids).Scan(&there); err != nil {
		return "", err
	}
	wrong := func(what string) (string, error) {
		return "", fmt.Errorf("%s: %d of %d messages are there; it was told %q, and when it asked %q", what, there, len(ids), fmt.Sprint(w.err), fmt.Sprint(w.found))
	}
	switch {
	case there > 0 && there < len(ids):
		return wrong("half of it is there")
	case there > 0 && w.refused:
		return wrong("it is there in spite of a conflict")
	case w.err == nil && (there == 0 || w.refused):
		return wrong("it is not there, and was said to be")
	case w.err == nil:
		return endedOK, nil
	}
	unknown, ok := errors.AsType[*messagestore.OutcomeUnknownError](w.err)
	switch {
	case !ok && there > 0:
		return wrong("it is there, and was said not to be")
	case !ok && errors.Is(w.err, messagestore.ErrVersionConflict) != w.refused && errors.Is(w.err, messagestore.ErrVersionConflict):
		return wrong("it meets no conflict")
	case !ok && errors.Is(w.err, messagestore.ErrVersionConflict):
		return endedConflict, nil
	case !ok:
		return endedDefinite, nil
	case !slices.EqualFunc(unknown.Writes, w.appends, func(u, a messagestore.Append) bool {
		return u.Stream == a.Stream && slices.EqualFunc(u.Records, a.Records, func(u, a messagestore.Encoded) bool { return u.ID == a.ID })
	}):
		return wrong("it was told of another's write")
	case w.found == nil && there > 0:
		return endedWritten, nil
	case errors.Is(w.found, messagestore.ErrNotWritten) && there == 0:
		return endedNotWritten, nil
	}
	return wrong("who asked was not told the truth")
}

func (m *matrix) add(fault, ending string) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.count[fault] == nil {
		m.count[fault] = map[string]int{}
	}
	m.count[fault][ending]++
}

// table shows the endings of each fault.
func (m *matrix) table() string {
	endings := map[string]bool{}
	for _, count := range m.count {
		for ending := range count {
			endings[ending] = true
		}
	}
	columns := slices.Sorted(maps.Keys(endings))
	var b strings.Builder
	fmt.Fprintf(&b, "%-12s", "")
	for _, ending := range columns {
		fmt.Fprintf(&b, " | %s", ending)
	}
	for _, f := range faults {
		fmt.Fprintf(&b, "\n%-12s", f.name)
		for _, ending := range columns {
			fmt.Fprintf(&b, " | %*d", len(ending), m.count[f.name][ending])
		}
	}
	return b.String()
}

// A fault at any boundary of a call leaves one right outcome: written, definitely not written,
// or unknown and resolved truly.
func TestEveryCutEndsInOneRightAnswer(t *testing.T) {
	t.Parallel()
	testkit.Do(pgtest.Pool(t).Exec(t.Context(), cutTableSQL))(t)
	t.Run("prepared and exec", func(t *testing.T) {
		t.Parallel()
		cutAll(t, everyChange)
	})
	t.Run("every other mode", func(t *testing.T) {
		t.Parallel()
		testkit.NeedsLong(t)
		cutAll(t, longTier)
	})
}

// someOf returns each twelfth of the parts of a kind, from its first on: the same ones each time.
func someOf[Part any](parts []Part, kind func(Part) string) (some []Part) {
	const each = 12
	seen := map[string]int{}
	for _, p := range parts {
		if seen[kind(p)]%each == 0 {
			some = append(some, p)
		}
		seen[kind(p)]++
	}
	return some
}

// cutAll cuts the calls that are sent in these ways.
func cutAll(t *testing.T, ways []way) {
	t.Helper()
	const workers = 8
	config := pgtest.Pool(t).Config()
	config.MaxConns = 3 * workers
	direct := testkit.Do(pgxpool.NewWithConfig(t.Context(), config))(t)
	testkit.Close(t, "the pool is closed: no connection is in use", direct.Close)
	m := &matrix{direct: direct, base: config, schemas: make(chan string, workers), count: map[string]map[string]int{}}
	for range workers {
		_, schema := pgtest.SchemaInShared(t)
		m.schemas <- schema
	}
	ctx, cancel := context.WithTimeout(t.Context(), 9*time.Minute) // of a call that hangs
	defer cancel()

	type part struct {
		scene scene
		at    int
		fault fault
		what  string
	}
	var parts []part
	planned := map[string]int{} // cases of each fault
	boundaries := 0
	for _, s := range scenes(ways) {
		said, err := m.play(ctx, s, 0, fault{every: true})
		require.NoError(t, err, s.name)
		require.NotEmpty(t, said, s.name)
		boundaries += len(said)
		for i, message := range said {
			next := nobody
			if i+1 < len(said) {
				next = said[i+1].From
			}
			for _, f := range faults {
				if f.at(s, message.From, next) {
					planned[f.name]++
					parts = append(parts, part{s, i + 1, f, fmt.Sprintf("%s: %s, %d of %d: %s", s.name, f.name, i+1, len(said), message)})
				}
			}
		}
	}
	clear(m.count)
	all := len(parts)
	if !testkit.Long() {
		parts = someOf(parts, func(p part) string { return p.fault.name })
	}

	work := make(chan part)
	var group sync.WaitGroup
	for range workers {
		group.Go(func() {
			for p := range work {
				if _, err := m.play(ctx, p.scene, p.at, p.fault); err != nil {
					t.Errorf("%s: %v", p.what, err)
				}
			}
		})
	}
	for _, p := range parts {
		work <- p
	}
	close(work)
	group.Wait()

	t.Logf("%d calls with %d boundaries: %d of %d cases\n%s", len(scenes(ways)), boundaries, len(parts), all, m.table())
	total := map[string]int{}
	for _, f := range faults {
		count := m.count[f.name]
		require.Equal(t, planned[f.name] > 0, len(count) > 0, f.name)
		for ending, times := range count {
			total[ending] += times
		}
		if len(parts) < all || !slices.ContainsFunc(scenes(ways), func(s scene) bool { return s.thorough }) {
			continue // too few for each ending of each fault
		}
		if f.every {
			require.Positive(t, count[endedOK], f.name)
			continue
		}
		require.Positive(t, count[endedDefinite], f.name)
		require.Positive(t, count[endedNotWritten], f.name)
		if f.fault != testserver.Forsake { // after which the server does nothing
			require.Positive(t, count[endedWritten], f.name)
		}
		if !f.leaves {
			require.Positive(t, count[endedOK], f.name)
		}
	}
	require.NotZero(t, boundaries)
	for _, ending := range []string{endedOK, endedDefinite, endedNotWritten, endedWritten} {
		require.Positive(t, total[ending], ending)
	}
}

// A called says how a call is cut: in these scenes, or else why it is not cut.
type called struct {
	scenes []string
	why    string
}

// calls are all there are. A new call needs a line here.
var calls = map[string]called{
	"Driver.Append":          {scenes: []string{"append one", "append several", "append each", "append one that conflicts", "append one twice", "in a transaction", "append with a take"}},
	"Driver.TryAppend":       {scenes: []string{"append or meet", "append or meet that meets", "append or meet a large message", "append or meet each"}},
	"Driver.AppendAll":       {scenes: []string{"append to streams", "WriteStreams"}},
	"Driver.ReadStream":      {scenes: []string{"read stream", "read stream backwards"}},
	"Driver.ReadCategory":    {scenes: []string{"read category", "read category by types", "read category by correlation", "read category by group"}},
	"Driver.Last":            {scenes: []string{"last"}},
	"Driver.Version":         {scenes: []string{"version"}},
	"Driver.Heads":           {scenes: []string{"heads"}},
	"Driver.Find":            {scenes: []string{"find"}},
	"Driver.Count":           {scenes: []string{"count"}},
	"Driver.Categories":      {scenes: []string{"categories"}},
	"Driver.Report":          {scenes: []string{"report"}},
	"Driver.Epoch":           {scenes: []string{"epoch"}},
	"Driver.Now":             {scenes: []string{"now"}},
	"Driver.Listen":          {scenes: []string{"listen"}},
	"Driver.Transact":        {scenes: []string{"transact", "transact that conflicts", "transact with *sql.Tx"}},
	"Driver.QueueTake":       {scenes: []string{"queue take", "queue complete", "queue retry", "queue wait", "queue suspend", "queue complete turn", "append with a take"}},
	"Driver.QueueReady":      {scenes: []string{"queue ready"}},
	"Driver.QueueExtend":     {scenes: []string{"queue extend"}},
	"Driver.QueueLeave":      {scenes: []string{"queue leave"}},
	"Driver.QueueFinish":     {scenes: []string{"queue finish"}},
	"Driver.QueueChange":     {scenes: []string{"queue change"}},
	"Driver.QueuePark":       {scenes: []string{"queue park"}},
	"Driver.QueueRemove":     {scenes: []string{"queue remove"}},
	"Driver.QueueItem":       {scenes: []string{"queue item"}},
	"Driver.QueueItems":      {scenes: []string{"queue items"}},
	"Driver.QueueStatus":     {why: "it is the query of Queues, for one queue"},
	"Driver.Queues":          {scenes: []string{"queue states"}},
	"Driver.Over":            {why: "it asks nothing"},
	"Driver.Stage":           {why: "it is in the caller's transaction: its COMMIT is the caller's call"},
	"Driver.Check":           {why: "it only reads"},
	"Driver.TrimCheckpoints": {why: "it is a call of the function that trim calls, and is made again after each lost answer"},
	"Driver.Close":           {why: "it asks nothing; open calls it"},
	"Driver.Connections":     {why: "it asks nothing"},
	"Driver.Forgets":         {why: "it asks nothing"},
	"Admin.Trim":             {scenes: []string{"trim"}},
	"Admin.TrimCategory":     {scenes: []string{"trim a category"}},
	"Admin.Delete":           {scenes: []string{"delete", "erase"}},
	"Admin.Forget":           {scenes: []string{"forget"}},
	"Admin.RaiseEpoch":       {scenes: []string{"raise epoch"}},
	"Admin.Verify":           {why: "it only reads, in a transaction that cannot write"},
}

// ofTests are methods that only tests have.
var ofTests = regexp.MustCompile(`(?m)^func \(\w+ \*(Driver|Admin)\) (\w+)\(`)

func TestEveryCallIsCutOrSaysWhyNot(t *testing.T) {
	t.Parallel()
	there, played := map[string]bool{}, map[string]bool{}
	for _, of := range []reflect.Type{reflect.TypeFor[*postgres.Driver](), reflect.TypeFor[*admin.Admin]()} {
		for method := range of.Methods() {
			there[of.Elem().Name()+"."+method.Name] = true
		}
	}
	source := testkit.Do(os.ReadFile("export_test.go"))(t)
	for _, method := range ofTests.FindAllStringSubmatch(string(source), -1) {
		delete(there, method[1]+"."+method[2])
	}
	for _, s := range scenes(everyChange) {
		name, _, _ := strings.Cut(s.name, ": ")
		played[name] = true
	}

	require.Empty(t, unaccounted(there, played, calls))
}

// unaccounted returns the errors in a list of calls, given the calls that exist and the names of
// the scenes.
func unaccounted(there, played map[string]bool, list map[string]called) (wrong []string) {
	for _, name := range slices.Sorted(maps.Keys(there)) {
		if _, ok := list[name]; !ok {
			wrong = append(wrong, name+" is not listed")
		}
	}
	for _, name := range slices.Sorted(maps.Keys(list)) {
		c := list[name]
		if !there[name] {
			wrong = append(wrong, name+" is not there")
		}
		if (len(c.scenes) == 0) != (c.why != "") {
			wrong = append(wrong, name+" has either scenes or a reason")
		}
		for _, s := range c.scenes {
			if !played[s] {
				wrong = append(wrong, fmt.Sprintf("%s: there is no scene %q", name, s))
			}
		}
	}
	return wrong
}

func TestCallThatIsNotAccountedForIsSeen(t *testing.T) {
	t.Parallel()
	there, played := map[string]bool{"Driver.Append": true, "Admin.Verify": true}, map[string]bool{"append one": true}
	right := map[string]called{"Driver.Append": {scenes: []string{"append one"}}, "Admin.Verify": {why: "it only reads"}}
	require.Empty(t, unaccounted(there, played, right))
	for want, change := range map[string]func(list map[string]called){
		"Admin.Verify is not listed":                 func(list map[string]called) { delete(list, "Admin.Verify") },
		"Admin.Close is not there":                   func(list map[string]called) { list["Admin.Close"] = called{why: "it was there once"} },
		"Admin.Verify has either scenes or a reason": func(list map[string]called) { list["Admin.Verify"] = called{} },
		"Driver.Append has either scenes or a reason": func(list map[string]called) {
			list["Driver.Append"] = called{scenes: []string{"append one"}, why: "no time"}
		},
		`Driver.Append: there is no scene "append three"`: func(list map[string]called) {
			list["Driver.Append"] = called{scenes: []string{"append one", "append three"}}
		},
	} {
		list := maps.Clone(right)
		change(list)
		require.Equal(t, []string{want}, unaccounted(there, played, list))
	}
}
