package cron_test

import (
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/dibs-go/dibs/internal/testkit"
	"github.com/dibs-go/dibs/queue/cron"
)

// A kind is a spec, and what it means: of a minute on the wall, whether the spec names it. A spec of fixed hours
// ticks when the clock shows, or is put past, a time that it has never shown; any other whenever the clock shows its time.
type kind struct {
	spec  string
	fixed bool
	names func(w wall) bool
}

// A wall is what a clock on it shows.
type wall struct{ minute, hour, day, month, weekday, dayOfYear int }

func wallOf(t time.Time) wall {
	return wall{t.Minute(), t.Hour(), t.Day(), int(t.Month()), int(t.Weekday()), t.YearDay()}
}

func among(n int, of ...int) bool { return slices.Contains(of, n) }

func (w wall) at(hour, minute int) bool { return w.hour == hour && w.minute == minute }

var kinds = []kind{
	{"* * * * *", false, func(wall) bool { return true }},
	{"*/15 * * * *", false, func(w wall) bool { return among(w.minute, 0, 15, 30, 45) }},
	{"0 * * * *", false, func(w wall) bool { return w.minute == 0 }},
	{"@hourly", false, func(w wall) bool { return w.minute == 0 }},
	{"30 */1 * * *", false, func(w wall) bool { return w.minute == 30 }},
	{"7,37 * * * *", false, func(w wall) bool { return among(w.minute, 7, 37) }},
	{"5-50/15 * * * *", false, func(w wall) bool { return among(w.minute, 5, 20, 35, 50) }},
	{"30 * * * 0", false, func(w wall) bool { return w.minute == 30 && w.weekday == 0 }},
	{"*/30 * */2 * 6", false, func(w wall) bool { return among(w.minute, 0, 30) && w.day%2 == 1 && w.weekday == 6 }},
	{"45 * 25-31 3,10 *", false, func(w wall) bool { return w.minute == 45 && w.day >= 25 && among(w.month, 3, 10) }},
	{"* * 1 * 7", false, func(w wall) bool { return w.day == 1 || w.weekday == 0 }},
	{"0 0 * * *", true, func(w wall) bool { return w.at(0, 0) }},
	{"@daily", true, func(w wall) bool { return w.at(0, 0) }},
	{"@midnight", true, func(w wall) bool { return w.at(0, 0) }},
	{"30 2 * * *", true, func(w wall) bool { return w.at(2, 30) }},
	{"15,45 2 * * *", true, func(w wall) bool { return w.at(2, 15) || w.at(2, 45) }},
	{"* 2 * * *", true, func(w wall) bool { return w.hour == 2 }},
	{"*/20 1-3 * * *", true, func(w wall) bool { return w.minute%20 == 0 && among(w.hour, 1, 2, 3) }},
	{"0 */2 * * *", true, func(w wall) bool { return w.minute == 0 && w.hour%2 == 0 }},
	{"30 0-23 * * *", true, func(w wall) bool { return w.minute == 30 }},
	{"10 5/6 * * *", true, func(w wall) bool { return w.minute == 10 && among(w.hour, 5, 11, 17, 23) }},
	{"59 23 * * *", true, func(w wall) bool { return w.at(23, 59) }},
	{"30 0 1 * *", true, func(w wall) bool { return w.at(0, 30) && w.day == 1 }},
	{"0 3 1,15 * 0", true, func(w wall) bool { return w.at(3, 0) && (among(w.day, 1, 15) || w.weekday == 0) }},
	{"30 2 * * sun", true, func(w wall) bool { return w.at(2, 30) && w.weekday == 0 }},
	{"0 0 */2 * 3", true, func(w wall) bool { return w.at(0, 0) && w.day%2 == 1 && w.weekday == 3 }},
	{"0 1 1-7 * */7", true, func(w wall) bool { return w.at(1, 0) && w.day <= 7 && w.weekday == 0 }},
	{"30 1 */3 * 1-5", true, func(w wall) bool { return w.at(1, 30) && w.day%3 == 1 && !among(w.weekday, 0, 6) }},
	{"30 1-2 25-31 3 */7", true, func(w wall) bool {
		return w.minute == 30 && among(w.hour, 1, 2) && w.day >= 25 && w.month == 3 && w.weekday == 0
	}},
	{"15 2 5,* * 1", true, func(w wall) bool { return w.at(2, 15) }}, // the field begins with no star: either day
	{"15 2 *,5 * 1", true, func(w wall) bool { return w.at(2, 15) && w.weekday == 1 }},
	{"30 2 */2 * */2", true, func(w wall) bool { return w.at(2, 30) && w.day%2 == 1 && w.weekday%2 == 0 }},
	{"0 2 * 3,10,11 5-7", true, func(w wall) bool { return w.at(2, 0) && among(w.month, 3, 10, 11) && among(w.weekday, 0, 5, 6) }},
	{"0 0-5,22-23 ? * MON-FRI", true, func(w wall) bool {
		return w.minute == 0 && among(w.hour, 0, 1, 2, 3, 4, 5, 22, 23) && !among(w.weekday, 0, 6)
	}},
	{"@weekly", true, func(w wall) bool { return w.at(0, 0) && w.weekday == 0 }},
	{"@monthly", true, func(w wall) bool { return w.at(0, 0) && w.day == 1 }},
	{"@yearly", true, func(w wall) bool { return w.at(0, 0) && w.dayOfYear == 1 }},
	{"0 4 31 * *", true, func(w wall) bool { return w.at(4, 0) && w.day == 31 }},
}

// zones returns the names of the tz database's zones, one of those that have the same changes.
func zones(t *testing.T) (names []string) {
	t.Helper()
	for _, dir := range []string{"/usr/share/zoneinfo", "/usr/lib/zoneinfo", "/usr/share/lib/zoneinfo"} {
		if _, err := os.Stat(dir); err != nil {
			continue
		}
		seen := map[string]bool{}
		require.NoError(t, filepath.WalkDir(dir, func(path string, d fs.DirEntry, err error) error {
			name, _ := filepath.Rel(dir, path)
			if err != nil || d.IsDir() || strings.HasPrefix(name, "posix") || strings.HasPrefix(name, "right") {
				return err
			}
			zone, err := time.LoadLocation(name)
			if err != nil {
				return nil //nolint:nilerr // it is no zone
			}
			if key := fmt.Sprint(changesOf(zone)); !seen[key] {
				seen[key] = true
				names = append(names, name)
			}
			return nil
		}))
		return names
	}
	t.Skip("the system has no tz database")
	return nil
}

// A change is one of a zone's offset, in seconds.
type change struct {
	at     int64
	offset int
}

func changesOf(zone *time.Location) (all []change) {
	for t := time.Date(1990, 1, 1, 0, 0, 0, 0, time.UTC); t.Year() <= 2037; {
		_, end := t.In(zone).ZoneBounds()
		if end.IsZero() {
			break
		}
		_, offset := end.Zone()
		if _, before := end.Add(-time.Second).Zone(); before != offset {
			all = append(all, change{end.Unix(), offset})
		}
		t = end.UTC()
	}
	return all
}

// A minute is one of a zone's time: what its clock shows, and what it had never shown before, or was put past.
type minute struct {
	at   time.Time
	now  wall
	news []wall
}

// minutesOf goes through the time minute by minute, and looks at the clock on the wall.
func minutesOf(zone *time.Location, after, until time.Time) (minutes []minute) {
	const memory = 30 * time.Hour // longer than what a change repeats
	shows := func(t time.Time) time.Time {
		l := t.In(zone)
		return time.Date(l.Year(), l.Month(), l.Day(), l.Hour(), l.Minute(), 0, 0, time.UTC)
	}
	latest := shows(after.Add(-memory))
	for t := after.Add(-memory); !t.After(until); t = t.Add(time.Minute) {
		now := shows(t)
		m := minute{at: t, now: wallOf(now)}
		for latest.Before(now) {
			latest = latest.Add(time.Minute)
			m.news = append(m.news, wallOf(latest))
		}
		if t.After(after) {
			minutes = append(minutes, m)
		}
	}
	return minutes
}

func (k kind) ticks(minutes []minute) (ticks []time.Time) {
	for _, m := range minutes {
		if !k.fixed && k.names(m.now) || k.fixed && slices.ContainsFunc(m.news, k.names) {
			ticks = append(ticks, m.at)
		}
	}
	return ticks
}

func compareWithOracle(t *testing.T, name string, takes func(n int) bool) {
	t.Helper()
	zone, err := time.LoadLocation(name)
	require.NoError(t, err)
	for n, c := range changesOf(zone) {
		if !takes(n) {
			continue
		}
		changed := time.Unix(c.at, 0).UTC().Truncate(time.Minute)
		after, until := changed.Add(-26*time.Hour), changed.Add(26*time.Hour)
		minutes := minutesOf(zone, after, until)
		for _, k := range kinds {
			want, got := k.ticks(minutes), cron.Ticks(t, k.spec, name, after, until)
			for i := range max(len(want), len(got)) {
				if one, other := nth(want, i), nth(got, i); one != other {
					t.Errorf("%q in %s around %s: tick %d is %s, and by the oracle %s", k.spec, name, changed.In(zone), i, other, one)
					break
				}
			}
		}
	}
}

func nth(ticks []time.Time, n int) string {
	if n >= len(ticks) {
		return "none"
	}
	return ticks[n].UTC().Format(time.RFC3339)
}

// The zones here change at midnight, by half an hour, by hours, over the date line, or twice within days.
func TestTicksAreThoseOfAMinuteByMinuteOracle(t *testing.T) {
	t.Parallel()
	for _, name := range []string{
		"Europe/Prague", "America/New_York", "Australia/Lord_Howe", "America/Havana", "Africa/Cairo", "Antarctica/Troll", "Pacific/Apia",
		"Africa/Casablanca", "Asia/Gaza", "Antarctica/Casey", "Asia/Pyongyang", "America/Caracas",
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			compareWithOracle(t, name, func(n int) bool { return n%12 < 2 })
		})
	}
}

func TestTicksAreThoseOfTheOracleInEveryZone(t *testing.T) {
	testkit.NeedsLong(t)
	t.Parallel()
	for _, name := range zones(t) {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			compareWithOracle(t, name, func(int) bool { return true })
		})
	}
}
