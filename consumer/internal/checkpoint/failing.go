package checkpoint

import (
	"cmp"
	"encoding/json"
	"slices"
	"strings"
	"time"

	"github.com/google/uuid"

	"github.com/dibs-go/dibs/internal/text"
	"github.com/dibs-go/dibs/messagestore"
)

// MaxFailures is how many failures a checkpoint may have.
const MaxFailures = 10

// A Failure is a failing message: its handler has failed, and it is neither handled, skipped nor
// parked yet.
type Failure struct {
	MessageID      uuid.UUID                   `json:"messageId"`
	Type           string                      `json:"type"`
	Stream         messagestore.StreamName     `json:"stream"`
	Position       messagestore.Version        `json:"position"`
	GlobalPosition messagestore.GlobalPosition `json:"globalPosition"`
	Error          string                      `json:"error"` // the last, shortened
	Attempts       int                         `json:"attempts"`
	FirstFailedAt  time.Time                   `json:"firstFailedAt"` // by the consumer's clock
}

// NewFailure returns the first failure of a message, at a time. It keeps neither the message nor
// its page in memory.
func NewFailure(m *messagestore.Message, err error, at time.Time) Failure {
	return Failure{
		MessageID: m.ID, Type: strings.Clone(m.Type), Stream: messagestore.StreamName(strings.Clone(string(m.Stream))),
		Position: m.Position, GlobalPosition: m.GlobalPosition, Error: text.Of(err), Attempts: 1, FirstFailedAt: at.UTC().Round(0),
	}
}

// Failing holds the failing messages of one run: the first ones to fail, at most [MaxFailures], and
// their total count.
type Failing struct {
	First []Failure
	Count int
}

func (f Failing) equal(g Failing) bool { return f.Count == g.Count && slices.Equal(f.First, g.First) }

// Oldest returns the failures that began first, at most [MaxFailures], in their order.
func Oldest(all []Failure) []Failure {
	slices.SortFunc(all, func(a, b Failure) int {
		return cmp.Or(a.FirstFailedAt.Compare(b.FirstFailedAt), cmp.Compare(a.GlobalPosition, b.GlobalPosition))
	})
	return all[:min(len(all), MaxFailures)]
}

// decodeFailing returns the failures in a checkpoint. They are only for operators: if the list has
// another form, which a later version or another client may write, it counts as empty, and the
// checkpoint stays valid.
func decodeFailing(list json.RawMessage) []Failure {
	var all []Failure
	if len(list) == 0 || json.Unmarshal(list, &all) != nil {
		return nil
	}
	return Oldest(all)
}

// DecodeFailing returns the failures stored with a checkpoint, and how many more messages are
// failing. It returns no failures for a message that is not a checkpoint.
func DecodeFailing(m *messagestore.Message) (all []Failure, more int) {
	r, err := decodeRecorded(m)
	if err != nil {
		return nil, 0
	}
	if r.Group == nil {
		return r.Failing, max(0, r.FailingCount-len(r.Failing))
	}
	for _, member := range r.Group.Members {
		more += max(0, member.Failing-len(r.Group.failures(member.ID)))
	}
	return r.Failing, more
}

// failures returns the stored failures in a member's slots.
func (g *Group) failures(id uuid.UUID) (of []Failure) {
	held := g.Held(id)
	for _, f := range g.Failing {
		if held.Has(f.Stream.GroupMember(Slots)) {
			of = append(of, f)
		}
	}
	return of
}

// fails replaces the failures in a member's slots by its failing messages.
func (g *Group) fails(id uuid.UUID, now Failing) {
	held := g.Held(id)
	others := slices.DeleteFunc(slices.Clone(g.Failing), func(f Failure) bool { return held.Has(f.Stream.GroupMember(Slots)) })
	g.Failing = Oldest(append(others, now.First...))
	if m := g.member(id); m != nil {
		m.Failing = now.Count
	}
}
