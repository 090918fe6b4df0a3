package ui_test

import (
	"bufio"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"net/url"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/dibs-go/dibs/handler"
	"github.com/dibs-go/dibs/internal/testkit"
	"github.com/dibs-go/dibs/logger"
	"github.com/dibs-go/dibs/messagestore"
	"github.com/dibs-go/dibs/messagestore/memory"
	"github.com/dibs-go/dibs/operate"
	"github.com/dibs-go/dibs/queue"
	"github.com/dibs-go/dibs/queue/cron"
	"github.com/dibs-go/dibs/saga"
	"github.com/dibs-go/dibs/ui"
)

const script = `<script>alert("x")</script>&'`

// mailing is a store whose queue has three dead items, with a script in each text that a page shows.
func mailing(t *testing.T) (*messagestore.Store, *queue.Queue) {
	t.Helper()
	store := testkit.Must(messagestore.New(memory.New(), &messagestore.Config{Logger: logger.Silent()}))
	q := testkit.Must(queue.New(store, "mail", &queue.Config{MaxFailures: 1, Logger: logger.Silent()}))
	for range 3 {
		testkit.Do(q.Insert(t.Context(), messagestore.Raw{Type: "Send", Data: []byte(`{"text":"<script>secret</script>"}`)}, &queue.InsertOpts{Key: script}))(t)
	}
	for range 3 {
		for _, job := range testkit.Do(q.Receive(t.Context(), 3, nil))(t) {
			require.NoError(t, job.Bury(t.Context(), errors.New(script)))
		}
	}
	return store, q
}

func page(t *testing.T, store *messagestore.Store, config *ui.Config) *httptest.Server {
	t.Helper()
	if config == nil {
		config = &ui.Config{}
	}
	config.Logger, config.Every = logger.Silent(), 100*time.Millisecond
	mux := http.NewServeMux()
	mux.Handle("/ops/dibs/", http.StripPrefix("/ops/dibs", testkit.Must(ui.New(store, config))))
	server := httptest.NewServer(mux)
	t.Cleanup(server.Close)
	return server
}

// get returns the status and the text of a view.
func get(t *testing.T, server *httptest.Server, view string) (int, string) {
	t.Helper()
	answer := testkit.Do(server.Client().Get(server.URL + "/ops/dibs/" + view))(t)
	defer answer.Body.Close()
	require.Contains(t, answer.Header.Get("Content-Security-Policy"), "default-src 'none'")
	return answer.StatusCode, string(testkit.Do(io.ReadAll(answer.Body))(t))
}

func post(t *testing.T, server *httptest.Server, origin string, form url.Values) (int, string) {
	t.Helper()
	r := testkit.Do(http.NewRequestWithContext(t.Context(), http.MethodPost, server.URL+"/ops/dibs/act", strings.NewReader(form.Encode())))(t)
	r.Header.Set("Content-Type", "application/x-www-form-urlencoded")
	r.Header.Set("Origin", origin)
	answer := testkit.Do(server.Client().Do(r))(t)
	defer answer.Body.Close()
	return answer.StatusCode, string(testkit.Do(io.ReadAll(answer.Body))(t))
}

var views = []string{
	"", "consumers", "queues", "queue?name=mail&category=mail", "item?queue=mail&category=mail&position=1", "sagas", "schedules", "intents", "streams", "store",
	"category?name=mail", "story?id=" + url.QueryEscape(string(messagestore.Category("mail").Stream(script))), "story",
	"act?do=retry&on=queue&category=mail&name=mail&state=dead",
}

func TestEachViewShowsTextsAsTexts(t *testing.T) {
	t.Parallel()
	store, _ := mailing(t)
	server := page(t, store, nil)
	for _, view := range views {
		status, text := get(t, server, view)
		require.Equal(t, http.StatusOK, status, "%s: %s", view, text)
		require.NotContains(t, text, "<script>alert", view)
		require.NotContains(t, text, "<script>secret", view)
		require.NotContains(t, text, `="/`, "%s has a link that no prefix has", view)
	}
	_, text := get(t, server, "")
	require.Contains(t, text, "dead 3")
	require.Contains(t, text, `href="./act?category=mail&amp;do=retry&amp;like=`)
	_, text = get(t, server, "item?queue=mail&category=mail&position=1")
	require.Contains(t, text, "secret")
}

func TestRelaysAreApartFromOtherQueues(t *testing.T) {
	t.Parallel()
	store, _ := mailing(t)
	relay := testkit.Must(queue.New(store, "mail", &queue.Config{Name: "webhook", Logger: logger.Silent()}))
	require.NoError(t, relay.Pause(t.Context()))
	_, text := get(t, page(t, store, nil), "queues")
	plain, named, found := strings.Cut(text, "<h2>Relays, and queues with a name of their own</h2>")
	require.True(t, found)
	named, _, _ = strings.Cut(named, "</table>")
	require.Contains(t, plain, ">mail</a>")
	require.NotContains(t, plain, ">webhook</a>")
	require.Contains(t, named, ">webhook</a>")
	require.NotContains(t, named, ">mail</a>")
}

func TestDataMayBeHidden(t *testing.T) {
	t.Parallel()
	store, _ := mailing(t)
	server := page(t, store, &ui.Config{HideData: true})
	for _, view := range views {
		_, text := get(t, server, view)
		require.NotContains(t, text, "secret", view)
	}
}

func TestBadInputIsAnswered(t *testing.T) {
	t.Parallel()
	store, _ := mailing(t)
	server := page(t, store, nil)
	for view, want := range map[string]int{
		"queue?name=none&category=none":                               http.StatusNotFound,
		"queue?name=mail&category=mail&state=moon":                    http.StatusBadRequest,
		"queue?name=" + url.QueryEscape("a\x00b"):                     http.StatusBadRequest,
		"item?queue=mail&category=mail&position=99999999999999999999": http.StatusBadRequest,
		"item?queue=mail&category=mail&position=77":                   http.StatusNotFound,
		"story?id=" + url.QueryEscape("a-/../../b"):                   http.StatusNotFound,
		"story?id=" + strings.Repeat("x", 8000):                       http.StatusBadRequest,
		"story?id=k&category=" + url.QueryEscape("../\x00%"):          http.StatusBadRequest,
		"stream?name=none-1":                                          http.StatusNotFound,
		"category?name=none":                                          http.StatusNotFound,
		"category?name=mail&from=-1":                                  http.StatusBadRequest,
		"act?do=burn&on=queue&category=mail&name=mail":                http.StatusBadRequest,
		"act?do=retry&on=moon&category=mail":                          http.StatusBadRequest,
		"saga?category=mail&id=x":                                     http.StatusBadRequest,
		"saga?category=stay:saga&id=x":                                http.StatusNotFound,
		"saga?category=stay:saga":                                     http.StatusBadRequest,
		"saga?category=stay:saga&id=" + strings.Repeat("x", 8000):     http.StatusBadRequest,
		"saga?category=stay:saga&id=" + url.QueryEscape("a\x00"):      http.StatusBadRequest,
		"act?do=run&on=schedule&category=mail&name=none":              http.StatusNotFound,
		"act?do=retry&on=schedule&category=mail&name=none":            http.StatusBadRequest,
		"act?do=run&on=schedule&category=" + url.QueryEscape("\x00"):  http.StatusBadRequest,
		"live?view=nothing":                                           http.StatusNotFound,
		"nothing":                                                     http.StatusNotFound,
		"static/../ui.go":                                             http.StatusNotFound,
	} {
		status, text := get(t, server, view)
		require.Equal(t, want, status, "%.80s: %s", view, text)
	}
}

func TestAnActIsMadeOnceAsItWasShown(t *testing.T) {
	t.Parallel()
	store, q := mailing(t)
	form := url.Values{"do": {"retry"}, "on": {"queue"}, "category": {"mail"}, "name": {"mail"}, "state": {"dead"}}
	act := operate.Act{Do: "retry", On: operate.OnQueue, Category: "mail", Name: "mail", State: queue.Dead}
	form.Set("seen", testkit.Do(act.Preview(t.Context(), store))(t).Seen)

	reading := page(t, store, nil)
	status, text := post(t, reading, reading.URL, form)
	require.Equal(t, http.StatusForbidden, status, text)

	server := page(t, store, &ui.Config{Operate: true, User: func(*http.Request) string { return "ann" }})
	status, text = post(t, server, server.URL, form)
	require.Equal(t, http.StatusBadRequest, status, "without a reason: %s", text)
	form.Set("reason", "it is back")
	status, _ = post(t, server, "https://elsewhere.example", form)
	require.Equal(t, http.StatusForbidden, status, "of another origin")
	forged := url.Values{"do": {"retry"}, "on": {"queue"}, "category": {"mail"}, "name": {"mail"}, "state": {"dead"}, "reason": {"x"}, "seen": {"forged"}}
	status, _ = post(t, server, server.URL, forged)
	require.Equal(t, http.StatusConflict, status)
	require.Len(t, testkit.Do(q.Items(t.Context(), queue.Dead, 0, 10))(t), 3, "nothing is done yet")

	status, text = post(t, server, server.URL, form)
	require.Equal(t, http.StatusOK, status, text)
	require.Contains(t, text, "retry: 3 changed")
	item := testkit.Do(q.Item(t.Context(), 1))(t)
	require.Equal(t, "ann: it is back", item.Log[len(item.Log)-1].Text)
	status, text = post(t, server, server.URL, form)
	require.Equal(t, http.StatusConflict, status, "twice: %s", text)
	require.Contains(t, text, "There is nothing to change")
}

// stay is a saga whose car is refused after an attempt that failed, and whose hotel was undone.
func stay(t *testing.T, store *messagestore.Store) {
	t.Helper()
	hotel := saga.NewStep("hotel", func(_ context.Context, city string) (string, error) { return script + city, nil },
		func(context.Context, string, *string) error { return nil }, nil)
	tries := 0
	car := saga.NewStep("car", func(context.Context, string) (string, error) {
		if tries++; tries == 1 {
			return "", errors.New("the line is dead")
		}
		return "", handler.Refuse(errors.New(script))
	}, func(context.Context, string, *string) error { return nil }, &saga.StepConfig{Retry: saga.Retry{MinBackoff: time.Millisecond, MaxBackoff: time.Millisecond}})
	stays := testkit.Must(saga.New(store, "stay", func(r *saga.Run, city string) (string, error) {
		if _, err := hotel.Do(r, city); err != nil {
			return "", err
		}
		return car.Do(r, city)
	}, saga.Steps{hotel, car}, &saga.Config{Logger: logger.Silent()}))
	testkit.Do(stays.Begin(t.Context(), "s/1", "LIS"))(t)
	ctx, stop := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- stays.Run(ctx) }()
	testkit.Do(stays.Wait(t.Context(), "s/1"))(t)
	stop()
	require.NoError(t, testkit.Receive(t, "the end", ended))
}

func TestASagaShowsEachUndoBesideItsStep(t *testing.T) {
	t.Parallel()
	store := testkit.Must(messagestore.New(memory.New(), &messagestore.Config{Logger: logger.Silent()}))
	stay(t, store)
	server := page(t, store, nil)
	status, text := get(t, server, "saga?category=stay:saga&id="+url.QueryEscape("s/1"))
	require.Equal(t, http.StatusOK, status, text)
	require.NotContains(t, text, "<script>alert")
	require.Contains(t, text, "compensated</strong>")
	row := func(step string) (did, undid string) {
		_, after, found := strings.Cut(text, `<th scope="row">`+step)
		require.True(t, found, "%s: %s", step, text)
		after, _, _ = strings.Cut(after, "</tr>")
		cells := strings.Split(after, "<td>")
		require.Len(t, cells, 4, after)
		return cells[2], cells[3]
	}
	did, undid := row("hotel")
	require.Contains(t, did, "hotel is done")
	require.NotContains(t, did, "undone")
	require.Contains(t, undid, "hotel is undone")
	did, _ = row("car")
	require.Contains(t, did, "car failed, attempt 1: the line is dead; the next at")
	require.Contains(t, did, "car failed, attempt 2")
	for _, class := range []string{"did", "undid", "failed", "waits"} {
		require.Contains(t, text, `<rect class="`+class+`"`)
	}
	require.NotContains(t, text, `<tr class="vain">`)
	stream := messagestore.Category("stay:saga").Stream("s/1")
	testkit.Do(store.Write(t.Context(), stream, messagestore.AnyVersion, messagestore.Raw{Type: "CancelRequested", Data: []byte(`{"reason":"too late"}`)}))(t)
	_, text = get(t, server, "saga?category=stay:saga&id="+url.QueryEscape("s/1"))
	_, text, _ = strings.Cut(text, `<tr class="vain">`)
	require.Contains(t, text, "too late; it changes nothing", "what changes nothing is grey")
	status, _ = get(t, server, "saga?category=stay:saga&id=none")
	require.Equal(t, http.StatusNotFound, status)
	_, text = get(t, page(t, store, &ui.Config{HideData: true}), "saga?category=stay:saga&id="+url.QueryEscape("s/1"))
	require.NotContains(t, text, "LIS")
}

func TestTheDoctorIsAskedSeldom(t *testing.T) {
	t.Parallel()
	store, _ := mailing(t)
	asked := 0
	server := page(t, store, &ui.Config{Doctor: func(context.Context) ([]operate.Finding, error) {
		asked++
		return []operate.Finding{{Group: "storage", Verdict: operate.VerdictOK, Says: "small"}, {Group: "settings", Verdict: operate.VerdictFail, Says: script}}, nil
	}})
	for range 3 {
		status, text := get(t, server, "store")
		require.Equal(t, http.StatusOK, status, text)
		require.NotContains(t, text, "<script>alert")
		require.Less(t, strings.Index(text, "settings"), strings.Index(text, "storage"), "the worst first")
	}
	require.Equal(t, 1, asked)
	_, text := get(t, page(t, store, &ui.Config{Doctor: func(context.Context) ([]operate.Finding, error) { return nil, errors.New("no way in") }}), "store")
	require.Contains(t, text, "It could not look: no way in")
	_, text = get(t, page(t, store, nil), "store")
	require.Contains(t, text, "Nobody was asked here")
}

func TestAScheduleIsRunNowThroughThePageOnce(t *testing.T) {
	t.Parallel()
	store := testkit.Must(messagestore.New(memory.New(), &messagestore.Config{Logger: logger.Silent()}))
	schedules := testkit.Must(cron.New(store, "report", nil))
	require.NoError(t, schedules.Set(t.Context(), cron.Schedule{Name: "daily", Spec: "0 6 * * *", Body: messagestore.Raw{Type: "Report", Data: []byte(`{}`)}}))
	server := page(t, store, &ui.Config{Operate: true})
	_, text := get(t, server, "schedules")
	require.Contains(t, text, `href="./act?category=report&amp;do=run&amp;name=daily&amp;on=schedule"`)
	status, text := get(t, server, "act?do=run&on=schedule&category=report&name=daily")
	require.Equal(t, http.StatusOK, status, text)
	require.Contains(t, text, `name="seen" value="-1"`)
	form := url.Values{"do": {"run"}, "on": {"schedule"}, "category": {"report"}, "name": {"daily"}, "seen": {"-1"}, "reason": {"now"}}
	answers := make(chan int, 4)
	for range cap(answers) {
		go func() {
			status, _ := post(t, server, server.URL, form)
			answers <- status
		}()
	}
	for range cap(answers) {
		require.Contains(t, []int{http.StatusOK, http.StatusConflict}, testkit.Receive(t, "an answer", answers))
	}
	require.Equal(t, messagestore.Version(0), testkit.Do(store.Version(t.Context(), "report-daily"))(t), "one item")
	status, text = post(t, server, server.URL, url.Values{"do": {"run"}, "on": {"schedule"}, "category": {"report"}, "name": {"none"}, "seen": {"-1"}, "reason": {"now"}})
	require.Equal(t, http.StatusNotFound, status, text)
}

func TestOnlyAPageThatMayChangeRecordsCards(t *testing.T) {
	t.Parallel()
	store, q := mailing(t)
	reading := page(t, store, nil)
	await(t, events(t, reading, ""), "dead 3")
	reading.CloseClientConnections()
	history := testkit.Do(operate.CardHistory(t.Context(), store, 10))(t)
	require.Empty(t, history)
	server := page(t, store, &ui.Config{Operate: true})
	home := events(t, server, "")
	await(t, home, "raised</td>")
	require.Len(t, testkit.Do(operate.CardHistory(t.Context(), store, 10))(t), 1)
	server.CloseClientConnections()
	testkit.Do(q.Drop(t.Context(), "", 1, 2, 3))(t)
	another := page(t, store, &ui.Config{Operate: true})
	await(t, events(t, another, ""), "resolved</td>")
	another.CloseClientConnections()
}

// events reads the events of a live view.
func events(t *testing.T, server *httptest.Server, view string) *bufio.Scanner {
	t.Helper()
	r := testkit.Do(http.NewRequestWithContext(t.Context(), http.MethodGet, server.URL+"/ops/dibs/live?view="+url.QueryEscape(view), nil))(t)
	answer := testkit.Do(server.Client().Do(r))(t)
	t.Cleanup(func() { answer.Body.Close() })
	require.Equal(t, "text/event-stream", answer.Header.Get("Content-Type"))
	return bufio.NewScanner(answer.Body)
}

func await(t *testing.T, lines *bufio.Scanner, text string) {
	t.Helper()
	found := make(chan error, 1)
	go func() {
		for lines.Scan() {
			if strings.Contains(lines.Text(), text) {
				found <- nil
				return
			}
		}
		found <- fmt.Errorf("no line has %q: %w", text, lines.Err())
	}()
	require.NoError(t, testkit.Receive(t, text, found))
}

func TestOpenPagesAreLive(t *testing.T) {
	t.Parallel()
	store, q := mailing(t)
	server := page(t, store, nil)
	for range 200 { // as many as people open
		go func() {
			answer, err := server.Client().Get(server.URL + "/ops/dibs/live?view=queues")
			if err == nil {
				_, _ = io.Copy(io.Discard, answer.Body)
				answer.Body.Close()
			}
		}()
	}
	home := events(t, server, "")
	await(t, home, "dead 3")
	require.NoError(t, q.Pause(t.Context()))
	await(t, home, "is paused")
	testkit.Do(q.Drop(t.Context(), "", 1, 2, 3))(t)
	require.NoError(t, q.Resume(t.Context()))
	await(t, home, "Nothing needs you")
	server.CloseClientConnections()
}

func TestVendoredFilesAreThoseThatWereTaken(t *testing.T) {
	t.Parallel()
	want := testkit.Do(os.ReadFile("static/SHA256SUMS"))(t)
	for line := range strings.Lines(string(want)) {
		sum, name, _ := strings.Cut(strings.TrimSpace(line), "  ")
		hash := sha256.Sum256(testkit.Do(os.ReadFile("static/" + name))(t))
		require.Equal(t, sum, hex.EncodeToString(hash[:]), name)
	}
	require.GreaterOrEqual(t, strings.Count(string(want), "\n"), 2)
}

func TestAPageNeedsAStore(t *testing.T) {
	t.Parallel()
	for _, config := range []*ui.Config{nil, {Every: time.Millisecond}, {Timeout: -1}} {
		_, err := ui.New(nil, config)
		require.ErrorIs(t, err, messagestore.ErrInvalid)
	}
}
