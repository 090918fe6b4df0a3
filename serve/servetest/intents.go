package servetest

import (
	"fmt"
	"sync"
	"time"

	"connectrpc.com/connect"
	"github.com/google/uuid"
	"github.com/stretchr/testify/require"

	"github.com/dibs-go/dibs/internal/testkit"
	v1 "github.com/dibs-go/dibs/serve/gen/dibs/v1"
)

var intentTests = []test{
	{"L1/TokensRiseWithEveryGrant", tokensRise},
	{"L2/OneOfManyIsGranted", oneOfManyIsGranted},
	{"L2/ARepeatedReserveGetsTheSameLease", repeatedReserve},
	{"L3/AnEndedLeaseIsLost", endedLeaseIsLost},
	{"L3/StepsMayBeRepeated", stepsMayBeRepeated},
	{"L4/WritesOfAConfirmationAreAllOrNothing", writesOfAConfirmation},
	{"L5/ConfirmedIsNeverGrantedAgain", confirmedIsNeverGrantedAgain},
	{"L5/OtherContentIsKeyReused", otherContentIsKeyReused},
	{"L7/ALeaseEndsIfNobodyExtendsIt", leaseEnds},
	{"Intents/AWaitEndsWithTheLease", waitEndsWithTheLease},
	{"Intents/AWaitEndsBeforeTheDeadline", waitEndsBeforeTheDeadline},
	{"Intents/GetWaitsForTheResult", getWaits},
	{"Intents/ManyLeasesInOneHeartbeat", manyLeases},
	{"Intents/AnOperatorReleases", operatorReleases},
	{"Intents/ListIsComplete", listIsComplete},
	{"Intents/BadInputIsNamed", badIntents},
}

func (f *fixture) reserve(key, session string) *v1.ReserveResponse {
	f.Helper()
	return call(f, f.Intents.Reserve, &v1.ReserveRequest{Name: f.name(key), SessionId: session, ContentJson: `{"amount":10}`, Ttl: lasting(patience)})
}

func (f *fixture) lease(key string) *v1.Lease {
	f.Helper()
	got := f.reserve(key, uuid.NewString())
	require.Equal(f, v1.Outcome_OUTCOME_RESERVED, got.GetOutcome())
	return got.GetLease()
}

const (
	leaseOK   = v1.LeaseOutcome_LEASE_OUTCOME_OK
	leaseLost = v1.LeaseOutcome_LEASE_OUTCOME_LOST
)

func (f *fixture) confirm(l *v1.Lease, result string) *v1.ConfirmResponse {
	f.Helper()
	return call(f, f.Intents.Confirm, &v1.ConfirmRequest{Lease: l, ResultJson: result})
}

func (f *fixture) release(l *v1.Lease) *v1.ReleaseResponse {
	f.Helper()
	return call(f, f.Intents.Release, &v1.ReleaseRequest{Lease: l, Reason: "no more"})
}

func (f *fixture) extend(all ...*v1.Lease) []*v1.LeaseResult {
	f.Helper()
	return call(f, f.Intents.ExtendLeases, &v1.ExtendLeasesRequest{Leases: all}).GetResults()
}

func tokensRise(f *fixture) {
	last := int64(0)
	for n := range 5 {
		l := f.lease("k")
		require.Greater(f, l.GetFencingToken(), last)
		require.EqualValues(f, n+1, l.GetAttempt())
		last = l.GetFencingToken()
		require.Equal(f, leaseOK, f.release(l).GetOutcome())
	}
}

func oneOfManyIsGranted(f *fixture) {
	var (
		group   sync.WaitGroup
		answers [20]*v1.ReserveResponse
	)
	for i := range answers {
		group.Go(func() { answers[i] = f.reserve("k", fmt.Sprint("session ", i)) })
	}
	group.Wait()
	granted := 0
	for _, a := range answers {
		if a.GetOutcome() == v1.Outcome_OUTCOME_RESERVED {
			granted++
			continue
		}
		require.Equal(f, v1.Outcome_OUTCOME_HELD, a.GetOutcome())
		require.Equal(f, v1.IntentState_INTENT_STATE_HELD, a.GetIntent().GetState())
		require.Positive(f, a.GetIntent().GetLeft().AsDuration())
	}
	require.Equal(f, 1, granted)
}

func repeatedReserve(f *fixture) {
	first := f.reserve("k", "mine")
	again := f.reserve("k", "mine")
	require.Equal(f, v1.Outcome_OUTCOME_RESERVED, again.GetOutcome())
	require.Equal(f, first.GetLease().GetFencingToken(), again.GetLease().GetFencingToken())
	require.EqualValues(f, 1, again.GetLease().GetAttempt())
}

func endedLeaseIsLost(f *fixture) {
	l := f.lease("k")
	require.Equal(f, leaseOK, f.release(l).GetOutcome())
	next := f.lease("k")
	require.Equal(f, leaseLost, f.confirm(l, `1`).GetOutcome())
	require.Equal(f, leaseLost, f.release(l).GetOutcome())
	result := f.extend(l)[0]
	require.Equal(f, leaseLost, result.GetOutcome())
	require.Equal(f, v1.IntentState_INTENT_STATE_HELD, result.GetIntent().GetState())

	future := &v1.Lease{Name: next.GetName(), SessionId: next.GetSessionId(), FencingToken: next.GetFencingToken() + 1}
	require.Equal(f, leaseLost, f.confirm(future, `1`).GetOutcome())
	stranger := &v1.Lease{Name: next.GetName(), SessionId: "a stranger", FencingToken: next.GetFencingToken()}
	require.Equal(f, leaseLost, f.confirm(stranger, `1`).GetOutcome())
	require.Equal(f, leaseOK, f.confirm(next, `1`).GetOutcome())
}

func stepsMayBeRepeated(f *fixture) {
	l := f.lease("k")
	for range 2 {
		require.Equal(f, leaseOK, f.extend(l)[0].GetOutcome())
	}
	for range 2 {
		require.Equal(f, leaseOK, f.confirm(l, `{"receipt":17}`).GetOutcome())
	}
	other := f.confirm(l, `{"receipt":18}`)
	require.Equal(f, leaseLost, other.GetOutcome())
	require.JSONEq(f, `{"receipt":17}`, other.GetIntent().GetResultJson())
	require.Equal(f, leaseLost, f.release(l).GetOutcome())

	l = f.lease("k2")
	for range 2 {
		require.Equal(f, leaseOK, f.release(l).GetOutcome())
	}
	require.Equal(f, leaseLost, f.confirm(l, `1`).GetOutcome())
}

func writesOfAConfirmation(f *fixture) {
	stream, none := f.category+"-1", int64(-1)
	write := func() *v1.StreamWrite {
		return &v1.StreamWrite{Stream: stream, ExpectedVersion: &none, Messages: []*v1.NewMessage{{Id: uuid.NewString(), Type: "Paid", DataJson: `{"amount":10}`}}}
	}
	l := f.lease("k")
	require.Equal(f, leaseOK, call(f, f.Intents.Confirm, &v1.ConfirmRequest{Lease: l, Writes: []*v1.StreamWrite{write()}}).GetOutcome())
	require.Equal(f, "Paid", call(f, f.Store.GetLast, &v1.GetLastRequest{Stream: stream}).GetMessage().GetType())

	l = f.lease("k2")
	require.Equal(f, v1.LeaseOutcome_LEASE_OUTCOME_VERSION_CONFLICT, call(f, f.Intents.Confirm, &v1.ConfirmRequest{Lease: l, Writes: []*v1.StreamWrite{write()}}).GetOutcome())
	require.Equal(f, leaseOK, f.extend(l)[0].GetOutcome(), "the lease goes on")
	require.EqualValues(f, 0, call(f, f.Store.GetLast, &v1.GetLastRequest{Stream: stream}).GetMessage().GetPosition())
}

func confirmedIsNeverGrantedAgain(f *fixture) {
	require.Equal(f, leaseOK, f.confirm(f.lease("k"), `{"n":9007199254740993}`).GetOutcome())
	for range 3 {
		done := f.reserve("k", uuid.NewString())
		require.Equal(f, v1.Outcome_OUTCOME_DONE, done.GetOutcome())
		require.Equal(f, `{"n":9007199254740993}`, done.GetIntent().GetResultJson())
		require.Nil(f, done.GetLease())
	}
}

func otherContentIsKeyReused(f *fixture) {
	f.lease("k")
	other := &v1.ReserveRequest{Name: f.name("k"), SessionId: "s", ContentJson: `{"amount":11}`}
	require.Equal(f, v1.Outcome_OUTCOME_KEY_REUSED, call(f, f.Intents.Reserve, other).GetOutcome())
}

func leaseEnds(f *fixture) {
	held := &v1.ReserveRequest{Name: f.name("k"), SessionId: "dead", ContentJson: `1`, Ttl: lasting(200 * time.Millisecond)}
	old := call(f, f.Intents.Reserve, held).GetLease()
	next := call(f, f.Intents.Reserve, &v1.ReserveRequest{Name: f.name("k"), SessionId: "next", ContentJson: `1`, MaxWait: lasting(patience)})
	require.Equal(f, v1.Outcome_OUTCOME_RESERVED, next.GetOutcome())
	require.EqualValues(f, 2, next.GetLease().GetAttempt())
	require.Equal(f, leaseLost, f.confirm(old, `1`).GetOutcome())
}

func waitEndsWithTheLease(f *fixture) {
	l := f.lease("k")
	waiting := make(chan *v1.ReserveResponse, 1)
	go func() {
		answer, _ := f.Intents.Reserve(f.Context(), &v1.ReserveRequest{Name: f.name("k"), SessionId: "waits", ContentJson: `{"amount":10}`, MaxWait: lasting(patience)})
		waiting <- answer
	}()
	testkit.AwaitEqual(f, "sessions in the line", 1, func() int32 {
		return call(f, f.Intents.GetIntent, &v1.GetIntentRequest{Name: f.name("k")}).GetIntent().GetWaiting()
	})
	require.Equal(f, leaseOK, f.confirm(l, `"result"`).GetOutcome())
	answer := <-waiting
	require.Equal(f, v1.Outcome_OUTCOME_DONE, answer.GetOutcome())
	require.Equal(f, `"result"`, answer.GetIntent().GetResultJson())
}

func waitEndsBeforeTheDeadline(f *fixture) {
	f.lease("k")
	ctx, cancel := contextFor(f, 2*time.Second)
	defer cancel()
	answer, err := f.Intents.Reserve(ctx, &v1.ReserveRequest{Name: f.name("k"), SessionId: "waits", ContentJson: `{"amount":10}`, MaxWait: lasting(10 * time.Minute)})
	require.NoError(f, err)
	require.Equal(f, v1.Outcome_OUTCOME_HELD, answer.GetOutcome())
}

func getWaits(f *fixture) {
	l := f.lease("k")
	waiting := make(chan *v1.GetIntentResponse, 1)
	go func() {
		answer, _ := f.Intents.GetIntent(f.Context(), &v1.GetIntentRequest{Name: f.name("k"), MaxWait: lasting(patience)})
		waiting <- answer
	}()
	require.Equal(f, leaseOK, f.confirm(l, `"result"`).GetOutcome())
	answer := <-waiting
	require.Equal(f, v1.IntentState_INTENT_STATE_DONE, answer.GetIntent().GetState())
	require.Equal(f, `"result"`, answer.GetIntent().GetResultJson())
	refused(f, connect.CodeNotFound, "no such", f.Intents.GetIntent, &v1.GetIntentRequest{Name: f.name("never")})
}

func manyLeases(f *fixture) {
	var all []*v1.Lease
	for i := range 50 {
		all = append(all, f.lease(fmt.Sprint("key ", i)))
	}
	f.release(all[7])
	f.confirm(all[8], `1`)
	all = append(all, &v1.Lease{Name: f.name("never"), SessionId: "s", FencingToken: all[0].GetFencingToken()})
	for i, r := range f.extend(all...) {
		if i == 7 || i == 8 || i == 50 {
			require.Equal(f, leaseLost, r.GetOutcome(), "lease %d", i)
			continue
		}
		require.Equal(f, leaseOK, r.GetOutcome(), "lease %d", i)
		require.Equal(f, all[i].GetFencingToken(), r.GetLease().GetFencingToken())
		require.Positive(f, r.GetLease().GetTtl().AsDuration())
	}
}

func operatorReleases(f *fixture) {
	l := f.lease("k")
	call(f, f.Admin.ForceRelease, &v1.ForceReleaseRequest{Name: f.name("k"), Reason: "its host burnt down"})
	require.Equal(f, leaseLost, f.confirm(l, `1`).GetOutcome())
	free := call(f, f.Intents.GetIntent, &v1.GetIntentRequest{Name: f.name("k")}).GetIntent()
	require.Equal(f, v1.IntentState_INTENT_STATE_FREE, free.GetState())
	require.Equal(f, "its host burnt down", free.GetReleaseReason())
	f.confirm(f.lease("k"), `1`)
	refused(f, connect.CodeFailedPrecondition, "confirmed", f.Admin.ForceRelease, &v1.ForceReleaseRequest{Name: f.name("k"), Reason: "again"})
}

func listIsComplete(f *fixture) {
	for i := range 25 {
		f.lease(fmt.Sprint("key ", i))
	}
	found := map[string]bool{}
	r := &v1.ListIntentsRequest{Category: f.category + ":intent", PageSize: 10}
	for {
		page := call(f, f.Intents.ListIntents, r)
		require.LessOrEqual(f, len(page.GetIntents()), 10)
		for _, i := range page.GetIntents() {
			require.False(f, found[i.GetName().GetKey()], "twice")
			found[i.GetName().GetKey()] = true
		}
		if page.GetNextPageToken() == "" {
			break
		}
		r.PageToken = page.GetNextPageToken()
	}
	require.Len(f, found, 25)
	refused(f, connect.CodeInvalidArgument, "page_token", f.Intents.ListIntents, &v1.ListIntentsRequest{Category: f.category + ":intent", PageToken: "forged"})
}

func badIntents(f *fixture) {
	bad := connect.CodeInvalidArgument
	refused(f, bad, "session_id", f.Intents.Reserve, &v1.ReserveRequest{Name: f.name("k"), ContentJson: `1`})
	refused(f, bad, "key", f.Intents.Reserve, &v1.ReserveRequest{Name: f.name(""), SessionId: "s", ContentJson: `1`})
	refused(f, bad, "JSON", f.Intents.Reserve, &v1.ReserveRequest{Name: f.name("k"), SessionId: "s", ContentJson: `not json`})
	refused(f, bad, "category", f.Intents.Reserve, &v1.ReserveRequest{SessionId: "s", ContentJson: `1`})
	refused(f, bad, "max_wait", f.Intents.Reserve, &v1.ReserveRequest{Name: f.name("k"), SessionId: "s", ContentJson: `1`, MaxWait: lasting(-1)})
	refused(f, bad, "max_wait", f.Intents.Reserve, &v1.ReserveRequest{Name: f.name("k"), SessionId: "s", ContentJson: `1`, MaxWait: lasting(time.Hour)})
	refused(f, bad, "TTL", f.Intents.Reserve, &v1.ReserveRequest{Name: f.name("k"), SessionId: "s", ContentJson: `1`, Ttl: lasting(time.Nanosecond)})
	refused(f, bad, "TTL", f.Intents.Reserve, &v1.ReserveRequest{Name: f.name("k"), SessionId: "s", ContentJson: `1`, Ttl: lasting(25 * time.Hour)})
	refused(f, bad, "leases", f.Intents.ExtendLeases, &v1.ExtendLeasesRequest{})
	refused(f, bad, "token", f.Intents.Confirm, &v1.ConfirmRequest{Lease: &v1.Lease{Name: f.name("k"), SessionId: "s"}})
	refused(f, bad, "expected_version", f.Intents.Confirm, &v1.ConfirmRequest{Lease: f.lease("k3"), Writes: []*v1.StreamWrite{{Stream: f.category + "-1"}}})
}
