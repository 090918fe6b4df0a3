package queues

import "github.com/dibs-go/dibs/soak/promise"

// The goals of a run, by the keys of figures.sql: of make ci/long, and of one of a minute.
var (
	Issue = promise.Goals{
		"serverKills": 100, "kills": 500, "stops": 100, "cuts": 100, "items": 100_000, "undone": 1000, "staged": 1000, "leftOut": 100, "unstaged": 100, "reused": 100,
		"named": 500, "taken": 500, "deliveries": 100_000, "tickets": 100, "refused": 100, "transactions": 1000, "rolledBack": 100, "again": 100, "unknown": 100, "trims": 100, "pauses": 20,
		"expiries": 100, "retries": 1000, "defers": 1000, "givenBack": 1, "buried": 100, "redriven": 50, "cancelled": 100,
	}
	Short = promise.Goals{
		"serverKills": 3, "kills": 10, "stops": 3, "cuts": 5, "items": 1000, "undone": 20, "staged": 100, "leftOut": 5, "unstaged": 20, "reused": 3,
		"named": 10, "taken": 10, "deliveries": 1000, "tickets": 5, "refused": 3, "transactions": 50, "rolledBack": 5, "again": 3, "unknown": 2, "trims": 3, "pauses": 1,
		"expiries": 10, "retries": 20, "defers": 20, "buried": 5, "redriven": 2, "cancelled": 3,
	}
)

// Goals are those of a run of about a minute of a scene.
func (s Scene) Goals() promise.Goals {
	switch s {
	case Clock:
		return promise.Goals{"jumps": 5, "kills": 5, "items": 500, "deliveries": 500, "expiries": 10}
	case Poison:
		return promise.Goals{"poisons": 3, "kills": 9, "items": 200, "deliveries": 200}
	case HotKey:
		return promise.Goals{"others": 20, "items": hotItems}
	case Ending:
		return promise.Goals{"stalls": 5, "items": 300, "deliveries": 300, "expiries": 5}
	}
	return Short
}
