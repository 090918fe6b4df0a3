// Package ui is a page for operators: what needs a person first, the story of any id, and every
// consumer, queue, saga, schedule, intent and stream of a store.
//
//	page, err := ui.New(store, nil)
//	...
//	mux.Handle("/dibs/", http.StripPrefix("/dibs", page))
//
// It may be mounted under any prefix that ends with a slash. It asks no other host for anything, and
// its scripts are in the program. Pages that are open are live: one goroutine a [Page] reads the store
// for all of them, and ends when none is visible.
//
// A page only reads, unless [Config.Operate] is set. It does not know who asks: put it behind
// whatever your service lets people in with, or on a loopback address, as the command dibs ui does.
package ui

import (
	"bytes"
	"cmp"
	"context"
	"embed"
	"errors"
	"fmt"
	"html/template"
	"io/fs"
	"net/http"
	"net/url"
	"time"

	"github.com/dibs-go/dibs/internal/text"
	"github.com/dibs-go/dibs/logger"
	"github.com/dibs-go/dibs/messagestore"
	"github.com/dibs-go/dibs/operate"
)

//go:embed static templates
var files embed.FS

// A Config has the settings of a [Page]. Nil means the defaults.
type Config struct {
	// Operate lets people change what they see: retry, drop, resume and so on. The store's user
	// needs the rights that the command dibs needs for it.
	//
	// Defaults to false: the page only reads.
	Operate bool

	// User returns who asks, for the reason of an act, such as the name in a header that your proxy
	// sets.
	//
	// Defaults to nil: "the page".
	User func(r *http.Request) string

	// HideData hides what messages hold: data, metadata, results and answers. The texts of errors
	// are shown.
	HideData bool

	// Doctor examines the store's database, as the command dibs doctor does. It is called at most
	// once in 30 s, and only while somebody looks.
	//
	// Defaults to nil: the page says only whether the store serves.
	Doctor func(ctx context.Context) ([]operate.Finding, error)

	// Every is how often the store is read for pages that are open, at least 100 ms.
	//
	// Defaults to 2 s.
	Every time.Duration

	// Timeout bounds what one view reads.
	//
	// Defaults to 5 s.
	Timeout time.Duration

	// Logger receives errors of reads.
	//
	// Defaults to the standard logger of package logger.
	Logger logger.Logger
}

// A Page is an [http.Handler]. It may be used by several goroutines. There is nothing to close: what
// it runs ends with its requests.
type Page struct {
	store     *messagestore.Store
	config    Config
	templates *template.Template
	mux       *http.ServeMux
	live      live
	examined  examined
	ring      ring
}

// New returns a page over a store. It does not call the store. The error matches
// [messagestore.ErrInvalid] if an argument is invalid.
func New(store *messagestore.Store, config *Config) (*Page, error) {
	p := &Page{store: store}
	if config != nil {
		p.config = *config
	}
	c := &p.config
	c.Every, c.Timeout = cmp.Or(c.Every, 2*time.Second), cmp.Or(c.Timeout, 5*time.Second)
	if c.User == nil {
		c.User = func(*http.Request) string { return "the page" }
	}
	var wrong error
	if store == nil {
		wrong = messagestore.NewInvalidError("store", nil, "must not be nil")
	}
	if c.Every < 100*time.Millisecond {
		wrong = errors.Join(wrong, messagestore.NewInvalidError("Every", c.Every, "must be at least 100ms"))
	}
	if c.Timeout < 0 {
		wrong = errors.Join(wrong, messagestore.NewInvalidError("Timeout", c.Timeout, "must not be negative"))
	}
	if wrong != nil {
		return nil, fmt.Errorf("page: %w", wrong)
	}
	var err error
	if p.templates, err = template.New("").Funcs(p.functions()).ParseFS(files, "templates/*.html"); err != nil {
		return nil, fmt.Errorf("page: %w", err)
	}
	p.live.page = p
	p.routes()
	return p, nil
}

// A view reads what a page shows. The path of its URL is its name.
type view struct {
	title string
	read  func(p *Page, ctx context.Context, q url.Values) (any, error)
}

// views are the pages, by their paths. The template of each has the name of its path, or home.
var views = map[string]view{
	"":          {"What needs you", (*Page).home},
	"story":     {"Story", (*Page).story},
	"consumers": {"Consumers", (*Page).consumers},
	"queues":    {"Queues", (*Page).queues},
	"queue":     {"Queue", (*Page).queue},
	"item":      {"Item", (*Page).item},
	"sagas":     {"Sagas", (*Page).sagas},
	"saga":      {"Saga", (*Page).saga},
	"schedules": {"Schedules", (*Page).schedules},
	"intents":   {"Intents", (*Page).intents},
	"streams":   {"Streams", (*Page).streams},
	"category":  {"Category", (*Page).category},
	"stream":    {"Stream", (*Page).stream},
	"store":     {"Store", (*Page).storeOf},
}

func (p *Page) routes() {
	p.mux = http.NewServeMux()
	static, _ := fs.Sub(files, "static") // it is there
	p.mux.Handle("GET /static/", http.StripPrefix("/static/", cached(http.FileServerFS(static))))
	for name := range views {
		pattern := "GET /" + name
		if name == "" {
			pattern += "{$}"
		}
		p.mux.HandleFunc(pattern, func(w http.ResponseWriter, r *http.Request) { p.show(w, r, name) })
	}
	p.mux.HandleFunc("GET /live", p.live.serve)
	p.mux.HandleFunc("GET /act", p.preview)
	p.mux.HandleFunc("POST /act", p.act)
	p.mux.HandleFunc("/", func(w http.ResponseWriter, r *http.Request) {
		p.fail(w, r, http.StatusNotFound, errors.New("there is no such page"))
	})
}

func cached(h http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Cache-Control", "max-age=3600")
		h.ServeHTTP(w, r)
	})
}

// policy lets a page have nothing that is not its own, and be in no frame.
const policy = "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; connect-src 'self'; " +
	"form-action 'self'; base-uri 'none'; frame-ancestors 'none'"

// ServeHTTP serves the page. It refuses a POST of another origin.
func (p *Page) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	h := w.Header()
	h.Set("Content-Security-Policy", policy)
	h.Set("X-Content-Type-Options", "nosniff")
	h.Set("Referrer-Policy", "same-origin")
	h.Set("Cache-Control", "no-store")
	protection := http.NewCrossOriginProtection()
	protection.Handler(p.mux).ServeHTTP(w, r)
}

// A document is what the layout shows.
type document struct {
	Title   string
	View    string // path and query, of which the content is read again and again; "" if it is not live
	Body    template.HTML
	Operate bool
	Query   url.Values
}

// show serves a view as a whole page.
func (p *Page) show(w http.ResponseWriter, r *http.Request, name string) {
	query := r.URL.Query()
	body, err := p.body(r.Context(), name, query)
	if err != nil {
		p.fail(w, r, 0, err)
		return
	}
	live := name
	if encoded := query.Encode(); encoded != "" {
		live += "?" + encoded
	}
	p.write(w, http.StatusOK, document{Title: views[name].title, View: "live?view=" + url.QueryEscape(live), Body: template.HTML(body), Query: query}) //nolint:gosec // it is made by html/template
}

// body renders the content of a view.
func (p *Page) body(ctx context.Context, name string, query url.Values) ([]byte, error) {
	ctx, cancel := context.WithTimeout(ctx, p.config.Timeout)
	defer cancel()
	data, err := views[name].read(p, ctx, query)
	if err != nil {
		return nil, err
	}
	return p.render(cmp.Or(name, "home"), data)
}

func (p *Page) render(name string, data any) ([]byte, error) {
	var b bytes.Buffer
	err := p.templates.ExecuteTemplate(&b, name+".html", data)
	return b.Bytes(), err
}

func (p *Page) write(w http.ResponseWriter, status int, d document) {
	d.Operate = p.config.Operate
	content, err := p.render("layout", d)
	if err != nil {
		p.config.Logger.Error().Str("error", text.Log(err)).Msg("the page cannot be rendered")
		http.Error(w, "the page cannot be rendered", http.StatusInternalServerError)
		return
	}
	w.Header().Set("Content-Type", "text/html; charset=utf-8")
	w.WriteHeader(status)
	_, _ = w.Write(content) // the client has gone
}

// fail shows an error, with the status that fits it, or with the given one.
func (p *Page) fail(w http.ResponseWriter, _ *http.Request, status int, err error) {
	says := err.Error()
	switch {
	case status != 0:
	case errors.Is(err, messagestore.ErrInvalid):
		status = http.StatusBadRequest
	case errors.Is(err, messagestore.ErrNotFound):
		status = http.StatusNotFound
	case errors.Is(err, messagestore.ErrNotPermitted):
		status = http.StatusForbidden
	case errors.Is(err, messagestore.ErrNotSupported):
		status = http.StatusNotImplemented
	default:
		status = http.StatusServiceUnavailable
		p.config.Logger.Error().Str("error", text.Log(err)).Msg("the store cannot be read for the page")
		says = "The store does not answer: " + says
	}
	body, _ := p.render("failed", says)                                                     // a text always renders
	p.write(w, status, document{Title: http.StatusText(status), Body: template.HTML(body)}) //nolint:gosec // it is made by html/template
}
