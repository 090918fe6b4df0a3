package storetest

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"hash/fnv"
	"maps"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/google/uuid"

	"github.com/dibs-go/dibs/internal/report"
	"github.com/dibs-go/dibs/internal/testkit"
	"github.com/dibs-go/dibs/messagestore"
)

type (
	written  = messagestore.Written
	recorded = messagestore.Message
	category = messagestore.CategoryPage
)

var bugs = slices.Concat(versionBugs, batchBugs, outcomeBugs, idBugs, orderBugs, contentBugs, streamBugs, categoryBugs, groupBugs, lookupBugs, atomicBugs, meetBugs, pastBugs, afterBugs, existsBugs, reportBugs, headsBugs, clockBugs, checkBugs, trimBugs)

var versionBugs = []bug{
	{"the expected version is not checked", []string{
		"S3/WrongVersionWritesNothing", "S3/ConflictTellsStreamExpectedAndActual", "S3/OneInitialWriterWins", "S3/NoUpdateIsLost", "S2/RefusedBatchWritesNothing",
		"Model/AnyHistoryIsAsTheModelHasIt",
	}, func(d *driver) {
		d.append = asking(d.Driver.Append, func(a *messagestore.Append) { a.Expected = messagestore.AnyVersion })
	}},
	{"the version is checked before the lock is taken", []string{"S3/OneInitialWriterWins", "S3/NoUpdateIsLost"}, func(d *driver) {
		d.append = d.checkFirst
	}},
	{"each process has a lock of its own", []string{"S3/OneInitialWriterOfTwoDriversWins"}, func(d *driver) {
		var lock sync.Mutex
		d.append = func(ctx context.Context, a messagestore.Append) (written, error) {
			lock.Lock()
			defer lock.Unlock()
			return d.checkFirst(ctx, a)
		}
	}},
	{"the loser of a race is told of an index", []string{"S3/OneInitialWriterWins"}, func(d *driver) {
		d.append = func(ctx context.Context, a messagestore.Append) (written, error) {
			before, err := d.Driver.Version(ctx, a.Stream)
			if err != nil {
				return written{}, err
			}
			yieldAWhile()
			w, err := d.Driver.Append(ctx, a)
			if errors.Is(err, messagestore.ErrVersionConflict) && before == a.Expected {
				return w, errors.New("duplicate key value violates unique constraint")
			}
			return w, err
		}
	}},
	{"a version conflict has no facts", []string{"S3/ConflictTellsStreamExpectedAndActual"}, func(d *driver) {
		d.append = func(ctx context.Context, a messagestore.Append) (written, error) {
			w, err := d.Driver.Append(ctx, a)
			if errors.Is(err, messagestore.ErrVersionConflict) {
				return w, messagestore.ErrVersionConflict
			}
			return w, err
		}
	}},
	{"a wrong version far away overflows", []string{"S3/WrongVersionWritesNothing"}, func(d *driver) {
		d.append = asking(d.Driver.Append, func(a *messagestore.Append) {
			if a.Expected+1 < 0 {
				a.Expected = messagestore.AnyVersion
			}
		})
	}},
	{"any version is taken for no stream", []string{"S3/AnyVersionWritesToTheEnd", "S3/AnyVersionLosesNothing"}, func(d *driver) {
		d.append = asking(d.Driver.Append, func(a *messagestore.Append) { a.Expected = max(a.Expected, messagestore.NoStream) })
	}},
	{"any version is the version of a moment ago", []string{"S3/AnyVersionLosesNothing"}, func(d *driver) {
		d.append = func(ctx context.Context, a messagestore.Append) (written, error) {
			if a.Expected == messagestore.AnyVersion {
				version, err := d.Driver.Version(ctx, a.Stream)
				if err != nil {
					return written{}, err
				}
				yieldAWhile()
				a.Expected = version
			}
			return d.Driver.Append(ctx, a)
		}
	}},
	{"the version is the category's", []string{"S3/StreamsHaveVersionsOfTheirOwn"}, func(d *driver) {
		d.append = func(ctx context.Context, a messagestore.Append) (written, error) {
			page, err := d.Driver.ReadCategory(ctx, messagestore.CategoryQuery{Category: a.Stream.Category(), Limit: 1})
			if err == nil && len(page.Messages) > 0 && a.Expected == messagestore.NoStream {
				return written{}, &messagestore.VersionConflictError{Stream: a.Stream, Expected: a.Expected}
			}
			return d.Driver.Append(ctx, a)
		}
	}},
	{"positions have gaps", []string{"S3/PositionsAreDense"}, func(d *driver) { d.reads(func(m *recorded) { m.Position += m.Position / 10 }) }},
	{"a write says where its first message is", []string{"S3/WriteSaysWhere", "S3/AnyVersionLosesNothing"}, func(d *driver) {
		d.writes(func(w *written) { w.Version -= messagestore.Version(len(w.IDs) - 1) })
	}},
	{"a write says another global position", []string{"S3/WriteSaysWhere"}, func(d *driver) { d.writes(func(w *written) { w.GlobalPosition++ }) }},
}

var batchBugs = []bug{
	{"a batch is written one message at a time", []string{"S2/RefusedBatchWritesNothing", "S2/BatchesStayTogether", "S4/RefusedWriteIsNeverSeen"}, func(d *driver) {
		d.append = func(ctx context.Context, a messagestore.Append) (written, error) {
			all := written{Stream: a.Stream, Duplicate: true}
			for i, r := range a.Records {
				one := messagestore.Append{Stream: a.Stream, Expected: messagestore.AnyVersion, Records: []messagestore.Encoded{r}}
				if i == 0 {
					one.Expected = a.Expected
				}
				w, err := d.Driver.Append(ctx, one)
				if err != nil {
					return written{}, err
				}
				all.IDs = append(all.IDs, r.ID)
				all.Version, all.GlobalPosition, all.Duplicate = w.Version, w.GlobalPosition, all.Duplicate && w.Duplicate
				yieldAWhile()
			}
			return all, nil
		}
	}},
	{"a batch is written backwards", []string{"S2/BatchIsInOrder"}, func(d *driver) {
		d.append = asking(d.Driver.Append, func(a *messagestore.Append) {
			a.Records = slices.Clone(a.Records)
			slices.Reverse(a.Records)
		})
	}},
	{"a batch is cut at 500 messages", []string{"S2/BatchOfTheMostMessages"}, func(d *driver) {
		d.append = asking(d.Driver.Append, func(a *messagestore.Append) { a.Records = a.Records[:min(len(a.Records), 500)] })
	}},
}

var outcomeBugs = []bug{
	{"the last message is lost when the process ends", []string{"S1/AcknowledgedIsThereAfterReopening"}, func(d *driver) {
		if d.reopened {
			d.readStream = answering(d.Driver.ReadStream, func(_ messagestore.StreamQuery, page *[]*recorded) { *page = (*page)[:max(len(*page)-1, 0)] })
		}
	}},
	{"the id of a refused message is taken", []string{"S4/RefusedWriteIsNeverSeen"}, func(d *driver) {
		var refused sync.Map
		d.append = func(ctx context.Context, a messagestore.Append) (written, error) {
			for _, r := range a.Records {
				if _, ok := refused.Load(r.ID); ok {
					return written{}, &messagestore.IDConflictError{ID: r.ID, Stream: a.Stream}
				}
			}
			w, err := d.Driver.Append(ctx, a)
			if errors.Is(err, messagestore.ErrVersionConflict) {
				for _, r := range a.Records {
					refused.Store(r.ID, true)
				}
			}
			return w, err
		}
	}},
	{"a cancelled context still writes and says failure", []string{"S4/CancelledContextWritesNothing"}, func(d *driver) {
		d.append = func(ctx context.Context, a messagestore.Append) (written, error) {
			w, err := d.Driver.Append(context.WithoutCancel(ctx), a)
			if ctx.Err() != nil {
				return written{}, ctx.Err()
			}
			return w, err
		}
	}},
	{"a write that waits in line says failure and goes on", []string{"S4/CancelledWriteTellsTheTruth"}, func(d *driver) {
		d.behind(func(ctx context.Context, _ messagestore.Append) error { return ctx.Err() })
	}},
	{"what is under way is not waited for", []string{"S4/CancelledWriteTellsTheTruth"}, func(d *driver) {
		d.behind(func(ctx context.Context, a messagestore.Append) error {
			return &messagestore.OutcomeUnknownError{Writes: []messagestore.Append{a}, Cause: ctx.Err()}
		})
	}},
	{"what was not sent is of unknown outcome", []string{"S4/CancelledContextWritesNothing"}, func(d *driver) {
		d.append = func(ctx context.Context, a messagestore.Append) (written, error) {
			w, err := d.Driver.Append(ctx, a)
			if ctx.Err() != nil {
				return w, &messagestore.OutcomeUnknownError{Cause: err}
			}
			return w, err
		}
	}},
	{"a cancelled context still reads", []string{"S8/CancelledContextReadsNothing"}, func(d *driver) {
		d.readStream = func(ctx context.Context, q messagestore.StreamQuery) ([]*recorded, error) {
			return d.Driver.ReadStream(context.WithoutCancel(ctx), q)
		}
	}},
	{"a deadline is not kept", []string{"S8/CallsEndWithTheirDeadline"}, func(d *driver) {
		d.append = asking(d.Driver.Append, func(a *messagestore.Append) { <-time.After(5 * time.Second) })
	}},
}

var idBugs = []bug{
	{"a repeated id is written again", []string{
		"S5/SameMessageAgainReturnsTheFirst", "S5/SameBatchAgainReturnsTheFirst", "S5/ConcurrentRepeatsAreOneMessage", "Model/AnyHistoryIsAsTheModelHasIt",
	}, func(d *driver) {
		d.append = func(ctx context.Context, a messagestore.Append) (written, error) {
			a.Records = slices.Clone(a.Records)
			for i, r := range a.Records {
				if d.recorded(ctx, a.Stream, r.ID) != nil {
					a.Records[i].ID = uuid.New()
				}
			}
			return d.Driver.Append(ctx, a)
		}
	}},
	{"the version is checked before the ids", []string{
		"S5/SameMessageAgainReturnsTheFirst", "S5/SameBatchAgainReturnsTheFirst", "S5/ConcurrentRepeatsAreOneMessage", "Atomic/SameWriteAgainReturnsTheFirst",
		"Model/AnyHistoryIsAsTheModelHasIt",
	}, func(d *driver) {
		d.appends(func(ctx context.Context, appends []messagestore.Append) ([]written, error) {
			if err := d.conflict(ctx, appends); err != nil {
				return nil, err
			}
			return d.Driver.AppendAll(ctx, appends)
		})
	}},
	{"a repeated batch returns its first position", []string{"S5/SameBatchAgainReturnsTheFirst"}, func(d *driver) {
		d.writes(func(w *written) {
			if w.Duplicate {
				w.Version -= messagestore.Version(len(w.IDs) - 1)
			}
		})
	}},
	{"a repeat does not say so", []string{"S5/SameMessageAgainReturnsTheFirst", "S5/ConcurrentRepeatsAreOneMessage"}, func(d *driver) {
		d.writes(func(w *written) { w.Duplicate = false })
	}},
	{"content is compared byte by byte", []string{"S5/EqualJSONIsTheSameContent"}, func(d *driver) {
		d.append = func(ctx context.Context, a messagestore.Append) (written, error) {
			for _, r := range a.Records {
				if m := d.recorded(ctx, a.Stream, r.ID); m != nil && !bytes.Equal(m.Data, r.Data) {
					return written{}, &messagestore.IDConflictError{ID: r.ID, Stream: m.Stream, Position: m.Position}
				}
			}
			return d.Driver.Append(ctx, a)
		}
	}},
	{"the type of a repeat is not compared", []string{"S5/OtherTypeConflicts"}, func(d *driver) { d.forgives(func(m *recorded, r *messagestore.Encoded) { r.Type = m.Type }) }},
	{"the data of a repeat are not compared", []string{"S5/OtherDataConflicts", "S5/IDConflictTellsWhereTheIDIs"}, func(d *driver) {
		d.forgives(func(m *recorded, r *messagestore.Encoded) { r.Data = m.Data })
	}},
	{"the data of a repeat are compared as floats", []string{"S5/OtherDataConflicts"}, func(d *driver) {
		d.forgives(func(m *recorded, r *messagestore.Encoded) {
			if bytes.Equal(floats(m.Data), floats(r.Data)) {
				r.Data = m.Data
			}
		})
	}},
	{"the metadata of a repeat are not compared", []string{"S5/OtherMetadataConflicts", "Model/AnyHistoryIsAsTheModelHasIt"}, func(d *driver) {
		d.forgives(func(m *recorded, r *messagestore.Encoded) {
			if r.Metadata = nil; !m.Metadata.IsZero() {
				r.Metadata, _ = json.Marshal(m.Metadata)
			}
		})
	}},
	{"ids are looked up in the stream only", []string{"S5/OtherStreamConflicts", "S5/IDConflictTellsWhereTheIDIs"}, func(d *driver) {
		var streams sync.Map // of ids
		d.append = asking(d.Driver.Append, func(a *messagestore.Append) {
			a.Records = slices.Clone(a.Records)
			for i, r := range a.Records {
				if stream, ok := streams.LoadOrStore(r.ID, a.Stream); ok && stream != a.Stream {
					a.Records[i].ID = uuid.New()
				}
			}
		})
	}},
	{"of a batch the rest is written", []string{"S5/PartOfABatchConflicts", "Atomic/PartWrittenBeforeConflicts"}, func(d *driver) {
		d.appends(func(ctx context.Context, appends []messagestore.Append) ([]written, error) {
			rest := slices.Clone(appends)
			for i, a := range appends {
				rest[i].Records = slices.DeleteFunc(slices.Clone(a.Records), func(r messagestore.Encoded) bool { return d.recorded(ctx, a.Stream, r.ID) != nil })
			}
			if len(slices.Concat(records(rest)...)) == 0 {
				rest = appends
			}
			return d.Driver.AppendAll(ctx, rest)
		})
	}},
	{"a repeated batch may have another order", []string{"S5/OtherOrderConflicts"}, func(d *driver) {
		d.append = func(ctx context.Context, a messagestore.Append) (written, error) {
			a.Records = slices.SortedFunc(slices.Values(a.Records), func(x, y messagestore.Encoded) int {
				first, second := d.recorded(ctx, a.Stream, x.ID), d.recorded(ctx, a.Stream, y.ID)
				if first == nil || second == nil {
					return 0
				}
				return byPosition(first, second)
			})
			return d.Driver.Append(ctx, a)
		}
	}},
	{"an id conflict has no facts", []string{"S5/IDConflictTellsWhereTheIDIs"}, func(d *driver) {
		d.append = func(ctx context.Context, a messagestore.Append) (written, error) {
			w, err := d.Driver.Append(ctx, a)
			if errors.Is(err, messagestore.ErrIDConflict) {
				return w, &messagestore.IDConflictError{ID: a.Records[0].ID, Stream: a.Stream}
			}
			return w, err
		}
	}},
	{"ids are looked up before the lock is taken", []string{"S5/ConcurrentRepeatsAreOneMessage"}, func(d *driver) {
		d.append = func(ctx context.Context, a messagestore.Append) (written, error) {
			before := d.recorded(ctx, a.Stream, a.Records[0].ID)
			yieldAWhile()
			w, err := d.Driver.Append(ctx, a)
			if w.Duplicate && before == nil {
				return written{}, errors.New("duplicate key value violates unique constraint")
			}
			return w, err
		}
	}},
}

var orderBugs = []bug{
	{"global positions are given out in pairs, the second first", []string{"S6/OrderFollowsTime", "Category/IsInOrder"}, func(d *driver) {
		swap := func(g messagestore.GlobalPosition) messagestore.GlobalPosition { return (g + 1) ^ 1 }
		d.reads(func(m *recorded) { m.GlobalPosition = swap(m.GlobalPosition) })
		d.writes(func(w *written) { w.GlobalPosition = swap(w.GlobalPosition) })
	}},
	{"a later message is seen before an earlier one", []string{"S6/ReaderMissesNothing"}, func(d *driver) {
		h := hider{driver: d}
		d.readCategory = h.readCategory
		d.append = func(ctx context.Context, a messagestore.Append) (written, error) {
			w, err := h.appendAll(ctx, []messagestore.Append{a})
			if err != nil {
				return written{}, err
			}
			return w[0], nil
		}
	}},
	{"a later message is seen before an earlier one of several streams", []string{"S6/ReaderOfSeveralCategoriesMissesNothing"}, func(d *driver) {
		h := hider{driver: d}
		d.readCategory, d.appendAll = h.readCategory, h.appendAll
	}},
	{"a message is read twice", []string{"S6/ReaderMissesNothing", "Category/FromIsInclusive"}, func(d *driver) {
		d.pages(func(q messagestore.CategoryQuery, page *category) {
			if n := len(page.Messages); n > 0 && !page.More {
				page.Next = page.Messages[n-1].GlobalPosition
			}
			q.From++
		})
	}},
}

var contentBugs = []bug{
	{"numbers are floats", []string{"S7/Numbers"}, func(d *driver) { d.reads(func(m *recorded) { m.Data = floats(m.Data) }) }},
	{"text is of the basic plane", []string{"S7/Text"}, func(d *driver) {
		d.reads(func(m *recorded) {
			m.Data = bytes.Map(func(r rune) rune {
				if r > 0xFFFF {
					return '?'
				}
				return r
			}, m.Data)
		})
	}},
	{"text is cut at a zero byte's escape", []string{"S7/Text"}, func(d *driver) {
		d.reads(func(m *recorded) { m.Data = bytes.ReplaceAll(m.Data, []byte("u0000"), nil) })
	}},
	{"an empty object is nothing", []string{"S7/Shapes"}, func(d *driver) {
		d.reads(func(m *recorded) {
			if string(m.Data) == "{}" {
				m.Data = nil
			}
		})
	}},
	{"null is left out", []string{"S7/Shapes"}, func(d *driver) {
		d.reads(func(m *recorded) { m.Data = bytes.ReplaceAll(m.Data, []byte("null,"), nil) })
	}},
	{"a large message is refused", []string{"S7/LargeMessage"}, func(d *driver) {
		d.append = func(ctx context.Context, a messagestore.Append) (written, error) {
			if len(a.Records[0].Data) > 512<<10 {
				return written{}, errors.New("too large")
			}
			return d.Driver.Append(ctx, a)
		}
	}},
	{"local properties are lost", []string{"S7/Metadata", "S7/EveryReadSaysTheSame"}, func(d *driver) {
		d.readStream = answering(d.Driver.ReadStream, func(_ messagestore.StreamQuery, page *[]*recorded) {
			for _, m := range *page {
				m.Metadata.Local = nil
			}
		})
	}},
	{"position 0 in metadata is left out", []string{"S7/MetadataOfPositionZero"}, func(d *driver) {
		d.stores(func(r *messagestore.Encoded) {
			r.Metadata = bytes.ReplaceAll(r.Metadata, []byte(`"causationMessagePosition":0,`), nil)
		})
	}},
	{"metadata of other clients are dropped", []string{"S7/MetadataOfOtherClients", "S7/Metadata"}, func(d *driver) { d.reads(func(m *recorded) { m.Metadata.Extra = nil }) }},
	{"no metadata become some", []string{"S7/NoMetadataIsNone"}, func(d *driver) {
		d.stores(func(r *messagestore.Encoded) {
			if r.Metadata == nil {
				r.Metadata = json.RawMessage(`{"stored":true}`)
			}
		})
	}},
	{"types are folded", []string{"S7/Types", "Last/OfType", "Category/FilterTypes"}, func(d *driver) {
		d.stores(func(r *messagestore.Encoded) { r.Type = strings.ToLower(r.Type) })
	}},
	{"types are cut at 64 bytes", []string{"S7/Types"}, func(d *driver) { d.stores(func(r *messagestore.Encoded) { r.Type = r.Type[:min(len(r.Type), 64)] }) }},
	{"times have a zone", []string{"S7/Times"}, func(d *driver) { d.reads(func(m *recorded) { m.Time = m.Time.In(time.FixedZone("", 3600)) }) }},
	{"times have nanoseconds", []string{"S7/Times"}, func(d *driver) { d.reads(func(m *recorded) { m.Time = m.Time.Add(1) }) }},
	{"times go backwards", []string{"S7/Times"}, func(d *driver) {
		d.reads(func(m *recorded) { m.Time = m.Time.Add(-time.Duration(m.Position) * time.Second) })
	}},
	{"a category is read without metadata", []string{"S7/EveryReadSaysTheSame"}, func(d *driver) {
		d.pages(func(_ messagestore.CategoryQuery, page *category) {
			for _, m := range page.Messages {
				m.Metadata = messagestore.Metadata{}
			}
		})
	}},
}

var streamBugs = []bug{
	{"a stream is read from after the position", []string{"Stream/PagesForwards", "Model/AnyHistoryIsAsTheModelHasIt"}, func(d *driver) {
		d.readStream = asking(d.Driver.ReadStream, func(q *messagestore.StreamQuery) {
			if !q.Backwards && q.From > 0 {
				q.From++
			}
		})
	}},
	{"reading backwards is off by one", []string{"Stream/PagesBackwards", "Model/AnyHistoryIsAsTheModelHasIt"}, func(d *driver) {
		d.readStream = asking(d.Driver.ReadStream, func(q *messagestore.StreamQuery) {
			if q.Backwards && q.From < messagestore.EndOfStream {
				q.From--
			}
		})
	}},
	{"a page has one message too many", []string{"Stream/PagesForwards"}, func(d *driver) {
		d.readStream = asking(d.Driver.ReadStream, func(q *messagestore.StreamQuery) { q.Limit++ })
	}},
	{"beyond the end is the last message", []string{"Stream/BeyondTheEnd"}, func(d *driver) {
		d.readStream = func(ctx context.Context, q messagestore.StreamQuery) ([]*recorded, error) {
			version, err := d.Driver.Version(ctx, q.Stream)
			q.From = min(q.From, max(version, 0))
			page, readErr := d.Driver.ReadStream(ctx, q)
			return page, errors.Join(err, readErr)
		}
	}},
	{"an empty stream is an error", []string{"Stream/EmptyHasNone"}, func(d *driver) {
		d.readStream = func(ctx context.Context, q messagestore.StreamQuery) ([]*recorded, error) {
			page, err := d.Driver.ReadStream(ctx, q)
			if err == nil && len(page) == 0 {
				err = messagestore.ErrNotFound
			}
			return page, err
		}
	}},
	{"a page is cut at 500 messages", []string{"Stream/TenThousandMessages"}, func(d *driver) {
		d.readStream = asking(d.Driver.ReadStream, func(q *messagestore.StreamQuery) { q.Limit = min(q.Limit, 500) })
	}},
	{"names are patterns", []string{"Stream/NamesAreExact"}, func(d *driver) {
		d.renames(func(name string) string { return strings.NewReplacer("%", "_", "*", "_").Replace(name) })
	}},
	{"names are composed", []string{"Stream/UnicodeFormsAreDistinct"}, func(d *driver) {
		d.renames(func(name string) string { return strings.ReplaceAll(name, "e\u0301", "\u00e9") })
	}},
	{"names are folded", []string{"Stream/CaseIsDistinct"}, func(d *driver) { d.renames(strings.ToLower) }},
}

var categoryBugs = []bug{
	{"a category is read by its prefix", []string{"Category/HasItsOwnStreamsOnly", "Stream/NamesAreExact"}, func(d *driver) {
		var mu sync.Mutex
		known := map[messagestore.Category]bool{}
		d.append = asking(d.Driver.Append, func(a *messagestore.Append) {
			mu.Lock()
			known[a.Stream.Category()] = true
			mu.Unlock()
		})
		d.readCategory = func(ctx context.Context, q messagestore.CategoryQuery) (category, error) {
			mu.Lock()
			defer mu.Unlock()
			var all category
			for c := range known {
				if strings.HasPrefix(string(c), string(q.Category)) {
					q.Category = c
					page, err := d.Driver.ReadCategory(ctx, q)
					if err != nil {
						return category{}, err
					}
					all.Messages, all.Next, all.More = append(all.Messages, page.Messages...), max(all.Next, page.Next), all.More || page.More
				}
			}
			slices.SortFunc(all.Messages, func(a, b *recorded) int { return cmp.Compare(a.GlobalPosition, b.GlobalPosition) })
			return all, nil
		}
	}},
	{"a category is in the order of its streams", []string{"Category/IsInOrder"}, func(d *driver) {
		d.pages(func(_ messagestore.CategoryQuery, page *category) {
			slices.SortStableFunc(page.Messages, func(a, b *recorded) int { return cmp.Compare(a.Stream, b.Stream) })
		})
	}},
	{"a category is read from after the position", []string{"Category/FromIsInclusive", "Model/AnyHistoryIsAsTheModelHasIt"}, func(d *driver) {
		d.readCategory = asking(d.Driver.ReadCategory, func(q *messagestore.CategoryQuery) {
			if q.From > 0 {
				q.From = q.From.Next()
			}
		})
	}},
	{"a reader at the end starts anew", []string{"Category/BeyondTheEnd"}, func(d *driver) {
		d.pages(func(_ messagestore.CategoryQuery, page *category) {
			if len(page.Messages) == 0 {
				page.Next = 0
			}
		})
	}},
	{"there is more whenever there was something", []string{"Category/MoreSaysWhetherThereIs"}, func(d *driver) {
		d.pages(func(_ messagestore.CategoryQuery, page *category) { page.More = len(page.Messages) > 0 })
	}},
	{"there is never more", []string{"Category/MoreSaysWhetherThereIs", "Category/IsInOrder", "Stream/TenThousandMessages"}, func(d *driver) {
		d.pages(func(_ messagestore.CategoryQuery, page *category) { page.More = false })
	}},
	{"types are matched by their prefix", []string{"Category/FilterTypes"}, func(d *driver) {
		d.filters(func(f messagestore.Filter, m *recorded) bool {
			match := len(f.Types) == 0 || slices.ContainsFunc(f.Types, func(t string) bool { return strings.HasPrefix(m.Type, t) })
			f.Types = nil
			return match && f.Matches(m)
		})
	}},
	{"correlation is matched by its prefix", []string{"Category/FilterCorrelation"}, func(d *driver) {
		d.filters(func(f messagestore.Filter, m *recorded) bool {
			match := strings.HasPrefix(string(m.Metadata.CorrelationStream), string(f.Correlation))
			f.Correlation = ""
			return match && f.Matches(m)
		})
	}},
	{"one filter is enough", []string{"Category/FiltersCombine"}, func(d *driver) {
		d.filters(func(f messagestore.Filter, m *recorded) bool {
			types, correlation := f, f
			types.Correlation, correlation.Types = "", nil
			return types.Matches(m) && len(f.Types) > 0 || correlation.Matches(m) && f.Correlation != "" || f.Matches(m)
		})
	}},
	{"correlation is not looked at", []string{"Category/FilterCorrelation", "Category/FiltersCombine", "Model/AnyHistoryIsAsTheModelHasIt"}, func(d *driver) {
		d.filters(func(f messagestore.Filter, m *recorded) bool {
			f.Correlation = ""
			return f.Matches(m)
		})
	}},
	{"the next page is after the last message let through", []string{"Category/NextPassesWhatTheFilterKeepsBack"}, func(d *driver) {
		d.pages(func(q messagestore.CategoryQuery, page *category) {
			if page.Next = q.From; len(page.Messages) > 0 {
				page.Next = page.Messages[len(page.Messages)-1].GlobalPosition.Next()
			}
		})
	}},
	{"the last message is not marked where the filter keeps it back", []string{"Category/EndsAreMarked"}, func(d *driver) {
		d.pages(func(_ messagestore.CategoryQuery, page *category) {
			if page.Last = (messagestore.Mark{}); len(page.Messages) > 0 {
				page.Last = page.Messages[len(page.Messages)-1].Mark()
			}
		})
	}},
	{"the first message is not marked where the filter keeps it back", []string{"Category/EndsAreMarked"}, func(d *driver) {
		d.pages(func(_ messagestore.CategoryQuery, page *category) { page.First = messagestore.Mark{} })
	}},
	{"a mark has no time where the filter keeps its message back", []string{"Category/EndsAreMarked"}, func(d *driver) {
		d.pages(func(_ messagestore.CategoryQuery, page *category) {
			page.First.Time, page.Last.Time = time.Time{}, time.Time{}
		})
	}},
	{"a page that the filter thins out is the last", []string{"Category/FilteredReaderReachesTheEnd", "Category/NextPassesWhatTheFilterKeepsBack"}, func(d *driver) {
		d.readCategory = func(ctx context.Context, q messagestore.CategoryQuery) (category, error) {
			filter := q.Filter
			q.Filter = messagestore.Filter{}
			page, err := d.Driver.ReadCategory(ctx, q)
			page.Messages = slices.DeleteFunc(page.Messages, func(m *recorded) bool { return !filter.Matches(m) })
			page.More = len(page.Messages) == q.Limit
			return page, err
		}
	}},
}

var groupBugs = []bug{
	{"a group is not split", []string{"Group/IsAPartition"}, func(d *driver) { d.members(func(m *recorded, f messagestore.Filter) bool { return true }) }},
	{"a group is split by the whole identifier", []string{"Group/GoesByCardinalID"}, func(d *driver) {
		d.members(func(m *recorded, f messagestore.Filter) bool {
			return messagestore.StreamName("x-"+strings.ReplaceAll(m.Stream.ID(), "+", "_")).GroupMember(f.GroupSize) == f.GroupMember
		})
	}},
	{"a group is split by another hash", []string{"Group/IsMessageDBs", "Group/IsAPartition"}, func(d *driver) {
		d.members(func(m *recorded, f messagestore.Filter) bool {
			h := fnv.New32a()
			_, _ = h.Write([]byte(m.Stream.CardinalID()))
			return int(h.Sum32()%uint32(f.GroupSize)) == f.GroupMember
		})
	}},
	{"a stream without an identifier is every member's", []string{"Group/StreamWithoutIdentifierHasOneMember"}, func(d *driver) {
		d.members(func(m *recorded, f messagestore.Filter) bool {
			return m.Stream.ID() == "" || m.Stream.GroupMember(f.GroupSize) == f.GroupMember
		})
	}},
	{"a stream without an identifier is no member's", []string{"Group/StreamWithoutIdentifierHasOneMember"}, func(d *driver) {
		d.members(func(m *recorded, f messagestore.Filter) bool {
			return m.Stream.ID() != "" && m.Stream.GroupMember(f.GroupSize) == f.GroupMember
		})
	}},
}

var lookupBugs = []bug{
	{"the last message is the first", []string{"Last/OfStream"}, func(d *driver) {
		d.last = func(ctx context.Context, stream messagestore.StreamName, messageType string) (*recorded, error) {
			page, err := d.Driver.ReadStream(ctx, messagestore.StreamQuery{Stream: stream, Limit: 1})
			if err != nil || len(page) == 0 {
				return nil, cmp.Or(err, messagestore.ErrNotFound)
			}
			return page[0], nil
		}
	}},
	{"the last message may have any type", []string{"Last/OfType", "Last/NotFound"}, func(d *driver) {
		d.last = func(ctx context.Context, stream messagestore.StreamName, _ string) (*recorded, error) {
			return d.Driver.Last(ctx, stream, "")
		}
	}},
	{"no message is nil", []string{"Last/NotFound"}, func(d *driver) {
		d.last = func(ctx context.Context, stream messagestore.StreamName, messageType string) (*recorded, error) {
			m, err := d.Driver.Last(ctx, stream, messageType)
			if errors.Is(err, messagestore.ErrNotFound) {
				return nil, nil
			}
			return m, err
		}
	}},
	{"the version is the number of messages", []string{"Version/IsTheLastPosition"}, func(d *driver) {
		d.version = func(ctx context.Context, stream messagestore.StreamName) (messagestore.Version, error) {
			version, err := d.Driver.Version(ctx, stream)
			return version + 1, err
		}
	}},
	{"messages are found in the order of the ids", []string{"Find/ReturnsThoseOfTheStreamInOrder"}, func(d *driver) {
		d.find = func(ctx context.Context, stream messagestore.StreamName, ids []uuid.UUID) ([]*recorded, error) {
			found, err := d.Driver.Find(ctx, stream, ids)
			slices.SortFunc(found, func(a, b *recorded) int { return cmp.Compare(slices.Index(ids, a.ID), slices.Index(ids, b.ID)) })
			return found, err
		}
	}},
	{"nothing found is an error", []string{"Find/NothingIsNoError"}, func(d *driver) {
		d.find = func(ctx context.Context, stream messagestore.StreamName, ids []uuid.UUID) ([]*recorded, error) {
			found, err := d.Driver.Find(ctx, stream, ids)
			if err == nil && len(found) == 0 {
				err = messagestore.ErrNotFound
			}
			return found, err
		}
	}},
}

var atomicBugs = []bug{
	{"the last stream is left out", []string{"Atomic/AllIsWritten"}, func(d *driver) {
		d.appendAll = func(ctx context.Context, appends []messagestore.Append) ([]written, error) {
			all, err := d.Driver.AppendAll(ctx, appends[:len(appends)-1])
			return append(all, written{Stream: appends[len(appends)-1].Stream}), err
		}
	}},
	{"one stream is written after another", []string{
		"Atomic/OneConflictLeavesAllUnwritten", "Atomic/OneInitialWriterWinsAll", "Atomic/FailedCheckRefuses", "Model/AnyHistoryIsAsTheModelHasIt",
	}, func(d *driver) {
		d.appendAll = func(ctx context.Context, appends []messagestore.Append) ([]written, error) {
			var all []written
			for _, a := range appends {
				w, err := d.Driver.Append(ctx, a)
				if err != nil {
					return nil, err
				}
				all = append(all, w)
				yieldAWhile()
			}
			return all, nil
		}
	}},
	{"the versions of several streams are checked before the lock is taken", []string{"Atomic/OneInitialWriterWinsAll"}, func(d *driver) {
		d.appendAll = func(ctx context.Context, appends []messagestore.Append) ([]written, error) {
			if err := d.conflict(ctx, appends); err != nil {
				return nil, err
			}
			yieldAWhile()
			each(func(a *messagestore.Append) { a.Expected = messagestore.AnyVersion })(&appends)
			return d.Driver.AppendAll(ctx, appends)
		}
	}},
	{"the first conflict is the first by name", []string{"Atomic/FirstConflictDecides"}, func(d *driver) {
		d.appendAll = func(ctx context.Context, appends []messagestore.Append) ([]written, error) {
			sorted := slices.SortedFunc(slices.Values(appends), func(a, b messagestore.Append) int { return cmp.Compare(a.Stream, b.Stream) })
			if err := d.conflict(ctx, sorted); err != nil {
				return nil, err
			}
			return d.Driver.AppendAll(ctx, appends)
		}
	}},
	{"a check says it wrote", []string{"Atomic/ChecksWriteNothing"}, func(d *driver) {
		d.appendAll = answering(d.Driver.AppendAll, func(appends []messagestore.Append, all *[]written) {
			for i := range *all {
				if len(appends[i].Records) == 0 {
					(*all)[i].Version++
				}
			}
		})
	}},
	{"checks are left out", []string{"Atomic/FailedCheckRefuses", "Atomic/FirstConflictDecides"}, func(d *driver) {
		d.appendAll = asking(d.Driver.AppendAll, each(func(a *messagestore.Append) {
			if len(a.Records) == 0 {
				a.Expected = messagestore.AnyVersion
			}
		}))
	}},
	{"streams are locked in the order given", []string{"Atomic/OppositeOrdersDoNotDeadlock"}, func(d *driver) {
		var locks sync.Map // of streams
		d.appendAll = func(ctx context.Context, appends []messagestore.Append) ([]written, error) {
			for _, a := range appends {
				fresh := make(chan struct{}, 1)
				kept, _ := locks.LoadOrStore(a.Stream, fresh)
				lock := kept.(chan struct{}) //nolint:errcheck // as stored
				select {
				case lock <- struct{}{}:
					defer func() { <-lock }()
				case <-time.After(200 * time.Millisecond):
					return nil, errors.New("deadlock detected")
				}
				yieldAWhile()
			}
			return d.Driver.AppendAll(ctx, appends)
		}
	}},
}

// yieldAWhile lets others run at the moment when it matters, as a round trip to a
// database does.
func yieldAWhile() { <-time.After(100 * time.Microsecond) }

// checkFirst appends as a driver does that reads the version and then takes the lock.
func (d *driver) checkFirst(ctx context.Context, a messagestore.Append) (written, error) {
	if err := d.conflict(ctx, []messagestore.Append{a}); err != nil {
		return written{}, err
	}
	yieldAWhile()
	a.Expected = messagestore.AnyVersion
	return d.Driver.Append(ctx, a)
}

func (d *driver) conflict(ctx context.Context, appends []messagestore.Append) error {
	for _, a := range appends {
		actual, err := d.Driver.Version(ctx, a.Stream)
		if err != nil {
			return err
		}
		if a.Expected != messagestore.AnyVersion && a.Expected != actual {
			return &messagestore.VersionConflictError{Stream: a.Stream, Expected: a.Expected, Actual: actual}
		}
	}
	return nil
}

// recorded returns the message of the stream that has the id, or nil.
func (d *driver) recorded(ctx context.Context, stream messagestore.StreamName, id uuid.UUID) *recorded {
	found, err := d.Driver.Find(ctx, stream, []uuid.UUID{id})
	if err != nil || len(found) == 0 {
		return nil
	}
	return found[0]
}

func records(appends []messagestore.Append) [][]messagestore.Encoded {
	var all [][]messagestore.Encoded
	for _, a := range appends {
		all = append(all, a.Records)
	}
	return all
}

// appends replaces both ways to append.
func (d *driver) appends(f func(context.Context, []messagestore.Append) ([]written, error)) {
	d.appendAll = f
	d.append = func(ctx context.Context, a messagestore.Append) (written, error) {
		all, err := f(ctx, []messagestore.Append{a})
		if err != nil {
			return written{}, err
		}
		return all[0], nil
	}
}

// writes changes the results of writes.
func (d *driver) writes(change func(*written)) {
	d.appends(answering(d.Driver.AppendAll, func(_ []messagestore.Append, all *[]written) {
		for i := range *all {
			change(&(*all)[i])
		}
	}))
}

// stores changes the messages that are written.
func (d *driver) stores(change func(*messagestore.Encoded)) {
	d.appends(asking(d.Driver.AppendAll, each(func(a *messagestore.Append) {
		a.Records = slices.Clone(a.Records)
		for n := range a.Records {
			change(&a.Records[n])
		}
	})))
}

// forgives changes a record whose id is recorded already.
func (d *driver) forgives(change func(*recorded, *messagestore.Encoded)) {
	d.append = func(ctx context.Context, a messagestore.Append) (written, error) {
		a.Records = slices.Clone(a.Records)
		for i, r := range a.Records {
			if m := d.recorded(ctx, a.Stream, r.ID); m != nil {
				change(m, &a.Records[i])
			}
		}
		return d.Driver.Append(ctx, a)
	}
}

// behind appends after it has answered a caller whose context is done with the error of
// tell.
func (d *driver) behind(tell func(context.Context, messagestore.Append) error) {
	d.append = func(ctx context.Context, a messagestore.Append) (written, error) {
		type result struct {
			written written
			err     error
		}
		done := testkit.Go(func() result {
			<-time.After(time.Millisecond)
			w, err := d.Driver.Append(context.WithoutCancel(ctx), a)
			return result{w, err}
		})
		select {
		case r := <-done:
			return r.written, r.err
		case <-ctx.Done():
			return written{}, tell(ctx, a)
		}
	}
}

// reads changes the result of every way of reading.
func (d *driver) reads(change func(*recorded)) {
	all := func(messages []*recorded) {
		for _, m := range messages {
			change(m)
		}
	}
	d.readStream = answering(d.Driver.ReadStream, func(_ messagestore.StreamQuery, page *[]*recorded) { all(*page) })
	d.pages(func(_ messagestore.CategoryQuery, page *category) { all(page.Messages) })
	d.last = func(ctx context.Context, stream messagestore.StreamName, messageType string) (*recorded, error) {
		m, err := d.Driver.Last(ctx, stream, messageType)
		if err == nil {
			change(m)
		}
		return m, err
	}
	d.find = func(ctx context.Context, stream messagestore.StreamName, ids []uuid.UUID) ([]*recorded, error) {
		found, err := d.Driver.Find(ctx, stream, ids)
		all(found)
		return found, err
	}
}

// renames changes the names of streams and categories, as a database does that
// thinks some are the same.
func (d *driver) renames(change func(string) string) {
	name := func(s messagestore.StreamName) messagestore.StreamName {
		return messagestore.StreamName(change(string(s)))
	}
	d.appends(asking(d.Driver.AppendAll, each(func(a *messagestore.Append) { a.Stream = name(a.Stream) })))
	d.readStream = asking(d.Driver.ReadStream, func(q *messagestore.StreamQuery) { q.Stream = name(q.Stream) })
}

// pages changes the pages of a category.
func (d *driver) pages(change func(messagestore.CategoryQuery, *category)) {
	d.readCategory = answering(d.Driver.ReadCategory, change)
}

// filters replaces how a category is filtered.
func (d *driver) filters(matches func(messagestore.Filter, *recorded) bool) {
	d.readCategory = func(ctx context.Context, q messagestore.CategoryQuery) (category, error) {
		filter := q.Filter
		q.Filter = messagestore.Filter{}
		page, err := d.Driver.ReadCategory(ctx, q)
		page.Messages = slices.DeleteFunc(page.Messages, func(m *recorded) bool { return !matches(filter, m) })
		return page, err
	}
}

// members replaces how a group is split.
func (d *driver) members(belongs func(*recorded, messagestore.Filter) bool) {
	d.filters(func(f messagestore.Filter, m *recorded) bool {
		mine := f.GroupSize < 2 || belongs(m, f)
		f.GroupSize, f.GroupMember = 0, 0
		return mine && f.Matches(m)
	})
}

// A hider keeps messages from the readers of a category for a moment after their
// global positions are given out, as a transaction does that commits late.
type hider struct {
	driver *driver
	mu     sync.Mutex
	hidden map[uuid.UUID]bool
}

func (h *hider) appendAll(ctx context.Context, appends []messagestore.Append) ([]written, error) {
	hide := func(hidden bool) {
		h.mu.Lock()
		defer h.mu.Unlock()
		if h.hidden == nil {
			h.hidden = map[uuid.UUID]bool{}
		}
		for _, r := range slices.Concat(records(appends)...) {
			h.hidden[r.ID] = hidden
		}
	}
	hide(true)
	defer hide(false)
	all, err := h.driver.Driver.AppendAll(ctx, appends)
	yieldAWhile()
	return all, err
}

func (h *hider) readCategory(ctx context.Context, q messagestore.CategoryQuery) (category, error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	page, err := h.driver.Driver.ReadCategory(ctx, q)
	page.Messages = slices.DeleteFunc(page.Messages, func(m *recorded) bool { return h.hidden[m.ID] })
	if page.More = false; err == nil && len(page.Messages) > 0 {
		page.Next = page.Messages[len(page.Messages)-1].GlobalPosition.Next()
		page.More = true
	}
	return page, err
}

// floats returns JSON as it is after its numbers were decoded into float64.
func floats(data json.RawMessage) json.RawMessage {
	var value any
	if err := json.Unmarshal(data, &value); err != nil {
		return json.RawMessage(fmt.Sprintf("%q", err))
	}
	rounded, err := json.Marshal(value)
	if err != nil {
		return nil
	}
	return rounded
}

var checkBugs = []bug{
	{"a check fails the second time", []string{"Check/PassesWhereWritesDo"}, func(d *driver) {
		failing := false
		d.check = func(_ context.Context, write bool) error {
			if failing && write {
				return errors.New("failed")
			}
			failing = true
			return nil
		}
	}},
	{"a check writes a message", []string{"Check/WritesNothing"}, func(d *driver) {
		var last messagestore.StreamName
		d.append = asking(d.Driver.Append, func(a *messagestore.Append) { last = a.Stream })
		d.check = func(ctx context.Context, _ bool) error {
			_, err := d.Driver.Append(ctx, messagestore.Append{Stream: last, Expected: messagestore.AnyVersion, Records: []messagestore.Encoded{record("T", `{}`)}})
			return err
		}
	}},
	{"a check does not end", []string{"Check/EndsWithItsContext"}, func(d *driver) { d.check = func(context.Context, bool) error { return nil } }},
}

var clockBugs = []bug{
	{"the clock is not the one that stamps messages", []string{"Now/IsTheClockThatStampsMessages"}, func(d *driver) {
		d.now = func(ctx context.Context) (time.Time, error) {
			now, err := d.Driver.Now(ctx)
			return now.Add(time.Second), err
		}
	}},
	{"the clock stands still, as a transaction's does", []string{"Now/IsTheTimeOfTheCall"}, func(d *driver) {
		begun := time.Now()
		d.now = func(context.Context) (time.Time, error) { return begun, nil }
	}},
	{"the clock is years off", []string{"Now/IsUTCInMicroseconds"}, func(d *driver) {
		d.now = func(ctx context.Context) (time.Time, error) {
			now, err := d.Driver.Now(ctx)
			return now.AddDate(30, 0, 0), err
		}
	}},
	{"the clock can be read after the context is done", []string{"S8/CancelledContextReadsNothing"}, func(d *driver) {
		d.now = func(ctx context.Context) (time.Time, error) { return d.Driver.Now(context.WithoutCancel(ctx)) }
	}},
}

var headsBugs = []bug{
	{"a head is where the category goes on", []string{"Heads/AreWhereCategoriesEnd"}, func(d *driver) {
		d.heads = answering(d.Driver.Heads, func(_ []messagestore.Category, heads *[]messagestore.GlobalPosition) {
			for i := range *heads {
				(*heads)[i]++
			}
		})
	}},
	{"heads are those of a moment ago", []string{"Heads/SeeEveryWriteThatReturned"}, func(d *driver) {
		var before []messagestore.GlobalPosition
		d.heads = answering(d.Driver.Heads, func(_ []messagestore.Category, heads *[]messagestore.GlobalPosition) {
			if len(before) == len(*heads) {
				*heads, before = before, *heads
			} else {
				before = *heads
			}
		})
	}},
	{"heads are in the order of the names, each once", []string{"Heads/AreInTheOrderAskedFor"}, func(d *driver) {
		d.heads = func(ctx context.Context, categories []messagestore.Category) ([]messagestore.GlobalPosition, error) {
			names := map[messagestore.Category]bool{}
			for _, c := range categories {
				names[c] = true
			}
			return d.Driver.Heads(ctx, slices.Sorted(maps.Keys(names)))
		}
	}},
	{"heads of the first 100 categories alone", []string{"Heads/OfManyAreTold"}, func(d *driver) {
		d.heads = func(ctx context.Context, categories []messagestore.Category) ([]messagestore.GlobalPosition, error) {
			heads, err := d.Driver.Heads(ctx, categories[:min(100, len(categories))])
			return append(heads, make([]messagestore.GlobalPosition, len(categories)-len(heads))...), err
		}
	}},
}

var trimBugs = []bug{
	{"a trim keeps one more", []string{"Trim/KeepsTheLastCheckpoints"}, func(d *driver) {
		d.trim = func(ctx context.Context, stream messagestore.StreamName, keep int) (int64, error) {
			return d.Driver.TrimCheckpoints(ctx, stream, keep+1)
		}
	}},
	{"a version is how many messages there are", []string{"Trim/VersionsGoOn"}, func(d *driver) {
		d.version = func(ctx context.Context, stream messagestore.StreamName) (messagestore.Version, error) {
			all, err := d.Driver.ReadStream(ctx, messagestore.StreamQuery{Stream: stream, Limit: messagestore.MaxReadMessages})
			return messagestore.Version(len(all) - 1), err
		}
	}},
	{"a reader skips as many as were trimmed", []string{"Trim/ReadersGoOnBehindIt"}, func(d *driver) {
		d.readStream = func(ctx context.Context, q messagestore.StreamQuery) ([]*messagestore.Message, error) {
			if first, err := d.Driver.ReadStream(ctx, messagestore.StreamQuery{Stream: q.Stream, Limit: 1}); err == nil && len(first) > 0 && !q.Backwards {
				q.From += first[0].Position
			}
			return d.Driver.ReadStream(ctx, q)
		}
	}},
	{"a trim is of the next member too", []string{"Trim/LeavesOtherStreamsAlone"}, func(d *driver) {
		d.trim = func(ctx context.Context, stream messagestore.StreamName, keep int) (int64, error) {
			if _, err := d.Driver.TrimCheckpoints(ctx, stream[:len(stream)-1]+"1", keep); err != nil {
				return 0, err
			}
			return d.Driver.TrimCheckpoints(ctx, stream, keep)
		}
	}},
	{"a trim looks at no type", []string{"Trim/RefusesWhatIsNoCheckpoint"}, func(d *driver) {
		d.trim = func(ctx context.Context, stream messagestore.StreamName, keep int) (int64, error) {
			return 1, nil
		}
	}},
}

// reports has every report changed before it is returned, asks what it is asked for.
func (d *driver) reports(change func(q report.Query, r *report.Report)) {
	d.report = answering(d.report, change)
}

func (d *driver) asks(change func(q *report.Query)) { d.report = asking(d.report, change) }

var reportBugs = []bug{
	{"a report counts the whole store whatever it is asked", []string{"Report/CountsByStream", "Report/OfNothingIsEmpty"}, func(d *driver) {
		d.asks(func(q *report.Query) { q.Category = "" })
		if _, err := d.Driver.Append(context.Background(), messagestore.Append{Stream: "else-1", Expected: messagestore.AnyVersion, Records: []messagestore.Encoded{record("T", `{}`)}}); err != nil {
			panic(err)
		}
	}},
	{"a report counts a category and not what has it for a prefix", []string{"Report/CountsTheWholeStore"}, func(d *driver) {
		d.reports(func(q report.Query, r *report.Report) {
			if q.Category == "" {
				r.Rows = slices.DeleteFunc(r.Rows, func(row report.Row) bool { return strings.Contains(row.Names[0], ":") })
			}
		})
	}},
	{"a report by type is by stream", []string{"Report/CountsByTypeAndCategory"}, func(d *driver) {
		d.asks(func(q *report.Query) {
			if q.By[0] == report.ByType {
				q.By = []report.Key{report.ByStream}
			}
		})
	}},
	{"a report knows one key", []string{"Report/CountsByTwo"}, func(d *driver) { d.asks(func(q *report.Query) { q.By = q.By[:1] }) }},
	{"a report has the last position of another", []string{"Report/AgreesWithWhatIsRead"}, func(d *driver) {
		d.reports(func(_ report.Query, r *report.Report) {
			for i := range r.Rows {
				r.Rows[i].LastGlobalPosition = r.Rows[0].LastGlobalPosition
			}
		})
	}},
	{"a report takes the text for a pattern", []string{"Report/KeepsWhatContainsTheText"}, func(d *driver) {
		d.asks(func(q *report.Query) { q.Containing = strings.Trim(q.Containing, "%") })
	}},
	{"a report is not sorted", []string{"Report/IsSorted"}, func(d *driver) { d.asks(func(q *report.Query) { q.Sort = report.SortByName }) }},
	{"a report counts what it returns", []string{"Report/LimitCutsRowsOnly", "Report/KeepsWhatContainsTheText"}, func(d *driver) {
		d.reports(func(_ report.Query, r *report.Report) {
			r.Messages, r.Groups = 0, int64(len(r.Rows))
			for _, row := range r.Rows {
				r.Messages += row.Messages
			}
		})
	}},
	{"a report does not end", []string{"Report/EndsWithItsContext"}, func(d *driver) {
		sound := d.report
		d.report = func(ctx context.Context, q report.Query) (report.Report, error) {
			return sound(context.WithoutCancel(ctx), q)
		}
	}},
	{"categories are told once for each stream", []string{"Categories/AreNamedOnceInOrder"}, func(d *driver) {
		d.categories = func(ctx context.Context, containing string) ([]messagestore.Category, error) {
			r, err := d.report(ctx, report.Query{By: []report.Key{report.ByStream}, Containing: containing})
			var all []messagestore.Category
			for _, row := range r.Rows {
				all = append(all, messagestore.StreamName(row.Names[0]).Category())
			}
			return all, err
		}
	}},
	{"a count leaves out the one it starts with", []string{"Count/IsWhatIsRead"}, func(d *driver) {
		d.count = asking(d.Driver.Count, func(q *messagestore.CategoryQuery) { q.From = q.From.Next() })
	}},
	{"a count goes on", []string{"Count/StopsAtItsLimit"}, func(d *driver) {
		d.count = asking(d.Driver.Count, func(q *messagestore.CategoryQuery) { q.Limit = 1 << 50 })
	}},
}
