package sagas

import (
	"github.com/dibs-go/dibs/soak/crew"
	"github.com/dibs-go/dibs/soak/history"
)

// Counts are how much a run has done. A run that does too little shows nothing.
type Counts struct {
	ServerKills int // kill -9 of PostgreSQL
	Kills       int // kill -9 of runners, by the nemesis and at failpoints
	Stops       int // SIGSTOP of a runner for longer than its lease
	Cuts        int // of the connections of a process
	Jumps       int // of the server's clock
	SetBacks    int // records of sagas that it went back
	Sagas       int // whose end a customer was told
	Completed   int
	Compensated int
	Suspended   int // ends of a wait
	Cancels     int
	Resumes     int
	Replies     int // from outside
	Steps       int // calls of functions
	Undos       int
	Timers      int // set
	Rung        int
	Letters     int // that the sink took
	Refused     int // that it did not
}

// The goals of a run: of make ci/long, and of one of a minute.
var (
	Issue = Counts{
		ServerKills: 20, Kills: 100, Stops: 30, Cuts: 1000, Sagas: 10_000, Completed: 3000, Compensated: 1000, Suspended: 200, Cancels: 300, Resumes: 100,
		Replies: 1000, Steps: 10_000, Undos: 1000, Timers: 100_000, Rung: 100_000, Letters: 5000, Refused: 500,
	}
	Short = Counts{
		ServerKills: 1, Kills: 5, Stops: 2, Cuts: 30, Sagas: 200, Completed: 50, Compensated: 30, Suspended: 5, Cancels: 5, Resumes: 3,
		Replies: 20, Steps: 300, Undos: 30, Timers: 2000, Rung: 1000, Letters: 100, Refused: 20,
	}
	Jumpy = Counts{Jumps: 5, SetBacks: 10, Kills: 5, Sagas: 100, Completed: 30, Steps: 200, Rung: 500, Letters: 50} // of one whose clock jumps
)

// count adds an answer, or a call that has none.
func (n *Counts) count(r *Record) {
	if r.Answer == "" {
		switch {
		case r.Call == Kill && r.Target == Server:
			n.ServerKills++
		case r.Call == Kill:
			n.Kills++
		case r.Call == Cut:
			n.Cuts++
		case r.Call == Do:
			n.Steps++
		case r.Call == Undo:
			n.Undos++
		case r.Call == Ring:
			n.Rung++
		case r.Call == Tell && r.Note == "cancel":
			n.Cancels++
		case r.Call == Tell && r.Note == "resume":
			n.Resumes++
		case r.Call == Tell && r.Note == "approve":
			n.Replies++
		case r.Call == Set:
			n.Timers += len(r.IDs)
		}
		return
	}
	switch {
	case r.Call == Stop && r.Answer == OK: // a process that was killed meanwhile was no longer late
		n.Stops++
	case r.Call == Jump:
		n.Jumps++
	case r.Call == Send && r.Answer == OK:
		n.Letters++
	case r.Call == Send:
		n.Refused++
	case r.Call == Wait && r.Answer == OK:
		switch r.State {
		case "completed":
			n.Completed, n.Sagas = n.Completed+1, n.Sagas+1
		case "compensated":
			n.Compensated, n.Sagas = n.Compensated+1, n.Sagas+1
		case "resolved":
			n.Sagas++
		default:
			n.Suspended++
		}
	}
}

var figures = crew.Figures[Counts]{
	{"kill -9 of PostgreSQL", func(n *Counts) *int { return &n.ServerKills }},
	{"kill -9 of runners", func(n *Counts) *int { return &n.Kills }},
	{"SIGSTOP of runners for longer than a lease", func(n *Counts) *int { return &n.Stops }},
	{"connections cut", func(n *Counts) *int { return &n.Cuts }},
	{"jumps of the server's clock", func(n *Counts) *int { return &n.Jumps }},
	{"  records of sagas that it went back", func(n *Counts) *int { return &n.SetBacks }},
	{"sagas", func(n *Counts) *int { return &n.Sagas }},
	{"  completed", func(n *Counts) *int { return &n.Completed }},
	{"  compensated", func(n *Counts) *int { return &n.Compensated }},
	{"waits that ended with a saga that is suspended", func(n *Counts) *int { return &n.Suspended }},
	{"cancels", func(n *Counts) *int { return &n.Cancels }},
	{"resumes", func(n *Counts) *int { return &n.Resumes }},
	{"replies from outside", func(n *Counts) *int { return &n.Replies }},
	{"calls of functions of steps", func(n *Counts) *int { return &n.Steps }},
	{"calls of undos", func(n *Counts) *int { return &n.Undos }},
	{"timers set", func(n *Counts) *int { return &n.Timers }},
	{"  rung", func(n *Counts) *int { return &n.Rung }},
	{"letters that the sink took", func(n *Counts) *int { return &n.Letters }},
	{"  refused", func(n *Counts) *int { return &n.Refused }},
}

// Missed names the goals that were not reached.
func (n *Counts) Missed(goals *Counts) []string { return figures.Missed(n, goals) }

// Table has the counts beside their goals.
func (n *Counts) Table(goals *Counts) string { return figures.Table(n, goals) }

// A tally counts along with a run, from the lines written since it last looked. The verdict counts anew.
type tally struct {
	dir  string
	tail history.Tail
	n    Counts
}

// counts returns the counts up to now.
func (t *tally) counts() (*Counts, error) {
	if err := crew.Calls(t.tail, t.dir, func(_ string, r *Record) { t.n.count(r) }); err != nil {
		return nil, err
	}
	n := t.n
	return &n, nil
}
