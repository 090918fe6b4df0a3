package main

import (
	"context"
	"fmt"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/chromedp/cdproto/cdp"
	"github.com/chromedp/cdproto/emulation"
	"github.com/chromedp/cdproto/log"
	"github.com/chromedp/cdproto/runtime"
	"github.com/chromedp/chromedp"
	"github.com/stretchr/testify/require"

	"github.com/dibs-go/dibs"
	"github.com/dibs-go/dibs/internal/testkit"
	"github.com/dibs-go/dibs/logger"
	"github.com/dibs-go/dibs/messagestore"
	"github.com/dibs-go/dibs/operate"
	"github.com/dibs-go/dibs/ui"
)

// A browser is a Chromium with what it complained of.
type browser struct {
	ctx context.Context //nolint:containedctx // it is how chromedp names a browser

	mu    sync.Mutex
	wrong []string
	shots string // the folder for pictures, "" for none
}

func (b *browser) complain(format string, args ...any) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.wrong = append(b.wrong, fmt.Sprintf(format, args...))
}

func (b *browser) complaints() []string {
	b.mu.Lock()
	defer b.mu.Unlock()
	return append([]string{}, b.wrong...)
}

func (b *browser) run(t *testing.T, steps ...chromedp.Action[chromedp.Void]) {
	t.Helper()
	ctx, cancel := context.WithTimeout(b.ctx, 30*time.Second)
	defer cancel()
	require.NoError(t, chromedp.Do(ctx, steps...))
}

// value is what an action of a browser returns.
func value[T any](t *testing.T, b *browser, action chromedp.Action[T]) T {
	t.Helper()
	ctx, cancel := context.WithTimeout(b.ctx, 30*time.Second)
	defer cancel()
	return testkit.Do(chromedp.Run(ctx, action))(t)
}

// newBrowser starts one, or skips the test where there is none; in CI there has to be one.
func newBrowser(t *testing.T) *browser {
	t.Helper()
	path, err := exec.LookPath("chromium")
	if err != nil && os.Getenv("CI") == "" {
		t.Skip("there is no chromium on the PATH")
	}
	require.NoError(t, err)
	options := append(chromedp.DefaultExecAllocatorOptions[:], chromedp.ExecPath(path), chromedp.NoSandbox)
	ctx, stop := chromedp.NewExecAllocator(t.Context(), options...)
	t.Cleanup(stop)
	b := &browser{shots: os.Getenv("UI_SHOTS")}
	b.ctx, stop = chromedp.NewContext(ctx)
	t.Cleanup(stop)
	require.NoError(t, chromedp.Listen(b.ctx, func(event any) {
		switch e := event.(type) {
		case *runtime.EventExceptionThrown:
			b.complain("exception: %s", e.ExceptionDetails.Text)
		case *log.EventEntryAdded:
			if e.Entry.Level == log.EntryLevelError {
				b.complain("%s: %s", e.Entry.URL, e.Entry.Text)
			}
		}
	}))
	return b
}

// prefers is an action that has the browser prefer light or dark.
func prefers(scheme string) chromedp.Action[chromedp.Void] {
	return chromedp.Func(func(ctx context.Context, t *chromedp.Target) error {
		_, err := cdp.Call(ctx, t, emulation.SetEmulatedMedia, emulation.SetEmulatedMediaParams{
			Features: []*emulation.MediaFeature{{Name: "prefers-color-scheme", Value: scheme}},
		})
		return err
	})
}

// axe returns what axe-core finds in the page that is open.
func (b *browser) axe(t *testing.T) []string {
	t.Helper()
	source, err := os.ReadFile("node_modules/axe-core/axe.min.js")
	require.NoError(t, err, "npm ci fetches it: make ui/axe")
	b.run(t, chromedp.Evaluate[chromedp.Void](string(source)))
	return value(t, b, chromedp.Evaluate[[]string](`axe.run().then(r => r.violations.map(v => v.id + ": " + v.nodes.map(n => n.html).slice(0, 2).join(" ")))`, chromedp.EvalAwaitPromise))
}

// A look is how a page is shown.
type look struct {
	name   string
	width  int64
	height int64
	scheme string
}

var looks = []look{{"light", 1280, 900, "light"}, {"dark", 1280, 900, "dark"}, {"phone", 390, 800, "light"}}

var views = map[string]string{
	"home": "", "consumers": "consumers", "queues": "queues", "queue": "queue?name=mail&category=mail", "sagas": "sagas", "schedules": "schedules",
	"intents": "intents", "streams": "streams", "store": "store", "category": "category?name=order", "story": "story?id=order-order-1",
	"saga": "saga?id=stay-1&category=stay:saga", "trip": "saga?id=trip-1&category=trip:saga", "saga-story": "story?id=trip-1&category=trip:saga", "search": "story", "run": "act?do=run&on=schedule&category=report&name=daily", "act": "act?do=retry&on=queue&category=mail&name=mail&state=dead",
}

// doctor finds one of each verdict.
func doctor(context.Context) (all []operate.Finding, _ error) {
	for _, v := range []operate.Verdict{operate.VerdictOK, operate.VerdictWarn, operate.VerdictFail, operate.VerdictHidden} {
		all = append(all, operate.Finding{Group: "settings", Name: "fsync", Verdict: v, Says: "fsync is " + string(v), Advice: "see to it"})
	}
	return all, nil
}

// shop is a broken shop with its page.
func newShop(t *testing.T) (*shop, *messagestore.Store, *server) {
	t.Helper()
	at := "sqlite:" + filepath.Join(t.TempDir(), "shop.db")
	store, err := dibs.Open(t.Context(), at, &messagestore.Config{Logger: logger.Silent()})
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, store.Close()) })
	s, err := broken(t.Context(), store)
	require.NoError(t, err)
	t.Cleanup(s.close)
	s.at = at
	page, err := ui.New(store, &ui.Config{Operate: true, Every: 200 * time.Millisecond, User: func(*http.Request) string { return "ann" }, Doctor: doctor})
	require.NoError(t, err)
	return s, store, serve(t, "127.0.0.1:0", page)
}

// A server ends without waiting for the pages that are open.
type server struct {
	*http.Server

	address, URL string
}

func serve(t *testing.T, address string, page http.Handler) *server {
	t.Helper()
	listener := testkit.Do((&net.ListenConfig{}).Listen(t.Context(), "tcp", address))(t)
	s := &server{&http.Server{Handler: page, ReadHeaderTimeout: time.Minute}, listener.Addr().String(), "http://" + listener.Addr().String()}
	go func() { _ = s.Serve(listener) }()
	t.Cleanup(func() { _ = s.Close() })
	return s
}

// Every view loads in light, dark and on a phone, without an error in the console, and axe finds nothing. Then a person mends the
// five things that are broken, each through the page.
func TestAPersonMendsAllThroughThePage(t *testing.T) {
	t.Parallel()
	s, store, server := newShop(t)
	b := newBrowser(t)
	for name, view := range views {
		for _, look := range looks {
			b.run(t, chromedp.EmulateViewport(look.width, look.height),
				prefers(look.scheme),
				chromedp.Navigate(server.URL+"/"+view), chromedp.WaitVisible("#view h1"))
			if b.shots != "" {
				require.NoError(t, os.WriteFile(filepath.Join(b.shots, name+"-"+look.name+".png"), value(t, b, chromedp.CaptureScreenshot()), 0o600))
			}
			require.False(t, value(t, b, chromedp.Evaluate[bool](`document.documentElement.scrollWidth > window.innerWidth`)), "%s is wider than the window in %s", name, look.name)
			require.Empty(t, b.axe(t), "%s in %s", name, look.name)
		}
	}
	require.Empty(t, b.complaints())

	s.repair()
	t.Log("The handler's bug, the webhook and the airline are mended by their developers. The rest is up to a person with the page.")
	b.run(t, chromedp.EmulateViewport(1280, 900))
	for _, m := range mends {
		require.Contains(t, s.dibs(t, "doctor", "--quiet"), m.wrong)
		act := chromedp.Search(fmt.Sprintf(`//article[@id=%q]//p[@class="acts"]//a[text()=%q]`, m.card, m.act))
		b.run(t, chromedp.Navigate(server.URL+"/"), chromedp.WaitVisible(act), chromedp.Click(act),
			chromedp.WaitVisible(`input[name="reason"]`), chromedp.SendKeys(`input[name="reason"]`, "it is mended"), chromedp.Click(`form.do button`), chromedp.WaitVisible(`p.good[role="status"]`))
		t.Logf("%s: %s on the card %s: %s", m.what, m.act, m.card, value(t, b, chromedp.Text(`p.good[role="status"]`)))
		s.confirm(t, m)
	}
	s.confirm(t, mend{what: "the webhook is down", wrong: "another attempt"}) // it needs nobody: the relay tries again
	// The page, which stays open, says that all is well, and so does the store. The webhook needs nobody.
	b.run(t, chromedp.Navigate(server.URL+"/"))
	testkit.Await(t, "nothing needs a person", func() (bool, any) {
		text := value(t, b, chromedp.Text("#view"))
		return strings.Contains(text, "Nothing needs you"), text
	})
	all, err := operate.Healths(t.Context(), store)
	require.NoError(t, err)
	for _, h := range all {
		require.Empty(t, h.Causes, h.Name)
	}
	require.Empty(t, b.complaints())
}

// A mend is what a person does about a thing that is broken, on the page or with the command.
type mend struct {
	what    string
	wrong   string // as dibs doctor says it, until it is mended
	card    string
	act     string
	command []string
}

var mends = []mend{
	{"the statistics were stopped", "consumer statistics of order is paused", "consumer-order-statistics", "resume", []string{"consumers", "resume", "order", "statistics"}},
	{"mail is paused", "is paused", "queue-mail-mail", "resume", []string{"queue", "resume", "mail"}},
	{
		"the handler had a bug for " + badSKU, "has parked", "consumer-order:command+reservation+orders-orders", "redrive",
		[]string{"parked", "redrive", "order:command+reservation+orders", "orders", "--all", "--reason", "it is mended"},
	},
	{"and one for letters", "queue mail has", "queue-mail-mail", "retry", []string{"queue", "retry", "mail", "--all", "--state", "dead", "--reason", "it is mended"}},
	{"the airline refused trips", "suspended saga", "sagas-trip:saga-trip:saga", "resume", []string{"saga", "resume", "trip:saga", "--all", "--reason", "it is mended"}},
}

var built string // the folder of the command, "" if no test needed it

// command is the command dibs, built once.
var command = sync.OnceValues(func() (string, error) {
	dir, err := os.MkdirTemp("", "dibs-tour-")
	if err != nil {
		return "", err
	}
	built = dir
	path := filepath.Join(dir, "dibs")
	out, err := exec.Command("go", "build", "-C", "../../../cmd/dibs", "-o", path, ".").CombinedOutput()
	if err != nil {
		return "", fmt.Errorf("%w: %s", err, out)
	}
	return path, nil
})

func TestMain(m *testing.M) {
	code := m.Run()
	if built != "" {
		_ = os.RemoveAll(built)
	}
	os.Exit(code)
}

// dibs returns what the command prints about the shop's store.
func (s *shop) dibs(t *testing.T, args ...string) string {
	t.Helper()
	path, err := command()
	require.NoError(t, err)
	out, err := exec.CommandContext(t.Context(), path, append(args, "--store", s.at)...).CombinedOutput()
	if args[0] != "doctor" { // which fails if a finding does
		require.NoError(t, err, "dibs %s: %s", strings.Join(args, " "), out)
	}
	return string(out)
}

// confirm waits until the command says that a thing is mended.
func (s *shop) confirm(t *testing.T, m mend) {
	t.Helper()
	testkit.Await(t, m.what+", no more", func() (bool, any) {
		found := s.dibs(t, "doctor", "--quiet")
		return !strings.Contains(found, m.wrong), found
	})
	t.Logf("%s: no more, says dibs doctor", m.what)
}

// Each is found by one call, mended by a second, and a third confirms it.
func TestTheCommandMendsAllInThreeCallsEach(t *testing.T) {
	t.Parallel()
	s, store, _ := newShop(t)
	s.repair()
	for _, m := range mends {
		require.Contains(t, s.dibs(t, "doctor", "--quiet"), m.wrong)
		t.Logf("%s: dibs %s: %s", m.what, strings.Join(m.command, " "), strings.TrimSpace(s.dibs(t, m.command...)))
		s.confirm(t, m)
	}
	s.confirm(t, mend{what: "the webhook is down", wrong: "another attempt"})
	all, err := operate.Healths(t.Context(), store)
	require.NoError(t, err)
	for _, h := range all {
		require.Empty(t, h.Causes, h.Name)
	}
}

// A page whose server goes away says so, and comes back by itself.
func TestAnOpenPageSaysThatItsServerIsAway(t *testing.T) {
	t.Parallel()
	_, _, server := newShop(t)
	b := newBrowser(t)
	b.run(t, chromedp.Navigate(server.URL+"/queues"), chromedp.WaitVisible("#view h1"))
	require.NoError(t, server.Close())
	b.run(t, chromedp.WaitVisible("#away"))
	serve(t, server.address, server.Handler)
	b.run(t, chromedp.WaitNotVisible("#away"))
}
