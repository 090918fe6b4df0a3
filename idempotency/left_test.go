package idempotency_test

import (
	"bytes"
	"io"
	"mime/multipart"
	"net/http"
	"net/http/httptest"
	"os"
	"strconv"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/dibs-go/dibs/idempotency"
)

// A handler that does not stop owns its writer and its request: nothing of them is read or written
// beside it. The race detector sees what is, and a map that is shared ends the process.
func TestAHandlerThatIsLeftOwnsItsWriterAndItsRequest(t *testing.T) {
	t.Parallel()
	for name, use := range map[string]func(w http.ResponseWriter, r *http.Request, i int){
		"header":       func(w http.ResponseWriter, _ *http.Request, i int) { w.Header().Set("X-"+strconv.Itoa(i), "1") },
		"header, gone": func(w http.ResponseWriter, _ *http.Request, _ int) { clear(w.Header()) },
		"trailer": func(w http.ResponseWriter, _ *http.Request, i int) {
			w.Header().Add(http.TrailerPrefix+"X", strconv.Itoa(i))
		},
		"status": func(w http.ResponseWriter, _ *http.Request, i int) {
			w.Header().Set("X", "1")
			w.WriteHeader(200 + i%3)
		},
		"body": func(w http.ResponseWriter, _ *http.Request, _ int) {
			w.Header().Set("X", "1")
			_, _ = w.Write(make([]byte, 1000))
		},
		"request header": func(_ http.ResponseWriter, r *http.Request, i int) { r.Header.Set("X-"+strconv.Itoa(i), "1") },
		"request URL":    func(_ http.ResponseWriter, r *http.Request, i int) { r.URL.Path = "/" + strconv.Itoa(i) },
		"request form":   func(_ http.ResponseWriter, r *http.Request, i int) { r.Form.Set(strconv.Itoa(i), "1") },
		"request trailer": func(_ http.ResponseWriter, r *http.Request, i int) {
			r.Trailer.Set("X-"+strconv.Itoa(i), "1")
		},
		"request body": func(_ http.ResponseWriter, r *http.Request, _ int) { _, _ = r.Body.Read(make([]byte, 1)) },
		"deadlines": func(w http.ResponseWriter, _ *http.Request, _ int) {
			control := http.NewResponseController(w)
			_ = control.SetReadDeadline(time.Now())
			_ = control.SetWriteDeadline(time.Now())
			_ = control.EnableFullDuplex()
			_ = control.Flush()
			_, _, _ = control.Hijack()
		},
		"forget": func(_ http.ResponseWriter, r *http.Request, _ int) { idempotency.Forget(r.Context()) },
		"response": func(_ http.ResponseWriter, r *http.Request, _ int) {
			_, _ = idempotency.Response{Header: http.Header{"Link": {"a"}}}.Write(r.Context())
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				stop, stopped := make(chan struct{}), make(chan struct{})
				b := newBubble(t, newStore(), &idempotency.Config{Timeout: time.Second}, func(w http.ResponseWriter, r *http.Request) {
					defer close(stopped)
					r.Form = r.URL.Query()
					for i := 0; ; i++ {
						use(w, r, i%100)
						select {
						case <-stop:
							return
						default:
							time.Sleep(10 * time.Millisecond)
						}
					}
				})
				w := unsafeWriter{httptest.NewRecorder()}
				r := httptest.NewRequestWithContext(t.Context(), http.MethodPost, "/?a=1", io.MultiReader())
				r.ContentLength = 0
				r.Header.Set(idempotency.Header, "AAA")
				r.Trailer = http.Header{"X": nil}

				b.handler.ServeHTTP(w, r)

				require.Equal(t, 503, w.Code)
				require.NotEmpty(t, w.Header().Get("Retry-After"))
				require.Equal(t, "unavailable", w.Header().Get(idempotency.ProblemHeader))
				for range 100 { // a middleware around it goes on with its own
					w.Header().Set("X-Outer", "1")
					r.Header.Set("X-Outer", "1")
					r.Trailer.Set("X-Outer", "1")
					r.URL.Path += "a"
					_, _ = r.Body.Read(make([]byte, 1))
					_, _ = io.WriteString(w, "a")
					time.Sleep(10 * time.Millisecond)
				}
				close(stop)
				<-stopped
			})
		})
	}
}

// An unsafeWriter is for one goroutine at a time, also its deadlines.
type unsafeWriter struct{ *httptest.ResponseRecorder }

func (w unsafeWriter) SetReadDeadline(time.Time) error  { w.Flushed = !w.Flushed; return nil }
func (w unsafeWriter) SetWriteDeadline(time.Time) error { w.Flushed = !w.Flushed; return nil }
func (w unsafeWriter) EnableFullDuplex() error          { w.Flushed = !w.Flushed; return nil }

// Net/http removes those of the request that it knows, which is another.
func TestFilesOfAFormAreRemovedWhateverTheHandlerDoes(t *testing.T) { // no other test may have files meanwhile
	for name, end := range map[string]func(){"returns": func() {}, "panics": func() { panic(http.ErrAbortHandler) }} {
		t.Run(name, func(t *testing.T) {
			dir := t.TempDir()
			t.Setenv("TMPDIR", dir)
			var files atomic.Int32
			a := newAPI(t, newStore(), &idempotency.Config{MaxBody: 64 << 20}, func(_ http.ResponseWriter, r *http.Request) {
				if _, _, err := r.FormFile("receipt"); err != nil {
					panic(err)
				}
				entries, _ := os.ReadDir(dir)
				files.Store(int32(len(entries)))
				end()
			})
			quiet(a)
			var body bytes.Buffer
			form := multipart.NewWriter(&body)
			part, err := form.CreateFormFile("receipt", "receipt.pdf")
			require.NoError(t, err)
			_, err = part.Write(make([]byte, 40<<20)) // above what a form has in memory
			require.NoError(t, err)
			require.NoError(t, form.Close())

			_, _ = a.try(t.Context(), ask{key: "AAA", body: body.String(), header: []string{"Content-Type", form.FormDataContentType()}})

			require.EqualValues(t, 1, files.Load())
			entries, err := os.ReadDir(dir)
			require.NoError(t, err)
			require.Empty(t, entries)
		})
	}
}
