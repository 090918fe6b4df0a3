package intents

import "github.com/dibs-go/dibs/soak/promise"

// The goals of a run, by the keys of figures.sql: of the issue's, and of one of a minute.
var (
	Issue = promise.Goals{
		"serverKills": 200, "kills": 1000, "stops": 300, "bouncerKills": 5, "jumps": 10, "freezes": 5, "syncFailovers": 5, "asyncFailovers": 5,
		"takeovers": 1000, "lateConfirms": 200, "lateWrites": 200, "reentrant": 100,
		"unknownReserves": 50, "unknownConfirms": 50, "unknownCommits": 50, "held": 500, "done": 500, "reused": 50, "turns": 100,
		"several": 100, "awaits": 100, "forced": 20, "work": 1000, "undone": 1, "above": 1,
	}
	Short = promise.Goals{
		"serverKills": 1, "kills": 3, "stops": 1, "takeovers": 5, "lateConfirms": 1, "lateWrites": 1, "reentrant": 1, "held": 10, "done": 10, "several": 1, "work": 10,
	}
)
