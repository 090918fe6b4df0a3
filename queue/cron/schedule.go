package cron

import (
	"errors"
	"fmt"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"

	parser "github.com/robfig/cron/v3"

	"github.com/dibs-go/dibs/internal/text"
	"github.com/dibs-go/dibs/messagestore"
)

// CatchUp says how a schedule treats ticks that were due while no process ran.
type CatchUp int

const (
	Last CatchUp = iota // only the last of them comes, late
	None                // none of them comes: a tick is at most a minute late
	All                 // all of them come, in order, but at most the last 1,000
)

var catchUps = []string{Last: "last", None: "none", All: "all"}

// String returns last, none or all.
func (c CatchUp) String() string {
	if c < 0 || int(c) >= len(catchUps) {
		return fmt.Sprintf("CatchUp(%d)", int(c))
	}
	return catchUps[c]
}

// Overlap says how a schedule treats a tick if the item of the previous tick is not finished: that
// item waits for a worker or for another attempt, or a worker has it. A dead item does not count.
type Overlap int

const (
	Allow Overlap = iota // it comes, and its item waits behind the other
	Skip                 // it does not come, nor later; see [Status]
)

var overlaps = []string{Allow: "allow", Skip: "skip"}

// String returns allow or skip.
func (o Overlap) String() string {
	if o < 0 || int(o) >= len(overlaps) {
		return fmt.Sprintf("Overlap(%d)", int(o))
	}
	return overlaps[o]
}

const (
	maxCatchUp = 1000
	lateness   = time.Minute // of a tick under None
)

// A Schedule says when items come, and with which body.
type Schedule struct {
	// Name is any text. It is the key of the items, so they are delivered one at a time, in order.
	Name string

	// Spec has five fields as in a crontab: minute, hour, day of the month, month and day of the
	// week, where Sunday is 0 or 7. Or it is @yearly, @monthly, @weekly, @daily, @hourly, or @every
	// with a duration of whole seconds, up to 366 days, as in "@every 90s". Its ticks come at whole
	// multiples of the duration after the schedule was set; a change of anything else does not move
	// them. 5/15 means 5-59/15.
	//
	// Two fields name the day, as in crontab(5). If one of them begins with a star, as * and */2
	// do, both must name the day: "0 9 1-7 * */7" is the first Sunday of each month. If neither
	// does, one of them is enough: "0 9 13 * 5" is each 13th and each Friday. To write */2 in that
	// case, use 1-31/2.
	//
	// When clocks change, a time of fixed hours that the change skips comes at the end of the
	// skipped time, and a time that the change repeats comes once. If the hours contain a star
	// without a step, as "*" and a list such as "15,*" do, ticks follow the elapsed time. Hours of
	// "*/2" count as fixed here, and so does "* 2 * * *"; Debian's cron treats both like "*".
	Spec string

	// Zone is the time zone of Spec, such as "Europe/Prague".
	//
	// Defaults to UTC.
	Zone string

	// CatchUp says how ticks are treated that were due while no process ran.
	//
	// Defaults to Last.
	CatchUp CatchUp

	// Overlap says how a tick is treated if the item of the previous tick is not finished.
	//
	// Defaults to Allow.
	Overlap Overlap

	// Queue is the name of the queue that Overlap checks: see
	// [github.com/dibs-go/dibs/queue.Config]. Set it only with Skip.
	//
	// Defaults to the category's name.
	Queue string

	// Body is the body of each item. The message also has the time of the tick: see [TickOf].
	Body messagestore.Body
}

// A plan is a parsed spec.
type plan struct {
	every time.Duration        // if set, the rest is not used
	from  time.Time            // ticks of every come at whole multiples of it after this time
	spec  *parser.SpecSchedule // for the time on a wall clock, given as UTC
	zone  *time.Location
	fixed bool // no star without a step among the hours
}

// starBit is set in a field of the parser's that has a star without a step. If one of the two
// fields of days has it, both must name the day, and otherwise one is enough.
const starBit = 1 << 63

// days makes a field of days count as in crontab(5): it names any day if it begins with a star,
// even with a step.
func days(bits uint64, field string) uint64 {
	if strings.HasPrefix(field, "*") || strings.HasPrefix(field, "?") {
		return bits | starBit
	}
	return bits &^ starBit
}

func parse(spec, zone string) (*plan, error) {
	location, zoneErr := time.UTC, error(nil)
	if zone != "" {
		if location, zoneErr = time.LoadLocation(zone); zoneErr != nil || zone == "Local" {
			zoneErr = messagestore.NewInvalidError("zone", zone, `must be a time zone, like "Europe/Prague"`)
		}
	}
	invalid := func(rule string) error { return errors.Join(messagestore.NewInvalidError("spec", spec, rule), zoneErr) }
	if strings.Contains(spec, "TZ=") {
		return nil, invalid("must not contain a zone: use the field Zone")
	}
	if every, ok := strings.CutPrefix(spec, "@every "); ok {
		d, err := time.ParseDuration(every)
		if err != nil || d < time.Second || d%time.Second != 0 || d > 366*24*time.Hour {
			return nil, invalid("must have a duration of whole seconds after @every, between 1 second and 366 days")
		}
		return &plan{every: d}, zoneErr
	}
	for field := range strings.FieldsSeq(spec) {
		for part := range strings.SplitSeq(field, ",") {
			if !strings.HasPrefix(spec, "@") && !element.MatchString(part) {
				return nil, invalid(fmt.Sprintf("must have fields like *, 5, MON, 1-5, */15 and 1-31/2, and has %.20q", part))
			}
		}
	}
	parsed, err := parser.ParseStandard(sundays(spec))
	if err != nil {
		return nil, invalid(strings.Replace(text.Log(err), "above maximum (6)", "above maximum (7)", 1)) // of the week's days, of which 7 is one
	}
	fields, ok := parsed.(*parser.SpecSchedule)
	if !ok {
		return nil, invalid("must have five fields, or be one of @yearly, @monthly, @weekly, @daily, @hourly and @every")
	}
	if zoneErr != nil {
		return nil, zoneErr
	}
	wall := *fields
	wall.Location = time.UTC
	if five := strings.Fields(spec); len(five) == 5 {
		wall.Dom, wall.Dow = days(wall.Dom, five[2]), days(wall.Dow, five[4])
	}
	p := &plan{spec: &wall, zone: location, fixed: fields.Hour&starBit == 0}
	if p.next(time.Date(2000, 1, 1, 0, 0, 0, 0, time.UTC)).IsZero() {
		return nil, invalid("must describe a time that comes")
	}
	return p, nil
}

// element matches an element of a field or of a list. The parser accepts some that are invalid: it
// reads *-5 as *.
var element = regexp.MustCompile(`^([*?]|[0-9A-Za-z]+(-[0-9A-Za-z]+)?)(/[0-9]+)?$`)

var weekdays = []string{"sun", "mon", "tue", "wed", "thu", "fri", "sat", "7"}

// sundays replaces 7, which is Sunday in a crontab, by the parser's 0. A range that ends with 7
// becomes a list.
func sundays(spec string) string {
	fields := strings.Fields(spec)
	if len(fields) != 5 || !strings.Contains(fields[4], "7") {
		return spec
	}
	parts := strings.Split(fields[4], ",")
	for i, part := range parts {
		days, by, stepped := strings.Cut(part, "/")
		first, last, isRange := strings.Cut(days, "-")
		from, step := slices.Index(weekdays, strings.ToLower(first)), 1
		if n, err := strconv.Atoi(first); err == nil {
			from = n
		}
		if stepped {
			step, _ = strconv.Atoi(by)
		}
		if isRange && last != "7" || !isRange && first != "7" || from < 0 || step < 1 {
			continue // the parser takes it as it is, or refuses it
		}
		var list []string
		for day := from; day <= 7; day += step {
			list = append(list, strconv.Itoa(day%7))
		}
		if len(list) > 0 {
			parts[i] = strings.Join(list, ",")
		}
	}
	fields[4] = strings.Join(parts, ",")
	return strings.Join(fields, " ")
}

// after returns the first time of a spec after t, or the zero time if it never comes. The parser
// only looks at the year of t and the next five; 29 February as a Sunday may be forty years away.
func after(spec *parser.SpecSchedule, t time.Time) time.Time {
	for range 8 {
		if at := spec.Next(t); !at.IsZero() {
			return at
		}
		t = time.Date(t.Year()+6, 1, 1, 0, 0, -1, 0, time.UTC)
	}
	return time.Time{}
}

// maxRepeated bounds the wall clock minutes that a change of clocks repeats.
const maxRepeated = 24 * 60

// next returns the first tick after t, or the zero time if no tick ever comes. It depends on t
// only, and on no earlier tick.
func (p *plan) next(t time.Time) time.Time {
	switch {
	case p.every > 0:
		if at := p.from.Add((max(t.Sub(p.from), 0)/p.every + 1) * p.every); at.After(t) {
			return at
		}
		return time.Time{} // further than a duration reaches
	case p.fixed:
		return p.nextOnWall(t)
	default:
		return p.nextElapsed(t)
	}
}

// nextElapsed goes through the periods between two changes of the clocks one by one.
func (p *plan) nextElapsed(t time.Time) time.Time {
	for in := t; ; {
		_, seconds := in.In(p.zone).Zone()
		offset := time.Duration(seconds) * time.Second
		wall := after(p.spec, t.Add(offset).UTC())
		if wall.IsZero() {
			return wall
		}
		_, end := in.In(p.zone).ZoneBounds()
		if !end.IsZero() && !end.After(in) { // on the last day of a leap year it is told as over
			end = in.Add(time.Hour)
		}
		if at := wall.Add(-offset); end.IsZero() || at.Before(end) {
			return at
		}
		in, t = end, end.Add(-time.Nanosecond)
	}
}

// nextOnWall follows the wall clock, which a change puts forward or back.
func (p *plan) nextOnWall(t time.Time) time.Time {
	local := t.In(p.zone)
	wall := time.Date(local.Year(), local.Month(), local.Day(), local.Hour(), local.Minute(), local.Second(), local.Nanosecond(), time.UTC)
	for range maxRepeated {
		if wall = after(p.spec, wall); wall.IsZero() {
			return time.Time{}
		}
		if at := onWall(wall, p.zone); at.After(t) {
			return at.UTC()
		}
	}
	return time.Time{}
}

// onWall returns the first time at which the clock in a zone shows the date and time that wall has
// in UTC. If the clock never does, onWall returns the time at which it is put forward past that.
func onWall(wall time.Time, zone *time.Location) time.Time {
	at := time.Date(wall.Year(), wall.Month(), wall.Day(), wall.Hour(), wall.Minute(), wall.Second(), 0, zone)
	shows := func(t time.Time) bool {
		_, offset := t.Zone()
		return t.Add(time.Duration(offset) * time.Second).UTC().Equal(wall.UTC())
	}
	begin, end := at.ZoneBounds()
	if !shows(at) { // skipped: Go takes one of the two offsets, and so is an hour before or behind
		if end.IsZero() || at.Sub(begin) < end.Sub(at) && !begin.IsZero() {
			return begin
		}
		return end
	}
	// Repeated: the clock shows the same time before the change, with the earlier offset.
	if !begin.IsZero() {
		before := begin.Add(-time.Nanosecond)
		_, offset := before.Zone()
		if earlier := wall.Add(-time.Duration(offset) * time.Second); earlier.Before(begin) && shows(earlier.In(zone)) {
			return earlier
		}
	}
	return at
}

// due returns the ticks of a plan that still have to come, after one time and up to now.
func (p *plan) due(after, now time.Time, catchUp CatchUp) []time.Time {
	most := maxCatchUp
	switch catchUp {
	case Last:
		most = 1
	case None:
		after = later(after, now.Add(-lateness-time.Nanosecond))
	case All:
	}
	// Find the last ticks within a period that doubles, because a spec can only be walked tick by
	// tick.
	for back := time.Minute; ; back *= 2 {
		begin := now.Add(-back)
		whole := back <= 0 || !begin.After(after) // a duration reaches 292 years
		if whole {
			begin = after
		}
		var ticks []time.Time
		for t := p.next(begin); !t.IsZero() && !t.After(now); t = p.next(t) {
			ticks = append(ticks, t)
		}
		if whole || len(ticks) >= most {
			return ticks[max(0, len(ticks)-most):]
		}
	}
}

// maxNext is how many ticks [Next] returns at most.
const maxNext = 1000

// Next returns the next n ticks of a spec in a zone after a time, as a schedule would have them.
// The error matches [messagestore.ErrInvalid] if the spec or the zone is invalid, or if n is not
// from 1 to 1,000.
func Next(spec, zone string, after time.Time, n int) ([]time.Time, error) {
	p, err := parse(spec, zone)
	if n < 1 || n > maxNext {
		err = errors.Join(err, messagestore.NewInvalidError("n", n, fmt.Sprintf("must be between 1 and %d", maxNext)))
	}
	if err != nil {
		return nil, fmt.Errorf("cron: %w", err)
	}
	p.from = after
	ticks := make([]time.Time, n)
	for i := range ticks {
		if after = p.next(after); after.IsZero() {
			return nil, fmt.Errorf("cron: %w", messagestore.NewInvalidError("spec", spec, "must describe a time that comes"))
		}
		ticks[i] = after
	}
	return ticks, nil
}
