package servetest

import (
	"context"
	"fmt"

	"connectrpc.com/connect"
	"github.com/google/uuid"
	"github.com/stretchr/testify/require"
	"google.golang.org/protobuf/proto"

	v1 "github.com/dibs-go/dibs/serve/gen/dibs/v1"
)

var storeTests = []test{
	{"Store/FirstWriteWins", firstWriteWins},
	{"Store/ARepeatedWriteIsTheSame", repeatedWrite},
	{"Store/AllOrNothing", allOrNothing},
	{"Store/BytesAreKept", bytesAreKept},
	{"Store/AStreamIsReadInPages", streamInPages},
	{"Store/AFollowerSkipsNothing", followerSkipsNothing},
	{"Store/BadInputIsNamed", badWrites},
}

func (f *fixture) write(id string, expected int64, messages ...*v1.NewMessage) *v1.StreamWrite {
	return &v1.StreamWrite{Stream: f.category + "-" + id, ExpectedVersion: new(expected), Messages: messages}
}

func numbered(n int) string { return fmt.Sprintf(`{"n":%d}`, n) }

func message(data string) *v1.NewMessage {
	return &v1.NewMessage{Id: uuid.NewString(), Type: "Deposited", DataJson: data}
}

func (f *fixture) writes(all ...*v1.StreamWrite) *v1.WriteResponse {
	f.Helper()
	return call(f, f.Store.Write, &v1.WriteRequest{Writes: all})
}

const (
	written  = v1.WriteOutcome_WRITE_OUTCOME_WRITTEN
	conflict = v1.WriteOutcome_WRITE_OUTCOME_VERSION_CONFLICT
)

func firstWriteWins(f *fixture) {
	require.Equal(f, written, f.writes(f.write("1", -1, message(numbered(1)))).GetOutcome())
	second := f.writes(f.write("1", -1, message(numbered(2))))
	require.Equal(f, conflict, second.GetOutcome())
	require.Equal(f, numbered(1), second.GetLast()[0].GetMessage().GetDataJson())
	require.NotNil(f, second.GetTime())
	require.Equal(f, written, f.writes(f.write("1", 0, message(numbered(2)))).GetOutcome())
	require.Equal(f, written, f.writes(f.write("1", -2, message(numbered(3)))).GetOutcome())
	require.Equal(f, conflict, f.writes(f.write("2", -4, message(numbered(1)))).GetOutcome())
}

func repeatedWrite(f *fixture) {
	w := f.write("1", -1, message(numbered(1)), message(numbered(2)))
	first, again := f.writes(w).GetWritten()[0], f.writes(w).GetWritten()[0]
	require.False(f, first.GetDuplicate())
	require.True(f, again.GetDuplicate())
	require.EqualValues(f, 1, again.GetVersion())
	require.Equal(f, first.GetGlobalPosition(), again.GetGlobalPosition())
	changed := f.write("1", 1, &v1.NewMessage{Id: w.GetMessages()[0].GetId(), Type: "Deposited", DataJson: numbered(3)})
	require.Equal(f, v1.WriteOutcome_WRITE_OUTCOME_ID_CONFLICT, f.writes(changed).GetOutcome())
}

func allOrNothing(f *fixture) {
	f.writes(f.write("1", -1, message(numbered(1))))
	require.Equal(f, conflict, f.writes(f.write("2", -1, message(numbered(1))), f.write("1", -1, message(numbered(2)))).GetOutcome())
	require.Nil(f, call(f, f.Store.GetLast, &v1.GetLastRequest{Stream: f.category + "-2"}).GetMessage())
	require.Equal(f, written, f.writes(f.write("2", -1, message(numbered(1))), f.write("1", 0)).GetOutcome(), "a write without messages is a check")
}

func bytesAreKept(f *fixture) {
	data := `{"b": 9007199254740993, "a":[1,  2.50, "\u00e9 é"]}`
	m := message(data)
	m.MetadataJson = `{"properties":{"user":"ann"}}`
	f.writes(f.write("1", -1, m))
	last := call(f, f.Store.GetLast, &v1.GetLastRequest{Stream: f.category + "-1"}).GetMessage()
	require.Equal(f, data, last.GetDataJson())
	require.JSONEq(f, m.GetMetadataJson(), last.GetMetadataJson())
	require.Equal(f, m.GetId(), last.GetId())
}

func streamInPages(f *fixture) {
	var all []*v1.NewMessage
	for n := range 25 {
		all = append(all, message(numbered(n)))
	}
	f.writes(f.write("1", -1, all...))
	r := &v1.ReadStreamRequest{Stream: f.category + "-1", PageSize: 10}
	for n := 0; ; {
		page := call(f, f.Store.ReadStream, r)
		for _, m := range page.GetMessages() {
			require.Equal(f, numbered(n), m.GetDataJson())
			n++
		}
		r.FromVersion = page.GetNextVersion()
		if !page.GetMore() {
			require.Equal(f, 25, n)
			break
		}
	}
}

func followerSkipsNothing(f *fixture) {
	for n := range 10 {
		f.writes(f.write(fmt.Sprint(n), -1, message(numbered(n))))
	}
	var (
		next int64
		seen []string
	)
	follow := func(until int) {
		ctx, hangUp := context.WithCancel(f.Context())
		defer hangUp()
		stream, err := f.Store.FollowCategory(ctx, &v1.FollowCategoryRequest{Category: f.category, FromPosition: next})
		require.NoError(f, err)
		for len(seen) < until && stream.Receive() {
			for _, m := range stream.Msg().GetMessages() {
				seen = append(seen, m.GetDataJson())
			}
			next = stream.Msg().GetNextPosition()
		}
		require.Len(f, seen, until, "%v", stream.Err())
		hangUp()
		_ = stream.Close() // the server may be told by either
	}
	follow(10)
	go func() {
		for n := 10; n < 20; n++ {
			_, _ = f.Store.Write(f.Context(), &v1.WriteRequest{Writes: []*v1.StreamWrite{f.write(fmt.Sprint(n), -1, message(numbered(n)))}})
		}
	}()
	follow(20)
	for n, data := range seen {
		require.Equal(f, numbered(n), data)
	}
	stream, err := f.Store.FollowCategory(f.Context(), &v1.FollowCategoryRequest{Category: f.category, UntilEnd: true})
	require.NoError(f, err)
	n := 0
	for stream.Receive() {
		n += len(stream.Msg().GetMessages())
	}
	require.NoError(f, stream.Err())
	require.Equal(f, 20, n)
}

func badWrites(f *fixture) {
	bad := connect.CodeInvalidArgument
	refusedWrite := func(says string, w ...*v1.StreamWrite) {
		f.Helper()
		refused(f, bad, says, f.Store.Write, &v1.WriteRequest{Writes: w})
	}
	refusedWrite("writes")
	refusedWrite("expected_version", &v1.StreamWrite{Stream: f.category + "-1", Messages: []*v1.NewMessage{message(numbered(1))}})
	refusedWrite("stream", &v1.StreamWrite{Stream: "-1", ExpectedVersion: proto.Int64(-1), Messages: []*v1.NewMessage{message(numbered(1))}})
	refusedWrite("messages[0].id", f.write("1", -1, &v1.NewMessage{Type: "T", DataJson: numbered(1)}))
	refusedWrite("JSON", f.write("1", -1, message(`{`)))
	refusedWrite("expected version", f.write("1", -3, message(numbered(1))))
	refusedWrite("U+0000", f.write("1", -1, message(`{"text":"\u0000"}`)))
	refused(f, bad, "stream", f.Store.GetLast, &v1.GetLastRequest{Stream: "no stream"})
	refused(f, bad, "from_version", f.Store.ReadStream, &v1.ReadStreamRequest{Stream: f.category + "-1", FromVersion: -1})
}
