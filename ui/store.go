package ui

import (
	"cmp"
	"context"
	"errors"
	"net/url"
	"slices"
	"sync"
	"time"

	"github.com/dibs-go/dibs/messagestore"
	"github.com/dibs-go/dibs/operate"
)

// examinedEvery is how often the doctor is asked at most.
const examinedEvery = 30 * time.Second

// examined is what the doctor has found.
type examined struct {
	mu    sync.Mutex
	asked time.Time // by this process's clock
	at    time.Time // by the store's
	found []operate.Finding
	err   error
}

type storeView struct {
	Epoch    string
	Serves   string // why it does not
	Findings []operate.Finding
	At       time.Time // when the doctor was asked, zero for never
	Failed   string    // why the doctor found nothing
}

var verdicts = []operate.Verdict{operate.VerdictFail, operate.VerdictWarn, operate.VerdictHidden, operate.VerdictOK}

// storeOf shows what is known about the store itself, the worst first.
func (p *Page) storeOf(ctx context.Context, _ url.Values) (any, error) {
	v := storeView{}
	var err error
	if v.Epoch, err = p.store.Epoch(ctx); err != nil && !errors.Is(err, messagestore.ErrNotSupported) {
		return nil, err
	}
	if err := p.store.CheckReading(ctx); err != nil {
		v.Serves = err.Error()
	}
	if p.config.Doctor == nil {
		return v, nil
	}
	e := &p.examined
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.asked.IsZero() || time.Since(e.asked) > examinedEvery {
		if e.at, err = p.store.Now(ctx); err != nil {
			return nil, err
		}
		found, err := p.config.Doctor(ctx)
		if ctx.Err() != nil && err != nil {
			return nil, err // whoever asked has gone, or it takes too long
		}
		slices.SortStableFunc(found, func(a, b operate.Finding) int {
			return cmp.Compare(slices.Index(verdicts, a.Verdict), slices.Index(verdicts, b.Verdict))
		})
		e.asked, e.found, e.err = time.Now(), found, err
	}
	v.Findings, v.At = e.found, e.at
	if e.err != nil {
		v.Failed = e.err.Error()
	}
	return v, nil
}
