package cli

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/rs/zerolog"

	"github.com/dibs-go/dibs/logger"
	"github.com/dibs-go/dibs/messagestore"
	"github.com/dibs-go/dibs/operate"
	"github.com/dibs-go/dibs/ui"
)

// An uiCommand is dibs ui: a page for operators.
type uiCommand struct {
	Listen   string `default:"127.0.0.1:7072" placeholder:"HOST:PORT" help:"Where the page is."`
	Operate  bool   `help:"Let whoever opens the page change things: retry, drop, resume and so on."`
	HideData bool   `help:"Hide what messages hold."`
	Proxy    bool   `name:"insecure-behind-proxy" help:"Listen beyond this machine: a proxy in front says who may open the page."`
	User     string `placeholder:"HEADER" help:"The proxy's header with the user's name, which stays in the log of what is changed."`
}

// grace is how long open pages have to end.
const grace = time.Second

func (c *uiCommand) Run(ctx context.Context, a *app) error {
	host, _, err := net.SplitHostPort(c.Listen)
	if err != nil {
		return usage("--listen=%s: must be like 127.0.0.1:7072", c.Listen)
	}
	loopback := host == "localhost" || net.ParseIP(host).IsLoopback()
	switch {
	case !loopback && !c.Proxy:
		return usage("--listen=%s is not on this machine alone: anybody could open the page; put a proxy in front and give --insecure-behind-proxy", c.Listen)
	case c.User != "" && !c.Proxy:
		return usage("--user is of a proxy: give --insecure-behind-proxy too")
	}
	open := a.open
	if !c.Operate {
		open = a.reading
	}
	return a.withStoreBy(ctx, open, 1000, func(store *messagestore.Store) error {
		if err := store.CheckReading(ctx); err != nil {
			return err
		}
		page, err := ui.New(store, &ui.Config{
			Operate: c.Operate, HideData: c.HideData, User: c.user(a), Doctor: doctorOf(a),
			Logger: logger.Zerolog(zerolog.New(warnings{a}).Level(zerolog.WarnLevel).With().Timestamp().Logger()),
		})
		if err != nil {
			return err
		}
		listener, err := (&net.ListenConfig{}).Listen(ctx, "tcp", c.Listen)
		if err != nil {
			return err
		}
		address := "http://" + listener.Addr().String() + "/"
		if err := a.out.tell(fields{"url", address, "store", a.redact(a.server), "operate", c.Operate}, "the page is at %s", address); err != nil {
			return err
		}
		if err := a.out.flush(); err != nil {
			return err
		}
		var handler http.Handler = page
		if !c.Proxy {
			handler = ofThisMachine(page)
		}
		return serveHTTP(ctx, listener, handler)
	})
}

// reading opens a store for a page that only reads. On PostgreSQL its connections refuse to write, and
// have the role dibs_reader if the user may take it.
func (a *app) reading(ctx context.Context, u string, config *messagestore.Config) (*messagestore.Store, error) {
	if !isPostgres(u) {
		return a.open(ctx, u, config)
	}
	// A client that looks for the server that writes asks whether its transactions are read-only.
	const attrs = "target_session_attrs="
	limits, wide := "default_transaction_read_only=on", u
	if u = strings.Replace(u, attrs+"read-write", attrs+"primary", 1); a.getenv("PGTARGETSESSIONATTRS") == "read-write" && !strings.Contains(u, attrs) {
		limits += "&" + attrs + "primary"
	}
	may := false
	err := a.withConn(ctx, func(conn *pgx.Conn) error {
		err := conn.QueryRow(ctx, `
			select pg_catalog.pg_has_role(oid, case when pg_catalog.current_setting('server_version_num')::integer < 160000 then 'MEMBER' else 'SET' end)
			from pg_catalog.pg_roles where rolname = 'dibs_reader'`).Scan(&may)
		if errors.Is(err, pgx.ErrNoRows) {
			return nil
		}
		return err
	})
	if err != nil {
		return nil, err
	}
	if may {
		limits += "&role=dibs_reader"
	}
	separator := "?"
	if strings.Contains(u, "?") {
		separator = "&"
	}
	store, err := a.open(ctx, u+separator+limits, config)
	if refused, is := errors.AsType[*pgconn.PgError](err); is && refused.Code == "08P01" { // a pooler, which takes no such parameter
		a.warn("dibs: the page reads with all rights of its user, because the pooler does not let it have fewer; connect to the server itself, or as a member of dibs_reader")
		return a.open(ctx, wide, config)
	}
	return store, err
}

// doctorOf is dibs doctor for the page, with the rights of the store's URL.
func doctorOf(a *app) func(context.Context) ([]operate.Finding, error) {
	doctor := doctorCommand{LongLock: 5 * time.Second, LongTransaction: time.Minute}
	return func(ctx context.Context) ([]operate.Finding, error) {
		found, err := doctor.findings(ctx, a)
		for i := range found {
			found[i].Says = a.redact(found[i].Says)
		}
		return found, err
	}
}

// user returns who acts: the proxy's user, or who runs the command.
func (c *uiCommand) user(a *app) func(*http.Request) string {
	return func(r *http.Request) string {
		if c.User != "" {
			return cmp.Or(r.Header.Get(c.User), "nobody whom the proxy names")
		}
		return cmp.Or(a.getenv("USER"), "operator")
	}
}

// ofThisMachine refuses names that are not this machine's own: a page of another site may have one that leads here.
func ofThisMachine(h http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		host, _, err := net.SplitHostPort(r.Host)
		if err != nil {
			host = r.Host
		}
		if host != "localhost" && !net.ParseIP(host).IsLoopback() {
			http.Error(w, "the page is for http://localhost and 127.0.0.1 alone", http.StatusForbidden)
			return
		}
		h.ServeHTTP(w, r)
	})
}

// serveHTTP serves until ctx ends. Pages that are open then have a moment to end.
func serveHTTP(ctx context.Context, listener net.Listener, handler http.Handler) error {
	requests, cancel := context.WithCancel(context.WithoutCancel(ctx))
	defer cancel()
	server := &http.Server{
		Handler: handler, ReadHeaderTimeout: 10 * time.Second, MaxHeaderBytes: 64 << 10,
		BaseContext: func(net.Listener) context.Context { return requests },
	}
	stopped := make(chan error, 1)
	go func() {
		<-ctx.Done()
		cancel()
		end, cancel := context.WithTimeout(context.WithoutCancel(ctx), grace)
		defer cancel()
		stopped <- server.Shutdown(end)
	}()
	if err := server.Serve(listener); !errors.Is(err, http.ErrServerClosed) {
		return fmt.Errorf("serve the page: %w", err)
	}
	if err := <-stopped; err != nil {
		_ = server.Close() // what did not end in time ends now
	}
	return nil
}
