package ui

import (
	"bytes"
	"context"
	"net/http"
	"net/url"
	"strings"
	"sync"
	"time"
)

// maxPages is how many pages may be open at once.
const maxPages = 1000

// live keeps open pages up to date. One goroutine renders each view that a visible page shows, and
// sends it to all pages that show it. It ends when no page is visible.
type live struct {
	page *Page

	mu    sync.Mutex
	pages int
	none  chan struct{} // closed when no page is open any more
	views map[string]*watched
}

// watched is a view that at least one page shows.
type watched struct {
	name  string
	query url.Values
	pages map[chan []byte]bool
	last  []byte // that was sent
}

// serve sends the content of a view each time that it has changed.
func (l *live) serve(w http.ResponseWriter, r *http.Request) {
	of := r.URL.Query().Get("view")
	name, rawQuery, _ := strings.Cut(of, "?")
	query, err := url.ParseQuery(rawQuery)
	if _, is := views[name]; !is || err != nil {
		http.Error(w, "there is no such view", http.StatusNotFound)
		return
	}
	changes, stop := l.watch(of, name, query)
	if changes == nil {
		w.Header().Set("Retry-After", "10")
		http.Error(w, "too many pages are open", http.StatusServiceUnavailable)
		return
	}
	defer stop()
	w.Header().Set("Content-Type", "text/event-stream")
	control := http.NewResponseController(w)
	alive := time.NewTicker(15 * time.Second) // so that a client that has gone is found
	defer alive.Stop()
	for {
		var err error
		_ = control.SetWriteDeadline(time.Now().Add(10 * time.Second)) // without one a client that does not read has its own
		select {
		case <-r.Context().Done():
			return
		case content := <-changes:
			_, err = w.Write(event(content))
		case <-alive.C:
			_, err = w.Write([]byte(": alive\n\n"))
		}
		if err != nil || control.Flush() != nil {
			return
		}
	}
}

// event is a server-sent event of a text.
func event(text []byte) []byte {
	text = bytes.ReplaceAll(text, []byte("\r"), nil)
	return append(append([]byte("data: "), bytes.ReplaceAll(text, []byte("\n"), []byte("\ndata: "))...), "\n\n"...)
}

// watch returns the contents of a view that are still to be sent, of which the last is enough. It
// returns nil if too many pages are open.
func (l *live) watch(key, name string, query url.Values) (changes <-chan []byte, stop func()) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.pages == maxPages {
		return nil, nil
	}
	if l.views == nil {
		l.views = map[string]*watched{}
	}
	v := l.views[key]
	if v == nil {
		v = &watched{name: name, query: query, pages: map[chan []byte]bool{}}
		l.views[key] = v
	}
	c := make(chan []byte, 1)
	v.pages[c] = true
	if v.last != nil {
		c <- v.last
	}
	if l.pages++; l.pages == 1 {
		l.none = make(chan struct{})
		go l.run(l.none)
	}
	return c, func() {
		l.mu.Lock()
		defer l.mu.Unlock()
		if l.pages--; l.pages == 0 {
			close(l.none)
		}
		if delete(v.pages, c); len(v.pages) == 0 {
			delete(l.views, key)
		}
	}
}

// run renders views until no page is open.
func (l *live) run(none chan struct{}) {
	again := time.NewTicker(l.page.config.Every)
	defer again.Stop()
	for {
		l.page.sample()
		l.mu.Lock()
		views := make([]*watched, 0, len(l.views))
		for _, v := range l.views {
			views = append(views, v)
		}
		l.mu.Unlock()
		for _, v := range views {
			l.send(v, l.content(v))
		}
		select {
		case <-again.C:
		case <-none:
			return
		}
	}
}

// content renders a view, or the error if it cannot be read.
func (l *live) content(v *watched) []byte {
	body, err := l.page.body(context.Background(), v.name, v.query)
	if err != nil {
		body, _ = l.page.render("failed", "What was here cannot be read at the moment, and is tried again: "+err.Error()) // a text always renders
	}
	return body
}

// send gives content to the pages that show a view, if it has changed.
func (l *live) send(v *watched, content []byte) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if bytes.Equal(v.last, content) {
		return
	}
	v.last = content
	for page := range v.pages {
		select {
		case <-page: // it has not read the one before
		default:
		}
		page <- content
	}
}
