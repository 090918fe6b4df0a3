package harness

import "time"

// Goals are how much a run is to do. The outcome is in a [Result] and in the verdict.
type Goals struct {
	ServerKills int           // kill -9 of PostgreSQL under load
	ClientKills int           // kill -9 of clients at failpoints
	Messages    int           // that are there in the end
	Resolved    int           // unknown outcomes that were resolved
	Checked     int           // operations on versions of streams, for linearizability
	Recovery    time.Duration // after 99 in 100 kills of the server alone, until a message was handled again
	Must        bool          // a run that misses one has failed, but for a time, which hangs on the machine
}

// CI and Long are the goals of a run that is part of a build and of one of an hour.
var (
	CI   = Goals{150, 500, 100_000, 1_000, 200_000, 2 * time.Second, true}
	Long = Goals{2_000, 10_000, 2_000_000, 20_000, 4_000_000, 2 * time.Second, false}
)

// reached reports whether a run has reached the goals that need no look into the store. The counts
// of the tally are nearly the checker's.
func (g *Goals) reached(serverKills, clientKills int, done *tally) bool {
	const nearly = 50
	return serverKills >= g.ServerKills && clientKills >= g.ClientKills &&
		done.resolved >= g.Resolved+g.Resolved/nearly && done.checked >= g.Checked+g.Checked/nearly
}
