package check

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"strings"

	"github.com/google/uuid"

	"github.com/dibs-go/dibs/messagestore"
	"github.com/dibs-go/dibs/soak/history"
)

// A line of a story.
type line struct {
	time int64
	text string
}

// A teller looks for the lines of the stories.
type teller struct {
	r       *run
	byID    map[uuid.UUID][]int
	byRef   map[history.Ref][]int
	byKey   map[string][]int
	lines   [][]line
	unknown [][]span // when operations of unknown outcome were under way
}

// tell goes through the histories once more and writes the stories: of each violation, all that
// was done with the messages, keys and operations that it is about, and nothing else.
func tell(ctx context.Context, r *run, dir string) error {
	told := r.verdict.Violations
	if len(told) == 0 {
		return nil
	}
	t := &teller{
		r: r, byID: map[uuid.UUID][]int{}, byRef: map[history.Ref][]int{}, byKey: map[string][]int{},
		lines: make([][]line, len(told)), unknown: make([][]span, len(told)),
	}
	for i, v := range told {
		for _, ref := range v.about.ops {
			t.byRef[ref] = append(t.byRef[ref], i)
		}
		if v.about.key != "" {
			t.byKey[v.about.key] = append(t.byKey[v.about.key], i)
		}
		for _, id := range v.about.ids {
			if !v.about.alone {
				t.byID[id] = append(t.byID[id], i)
			}
		}
	}
	files, err := history.Files(dir)
	if err != nil {
		return err
	}
	for _, path := range files {
		for o, err := range history.Operations(path) {
			if err := cmp.Or(err, ctx.Err()); err != nil {
				return err
			}
			for _, i := range t.concerned(o) {
				t.add(i, o)
			}
		}
	}
	for i := range told {
		told[i].Story = t.story(i)
	}
	return nil
}

// concerned returns the violations whose story the operation belongs to.
func (t *teller) concerned(o *history.Operation) (in []int) {
	in = append(in, t.byRef[history.Ref{Proc: o.Proc, Op: o.Op}]...)
	if o.Key != "" {
		in = append(in, t.byKey[o.Key]...)
	}
	for _, appends := range [][]history.Append{o.Appends, o.Answer} {
		for i := range appends {
			for j := range appends[i].Messages {
				in = append(in, t.byID[appends[i].Messages[j].ID]...)
			}
		}
	}
	if len(in) < 1 {
		return nil
	}
	slices.Sort(in)
	in = slices.Compact(in)
	if o.Consumer == "" {
		return in
	}
	whose := o.Consumer + " of " + string(o.Category)
	return slices.DeleteFunc(in, func(i int) bool {
		only := t.r.verdict.Violations[i].about.consumer
		return only != "" && only != whose
	})
}

func (t *teller) add(i int, o *history.Operation) {
	who := o.Proc
	if o.Consumer != "" {
		who += ", " + o.Consumer
	}
	say := func(at int64, what string) {
		t.lines[i] = append(t.lines[i], line{at, fmt.Sprintf("%12.6f s  %s %s (%d)", float64(at-t.r.begin)/1e9, who, what, o.Op)})
	}
	begin := t.begins(i, o)
	switch {
	case o.Time == o.End:
		say(o.Time, begin)
	case o.End == history.Never:
		say(o.Time, begin+", and never says how it ended")
	default:
		say(o.Time, begin)
		say(o.End, t.ends(i, o))
	}
	if o.Kind == history.Info && o.Func != history.Fault {
		t.unknown[i] = append(t.unknown[i], span{o.Time, min(o.End, o.Time+10e9)})
	}
}

func (t *teller) begins(i int, o *history.Operation) string {
	switch o.Func {
	case history.Write:
		return "begins to write " + t.appends(i, o.Appends)
	case history.WriteTx:
		return "begins to write in a transaction " + t.appends(i, o.Appends)
	case history.Version:
		return fmt.Sprintf("asks for the version of %s", o.Appends[0].Stream)
	case history.Read:
		return "begins to read"
	case history.Resolve:
		return fmt.Sprintf("resolves %v", o.Ref)
	case history.Handle:
		return fmt.Sprintf("is handed %s, attempt %d", where(&o.Appends[0]), max(o.Attempt, 1))
	case history.Park:
		return "begins to park " + where(&o.Appends[0])
	case history.Position:
		return fmt.Sprintf("begins to record position %d", o.Position)
	case history.Reserve:
		return fmt.Sprintf("tries to reserve key %q for message %s, which says %d", o.Key, o.Appends[0].Messages[0].ID, o.Value)
	case history.Effect:
		return fmt.Sprintf("has the effect of key %q outside the store", o.Key)
	case history.Fault, history.Failover, history.Heal:
		return strings.TrimSpace(fmt.Sprintf("begins %s %s %s", o.Func, o.Class, o.Target))
	}
	return string(o.Func)
}

func (t *teller) ends(i int, o *history.Operation) string {
	note := ""
	if o.Note != "" {
		note = ": " + o.Note
	}
	if o.Kind == history.Info {
		return "does not know the outcome" + note
	}
	if o.Kind == history.Fail && o.Class == history.Conflict {
		return fmt.Sprintf("is told that the stream is at version %d%s", o.Actual, note)
	}
	if o.Kind == history.Fail {
		return strings.TrimSpace("is told that it was not done, "+o.Class) + note
	}
	switch o.Func {
	case history.Write, history.WriteTx:
		return "is told that " + answers(o.Appends)
	case history.Version:
		return fmt.Sprintf("is told version %d", o.Actual)
	case history.Read:
		return "is told " + t.read(i, o.Answer)
	case history.Resolve:
		if o.Class == history.Written {
			return "is told that it was written: " + answers(o.Appends)
		}
		return "is told: " + o.Class
	case history.Handle:
		return "has handled " + where(&o.Appends[0])
	case history.Failover:
		var heads []string
		for _, a := range o.Answer {
			heads = append(heads, fmt.Sprintf("%s up to %d", a.Stream, a.Global))
		}
		return "ends failover, which kept " + strings.Join(heads, ", ")
	case history.Reserve:
		return "is told: " + o.Class
	case history.Fault, history.Heal:
		return fmt.Sprintf("ends %s %s", o.Func, o.Class)
	}
	return "has done it"
}

// appends tells the messages of a write. From a long batch it picks the messages that the story is
// about.
func (t *teller) appends(i int, appends []history.Append) string {
	var parts []string
	for k := range appends {
		a := &appends[k]
		var ids []string
		for j := range a.Messages {
			if id := a.Messages[j].ID; len(a.Messages) <= 3 || slices.Contains(t.r.verdict.Violations[i].about.ids, id) {
				ids = append(ids, id.String())
			}
		}
		expecting := "at any version"
		switch {
		case a.Expected == messagestore.NoStream:
			expecting = "expecting that there is nothing"
		case a.Expected >= 0:
			expecting = fmt.Sprintf("expecting version %d", a.Expected)
		}
		parts = append(parts, fmt.Sprintf("%d to %s (%s), %s", len(a.Messages), a.Stream, strings.Join(ids, ", "), expecting))
	}
	return strings.Join(parts, " and ")
}

func (t *teller) read(i int, answer []history.Append) string {
	var parts []string
	for k := range answer {
		for j := range answer[k].Messages {
			m := &answer[k].Messages[j]
			if slices.Contains(t.r.verdict.Violations[i].about.ids, m.ID) {
				parts = append(parts, where(&history.Append{Stream: answer[k].Stream, Messages: []history.Message{*m}}))
			}
		}
	}
	return strings.Join(parts, ", ")
}

func answers(appends []history.Append) string {
	var parts []string
	for _, a := range appends {
		part := fmt.Sprintf("%s is at version %d, global position %d", a.Stream, a.Version, a.Global)
		if a.Duplicate {
			part = fmt.Sprintf("it is a duplicate of %s@%d", a.Stream, a.Version)
		}
		parts = append(parts, part)
	}
	return strings.Join(parts, " and ")
}

func where(a *history.Append) string {
	m := a.Messages[0]
	return fmt.Sprintf("%s@%d at %d (%s)", a.Stream, m.Position, m.Global, m.ID)
}

// story puts the lines in order, with the faults under which outcomes became unknown, and the
// rows that are there in the end.
func (t *teller) story(i int) []string {
	lines := t.lines[i]
	met := 0
	for _, f := range t.r.faults {
		if met < 3 && slices.ContainsFunc(t.unknown[i], func(s span) bool { return f.time <= s.to && f.end >= s.from }) {
			met++
			lines = append(lines, line{f.time, fmt.Sprintf("%12.6f s  %s begins fault %s", float64(f.time-t.r.begin)/1e9, f.ref.Proc, f.name)})
		}
	}
	slices.SortStableFunc(lines, func(a, b line) int { return cmp.Compare(a.time, b.time) })
	var story []string
	for _, l := range lines {
		story = append(story, l.text)
	}
	for _, id := range t.r.verdict.Violations[i].about.ids {
		n := t.r.find(id)
		if n < 0 {
			story = append(story, fmt.Sprintf("  in the end  message %s is not there", id))
		}
		for ; n >= 0 && int(n) < len(t.r.rows) && t.r.rows[n].id == id; n++ {
			x := &t.r.rows[n]
			story = append(story, fmt.Sprintf("  in the end  message %s is %s@%d at %d", id, t.r.streamName(x.stream), x.position, x.global))
		}
	}
	return story
}
