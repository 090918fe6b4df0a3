package ui

import (
	"context"
	"encoding/json"
	"fmt"
	"hash/fnv"
	"strconv"
	"sync"
	"time"

	"github.com/dibs-go/dibs/internal/text"
	"github.com/dibs-go/dibs/operate"
)

const (
	sampledEvery = 10 * time.Second
	sampledFor   = time.Hour
	maxSeries    = 500 // consumers and queues of which samples are kept
	tableRows    = 6
)

// A ring has the samples of the last hour, of the time in which a page was open.
type ring struct {
	mu     sync.Mutex
	asked  time.Time // by this process's clock
	series map[string][]sample
}

type sample struct {
	at    time.Time // by the store's clock
	value int64     // the lag, or how many items are open
	done  int64     // a count that grows: the position, or how many items are finished
}

func seriesOf(h operate.Health) string { return fmt.Sprint(h.Kind, " ", h.Category, " ", h.Name) }

// due reports whether it is time for a sample, and that there will be one.
func (r *ring) due() bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	if !r.asked.IsZero() && time.Since(r.asked) < sampledEvery {
		return false
	}
	r.asked = time.Now()
	return true
}

// add adds a sample of each.
func (r *ring) add(now time.Time, all []operate.Health) {
	r.mu.Lock()
	defer r.mu.Unlock()
	kept := map[string][]sample{}
	for _, h := range all {
		s := sample{at: now}
		switch {
		case h.Consumer != nil:
			s.value, s.done = h.Consumer.Lag, int64(h.Consumer.Position)
		case h.Queue != nil:
			q := h.Queue
			s.value, s.done = q.Out+q.Later+q.Suspended+q.Held, q.Finished
		default:
			continue
		}
		if len(kept) == maxSeries {
			break
		}
		before := r.series[seriesOf(h)]
		if n := len(before); n > 0 && !before[n-1].at.Before(now) {
			before = nil // the clock went back
		}
		for len(before) > 0 && before[0].at.Before(now.Add(-sampledFor)) {
			before = before[1:]
		}
		kept[seriesOf(h)] = append(before, s)
	}
	r.series = kept
}

// sample has the ring take a sample when it is time, and records what has changed about the cards.
func (p *Page) sample() {
	if !p.ring.due() {
		return
	}
	ctx, cancel := context.WithTimeout(context.Background(), p.config.Timeout)
	defer cancel()
	now, err := p.store.Now(ctx)
	var all []operate.Health
	if err == nil {
		all, err = operate.Healths(ctx, p.store)
	}
	if err == nil {
		p.ring.add(now, all)
		if p.config.Operate {
			_, err = operate.RecordCards(ctx, p.store, all, now)
		}
	}
	if err != nil { // a page that is open says so too
		p.config.Logger.Warn().Str("error", text.Log(err)).Msg("no sample of the store could be taken")
	}
}

// A plot is what is shown of a series.
type plot struct {
	ID      string
	Points  string // as JSON: times in seconds, and values
	Least   int64
	Most    int64
	PerHour string // of what is done, "" if it is not known yet
	Rows    []plotRow
}

type plotRow struct {
	At    time.Time
	Value int64
}

// plot returns nil for what has no samples.
func (r *ring) plot(h operate.Health) *plot {
	r.mu.Lock()
	samples := r.series[seriesOf(h)]
	r.mu.Unlock()
	if len(samples) == 0 {
		return nil
	}
	first, last := samples[0], samples[len(samples)-1]
	id := fnv.New64a()
	_, _ = id.Write([]byte(seriesOf(h))) // it never fails
	p := &plot{ID: strconv.FormatUint(id.Sum64(), 36), Least: first.value, Most: first.value}
	times, values := make([]int64, 0, len(samples)), make([]int64, 0, len(samples))
	for _, s := range samples {
		times, values = append(times, s.at.Unix()), append(values, s.value)
		p.Least, p.Most = min(p.Least, s.value), max(p.Most, s.value)
	}
	if took := last.at.Sub(first.at); took > 0 && last.done >= first.done {
		p.PerHour = number(int64(float64(last.done-first.done) * float64(time.Hour) / float64(took)))
	}
	step := (len(samples) + tableRows - 1) / tableRows
	for i := len(samples) - 1; i >= 0; i -= step {
		p.Rows = append(p.Rows, plotRow{samples[i].at, samples[i].value})
	}
	points, _ := json.Marshal([2][]int64{times, values}) // numbers always encode
	p.Points = string(points)
	return p
}
