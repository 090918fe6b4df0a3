package serve_test

import (
	"io"
	"net/http"
	"net/http/httptest"
	"testing"

	"connectrpc.com/connect"
	"github.com/stretchr/testify/require"

	"github.com/dibs-go/dibs"
	"github.com/dibs-go/dibs/internal/pgtest"
	"github.com/dibs-go/dibs/logger"
	"github.com/dibs-go/dibs/messagestore"
	"github.com/dibs-go/dibs/serve"
	"github.com/dibs-go/dibs/serve/servetest"
)

func open(t *testing.T) *messagestore.Store {
	t.Helper()
	store, err := dibs.Open(t.Context(), "sqlite:"+t.TempDir()+"/dibs.db", &messagestore.Config{Logger: logger.Silent()})
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, store.Close()) })
	return store
}

// start serves a store in this process, and returns the URL.
func start(t *testing.T, store *messagestore.Store, config *serve.Config) string {
	t.Helper()
	if config == nil {
		config = &serve.Config{}
	}
	config.Logger = logger.Silent()
	server, err := serve.New(store, config)
	require.NoError(t, err)
	h := httptest.NewUnstartedServer(server.Handler())
	h.Config.Protocols = &http.Protocols{}
	h.Config.Protocols.SetHTTP1(true)
	h.Config.Protocols.SetUnencryptedHTTP2(true)
	h.Start()
	t.Cleanup(func() {
		server.Drain()
		h.Close()
	})
	return h.URL
}

// h2c is a client that speaks HTTP/2 without TLS.
func h2c(t *testing.T) *http.Client {
	t.Helper()
	transport := &http.Transport{Protocols: &http.Protocols{}}
	transport.Protocols.SetUnencryptedHTTP2(true)
	t.Cleanup(transport.CloseIdleConnections)
	return &http.Client{Transport: transport}
}

func http1(t *testing.T) *http.Client {
	t.Helper()
	transport := &http.Transport{MaxIdleConnsPerHost: 16}
	t.Cleanup(transport.CloseIdleConnections)
	return &http.Client{Transport: transport}
}

func TestServicesOnSQLite(t *testing.T) { testServices(t, open(t)) }

func TestServicesOnPostgreSQL(t *testing.T) {
	store, err := dibs.Open(t.Context(), pgtest.Migrated(t), &messagestore.Config{Logger: logger.Silent()})
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, store.Close()) })
	testServices(t, store)
}

func testServices(t *testing.T, store *messagestore.Store) {
	url := start(t, store, nil)
	for _, way := range []struct {
		name    string
		client  func(t *testing.T) *http.Client
		options []connect.ClientOption
	}{
		{"GRPC", h2c, []connect.ClientOption{connect.WithGRPC()}},
		{"GRPCWeb", http1, []connect.ClientOption{connect.WithGRPCWeb()}},
		{"JSON", http1, []connect.ClientOption{connect.WithProtoJSON()}},
	} {
		t.Run(way.name, func(t *testing.T) {
			t.Parallel()
			servetest.Run(t, servetest.Options{Dial: func(t *testing.T) servetest.Services {
				return servetest.Connect(way.client(t), url, way.options...)
			}})
		})
	}
}

func do(t *testing.T, r *http.Request) (int, string) {
	t.Helper()
	res, err := http1(t).Do(r)
	require.NoError(t, err)
	defer res.Body.Close()
	body, err := io.ReadAll(res.Body)
	require.NoError(t, err)
	return res.StatusCode, string(body)
}
