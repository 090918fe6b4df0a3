package queues

import (
	"github.com/dibs-go/dibs/soak/crew"
	"github.com/dibs-go/dibs/soak/history"
)

// Counts are how much a run has done. A run that does too little shows nothing.
type Counts struct {
	ServerKills  int // kill -9 of PostgreSQL
	Kills        int // kill -9 of processes, by the nemesis and at failpoints
	Stops        int // SIGSTOP of a process for longer than its lease
	Cuts         int // of the connections of a process, or locks of the file by another program
	Items        int // whose insertion was answered
	Undone       int // inserted in a transaction that was rolled back
	Staged       int // items of transactions that were committed
	LeftOut      int // staged and committed though their id or name was taken
	Unstaged     int // items of transactions, or savepoints, that were rolled back
	Reused       int // transactions that were refused for another content
	Named        int // items of a unique name that another had had
	Taken        int // insertions that met the name taken
	Deliveries   int
	Tickets      int // takes that were served in line
	Refused      int // completions that came late
	Transactions int // completions in a transaction that was committed
	RolledBack   int // completions in a transaction that was not
	Again        int // completions that were told done once more
	Unknown      int // answers of takes and commits that were lost
	Trims        int // that removed something
	Pauses       int
	Jumps        int // of the server's clock
	Stalls       int // of the answers to a process, for several leases
	Poisons      int // items that killed their process until they were dead
	Others       int // items of other keys that came behind thousands of one

	Expiries  int // deliveries whose session was over
	Retries   int
	Defers    int
	GivenBack int
	Buried    int
	Redriven  int
	Cancelled int // or dropped
}

// The goals of a run: of make ci/long, and of one of a minute.
var (
	Issue = Counts{
		ServerKills: 100, Kills: 500, Stops: 100, Cuts: 100, Items: 100_000, Undone: 1000, Staged: 1000, LeftOut: 100, Unstaged: 100, Reused: 100, Named: 500, Taken: 500, Deliveries: 100_000, Tickets: 100, Refused: 100,
		Transactions: 1000, RolledBack: 100, Again: 100, Unknown: 100, Trims: 100, Pauses: 20,
		Expiries: 100, Retries: 1000, Defers: 1000, GivenBack: 1, Buried: 100, Redriven: 50, Cancelled: 100,
	}
	Short = Counts{
		ServerKills: 3, Kills: 10, Stops: 3, Cuts: 5, Items: 1000, Undone: 20, Staged: 100, LeftOut: 5, Unstaged: 20, Reused: 3, Named: 10, Taken: 10, Deliveries: 1000, Tickets: 5, Refused: 3,
		Transactions: 50, RolledBack: 5, Again: 3, Unknown: 2, Trims: 3, Pauses: 1,
		Expiries: 10, Retries: 20, Defers: 20, Buried: 5, Redriven: 2, Cancelled: 3,
	}
)

// Goals are those of a run of about a minute of a scene.
func (s Scene) Goals() Counts {
	switch s {
	case Clock:
		return Counts{Jumps: 5, Kills: 5, Items: 500, Deliveries: 500, Expiries: 10}
	case Poison:
		return Counts{Poisons: 3, Kills: 9, Items: 200, Deliveries: 200}
	case HotKey:
		return Counts{Others: 20, Items: hotItems}
	case Ending:
		return Counts{Stalls: 5, Items: 300, Deliveries: 300, Expiries: 5}
	}
	return Short
}

// count adds an answer, or a call that has none.
func (n *Counts) count(r *Record) {
	switch {
	case r.Call == Kill && r.Target == Server && r.Answer == "":
		n.ServerKills++
	case r.Call == Kill && r.Answer == "":
		n.Kills++
	case r.Call == Stop && r.Answer == OK: // a process that was killed meanwhile was no longer late
		n.Stops++
	case r.Call == Jump && r.Answer == OK:
		n.Jumps++
	case r.Call == Cut && r.Note == "stall":
		if r.Answer == OK {
			n.Stalls++
		}
	case r.Call == Cut:
		n.Cuts++
	case r.Call == Unique && r.Had > 0:
		n.Taken++
	case (r.Call == Insert || r.Call == Unique) && r.Answer == OK:
		n.Items += len(r.New)
	case r.Call == Insert && r.Answer == Undone:
		n.Undone++
	case r.Call == Finish && r.Answer == OK:
		n.Transactions++
	case r.Call == Finish && r.Answer == Undone:
		n.RolledBack++
	case r.Call == Finish && r.Answer == Lost, r.Call == Complete && r.Answer == Lost:
		n.Refused++
	case r.Call == Change && r.Answer == OK && r.Note == pausing:
		n.Pauses++
	case r.Call == Trim && r.Answer == OK && r.Note != "0":
		n.Trims++
	}
	if r.Answer == Unknown {
		n.Unknown++
	}
	if r.Call != Take || r.Answer != OK {
		return
	}
	n.Deliveries += len(r.Items)
	if len(r.Items) > 0 && r.Ticket > 0 {
		n.Tickets++
	}
	for _, e := range r.Ends {
		if e.Kind == "c" && e.Told == "l" {
			n.Refused++
		}
	}
}

// setLines takes in how many lines of each sort the logs have.
func (n *Counts) setLines(lines map[string]int) {
	n.Expiries, n.Retries, n.Defers, n.GivenBack = lines["e"], lines["r"], lines["f"], lines["u"]
	n.Buried, n.Redriven, n.Cancelled = lines["x"], lines["R"], lines["C"]+lines["D"]
}

func (n *Counts) addLines(last *Counts) {
	n.Expiries, n.Retries, n.Defers, n.GivenBack = last.Expiries, last.Retries, last.Defers, last.GivenBack
	n.Buried, n.Redriven, n.Cancelled = last.Buried, last.Redriven, last.Cancelled
}

var figures = crew.Figures[Counts]{
	{"kill -9 of PostgreSQL", func(n *Counts) *int { return &n.ServerKills }},
	{"kill -9 of processes", func(n *Counts) *int { return &n.Kills }},
	{"SIGSTOP of workers for longer than a lease", func(n *Counts) *int { return &n.Stops }},
	{"connections cut, or the file locked", func(n *Counts) *int { return &n.Cuts }},
	{"items inserted", func(n *Counts) *int { return &n.Items }},
	{"insertions rolled back", func(n *Counts) *int { return &n.Undone }},
	{"staged inserts", func(n *Counts) *int { return &n.Staged }},
	{"  left out: their id or name was taken", func(n *Counts) *int { return &n.LeftOut }},
	{"  rolled back", func(n *Counts) *int { return &n.Unstaged }},
	{"  refused: it had another content", func(n *Counts) *int { return &n.Reused }},
	{"items of a unique name that was free again", func(n *Counts) *int { return &n.Named }},
	{"  insertions that met it taken", func(n *Counts) *int { return &n.Taken }},
	{"deliveries", func(n *Counts) *int { return &n.Deliveries }},
	{"takes served in line, by their tickets", func(n *Counts) *int { return &n.Tickets }},
	{"late completions refused", func(n *Counts) *int { return &n.Refused }},
	{"completions in a transaction", func(n *Counts) *int { return &n.Transactions }},
	{"  that was rolled back", func(n *Counts) *int { return &n.RolledBack }},
	{"completions told done again", func(n *Counts) *int { return &n.Again }},
	{"lost answers", func(n *Counts) *int { return &n.Unknown }},
	{"trims of a key's stream", func(n *Counts) *int { return &n.Trims }},
	{"pauses", func(n *Counts) *int { return &n.Pauses }},
	{"jumps of the server's clock", func(n *Counts) *int { return &n.Jumps }},
	{"answers kept for several leases", func(n *Counts) *int { return &n.Stalls }},
	{"items that killed their processes", func(n *Counts) *int { return &n.Poisons }},
	{"items inserted behind a hot key", func(n *Counts) *int { return &n.Others }},
	{"deliveries whose session was over", func(n *Counts) *int { return &n.Expiries }},
	{"failed deliveries", func(n *Counts) *int { return &n.Retries }},
	{"deferred deliveries", func(n *Counts) *int { return &n.Defers }},
	{"deliveries given back", func(n *Counts) *int { return &n.GivenBack }},
	{"buried items", func(n *Counts) *int { return &n.Buried }},
	{"dead items redriven", func(n *Counts) *int { return &n.Redriven }},
	{"items cancelled or dropped", func(n *Counts) *int { return &n.Cancelled }},
}

// Times returns goals that are k times as high.
func (n Counts) Times(k int) Counts {
	for _, f := range figures {
		*f.Of(&n) *= k
	}
	return n
}

// Missed names the goals that were not reached.
func (n *Counts) Missed(goals *Counts) []string { return figures.Missed(n, goals) }

// Table has the counts beside their goals.
func (n *Counts) Table(goals *Counts) string { return figures.Table(n, goals) }

// A tally counts along with a run, from the lines written since it last looked. The verdict counts anew.
type tally struct {
	dir  string
	tail history.Tail
	told map[End]bool    // completions that were told done
	here map[string]bool // ids and names that were staged, and committed
	n    Counts
}

func newTally(dir string) *tally {
	return &tally{dir: dir, tail: history.Tail{}, told: map[End]bool{}, here: map[string]bool{}}
}

// counts returns the counts up to now.
func (t *tally) counts() (*Counts, error) {
	if err := crew.Calls(t.tail, t.dir, func(_ string, r *Record) { t.add(r) }); err != nil {
		return nil, err
	}
	n := t.n
	return &n, nil
}

func (t *tally) add(r *Record) {
	t.n.count(r)
	switch {
	case r.Call == Stage:
		t.staged(r)
	case r.Call == Unique && r.Answer == OK && r.Had == 0:
		if name := r.New[0].Stream; t.here[name] {
			t.n.Named++
		} else {
			t.here[name] = true
		}
	}
	if r.Call != Take || r.Answer != OK {
		return
	}
	for _, e := range r.Ends {
		if e.Kind != "c" || e.Told != "d" {
			continue
		}
		key := End{Position: e.Position, Version: e.Version}
		if t.told[key] {
			t.n.Again++
		}
		t.told[key] = true
	}
}

func (t *tally) staged(r *Record) {
	switch r.Answer {
	case Reused:
		t.n.Reused++
	case Undone:
		t.n.Unstaged += len(r.New)
	case OK:
		for _, n := range r.New {
			name := n.ID
			if n.Unique {
				name = n.Stream
			}
			switch {
			case n.Back:
				t.n.Unstaged++
			case t.here[name]:
				t.n.LeftOut++
			default:
				t.here[name] = true
				t.n.Staged++
				t.n.Items++
			}
		}
	}
}
