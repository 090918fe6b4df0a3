package sagas

import "github.com/dibs-go/dibs/soak/promise"

// The goals of a run, by the keys of figures.sql: of make ci/long, of one of a minute, and of one whose clock jumps.
var (
	Issue = promise.Goals{
		"serverKills": 20, "kills": 100, "stops": 30, "cuts": 1000, "sagas": 10_000, "completed": 3000, "compensated": 1000, "suspended": 200, "cancels": 300, "resumes": 100,
		"replies": 1000, "steps": 10_000, "undos": 1000, "timers": 100_000, "rung": 100_000, "letters": 5000, "refused": 500,
	}
	Short = promise.Goals{
		"serverKills": 1, "kills": 5, "stops": 2, "cuts": 30, "sagas": 200, "completed": 50, "compensated": 30, "suspended": 5, "cancels": 5, "resumes": 3,
		"replies": 20, "steps": 300, "undos": 30, "timers": 2000, "rung": 1000, "letters": 100, "refused": 20,
	}
	Jumpy = promise.Goals{"jumps": 5, "setBacks": 10, "kills": 5, "sagas": 100, "completed": 30, "steps": 200, "rung": 500, "letters": 50}
)
