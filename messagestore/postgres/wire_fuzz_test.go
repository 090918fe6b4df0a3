package postgres

import (
	"encoding/binary"
	"encoding/json"
	"errors"
	"math"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgtype"
	"github.com/stretchr/testify/require"

	"github.com/dibs-go/dibs/internal/pglink"
	"github.com/dibs-go/dibs/internal/testkit"
	"github.com/dibs-go/dibs/messagestore"
)

// A reply of append_one, even a corrupt one, is read as pgx reads it, or refused. It never panics.

func FuzzAnswerOfOneIsReadAsPgxReadsIt(f *testing.F) {
	answer := func(fields ...[]byte) []byte {
		b := binary.BigEndian.AppendUint32(nil, uint32(len(fields)))
		for i, field := range fields {
			b = binary.BigEndian.AppendUint32(b, []uint32{
				pgtype.TextOID, pgtype.Int8OID, pgtype.Int8OID, pgtype.UUIDOID, pgtype.TimestamptzOID,
				pgtype.TextOID, pgtype.JSONOID, pgtype.JSONOID, pgtype.TimestamptzOID,
			}[i%9])
			if field == nil {
				b = binary.BigEndian.AppendUint32(b, math.MaxUint32)
				continue
			}
			b = append(binary.BigEndian.AppendUint32(b, uint32(len(field))), field...)
		}
		return b
	}
	eight, sixteen := make([]byte, 8), make([]byte, 16)
	written := func(first ...[]byte) []byte { return answer(append(first, make([][]byte, 9-len(first))...)...) }
	met := func(data, metadata, at []byte) []byte {
		return answer([]byte("met"), eight, eight, sixteen, at, []byte("Opened"), data, metadata, at)
	}
	good := written([]byte("written"), eight, eight, nil, eight)
	f.Add(good)
	f.Add(written([]byte("id_conflict"), eight, nil, sixteen))
	f.Add(answer([]byte("written"), eight, eight, nil))
	f.Add(written(nil, eight, eight))
	f.Add(written([]byte(""), eight, eight))
	f.Add(written([]byte("written"), nil, nil))
	f.Add(written([]byte("written"), eight[:7], eight))
	f.Add(written([]byte("written"), eight, eight, sixteen[:15]))
	f.Add(written([]byte("written"), eight, eight, nil, eight[:7]))
	f.Add(written([]byte("met"), eight, nil, nil, nil, nil, nil, nil, eight))
	f.Add(met([]byte(`{}`), []byte(`{"correlationStreamName":"a-1"}`), eight))
	f.Add(met(nil, nil, eight))
	f.Add(met([]byte("\xff"), []byte("["), []byte("\xef0000000"))) // before all times
	f.Add(met([]byte(""), []byte(""), []byte("\x7f\xff\xff\xff\xff\xff\xff\xff")))
	f.Add(append(slices.Clip(good), 0))
	whole := met([]byte(`{}`), []byte(`{}`), eight)
	for cut := range whole {
		f.Add(whole[:cut])
	}
	// a negative length
	f.Add([]byte("\x00\x00\x00\x040000\x00\x00\x00\v000000000000000\x00\x00\x00\b000000000000\xff0000000\x90000"))
	f.Fuzz(func(t *testing.T, raw []byte) {
		got, err := readOne([][]byte{raw})
		for _, other := range [][][]byte{nil, {}, {raw, raw}, {nil}} {
			_, err := readOne(other)
			require.ErrorIs(t, err, errNoAnswer)
		}
		if err != nil {
			require.ErrorIs(t, err, errNoAnswer)
			return
		}
		scanner := pgtype.NewCompositeBinaryScanner(pgtype.NewMap(), raw)
		var fields [9][]byte
		for i := range fields {
			require.True(t, scanner.Next(), "field %d of %x: %v", i, raw, scanner.Err())
			fields[i] = scanner.Bytes()
		}
		var version, global pgtype.Int8
		var id pgtype.UUID
		require.NoError(t, pgtype.NewMap().Scan(pgtype.Int8OID, pgx.BinaryFormatCode, fields[1], &version))
		require.NoError(t, pgtype.NewMap().Scan(pgtype.Int8OID, pgx.BinaryFormatCode, fields[2], &global))
		require.NoError(t, pgtype.NewMap().Scan(pgtype.UUIDOID, pgx.BinaryFormatCode, fields[3], &id))
		require.Equal(t, string(fields[0]), got.outcome)
		require.Equal(t, version.Int64, int64(got.version))
		require.Equal(t, global.Int64, int64(got.globalPosition))
		require.Equal(t, uuid.UUID(id.Bytes), got.id)
		for i, read := range map[int]time.Time{4: got.time, 8: got.metAt} {
			var at pgtype.Timestamptz
			require.NoError(t, pgtype.NewMap().Scan(pgtype.TimestamptzOID, pgx.BinaryFormatCode, fields[i], &at))
			require.True(t, finite(at).Equal(read), "%v, not %v", read, at)
		}
		require.Equal(t, fields[5] == nil, got.met == nil)
		if got.met == nil {
			return
		}
		want := &messagestore.Message{Type: string(fields[5]), Data: json.RawMessage(fields[6]), Metadata: messagestore.ParseMetadata(fields[7])}
		require.Equal(t, want, got.met)
		data := string(fields[6])
		for i := range raw { // The message shares no memory with the connection.
			raw[i] ^= 0xff
		}
		require.Equal(t, data, string(got.met.Data))
	})
}

func FuzzListOfNumbersIsReadAsPgxReadsIt(f *testing.F) {
	list := func(numbers ...int64) []byte {
		e := pglink.Encoder{}
		e.Array(pgtype.Int8OID, len(numbers))
		for _, n := range numbers {
			e.Int8Element(n)
		}
		return e.Buffer
	}
	f.Add(list(1, -1, math.MaxInt64, math.MinInt64))
	f.Add(list())
	f.Add([]byte{})
	f.Add(make([]byte, 12))
	f.Add(list(1)[:31])
	f.Add(append([]byte{0, 0, 0, 2}, list(1)[4:]...))                                              // of two dimensions
	f.Add(append(list(1)[:12:12], append([]byte{0, 0, 0, 9}, list(1)[16:]...)...))                 // of fewer than it says
	f.Add(append(list(1)[:12:12], append([]byte{0xff, 0xff, 0xff, 0xff}, list(1)[16:]...)...))     // of less than none
	f.Add(append(list(1)[:20:20], 0xff, 0xff, 0xff, 0xff, 0, 0, 0, 0, 0, 0, 0, 0))                 // null
	f.Add(append(list(1)[:8:8], append([]byte{0, 0, 0, 25}, list(1)[12:]...)...))                  // of texts
	f.Add(append([]byte{0, 0, 0, 1, 0, 0, 0, 1, 0, 0, 0, 20, 0x7f, 0xff, 0xff, 0xff}, 0, 0, 0, 1)) // of very many
	// cut off
	f.Add([]byte("\x00\x00\x00\x01\x00\x00\x00\x01\x00\x00\x00\x14\x00\x00\x00\x02\x00\x00\x00\x01\x00\x00\x00\b\x00\x00\x00\x00\x00\x00\x00\x01"))
	f.Fuzz(func(t *testing.T, raw []byte) {
		got, err := pglink.Int8s(raw)
		if err != nil {
			require.ErrorIs(t, err, pglink.ErrNoList)
			require.Nil(t, got)
			return
		}
		require.LessOrEqual(t, len(got)*12, len(raw), "what it takes is bounded by what came")
		if len(raw) == 0 {
			require.Empty(t, got)
			return
		}
		var want []int64
		require.NoError(t, pgtype.NewMap().Scan(pgtype.Int8ArrayOID, pgx.BinaryFormatCode, raw, &want), "%x", raw)
		require.Len(t, got, len(want))
		for i := range got {
			require.Equal(t, want[i], got[i])
		}
	})
}

// A reply of append_each has an outcome for each write of the group, and what it met for each that
// asks and conflicts, or is refused: code that uses an accepted reply never indexes out of range.
func FuzzAnswerOfAGroupIsAboutEachOfItsWrites(f *testing.F) {
	list := func(oid uint32, elements ...[]byte) []byte {
		e := pglink.Encoder{}
		e.Array(oid, len(elements))
		for _, element := range elements {
			if element == nil {
				e.Null()
			} else {
				pglink.Element(&e, element)
			}
		}
		return e.Buffer
	}
	eight, id, text := make([]byte, 8), make([]byte, 16), []byte("{}")
	numbers := func(n int) []byte { return list(pgtype.Int8OID, slices.Repeat([][]byte{eight}, n)...) }
	times := func(n int) []byte { return list(pgtype.TimestamptzOID, slices.Repeat([][]byte{eight}, n)...) }
	none := make([][]byte, 8)
	// Positions, global positions, ids, times, types, data, metadata and the time of a conflict.
	met := func(messages ...bool) [][]byte {
		var columns [7][][]byte
		for _, there := range messages {
			row := [][]byte{eight, eight, nil, nil, nil, nil, nil}
			if there {
				row = [][]byte{eight, eight, id, eight, []byte("T"), text, nil}
			}
			for i := range columns {
				columns[i] = append(columns[i], row[i])
			}
		}
		all := make([][]byte, 0, 8)
		for i, oid := range metOIDs {
			all = append(all, list(oid, columns[i]...))
		}
		return append(all, eight)
	}
	add := func(outcomes string, versions, positions, times []byte, met [][]byte, one, two uint8, meet bool) {
		f.Add([]byte(outcomes), versions, positions, times, met[0], met[1], met[2], met[3], met[4], met[5], met[6], met[7], one, two, meet)
	}
	add("ww", numbers(2), numbers(3), times(3), none, 1, 2, false)
	add("wc", numbers(2), numbers(1), times(1), none, 1, 2, false)
	add("www", numbers(3), numbers(3), times(3), none, 1, 2, false)
	add("\xffw", numbers(2), numbers(2), times(2), none, 1, 2, false)
	add("", nil, nil, nil, none, 0, 0, false)
	add("w\x00", nil, nil, nil, none, 1, 1, false)                 // other letters
	add("ww", numbers(2), numbers(2), times(1), none, 1, 1, false) // fewer times than messages
	add("ww", numbers(2), numbers(2), numbers(2), none, 1, 1, false)
	add("cc", numbers(2), nil, nil, met(true, false), 1, 1, true)
	add("cc", numbers(2), nil, nil, met(true), 1, 1, true)              // fewer answers than conflicts
	add("wc", numbers(2), numbers(1), times(1), met(true), 1, 1, false) // that nobody asked for
	for spoilt := range 7 {
		columns := met(true, true)
		columns[spoilt] = columns[spoilt][:len(columns[spoilt])-1]
		add("cc", numbers(2), nil, nil, columns, 1, 1, true)
		columns = met(true, true)
		columns[spoilt] = met(true)[spoilt]
		add("cc", numbers(2), nil, nil, columns, 1, 1, true)
	}
	f.Fuzz(func(t *testing.T, outcomes, versions, positions, times, m0, m1, m2, m3, m4, m5, m6, m7 []byte, one, two uint8, meet bool) {
		for n := range 15 {
			if n != 12 {
				require.Error(t, testkit.ErrorOf(readEach(make([][]byte, n))))
			}
		}
		columns := [][]byte{outcomes, versions, positions, times, m0, m1, m2, m3, m4, m5, m6, m7}
		if len(m7) == 0 {
			columns[11] = nil
		}
		a, err := readEach(columns)
		if err != nil {
			require.True(t, errors.Is(err, pglink.ErrNoList) || errors.Is(err, errNoAnswer), "%v", err)
			return
		}
		group := []*ticket{
			{appends: []messagestore.Append{{Records: make([]messagestore.Encoded, one)}}, meet: meet},
			{appends: []messagestore.Append{{Records: make([]messagestore.Encoded, two)}}},
		}
		if a.check(group) != nil {
			return
		}
		require.Len(t, a.outcomes, 2)
		require.Len(t, a.versions, 2)
		positionsOf, meetings := 0, 0
		for i := range 2 {
			if a.outcomes[i] == 'w' {
				positionsOf += len(group[i].appends[0].Records)
			}
			if a.outcomes[i] == 'c' && group[i].meet {
				meetings++
			}
		}
		require.Len(t, a.globalPositions, positionsOf)
		require.Len(t, a.times, positionsOf)
		require.Len(t, a.met, meetings)
	})
}

// A list is read as pgx reads it, or refused.
func FuzzListIsReadAsPgxReadsIt(f *testing.F) {
	e := pglink.Encoder{}
	e.Array(pgtype.TextOID, 3)
	pglink.Element(&e, "a")
	e.Null()
	pglink.Element(&e, "")
	for cut := range e.Buffer {
		f.Add(e.Buffer[:cut])
	}
	f.Add(e.Buffer)
	f.Add(append(slices.Clip(e.Buffer), 0))
	f.Add(make([]byte, 12))
	f.Add([]byte("\x00\x00\x00\x01\x00\x00\x00\x00\x00\x00\x00\x19\x7f\xff\xff\xff\x00\x00\x00\x01"))                 // of very many
	f.Add([]byte("\x00\x00\x00\x01\x00\x00\x00\x00\x00\x00\x00\x19\x00\x00\x00\x01\x00\x00\x00\x01\xff\xff\xff\xfe")) // of less than none
	f.Fuzz(func(t *testing.T, raw []byte) {
		got, err := pglink.Elements(raw, pgtype.TextOID)
		if err != nil {
			require.ErrorIs(t, err, pglink.ErrNoList)
			return
		}
		require.LessOrEqual(t, len(got)*4, len(raw), "the list is bounded by what came")
		if len(raw) == 0 {
			require.Empty(t, got)
			return
		}
		var want [][]byte
		require.NoError(t, pgtype.NewMap().Scan(pgtype.ByteaArrayOID, pgx.BinaryFormatCode, raw, &want), "%x", raw)
		require.Len(t, got, len(want))
		for i := range got {
			require.Equal(t, want[i] == nil, got[i] == nil)
			require.Equal(t, string(want[i]), string(got[i]))
		}
	})
}

// pgx decodes the parameters of a group to the group's writes: no part of one message is in
// another.
func FuzzParametersOfAGroupAreReadByPgx(f *testing.F) {
	f.Add("a-1", "b-2", "Opened", "T\x00", []byte(`{}`), []byte(`{"a":1}`), int64(-2), int64(math.MaxInt64), true)
	f.Add("", "\xff", "", "", []byte{}, []byte(nil), int64(math.MinInt64), int64(0), false)
	f.Add("", "", "", "", []byte(""), []byte(""), int64(0), int64(0), false) // nothing
	f.Fuzz(func(t *testing.T, one, two, type1, type2 string, data, metadata []byte, expected, fence int64, notify bool) {
		write := func(stream string, records ...messagestore.Encoded) *ticket {
			return &ticket{appends: []messagestore.Append{{Stream: messagestore.StreamName(stream), Expected: messagestore.Version(expected), Records: records}}, messages: len(records), fences: []int64{fence}}
		}
		record := func(n byte, messageType string, metadata []byte) messagestore.Encoded {
			return messagestore.Encoded{ID: uuid.UUID{15: n}, Type: messageType, Data: data, Metadata: metadata}
		}
		group := []*ticket{write(one, record(1, type1, metadata), record(2, type2, nil)), write(two, record(3, type2, metadata))}
		parameters := eachParameters(&pglink.Encoder{}, group, notify)
		require.Len(t, parameters, len(eachOIDs))
		require.Nil(t, parameters[9], "no write asks for what it meets")
		require.Nil(t, parameters[10], "each write has one stream")
		group[1].meet = true
		group[0].appends = append(group[0].appends, group[1].appends...)
		group[0].messages += group[1].messages
		group[0].fences = append(group[0].fences, fence)
		group[1] = write(two)
		group[1].meet = true
		parameters = eachParameters(&pglink.Encoder{}, group, notify)
		var meets, joined []bool
		var streams, types []string
		var versions, fences []int64
		var counts []int32
		var ids []pgtype.UUID
		var datas, metadatas [][]byte
		var told bool
		types3 := []uint32{pgtype.ByteaArrayOID, pgtype.ByteaArrayOID} // JSON as the bytes it is
		for i, into := range []any{&streams, &versions, &counts, &fences, &ids, &types, &datas, &metadatas, &told, &meets, &joined} {
			oid := eachOIDs[i]
			if i == 6 || i == 7 {
				oid = types3[i-6]
			}
			require.NoError(t, pgtype.NewMap().Scan(oid, pgx.BinaryFormatCode, parameters[i], into))
		}
		require.Equal(t, []string{one, two, two}, streams)
		require.Equal(t, []int64{expected, expected, expected}, versions)
		require.Equal(t, []int32{2, 1, 0}, counts)
		require.Equal(t, []int64{fence, fence, fence}, fences)
		require.Equal(t, []string{type1, type2, type2}, types)
		for i, id := range ids {
			require.Equal(t, [16]byte{15: byte(i + 1)}, id.Bytes)
		}
		require.Len(t, ids, 3)
		for _, each := range datas {
			require.Equal(t, string(data), string(each))
		}
		require.Equal(t, len(metadata) == 0, metadatas[0] == nil)
		require.Equal(t, string(metadata), string(metadatas[0]))
		require.Nil(t, metadatas[1])
		require.Equal(t, string(metadata), string(metadatas[2]))
		require.Equal(t, notify, told)
		require.Equal(t, []bool{false, false, true}, meets)
		require.Equal(t, []bool{false, true, false}, joined)
	})
}

// A message is read by hand as pgx reads it, or left to it.
func FuzzRowIsReadAsPgxReadsIt(f *testing.F) {
	id, eight := make([]byte, 16), make([]byte, 8)
	f.Add(id, []byte("a-1"), []byte("T"), eight, eight, []byte(`{}`), []byte(`{"schemaVersion":"1"}`), eight, []byte{1}, uint16(0), 9)
	f.Add([]byte{}, []byte{}, []byte{}, eight, eight, []byte{}, []byte{}, eight, []byte{0}, uint16(0xff), 9)
	f.Add(id, []byte("\xff\n"), []byte(""), eight[:7], eight, []byte("\x00"), []byte(`[`), []byte{0x7f, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff}, []byte{}, uint16(0), 8)
	f.Add(id, []byte("a-1"), []byte("T"), eight, eight, []byte(nil), []byte(nil), eight, []byte{1}, uint16(1<<5|1<<6), 3)
	// a boolean that is neither
	f.Add([]byte(""), []byte(""), []byte(""), []byte("0"), []byte("00000000"), []byte("0"), []byte(""), []byte("0"), []byte("0"), uint16(234), 26)
	// a time before all times
	f.Add([]byte("0000000000000000"), []byte("0"), []byte("0"), []byte("00000000"), []byte("00000000"), []byte(""), []byte(""), []byte("\xef0000000"), []byte("0"), uint16(96), 70)
	f.Fuzz(func(t *testing.T, id, stream, messageType, position, global, data, metadata, at, more []byte, nulls uint16, columns int) {
		all := [][]byte{id, stream, messageType, position, global, data, metadata, at, more}
		values := make([][]byte, min(max(columns, 0), len(all)))
		for i := range values {
			if nulls&(1<<i) == 0 {
				values[i] = append([]byte{}, all[i]...)
			}
		}
		var r rowReader
		m, hasMore, ok := r.decode(values)
		if !ok {
			require.Nil(t, m)
			return
		}
		require.GreaterOrEqual(t, len(values), len(messageColumns)-1)
		types := pgtype.NewMap()
		scan := func(i int, into any) {
			require.NoError(t, types.Scan(messageColumns[i].oid, pgx.BinaryFormatCode, values[i], into), "column %d", i)
		}
		var g pgtype.Int8
		scan(4, &g)
		require.Equal(t, g.Int64, int64(m.GlobalPosition))
		if len(values) == len(messageColumns) && len(values[1]) == 0 {
			var b pgtype.Bool
			scan(8, &b)
			require.Equal(t, b.Bool, hasMore)
			require.Equal(t, &messagestore.Message{GlobalPosition: m.GlobalPosition, Data: json.RawMessage(values[5])}, m)
			return
		}
		var u pgtype.UUID
		var v pgtype.Int8
		var when pgtype.Timestamptz
		scan(0, &u)
		scan(3, &v)
		scan(7, &when)
		want := &messagestore.Message{
			ID: u.Bytes, Stream: messagestore.StreamName(values[1]), Position: messagestore.Version(v.Int64), GlobalPosition: messagestore.GlobalPosition(g.Int64),
			Type: string(values[2]), Data: json.RawMessage(values[5]), Metadata: messagestore.ParseMetadata(values[6]), Time: m.Time,
		}
		require.Equal(t, want, m)
		require.True(t, when.Time.UTC().Truncate(time.Microsecond).Equal(m.Time), "%v, not %v", m.Time, when.Time)
		// The returned message shares no memory with the row.
		for _, value := range values {
			for i := range value {
				value[i] ^= 0xff
			}
		}
		require.Equal(t, want.Type, m.Type)
		for i := range values[5] {
			values[5][i] ^= 0xff // back, as want shares it
		}
		require.Equal(t, string(want.Data), string(m.Data))
	})
}

// Any client may notify: a payload that is not one of ours is ignored.
func FuzzNotificationIsOneOrTellsOfNoPosition(f *testing.F) {
	for _, seed := range []string{"account-7", "account:command-9223372036854775807", "account-9223372036854775808", "account--7", "account-+7", "account-07", "account", "-", "-7", "", "account-7-8", "account-7 ", "account-\u0667", "account-1e3", "account-0x7", "account-1_000", "\xff-1", "a\nb-1", strings.Repeat("x", 8000) + "-1"} {
		f.Add(seed)
	}
	form := regexp.MustCompile(`(?s)^([^-]*)-\+?([0-9]+)$`)
	for _, name := range testkit.SeedNames() {
		f.Add(name + "-7")
	}
	f.Fuzz(func(t *testing.T, text string) {
		category, head := parseNotification(text)
		require.GreaterOrEqual(t, head, messagestore.GlobalPosition(0))
		require.NotContains(t, string(category), "-")
		require.True(t, strings.HasPrefix(text, string(category)))
		match := form.FindStringSubmatch(text)
		if match == nil {
			require.Zero(t, head, "%q", text)
			return
		}
		require.Equal(t, match[1], string(category))
		want, err := strconv.ParseInt(match[2], 10, 64)
		if err != nil {
			want = 0
		}
		require.Equal(t, want, int64(head))
	})
}

// An outcome is definite only if the server reports an error and keeps the session; no error text
// shows a row.
func FuzzWhatTheServerSaysIsOneOfThreeOutcomes(f *testing.F) {
	for _, code := range []string{"DB001", "DB002", "23505", "40001", "40P01", "55P03", "57P01", "57014", "08006", "25P03", "25006", "42883", "53100", "XX000", "", "\xff"} {
		f.Add(code, "ERROR", "invalid stream name", "streams", "Key (id)=(canary) already exists.")
		f.Add(code, "FATAL", "m", "", "canary")
	}
	f.Add("57P01", "ERROR", "m", "ids", "d") // error that ends the session
	f.Fuzz(func(t *testing.T, code, severity, message, column, detail string) {
		detail = "canary" + detail
		if strings.Contains(code+message+column, "canary") {
			return
		}
		said := &pgconn.PgError{
			Severity: severity, SeverityUnlocalized: severity, Code: code, Message: message, ColumnName: column,
			Detail: detail, Hint: detail, Where: detail, InternalQuery: detail, DataTypeName: detail, File: detail, Routine: detail,
		}
		ends := strings.HasPrefix(code, "08") || strings.HasPrefix(code, "57P") || code == "25P03"
		require.Equal(t, severity == "ERROR" && !ends, pglink.Definite(said))

		id := uuid.New()
		err := writeFailed(said, []messagestore.Append{{Stream: "a-1", Records: []messagestore.Encoded{{ID: id}}}})

		unknown, isUnknown := errors.AsType[*messagestore.OutcomeUnknownError](err)
		require.Equal(t, !pglink.Definite(said), isUnknown)
		if isUnknown {
			require.Equal(t, []messagestore.Append{{Stream: "a-1", Records: []messagestore.Encoded{{ID: id}}}}, unknown.Writes)
			require.False(t, pglink.Retryable(err), "what may have happened is not done again")
		}
		if pglink.Definite(said) && code == "DB001" {
			invalid := testkit.As[*messagestore.InvalidError](t, err)
			require.Empty(t, invalid.Value)
			require.ErrorIs(t, err, messagestore.ErrInvalid)
		}
		for e := err; e != nil; e = errors.Unwrap(e) {
			require.NotContains(t, e.Error(), "canary")
			if kept, ok := e.(*pgconn.PgError); ok { //nolint:errorlint // each of the chain
				require.NotContains(t, kept.Detail+kept.Hint+kept.Where+kept.InternalQuery+kept.DataTypeName+kept.File+kept.Routine, "canary")
			}
		}
	})
}

// The marks in the last row of a page are those of its two ends, or the row is refused.
func FuzzMarksAreThoseOfTheEndsOrRefused(f *testing.F) {
	const (
		first  = `{"id" : "0198c6b1-4b4c-7000-8000-000000000001", "stream" : "account-1", "position" : 0, "globalPosition" : `
		second = `{"id" : "0198c6b1-4b4c-7000-8000-000000000002", "stream" : "account-2", "position" : 3, "globalPosition" : `
		mark   = first + `7, "time" : 1755000000000000}`
	)
	f.Add([]byte(`[` + mark))             // cut off
	f.Add([]byte("[]"))                   // none
	f.Add([]byte("null"))                 // null
	f.Add([]byte(`[` + mark + `, null]`)) // null among them
	f.Add([]byte(`[` + mark + `]`))       // one
	// position too large
	f.Add([]byte(`[` + first + `9223372036854775808, "time" : 1755000000000000}]`))
	// three
	f.Add([]byte(`[` + mark + `, {"id":"none"}, ` + mark + `]`))
	// time infinite
	f.Add([]byte(`[` + first + `7, "time" : null}, ` + second + `7, "time" : null}]`))
	// times beyond all
	f.Add([]byte(`[` + first + `7, "time" : -9223372036854775808}, ` + second + `7, "time" : 9223372036854775807}]`))
	// two
	f.Add([]byte(`[` + mark + `, ` + second + `19, "time" : 1755000000000000}]`))
	f.Fuzz(func(t *testing.T, data []byte) {
		first, last, err := readMarks(data)
		if len(data) == 0 { // as of a page without a filter
			require.NoError(t, err)
			require.Zero(t, first)
			require.Zero(t, last)
			return
		}
		if err != nil {
			require.ErrorIs(t, err, errNoMessage)
			require.Zero(t, first)
			require.Zero(t, last)
			return
		}
		var all []json.RawMessage
		require.NoError(t, json.Unmarshal(data, &all))
		require.NotEmpty(t, all)
		requireMark(t, first, all[0])
		requireMark(t, last, all[len(all)-1])
		requireMark(t, first, writtenMark(t, first))
		requireMark(t, last, writtenMark(t, last))
	})
}

// requireMark demands that want is read of raw where it is alone.
func requireMark(t *testing.T, want messagestore.Mark, raw json.RawMessage) {
	t.Helper()
	first, last, err := readMarks(slices.Concat([]byte("["), raw, []byte("]")))
	require.NoError(t, err)
	require.Equal(t, want, first, "%s", raw)
	require.Equal(t, want, last, "%s", raw)
}

// writtenMark writes a mark as dibs.read_category does.
func writtenMark(t *testing.T, m messagestore.Mark) json.RawMessage {
	t.Helper()
	written := struct {
		ID             uuid.UUID `json:"id"`
		Stream         string    `json:"stream"`
		Position       int64     `json:"position"`
		GlobalPosition int64     `json:"globalPosition"`
		Time           *int64    `json:"time"`
	}{m.ID, string(m.Stream), int64(m.Position), int64(m.GlobalPosition), nil}
	if !m.Time.IsZero() {
		micros := m.Time.UnixMicro()
		written.Time = &micros
	}
	return testkit.Do(json.Marshal(written))(t)
}
