package idempotency

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// recording returns a recorder with a limit.
func recording(w http.ResponseWriter, limit int) *recorder {
	return newRecorder(w, limit)
}

// record runs a handler against a recorder and sends the response that it recorded.
func record(limit int, h http.HandlerFunc) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		rec := recording(w, limit)
		defer rec.close()
		h(rec, r)
		if _, err := rec.end(); err != nil {
			panic(http.ErrAbortHandler)
		}
		rec.send(w)
	}
}

func get(t *testing.T, h http.HandlerFunc) (*http.Response, []byte, error) {
	t.Helper()
	server := httptest.NewServer(h)
	defer server.Close()
	request, err := http.NewRequestWithContext(t.Context(), http.MethodGet, server.URL, nil)
	require.NoError(t, err)
	response, err := server.Client().Do(request)
	if err != nil {
		return nil, nil, err
	}
	defer response.Body.Close()
	body, err := io.ReadAll(response.Body)
	response.Header.Del("Date")
	return response, body, err
}

// The handlers that the recorder and net/http have to agree on.
var handlers = map[string]http.HandlerFunc{
	"nothing":            func(http.ResponseWriter, *http.Request) {},
	"a status alone":     func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusAccepted) },
	"a body alone":       func(w http.ResponseWriter, _ *http.Request) { fmt.Fprint(w, "hello") },
	"an empty write":     func(w http.ResponseWriter, _ *http.Request) { _, _ = w.Write(nil) },
	"a text as a string": func(w http.ResponseWriter, _ *http.Request) { _, _ = io.WriteString(w, "hello") },
	"HTML":               func(w http.ResponseWriter, _ *http.Request) { fmt.Fprint(w, "<html><body>") },
	"HTML in two writes": func(w http.ResponseWriter, _ *http.Request) { fmt.Fprint(w, "<ht"); fmt.Fprint(w, "ml>") },
	"bytes":              func(w http.ResponseWriter, _ *http.Request) { _, _ = w.Write([]byte{0, 1, 0xff, 0xfe}) },
	"a status twice": func(w http.ResponseWriter, _ *http.Request) {
		w.WriteHeader(http.StatusCreated)
		w.WriteHeader(http.StatusInternalServerError)
	},
	"a status too late": func(w http.ResponseWriter, _ *http.Request) {
		fmt.Fprint(w, "a")
		w.WriteHeader(http.StatusInternalServerError)
	},
	"early hints": func(w http.ResponseWriter, _ *http.Request) {
		w.WriteHeader(http.StatusEarlyHints)
		w.WriteHeader(http.StatusCreated)
	},
	"204 with a body": func(w http.ResponseWriter, _ *http.Request) {
		w.WriteHeader(http.StatusNoContent)
		fmt.Fprint(w, "hello")
	},
	"304 with a body": func(w http.ResponseWriter, _ *http.Request) {
		w.WriteHeader(http.StatusNotModified)
		fmt.Fprint(w, "hello")
	},
	"204 with a length": func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Length", "5")
		w.WriteHeader(http.StatusNoContent)
	},
	"a header too late":  func(w http.ResponseWriter, _ *http.Request) { fmt.Fprint(w, "a"); w.Header().Set("X-Late", "1") },
	"a header twice":     func(w http.ResponseWriter, _ *http.Request) { w.Header()["X-Two"] = []string{"1", "2"} },
	"a header of a line": func(w http.ResponseWriter, _ *http.Request) { w.Header().Set("X-Line", "a\r\nX-Split: b") },
	"no content type": func(w http.ResponseWriter, _ *http.Request) {
		w.Header()["Content-Type"] = nil
		fmt.Fprint(w, "<html>")
	},
	"an own content type": func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "a/b")
		fmt.Fprint(w, "<html>")
	},
	"a content encoding": func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Encoding", "gzip")
		fmt.Fprint(w, "x")
	},
	"the length it has": func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Length", "5")
		fmt.Fprint(w, "hello")
	},
	"more than its length": func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Length", "1")
		fmt.Fprint(w, "a")
		fmt.Fprint(w, "b")
	},
	"less than its length": func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Length", "9")
		fmt.Fprint(w, "hello")
	},
	"a length of letters": func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Length", "x")
		fmt.Fprint(w, "hello")
	},
	"a cookie":     func(w http.ResponseWriter, _ *http.Request) { http.SetCookie(w, &http.Cookie{Name: "a", Value: "b"}) },
	"an error":     func(w http.ResponseWriter, _ *http.Request) { http.Error(w, "no", http.StatusTeapot) },
	"a redirect":   func(w http.ResponseWriter, r *http.Request) { http.Redirect(w, r, "/there", http.StatusSeeOther) },
	"a large body": func(w http.ResponseWriter, _ *http.Request) { fmt.Fprint(w, strings.Repeat("0123456789", 10_000)) },
	"a file": func(w http.ResponseWriter, r *http.Request) {
		http.ServeContent(w, r, "a.css", time.Time{}, strings.NewReader("body {}"))
	},
}

func TestAResponseIsRecordedAsNetHTTPSendsIt(t *testing.T) {
	t.Parallel()
	for name, h := range handlers {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			want, wantBody, wantErr := get(t, h)
			got, gotBody, gotErr := get(t, record(256<<10, h))

			require.Equal(t, wantErr == nil, gotErr == nil, "%v, %v", wantErr, gotErr)
			if wantErr != nil && (want == nil || got == nil) {
				return // both ended the connection in mid-air
			}
			require.Equal(t, want.StatusCode, got.StatusCode)
			require.Equal(t, string(wantBody), string(gotBody))
			want.Header.Del("Content-Length") // which net/http knows of short bodies
			got.Header.Del("Content-Length")
			require.Equal(t, want.Header, got.Header)
		})
	}
}

func TestAWriteReturnsWhatNetHTTPReturns(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct {
		h    http.HandlerFunc
		want error
	}{
		"no body":   {func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusNoContent) }, http.ErrBodyNotAllowed},
		"no length": {func(w http.ResponseWriter, _ *http.Request) { w.Header().Set("Content-Length", "1") }, http.ErrContentLength},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			rec := recording(httptest.NewRecorder(), 100)
			test.h(rec, nil)

			n, err := rec.Write([]byte("ab"))

			require.Zero(t, n)
			require.ErrorIs(t, err, test.want)
			if _, err = rec.end(); name == "no length" {
				require.EqualError(t, err, "the handler wrote another length than it had declared: more than 1 bytes")
			}
		})
	}
}

// A handler that takes longer than the server's time-outs says so, as it does without the middleware.
func TestDeadlinesOfTheConnectionAreTheHandlers(t *testing.T) {
	t.Parallel()
	for name, set := range map[string]func(*http.ResponseController, time.Time) error{
		"read": (*http.ResponseController).SetReadDeadline, "write": (*http.ResponseController).SetWriteDeadline,
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			_, body, err := get(t, record(100, func(w http.ResponseWriter, _ *http.Request) {
				control := http.NewResponseController(w)
				fmt.Fprint(w, "a", errors.Join(control.EnableFullDuplex(), set(control, time.Now().Add(time.Hour))))
			}))
			require.NoError(t, err)
			require.Equal(t, "a<nil>", string(body))

			if name == "write" {
				_, _, err = get(t, record(100, func(w http.ResponseWriter, _ *http.Request) {
					fmt.Fprint(w, "a", set(http.NewResponseController(w), time.Now().Add(-time.Hour)))
				}))
				require.Error(t, err, "it reaches the connection")
			}
		})
	}
	rec := recording(httptest.NewRecorder(), 100)
	control := http.NewResponseController(rec)
	require.ErrorIs(t, control.SetWriteDeadline(time.Now()), http.ErrNotSupported, "as the writer around it")
	require.ErrorIs(t, control.Flush(), http.ErrNotSupported)
	_, _, err := control.Hijack()
	require.ErrorIs(t, err, http.ErrNotSupported)
	rec.stop()
	_, err = io.WriteString(rec, "a")
	require.ErrorIs(t, err, errEnded)
	require.ErrorIs(t, control.SetWriteDeadline(time.Now()), errEnded)
	require.ErrorIs(t, control.SetReadDeadline(time.Now()), errEnded)
	require.ErrorIs(t, control.EnableFullDuplex(), errEnded)
}

func TestAWriteAfterTheEndFails(t *testing.T) {
	t.Parallel()
	rec := recording(httptest.NewRecorder(), 100)
	fmt.Fprint(rec, "a")
	response, err := rec.end()
	require.NoError(t, err)

	_, err = rec.Write([]byte("b"))
	rec.WriteHeader(http.StatusInternalServerError)

	require.ErrorIs(t, err, errEnded)
	require.Equal(t, "a", string(response.Body))
	require.Equal(t, 200, response.Status)
}

func TestAStatusThatIsNonePanicsAsInNetHTTP(t *testing.T) {
	t.Parallel()
	for _, status := range []int{-1, 0, 99, 1000} {
		require.PanicsWithValue(t, fmt.Sprintf("invalid WriteHeader code %v", status), func() {
			recording(httptest.NewRecorder(), 100).WriteHeader(status)
		})
	}
}

func TestATrailerIsNotSent(t *testing.T) {
	t.Parallel()
	response, _, err := get(t, record(100, func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Trailer", "X-Sum")
		w.Header().Set(http.TrailerPrefix+"X-Other", "1")
		fmt.Fprint(w, "a")
		w.Header().Set("X-Sum", "1")
	}))

	require.NoError(t, err)
	require.Empty(t, response.Trailer)
	require.Empty(t, response.Header.Get("X-Sum"))
}

// For any sizes of the writes, and any limit.
func TestABodyIsWholeUpToTheLimit(t *testing.T) {
	t.Parallel()
	parts := []int{1, 0, 900, 123, 1, 24, 225, 3, 96, 1, 1, 700, 5}
	for limit := range 2500 {
		rec, want, refused := recording(httptest.NewRecorder(), limit), []byte(nil), false
		for i, n := range parts {
			part := bytes.Repeat([]byte{byte('a' + i)}, n)
			refused = refused || len(want)+n > limit
			want = append(want, part...)

			got, err := rec.Write(part)

			if refused && n > 0 {
				require.ErrorIs(t, err, ErrResponseTooLarge)
				require.Zero(t, got)
				require.Empty(t, rec.response.Body, "it takes no memory")
				continue
			}
			require.NoError(t, err)
			require.Equal(t, n, got)
		}
		for range 2 { // the end stays
			response, err := rec.end()
			require.Equal(t, 200, response.Status)
			require.Equal(t, refused, errors.Is(err, ErrResponseTooLarge), "%d: %v", limit, err)
		}
		if refused {
			continue
		}
		w := httptest.NewRecorder()
		rec.send(w)
		require.Equal(t, string(want), w.Body.String(), limit)
		require.Equal(t, fmt.Sprint(len(want)), w.Header().Get("Content-Length"))
		require.Equal(t, "text/plain; charset=utf-8", w.Header().Get("Content-Type"))
	}
}
