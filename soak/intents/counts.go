package intents

import (
	"fmt"
	"strings"
)

// Counts are how much a run has done. A run that does too little shows nothing.
type Counts struct {
	ServerKills     int // kill -9 of PostgreSQL
	Kills           int // kill -9 of processes, by the nemesis and at failpoints, that had leases
	Stops           int // SIGSTOP of a process for longer than a lease
	Jumps           int // of the server's clock
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
	Work            int // that looked at its lease before it began
}

// The goals of a run: of the issue's, of some minutes, and of one that shows a bug.
var (
	Issue = Counts{
		ServerKills: 200, Kills: 1000, Stops: 300, Takeovers: 1000, LateConfirms: 200, LateWrites: 200, Reentrant: 100,
		UnknownReserves: 50, UnknownConfirms: 50, UnknownCommits: 50, Held: 500, Done: 500, Reused: 50, Turns: 100, Work: 1000,
	}
	Short = Counts{
		ServerKills: 1, Kills: 3, Stops: 1, Takeovers: 5, LateConfirms: 1, LateWrites: 1, Reentrant: 1,
		Held: 10, Done: 10, Work: 10,
	}
)

// count adds a call of a history.
func (n *Counts) count(call *Call) {
	a := call.Answer.Answer
	if (call.Call == Confirm || call.Call == Transact) && a == Lost {
		n.LateConfirms++
	}
	switch {
	case a == Unknown && call.Call == Reserve:
		n.UnknownReserves++
	case a == Unknown && call.Call == Confirm:
		n.UnknownConfirms++
	case a == Unknown && call.Call == Transact:
		n.UnknownCommits++
	case a == Held:
		n.Held++
	case a == Done:
		n.Done++
	case a == Reused:
		n.Reused++
	}
}

type figure struct {
	name      string
	goal, got int
}

func (n *Counts) figures(goals *Counts) []figure {
	return []figure{
		{"kill -9 of PostgreSQL", goals.ServerKills, n.ServerKills},
		{"kill -9 of holders", goals.Kills, n.Kills},
		{"SIGSTOP for longer than a lease", goals.Stops, n.Stops},
		{"jumps of the server's clock", goals.Jumps, n.Jumps},
		{"takeovers", goals.Takeovers, n.Takeovers},
		{"late confirms refused", goals.LateConfirms, n.LateConfirms},
		{"late writes refused", goals.LateWrites, n.LateWrites},
		{"leases given again to their session", goals.Reentrant, n.Reentrant},
		{"unknown outcomes of reserve", goals.UnknownReserves, n.UnknownReserves},
		{"unknown outcomes of confirm", goals.UnknownConfirms, n.UnknownConfirms},
		{"unknown outcomes of COMMIT", goals.UnknownCommits, n.UnknownCommits},
		{"told held", goals.Held, n.Held},
		{"told done", goals.Done, n.Done},
		{"told reused", goals.Reused, n.Reused},
		{"turns of a line", goals.Turns, n.Turns},
		{"looks at a lease before work", goals.Work, n.Work},
	}
}

// Missed names the goals that were not reached.
func (n *Counts) Missed(goals *Counts) (names []string) {
	for _, f := range n.figures(goals) {
		if f.got < f.goal {
			names = append(names, f.name)
		}
	}
	return names
}

// Table has the counts beside their goals.
func (n *Counts) Table(goals *Counts) string {
	var b strings.Builder
	fmt.Fprintf(&b, "%-44s %8s %8s\n", "figure", "goal", "this run")
	for _, f := range n.figures(goals) {
		missed := ""
		if f.got < f.goal {
			missed = "   missed"
		}
		fmt.Fprintf(&b, "%-44s %8d %8d%s\n", f.name, f.goal, f.got, missed)
	}
	return b.String()
}
