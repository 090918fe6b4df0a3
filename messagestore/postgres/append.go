package postgres

import (
	"context"

	"github.com/jackc/pgx/v5/pgtype"

	"github.com/dibs-go/dibs/internal/pglink"
	"github.com/dibs-go/dibs/internal/text"
	"github.com/dibs-go/dibs/messagestore"
)

// Append implements [messagestore.Driver].
func (d *Driver) Append(ctx context.Context, a messagestore.Append) (messagestore.Written, error) {
	written, err := d.AppendAll(ctx, []messagestore.Append{a})
	if err != nil {
		return messagestore.Written{}, err
	}
	return written[0], nil
}

// AppendAll implements [messagestore.Driver].
func (d *Driver) AppendAll(ctx context.Context, appends []messagestore.Append) ([]messagestore.Written, error) {
	written, _, err := d.appendEither(ctx, appends, false)
	return written, err
}

// appendEither writes appends, together with other writes if possible. With meet, which TryAppend
// sets, a version conflict is an answer; else it is an error.
func (d *Driver) appendEither(ctx context.Context, appends []messagestore.Append, meet bool) ([]messagestore.Written, *messagestore.Conflict, error) {
	if d.inGroup(ctx, appends) {
		return d.appendInGroup(ctx, appends, meet)
	}
	return d.appendAll(ctx, appends, d.fences.of(appends), meet, always)
}

func always() bool { return true }

// appendAll writes with the fences that the driver knew when the caller came. It asks wanted once
// it has a connection. If a fence has been raised, it tries again with the new fences while the
// caller waits: once the caller is gone, the fence may have been raised to stop this write.
func (d *Driver) appendAll(
	ctx context.Context, appends []messagestore.Append, fences []int64, meet bool, wanted func() bool,
) ([]messagestore.Written, *messagestore.Conflict, error) {
	// In a caller's transaction there is one attempt: its earlier statements would have to be
	// repeated too.
	const attempts = 5

	for attempt := 1; ; {
		var answers []answer
		own := false
		err := d.with(ctx, func(db DB) error {
			if !wanted() {
				return errUnwanted
			}
			if own = !d.link.InTransaction(db); !own {
				fences = nil // a write whose transaction is cancelled by its caller cannot commit
			}
			call := func() (err error) {
				answers, err = d.call(ctx, db, appends, fences, meet, !own)
				if err == nil && own && meet && len(answers) == 1 && answers[0].outcome == "version_conflict" {
					answers, err = d.callAtReadCommitted(ctx, db, appends, fences)
				}
				return err
			}
			if !own {
				return refused(call(), appends)
			}
			return writeFailed(pglink.Replicated(db, call), appends)
		})
		switch {
		case err == nil && d.fences.raised(answers):
			fences = d.fences.of(appends) // taken before wanted is called
			if !wanted() {
				return nil, nil, errUnwanted
			}
		case err == nil:
			return outcome(answers, appends)
		case !own || attempt == attempts || !pglink.Retryable(err):
			return nil, nil, err
		default:
			d.log.Warn().Str("error", text.Log(err)).Str("stream", string(appends[0].Stream)).Int("attempt", attempt).Msg("write again")
			if err := pglink.Pause(ctx, attempt); err != nil {
				return nil, nil, err
			}
			attempt++
		}
	}
}

// call writes. Most writes are to one stream, and there is a faster SQL function for them. That
// function fails if an id exists already, which would abort a transaction, so call does not use it
// in one. It also does not say in which stream the id is, so call then asks append.
func (d *Driver) call(ctx context.Context, db DB, appends []messagestore.Append, fences []int64, meet, shared bool) ([]answer, error) {
	if conn := pglink.Conn(db); conn != nil && isOneStream(appends) && !d.link.InTransaction(db) {
		call := d.callSeveral
		if len(appends[0].Records) == 1 {
			call = d.callOne
		}
		answers, err := call(ctx, conn, appends[0], fences[0], meet)
		taken := pglink.IsUniqueViolation(err) || err == nil && len(answers) == 1 && answers[0].outcome == "id_conflict"
		if !taken {
			return answers, err
		}
	}
	rows, err := db.Query(ctx, d.queries.append, d.link.Arguments(db, d.appendArguments(appends, fences, meet, shared))...)
	if err != nil {
		return nil, err
	}
	defer rows.Close()
	var answers []answer
	for rows.Next() {
		var a answer
		var id pgtype.UUID
		var globalPosition pgtype.Int8
		var at, metAt pgtype.Timestamptz
		var metType pgtype.Text
		var data, metadata []byte
		if err := rows.Scan(&a.outcome, &a.stream, (*int64)(&a.version), &globalPosition, &id, &at, &metType, &data, &metadata, &metAt); err != nil {
			return nil, err
		}
		a.globalPosition, a.id, a.time, a.metAt = messagestore.GlobalPosition(globalPosition.Int64), id.Bytes, finite(at), finite(metAt)
		if metType.Valid {
			a.met = metOf([]byte(metType.String), data, metadata)
		}
		answers = append(answers, a)
	}
	rows.Close() // the outcome is known only when all has been read
	return answers, rows.Err()
}

// callAtReadCommitted writes in a transaction at READ COMMITTED. If the user's default is a higher
// level, the function append cannot report the messages that it found.
func (d *Driver) callAtReadCommitted(ctx context.Context, db DB, appends []messagestore.Append, fences []int64) ([]answer, error) {
	tx, err := pglink.Begin(ctx, db)
	if err != nil {
		return nil, err
	}
	defer pglink.RollBack(ctx, tx)
	answers, err := d.call(ctx, tx, appends, fences, true, false)
	if err != nil {
		return nil, err
	}
	return answers, tx.Commit(ctx)
}

// isOneStream reports whether a write has messages, all to one stream, with no condition but the
// version.
func isOneStream(appends []messagestore.Append) bool {
	return len(appends) == 1 && len(appends[0].Records) > 0 && !appends[0].Conditional()
}

// appendArguments returns appends as the arrays that the function takes. Their types mean the same
// in every mode in which pgx can send them.
func (d *Driver) appendArguments(appends []messagestore.Append, fences []int64, meet, shared bool) []any {
	n := 0
	for _, a := range appends {
		n += len(a.Records)
	}
	streams, expected, counts := make([]string, len(appends)), make([]int64, len(appends)), make([]int32, len(appends))
	ids, types, data, metadata := make([]pgtype.UUID, 0, n), make([]string, 0, n), make([]string, 0, n), make([]*string, 0, n)
	for i, a := range appends {
		streams[i], expected[i], counts[i] = string(a.Stream), int64(a.Expected), int32(len(a.Records)) // at most MaxWriteMessages
		for _, r := range a.Records {
			ids = append(ids, pgtype.UUID{Bytes: r.ID, Valid: true})
			types = append(types, r.Type)
			data = append(data, string(r.Data))
			metadata = append(metadata, textOrNull(r.Metadata))
		}
	}
	return []any{streams, expected, counts, ids, types, data, metadata, fences, d.notify, meet, past(appends), after(appends), shared}
}
