package intents

import "github.com/dibs-go/dibs/soak/crew"

// Counts are how much a run has done. A run that does too little shows nothing.
type Counts struct {
	ServerKills     int // kill -9 of PostgreSQL
	Kills           int // kill -9 of processes, by the nemesis and at failpoints, that had leases
	Stops           int // SIGSTOP of a process for longer than a lease
	BouncerKills    int
	Jumps           int // of the server's clock, by up to an hour
	Freezes         int // of the server's clock
	SyncFailovers   int
	AsyncFailovers  int
	Takeovers       int // of a lease that was not released
	LateConfirms    int // refused
	LateWrites      int // refused by the resource
	Reentrant       int
	UnknownReserves int
	UnknownConfirms int
	UnknownCommits  int
	Held            int
	Done            int
	Reused          int
	Turns           int // grants to a session in the line
	Several         int // grants of several keys
	Awaits          int // that saw an end
	Forced          int // releases by operators
	Work            int // that looked at its lease, or its context, before it began
	Paused          int // of these, begun after the lease by a process that was stopped meanwhile
	Undone          int // answers that a failover has undone
	Above           int // grants that were asked for after a failover had undone one of the same key
	Strayed         int // intents that were written by a holder whose lease a failover has undone
}

// The goals of a run: of the issue's, and of one of a minute.
var (
	Issue = Counts{
		ServerKills: 200, Kills: 1000, Stops: 300, BouncerKills: 5, Jumps: 10, Freezes: 5, SyncFailovers: 5, AsyncFailovers: 5,
		Takeovers: 1000, LateConfirms: 200, LateWrites: 200, Reentrant: 100,
		UnknownReserves: 50, UnknownConfirms: 50, UnknownCommits: 50, Held: 500, Done: 500, Reused: 50, Turns: 100,
		Several: 100, Awaits: 100, Forced: 20, Work: 1000, Undone: 1, Above: 1,
	}
	Short = Counts{
		ServerKills: 1, Kills: 3, Stops: 1, Takeovers: 5, LateConfirms: 1, LateWrites: 1, Reentrant: 1,
		Held: 10, Done: 10, Several: 1, Work: 10,
	}
)

// count adds a call of a history.
func (n *Counts) count(call *Call) {
	a := call.Answer.Answer
	switch call.Call {
	case Confirm, Transact:
		if a == Lost {
			n.LateConfirms++
		}
	case Stop: // a process that was killed meanwhile was no longer late
		if a == OK && call.End-call.At > ttl.Microseconds() {
			n.Stops++
		}
	case Jump:
		n.Jumps++
	case Freeze:
		n.Freezes++
	}
	switch {
	case call.Call == Kill && call.Target == Server:
		n.ServerKills++
	case call.Call == Kill && call.Target == Bouncer:
		n.BouncerKills++
	case call.Call == Failover && call.Target == Sync:
		n.SyncFailovers++
	case call.Call == Failover && call.Target == Async:
		n.AsyncFailovers++
	case a == Unknown && call.Call == Reserve:
		n.UnknownReserves++
	case a == Unknown && call.Call == Confirm:
		n.UnknownConfirms++
	case a == Unknown && call.Call == Transact:
		n.UnknownCommits++
	case a == Held:
		n.Held++
	case a == Done && call.Call == Reserve:
		n.Done++
	case a == Reused:
		n.Reused++
	}
}

var figures = crew.Figures[Counts]{
	{"kill -9 of PostgreSQL", func(n *Counts) *int { return &n.ServerKills }},
	{"kill -9 of holders", func(n *Counts) *int { return &n.Kills }},
	{"SIGSTOP of holders for longer than a lease", func(n *Counts) *int { return &n.Stops }},
	{"kill -9 of PgBouncer", func(n *Counts) *int { return &n.BouncerKills }},
	{"jumps of the server's clock", func(n *Counts) *int { return &n.Jumps }},
	{"the server's clock frozen", func(n *Counts) *int { return &n.Freezes }},
	{"failovers to a synchronous standby", func(n *Counts) *int { return &n.SyncFailovers }},
	{"failovers to an asynchronous standby", func(n *Counts) *int { return &n.AsyncFailovers }},
	{"takeovers", func(n *Counts) *int { return &n.Takeovers }},
	{"late confirms refused", func(n *Counts) *int { return &n.LateConfirms }},
	{"late writes refused", func(n *Counts) *int { return &n.LateWrites }},
	{"leases given again to their session", func(n *Counts) *int { return &n.Reentrant }},
	{"unknown outcomes of reserve", func(n *Counts) *int { return &n.UnknownReserves }},
	{"unknown outcomes of confirm", func(n *Counts) *int { return &n.UnknownConfirms }},
	{"unknown outcomes of COMMIT", func(n *Counts) *int { return &n.UnknownCommits }},
	{"told held", func(n *Counts) *int { return &n.Held }},
	{"told done", func(n *Counts) *int { return &n.Done }},
	{"told reused", func(n *Counts) *int { return &n.Reused }},
	{"turns of a line", func(n *Counts) *int { return &n.Turns }},
	{"leases of several keys", func(n *Counts) *int { return &n.Several }},
	{"ends that were awaited", func(n *Counts) *int { return &n.Awaits }},
	{"releases by an operator", func(n *Counts) *int { return &n.Forced }},
	{"looks at a lease before work", func(n *Counts) *int { return &n.Work }},
	{"  work begun late, by a stopped process", func(n *Counts) *int { return &n.Paused }},
	{"answers that a failover undid", func(n *Counts) *int { return &n.Undone }},
	{"grants above one that was undone", func(n *Counts) *int { return &n.Above }},
	{"  intents that an undone lease wrote to", func(n *Counts) *int { return &n.Strayed }},
}

// Add adds the counts of another run.
func (n *Counts) Add(other *Counts) {
	for _, f := range figures {
		*f.Of(n) += *f.Of(other)
	}
}

// Left returns how much of the goals is left.
func (n *Counts) Left(goals *Counts) *Counts {
	left := &Counts{}
	for _, f := range figures {
		*f.Of(left) = max(*f.Of(goals)-*f.Of(n), 0)
	}
	return left
}

// Missed names the goals that were not reached.
func (n *Counts) Missed(goals *Counts) []string { return figures.Missed(n, goals) }

// Table has the counts beside their goals.
func (n *Counts) Table(goals *Counts) string { return figures.Table(n, goals) }
