package intenttest

import (
	"encoding/json"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/dibs-go/dibs/internal/testkit"
)

// A mutant is a manager with a bug: an edit of its source, which the compiler reads from an
// overlay.
type mutant struct {
	name     string
	file     string
	old, new string
	foundBy  []string // tests, or sub-tests of TestIntentsInMemory
}

const transactTests = "TestIntentsInTransactionsOnSQLite/Transact/"

var mutants = []mutant{
	{
		"a token that forgets the one before", "../internal/intentlog/intentlog.go",
		"max(r.After+1, written.UnixMicro())", "written.UnixMicro()",
		[]string{"L1/TokensRiseWithEveryGrant", "L1/TokensRiseThoughTheClockGoesBack", "L7/AnyClockIsSafe"},
	},
	{
		"tokens that count from 1", "../internal/intentlog/intentlog.go",
		"max(r.After+1, written.UnixMicro())", "r.After + 1",
		[]string{"L6/NewStreamHasAGreaterToken"},
	},
	{
		"a token that is always the same", "../internal/intentlog/intentlog.go",
		"max(r.After+1, written.UnixMicro())", "1",
		[]string{"L4/ResourceRefusesASmallerToken"},
	},
	{
		"steps at any version", "lease.go",
		"messagestore.To(p.Place.Stream, p.Place.Position, l", "messagestore.To(p.Place.Stream, messagestore.AnyVersion, l",
		[]string{"L3/LateHolderIsRefused", "L3/LateStepChangesNothing", "L5/OneOfTwoConfirms", "L7/AnyClockIsSafe"},
	},
	{
		"grants at any version", "reserve.go",
		"messagestore.To(k.stream, expected, ", "messagestore.To(k.stream, min(expected, messagestore.AnyVersion), ",
		[]string{"L2/OneOfManyIsGranted", "L2/OneOfManyTakesOver"},
	},
	{
		"an intent that is not done", "../internal/intentlog/intentlog.go",
		"return s.Deleted || s.Type == TypeConfirmed", "return s.Deleted",
		[]string{"L5/ConfirmedIsNeverGrantedAgain", "L7/AnyClockIsSafe"},
	},
	{
		"a token that is not compared", "lease.go",
		"s.Deleted || s.Token != p.Token || s.Session", "s.Deleted || s.Session",
		[]string{"L3/AnotherTokenIsNoLease"},
	},
	{
		"neither token nor session is compared", "lease.go",
		"s.Deleted || s.Token != p.Token || s.Session != p.Session || s.Done()", "s.Deleted || s.Done()",
		[]string{"L3/LateHolderIsRefused", "L7/AnyClockIsSafe"},
	},
	{
		"a lease that is taken before it is over", "../internal/intentlog/intentlog.go",
		"!now.Before(s.MayTake(session, turn))", "!now.Before(s.Since)",
		[]string{"L2/HeldAsLongAsItIsExtended", "State/EveryStepFromEveryState"},
	},
	{
		"an extension that the holder does not count", "lease.go",
		"		l.counted(sent)\n	}\n}", "	}\n}",
		[]string{"L2/HeldAsLongAsItIsExtended"},
	},
	{
		"a holder that counts from the answer", "reserve.go",
		"return a.reserved(sent, ", "return a.reserved(sent.Add(time.Since(sent)), ",
		[]string{"L7/HolderCountsFromBeforeItAsked"},
	},
	{
		"a holder without a margin", "intent.go",
		"return max(ttl/10, minMargin)", "return 0",
		[]string{"L7/HolderStopsBeforeTheLeaseIsOver"},
	},
	{
		"a guard that lets a takeover pass", "lease.go",
		"var past = []string{intentlog.TypeExtended, intentlog.TypeWaiting}", "var past = []string{intentlog.TypeExtended, intentlog.TypeWaiting, intentlog.TypeReserved, intentlog.TypeReleased}",
		[]string{"L4/GuardedWriteIsRefused", transactTests + "LostLeaseCommitsNothing", transactTests + "ReleaseFencesALateCommit"},
	},
	{
		"a guard that extensions fail", "lease.go",
		"var past = []string{intentlog.TypeExtended, intentlog.TypeWaiting}", "var past = []string{}",
		[]string{transactTests + "GoesPastExtensionsAndWaiters", transactTests + "GuardedIsACheckAlone"},
	},
	{
		"a confirmation past another", "lease.go",
		"var past = []string{intentlog.TypeExtended, intentlog.TypeWaiting}", "var past = []string{intentlog.TypeExtended, intentlog.TypeWaiting, intentlog.TypeConfirmed}",
		[]string{transactTests + "OneOfManyResultsIsCommitted"},
	},
	{
		"a confirmation with another id each time", "lease.go",
		"	id[6] = id[6]&0x0F | 0x70", "	id = uuid.New()\n	id[6] = id[6]&0x0F | 0x70",
		[]string{transactTests + "AgainIsOnce"},
	},
	{
		"a confirmation with one id for all results", "lease.go",
		"p.Session, salt, string(c.Result), c.NotKept}", "p.Session, salt}",
		[]string{"State/EveryStepFromEveryState"},
	},
	{
		"the end by another call of the session is one's own", "lease.go",
		"	return l.byItself\n", "	return l.over != nil && l.over.By != nil && l.over.By.Token == l.over.Token && l.over.By.Status != Held\n",
		[]string{"Session/WorkEndsWithTheOthersRelease", "Session/WorkEndsWithTheOthersConfirmation", "Session/OneOfManyCallsIsConfirmed"},
	},
	{
		"the same confirmation by another call is one's own", "lease.go",
		"_ = l.ended(lost, own == len(parts))", "_ = l.ended(lost, true)",
		[]string{"Session/WorkEndsWithTheOthersConfirmation"},
	},
	{
		"a lease that its session has ended goes on", "lease.go",
		"p.Session || s.Done() || s.Released {", "p.Session {",
		[]string{"Session/EndOfOneCallIsTheOthersLoss", "Session/EndOfOneOfSeveralKeys"},
	},
	{
		"a confirmation without the caller's writes", "lease.go",
		"return append(all, writes...)", "return all",
		[]string{transactTests + "ConfirmsWithTheRows"},
	},
	{
		"a refused result is confirmed as none", "lease.go",
		"		if err == nil {\n			body = p.confirmed(raw, notKept)\n		}", "		body = p.confirmed(raw, notKept)",
		[]string{transactTests + "RefusedResultConfirmsNothing"},
	},
	{
		"a committed result that Do does not see", "do.go",
		"case errors.Is(r.err, messagestore.ErrOutcomeUnknown) && l.isConfirmed():", "case false:",
		[]string{transactTests + "DoTellsWhatWasCommitted"},
	},
	{
		"another lease's error", "lease.go",
		"	if errors.Is(err, ErrLeaseLost) {\n		return true\n	}\n	ours", "	if err != nil {\n		return true\n	}\n	ours",
		[]string{transactTests + "FailureConfirmsNothing"},
	},
	{
		"the same session is another", "reserve.go",
		"return met.Session == a.request.Session && ", "return false && ",
		[]string{"Answer/SameSessionHasTheSameLease", "Answer/LostAnswerIsNoConflict"},
	},
	{
		"content that is not compared", "reserve.go",
		"case s.Content != a.content && !s.Released:", "case false:",
		[]string{"Answer/OtherContentIsKeyReused"},
	},
	{
		"content that counts after a release", "reserve.go",
		"case s.Content != a.content && !s.Released:", "case s.Content != a.content:",
		[]string{"Answer/OtherContentIsKeyReused"},
	},
	{
		"the holder's own confirmation is another's", "lease.go",
		"return s.Type == intentlog.TypeConfirmed && s.NotKept", "return false && s.NotKept",
		[]string{"Answer/LostAnswerIsNoConflict"},
	},
	{
		"metadata stays with the grant", "lease.go",
		"m := messagestore.Envelope{Body: body, Metadata: p.Metadata}", "m := messagestore.Envelope{Body: body}",
		[]string{"Answer/MetadataGoesWithTheLease"},
	},
	{
		"a waiter brings a lease back", "wait.go",
		"Of: s.Of, Released: s.Released, ", "Of: s.Of, Released: false, ",
		[]string{"State/LineOutlivesTheRelease"},
	},
	{
		"a tombstone that is an unknown message", "../internal/intentlog/intentlog.go",
		"if m.IsTombstone() {", "if false {",
		[]string{"State/TombstoneIsDone"},
	},
	{
		"fields that are not looked at", "../internal/intentlog/intentlog.go",
		"s.TTL > MaxTTL.Milliseconds():", "false:",
		[]string{"State/OtherMessagesAreCorrupt"},
	},
	{
		"a scope that is in no name", "intent.go",
		`if scope == "" {`, `if true {`,
		[]string{"Keys/DifferentBytesAreDifferentIntents"},
	},
	{
		"one key answers for all", "reserve.go",
		"	for i := range a.keys {\n		k := &a.keys[i]\n		s := k.met", "	for i := range a.keys[:1] {\n		k := &a.keys[i]\n		s := k.met",
		[]string{"Keys/AllOrNone"},
	},
	{
		"the state of one key for all", "reserve.go",
		"a.step(k.met)", "a.step(a.keys[0].met)",
		[]string{"Keys/EachIsTakenOverAtItsVersion"},
	},
	{
		"a confirmation that leaves the writes away", "lease.go",
		"		all = append(all, writes...)\n		sent", "		sent",
		[]string{"Confirm/AppendsOtherWrites"},
	},
	{
		"a line without turns", "../internal/intentlog/intentlog.go",
		"time.Duration(s.Before(session)) * turn", "0",
		[]string{"Wait/LineIsServedInItsOrder", "Wait/DeadWaiterCostsATurn"},
	},
	{
		"a waiter that keeps its place", "reserve.go",
		"			a.leaveLine(calls, finish)\n", "",
		[]string{"Wait/EndsWithHeld"},
	},
	{
		"a crowd in which nobody comes to the first", "reserve.go",
		"		defer a.m.crowds.leave(a)\n", "",
		[]string{"Wait/CrowdIsServed"},
	},
	{
		"a waiter that keeps its place when its caller leaves", "wait.go",
		"context.WithCancel(context.WithoutCancel(ctx))", "context.WithCancel(ctx)",
		[]string{"Wait/CallersThatLeaveKeepNobodyWaiting"},
	},
	{
		"a waiter that leaves while the others do", "wait.go",
		"; err != nil || met == nil {", "; true || met == nil {",
		[]string{"TestOfTwoThatLeaveAtOnceBothLeave"},
	},
	{
		"a lease that is granted to nobody", "reserve.go",
		"			a.giveBack(ctx, finish)\n", "",
		[]string{"Answer/LostGrantOfNobodyIsGivenBack"},
	},
	{
		"a lease that is given back at the first attempt or never", "reserve.go",
		"			if err != nil || answer.Outcome != Reserved {\n				return err", "			if err != nil || answer.Outcome != Reserved {\n				return nil",
		[]string{"Answer/LostGrantOfNobodyIsGivenBack"},
	},
	{
		"a place in the line that is left at the first attempt or never", "wait.go",
		"		if err != nil {\n			return err\n		}\n		s, err := intentlog.Read(m)\n		if err != nil || s.Done() ||", "		if err != nil {\n			return nil\n		}\n		s, err := intentlog.Read(m)\n		if err != nil || s.Done() ||",
		[]string{"Answer/LostPlaceInTheLineIsLeft"},
	},
	{
		"a waiter without a context", "reserve.go",
		"a.wait(ctx, calls, w, now, end)", "a.wait(calls, calls, w, now, end)",
		[]string{"Wait/EndsWithTheContext"},
	},
	{
		"waiters that nothing wakes", "../internal/waiting/wakeups.go",
		"			one.ring(m)\n", "			_, _ = one, m\n",
		[]string{"Wait/LineIsServedInItsOrder", "Wait/IsToldTheResult", "Wait/OfSeveralKeysHoldsNothing", "Await/UntilItIsNotHeld"},
	},
	{
		"a waiter that sleeps too long", "wait.go",
		"d := min(k.met.MayTake(", "d := max(k.met.MayTake(",
		[]string{"Wait/TakesOverWhatIsOver"},
	},
	{
		"a waiter that believes the clock", "reserve.go",
		"return a.request.Wait > 0 && !time.Now()", "return false && !time.Now()",
		[]string{"L7/WaiterOutlastsAClockThatStands"},
	},
	{
		"a lease of a clock that was ahead that lasts for as long", "reserve.go",
		"met.Since.After(now.Add(clockTolerance))", "met.Since.IsZero()",
		[]string{"L7/ALeaseOfAClockThatWasAheadEndsInItsTime"},
	},
	{
		"a lease of a clock that was ahead that is over", "wait.go",
		"a.note(ctx, k, k.met.Line, now)", "a.note(ctx, k, k.met.Line, now.Add(-time.Hour))",
		[]string{"L7/WaiterOutlastsAClockThatWentBack", "L7/ALeaseOfAClockThatWasAheadEndsInItsTime"},
	},
	{
		"a waiter that takes an extension for silence", "reserve.go",
		"sign{s.Token, s.Of}", "sign{s.Token, 0}",
		[]string{"L7/WaiterOutlastsAClockThatStands"},
	},
	{
		"a holder's step that is not written", "holder.go",
		"	if err := l.step(ctx, body, writes); err != nil {\n		return l, err\n	}\n", "",
		[]string{"Resume/InAnotherProcess", "Holder/RepeatsItsStepsAnywhere"},
	},
	{
		"a holder's confirmation without the caller's writes", "holder.go",
		"err := l.step(ctx, body, writes)", "err := l.step(ctx, body, nil)",
		[]string{"Holder/ConfirmAppendsOtherWrites"},
	},
	{
		"a step of another session that is the holder's", "lease.go",
		"if s.Token != p.Token || s.Session != p.Session {", "if s.Token != p.Token {",
		[]string{"Holder/AnotherIsRefused"},
	},
	{
		"a holder's confirmation that is another's for its next attempt", "holder.go",
		`saltedEnds("")`, "newEnds()",
		[]string{"Holder/LostAnswersDoNoHarm"},
	},
	{
		"an extension that tells no new end", "holder.go",
		"all[i].Intent, all[i].Err = m.Extend(ctx, h)", "_, all[i].Err = m.Extend(ctx, h)",
		[]string{"Holder/ExtendsMany"},
	},
	{
		"an operator who spares a lease that is over", "lookup.go",
		"		case s.Released:\n			return nil\n", "		case !s.Held(time.Now()):\n			return nil\n",
		[]string{"ForceRelease/FencesTheHolder"},
	},
	{
		"an intent that is not found without a sentinel", "lookup.go",
		`"look up intent: %w"`, `"look up intent: %v"`,
		[]string{"Lookup/NeverReserved"},
	},
	{
		"a list of everything", "lookup.go",
		"slices.Contains(f.Status, i.Status) && (", "true && (",
		[]string{"List/ChoosesByStatusScopeAndSession"},
	},
	{
		"a page with intents that have changed since", "lookup.go",
		"		chosen, err = m.stillLast(ctx, chosen)\n", "",
		[]string{"List/InPages"},
	},
	{
		"a key's life that is not compared", "../internal/removal/keylife.go",
		"case life != l.life:", "case false:",
		[]string{"KeyLife/IsDeclaredByTheFirst"},
	},
	{
		"a key's life that cannot end", "../internal/removal/keylife.go",
		`return invalidKeyLife(life, "must be left out: no key of this store`, `return nil // ("must be left out: no key of this store`,
		[]string{"KeyLife/IsRefusedWhereKeysStay"},
	},
	{
		"a key's life that comes too late", "../internal/removal/keylife.go",
		"		return l.late(category)\n	}\n	_, _, err", "		return nil\n	}\n	_, _, err",
		[]string{"KeyLife/IsRefusedOnceThereAreIntents"},
	},
	{
		"a key's life that was declared too late", "../internal/removal/keylife.go",
		"		return 0, errLate\n", "",
		[]string{"KeyLife/IsRefusedWhereAnIntentCameFirst"},
	},
}

// TestEveryMutantIsFound takes minutes in the long tier. For every change one mutant has its turn.
func TestEveryMutantIsFound(t *testing.T) {
	testkit.NeedsChange(t)
	t.Parallel()
	for i, m := range mutants {
		if !testkit.Long() && i != testkit.Turn(len(mutants)) {
			continue
		}
		t.Run(m.name, func(t *testing.T) {
			program := m.build(t)
			for _, test := range m.foundBy {
				name := test
				if !strings.HasPrefix(test, "Test") {
					name = "TestIntentsInMemory/" + test
				}
				output, err := run(t, program, name)
				require.Error(t, err, "it passed:\n%s", output)
				require.Contains(t, output, "--- FAIL: "+name+" ")
			}
		})
	}
}

// build returns the program of this package's tests, with the mutant in the place of the manager.
func (m mutant) build(t *testing.T) string {
	t.Helper()
	source, err := filepath.Abs(filepath.Join("..", m.file))
	require.NoError(t, err)
	text, err := os.ReadFile(source)
	require.NoError(t, err)
	edited := filepath.Join(t.TempDir(), filepath.Base(m.file))
	require.NoError(t, os.WriteFile(edited, []byte(strings.Replace(string(text), m.old, m.new, 1)), 0o600))
	overlay, err := json.Marshal(map[string]any{"Replace": map[string]string{source: edited}})
	require.NoError(t, err)
	path := filepath.Join(t.TempDir(), "overlay.json")
	require.NoError(t, os.WriteFile(path, overlay, 0o600))

	program := filepath.Join(t.TempDir(), "intenttest.test")
	output, err := exec.CommandContext(t.Context(), "go", "test", "-c", "-vet=off", "-overlay", path, "-o", program, ".").CombinedOutput()
	require.NoError(t, err, string(output))
	return program
}

// run runs one test of a program.
func run(t *testing.T, program, name string) (string, error) {
	t.Helper()
	var pattern []string
	for part := range strings.SplitSeq(name, "/") {
		pattern = append(pattern, "^"+part+"$")
	}
	output, err := exec.CommandContext(t.Context(), program, "-test.timeout", "3m", "-test.run", strings.Join(pattern, "/")).CombinedOutput()
	return string(output), err
}

func TestEveryEditHasItsPlace(t *testing.T) {
	for _, m := range mutants {
		text, err := os.ReadFile(filepath.Join("..", m.file))
		require.NoError(t, err)
		require.Equal(t, 1, strings.Count(string(text), m.old), m.name)
	}
}

// A test of a suite is worth as much as the bugs that it has been seen to catch.
func TestEverySubTestHasFoundAMutant(t *testing.T) {
	var all, found []string
	for _, test := range tests() {
		all = append(all, test.name)
	}
	for _, m := range mutants {
		for _, name := range m.foundBy {
			if !strings.HasPrefix(name, "Test") { // a test of the suite
				found = append(found, name)
			}
		}
	}
	slices.Sort(all)
	slices.Sort(found)
	require.Equal(t, all, slices.Compact(found))
}
