package operate

// A Verdict is how bad a [Finding] is.
type Verdict string

// The verdicts.
const (
	VerdictOK     Verdict = "ok"
	VerdictWarn   Verdict = "warn"   // works, but not well, or not for long
	VerdictFail   Verdict = "fail"   // does not work, or loses messages
	VerdictHidden Verdict = "hidden" // this user has no right to see it
)

// A Finding is one fact about the server or the store's database, as dibs doctor finds it.
type Finding struct {
	Group   string // server, settings, roles, locks, sessions or storage
	Name    string // of the subject: "fsync"
	Verdict Verdict
	Says    string // "fsync is off"
	Advice  string // the remedy and the reason for it; empty if none is needed

	Groups []FindingGroup // what is wrong, by error
}

// A FindingGroup is several things with one error, and the command that mends them.
type FindingGroup struct {
	Group

	Command string // "" for none
}
