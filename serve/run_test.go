package serve_test

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"fmt"
	"io"
	"math/big"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"connectrpc.com/connect"
	"github.com/google/uuid"
	"github.com/stretchr/testify/require"
	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/dibs-go/dibs/internal/testkit"
	"github.com/dibs-go/dibs/logger"
	"github.com/dibs-go/dibs/messagestore"
	"github.com/dibs-go/dibs/serve"
	v1 "github.com/dibs-go/dibs/serve/gen/dibs/v1"
	"github.com/dibs-go/dibs/serve/servetest"
)

// run runs a server until stop is called or the test ends, and returns its address.
func run(t *testing.T, store *messagestore.Store, config *serve.Config, l serve.Listen) (address string, stop func() error) {
	t.Helper()
	if config == nil {
		config = &serve.Config{}
	}
	config.Logger = logger.Silent()
	server, err := serve.New(store, config)
	require.NoError(t, err)
	ready, ended := make(chan string, 1), make(chan error, 1)
	l.Ready = func(address string) { ready <- address }
	ctx, cancel := context.WithCancel(t.Context())
	go func() { ended <- server.Run(ctx, l) }()
	stop = func() error {
		cancel()
		err, open := <-ended
		if open {
			close(ended)
		}
		return err
	}
	t.Cleanup(func() { _ = stop() })
	select {
	case address := <-ready:
		return address, stop
	case err := <-ended:
		t.Fatalf("it does not run: %v", err)
		return "", nil
	}
}

// A server that is told to end answers the calls that wait, and ends within a second, or else it
// would cut them off.
func TestADrainTellsEachCall(t *testing.T) {
	t.Parallel()
	adminAddress := free(t)
	address, stop := run(t, open(t), nil, serve.Listen{Address: "127.0.0.1:0", Admin: adminAddress})
	s := servetest.Connect(h2c(t), "http://"+address, connect.WithGRPC())
	const each, intents = 500, 10
	reserve := func(i int, wait time.Duration) error {
		name := &v1.IntentName{Category: "pay:intent", Key: fmt.Sprint(i % intents)}
		_, err := s.Intents.Reserve(context.Background(), &v1.ReserveRequest{Name: name, SessionId: uuid.NewString(), ContentJson: `1`, Ttl: durationpb.New(time.Hour), MaxWait: durationpb.New(wait)})
		return err
	}
	for i := range intents {
		require.NoError(t, reserve(i, 0))
	}
	received, reserved := make(chan error, each), make(chan error, each)
	for i := range each {
		go func() {
			answer, err := s.Queues.Receive(context.Background(), &v1.ReceiveRequest{Queue: &v1.QueueName{Category: "mail"}, ReceiveId: uuid.NewString(), MaxWait: durationpb.New(10 * time.Minute)})
			if err == nil && len(answer.GetDeliveries()) > 0 {
				err = io.ErrUnexpectedEOF
			}
			received <- err
		}()
		go func() { reserved <- reserve(i, 10*time.Minute) }()
	}
	testkit.AwaitTrue(t, "all calls wait", func() bool {
		_, metrics := get(t, "http://"+adminAddress+"/metrics")
		return strings.Contains(metrics, fmt.Sprintf("dibs_serve_waiting_calls %d\n", 2*each))
	})
	require.NoError(t, stop())
	for range each {
		require.NoError(t, <-received)
		err := <-reserved
		requireCode(t, connect.CodeUnavailable, err)
		require.ErrorContains(t, err, "the server stops")
	}
}

func TestWhereAServerMayListen(t *testing.T) {
	t.Parallel()
	store := open(t)
	cert, key := certificate(t, "localhost", nil, nil)
	for _, test := range []struct {
		l    serve.Listen
		says string
	}{
		{serve.Listen{}, "address"},
		{serve.Listen{Address: "0.0.0.0:0"}, "must be of the loopback"},
		{serve.Listen{Address: ":0"}, "must be of the loopback"},
		{serve.Listen{Address: "[::]:0"}, "must be of the loopback"},
		{serve.Listen{Address: "0.0.0.0:0", CertFile: cert, KeyFile: key}, "must be of the loopback"}, // without keys
		{serve.Listen{Address: "127.0.0.1:0", CertFile: cert}, "must come with its key"},
		{serve.Listen{Address: "127.0.0.1:0", ClientCAFile: cert}, "must come with a certificate"},
		{serve.Listen{Address: "127.0.0.1:0", CertFile: key, KeyFile: cert}, "find"},
	} {
		server, err := serve.New(store, &serve.Config{Logger: logger.Silent()})
		require.NoError(t, err)
		require.ErrorContains(t, server.Run(t.Context(), test.l), test.says, "%+v", test.l)
	}
	for _, address := range []string{"127.0.0.1:0", "[::1]:0", "localhost:0"} {
		_, stop := run(t, store, nil, serve.Listen{Address: address})
		require.NoError(t, stop())
	}
	_, stop := run(t, store, nil, serve.Listen{Address: "0.0.0.0:0", BehindProxy: true})
	require.NoError(t, stop())
}

// certificate makes a certificate and its key, signed by another or by itself.
func certificate(t *testing.T, name string, ca *x509.Certificate, caKey *ecdsa.PrivateKey) (certFile, keyFile string) {
	t.Helper()
	private, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	require.NoError(t, err)
	serial, err := rand.Int(rand.Reader, big.NewInt(1<<62))
	require.NoError(t, err)
	template := &x509.Certificate{
		SerialNumber: serial, Subject: pkix.Name{CommonName: name}, DNSNames: []string{name}, IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1)},
		NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(time.Hour), IsCA: ca == nil, BasicConstraintsValid: true,
		KeyUsage: x509.KeyUsageDigitalSignature | x509.KeyUsageCertSign, ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth, x509.ExtKeyUsageClientAuth},
	}
	if ca == nil {
		ca, caKey = template, private
	}
	der, err := x509.CreateCertificate(rand.Reader, template, ca, &private.PublicKey, caKey)
	require.NoError(t, err)
	keyDER, err := x509.MarshalECPrivateKey(private)
	require.NoError(t, err)
	dir := t.TempDir()
	certFile, keyFile = filepath.Join(dir, "cert.pem"), filepath.Join(dir, "key.pem")
	require.NoError(t, os.WriteFile(certFile, pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der}), 0o600))
	require.NoError(t, os.WriteFile(keyFile, pem.EncodeToMemory(&pem.Block{Type: "EC PRIVATE KEY", Bytes: keyDER}), 0o600))
	return certFile, keyFile
}

// A client's certificate takes the place of the key of its name, and of no other.
func TestTLSAndCertificatesOfClients(t *testing.T) {
	t.Parallel()
	store := open(t)
	text := addKey(t, store, serve.Key{ID: "ann", Categories: []string{"pay"}, Right: serve.Write})
	caFile, caKeyFile := certificate(t, "authority", nil, nil)
	caPair, err := tls.LoadX509KeyPair(caFile, caKeyFile)
	require.NoError(t, err)
	ca, err := x509.ParseCertificate(caPair.Certificate[0])
	require.NoError(t, err)
	sign := func(name string) (string, string) {
		private, ok := caPair.PrivateKey.(*ecdsa.PrivateKey)
		require.True(t, ok)
		return certificate(t, name, ca, private)
	}
	serverCert, serverKey := sign("localhost")
	address, _ := run(t, store, &serve.Config{Keys: follow(t, store)}, serve.Listen{Address: "127.0.0.1:0", CertFile: serverCert, KeyFile: serverKey, ClientCAFile: caFile})

	pool := x509.NewCertPool()
	pool.AddCert(ca)
	client := func(files ...string) *http.Client {
		config := &tls.Config{RootCAs: pool, ServerName: "localhost", MinVersion: tls.VersionTLS12}
		if len(files) > 0 {
			pair, err := tls.LoadX509KeyPair(files[0], files[1])
			require.NoError(t, err)
			config.Certificates = []tls.Certificate{pair}
		}
		transport := &http.Transport{TLSClientConfig: config, ForceAttemptHTTP2: true}
		t.Cleanup(transport.CloseIdleConnections)
		return &http.Client{Transport: transport}
	}
	ask := func(c *http.Client, key string) error {
		_, err := reserve(servetest.Connect(c, "https://"+address, connect.WithGRPC(), connect.WithInterceptors(withKey(key))), "pay:intent", "s")
		return err
	}
	require.NoError(t, ask(client(), text))
	requireCode(t, connect.CodeUnauthenticated, ask(client(), "none"))
	annCert, annKey := sign("ann")
	transportOnly := func(c *http.Client) error {
		_, err := reserve(servetest.Connect(c, "https://"+address, connect.WithGRPC()), "pay:intent", "s")
		return err
	}
	require.NoError(t, transportOnly(client(annCert, annKey)))
	eveCert, eveKey := sign("eve")
	requireCode(t, connect.CodeUnauthenticated, transportOnly(client(eveCert, eveKey)))
	forgedCert, forgedKey := certificate(t, "ann", nil, nil) // by itself
	require.Error(t, transportOnly(client(forgedCert, forgedKey)))
	require.NoError(t, serve.RevokeKey(t.Context(), store, "ann", "x"))
	testkit.AwaitTrue(t, "the certificate of a revoked key is refused", func() bool {
		return connect.CodeOf(transportOnly(client(annCert, annKey))) == connect.CodeUnauthenticated
	})
}

// free returns an address that nobody listens at.
func free(t *testing.T) string {
	t.Helper()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	require.NoError(t, listener.Close())
	return listener.Addr().String()
}

func get(t *testing.T, url string) (int, string) {
	t.Helper()
	r, err := http.NewRequestWithContext(t.Context(), http.MethodGet, url, nil)
	require.NoError(t, err)
	return do(t, r)
}

func TestHealthAndMetrics(t *testing.T) {
	t.Parallel()
	adminAddress := free(t)
	address, _ := run(t, open(t), nil, serve.Listen{Address: "127.0.0.1:0", Admin: adminAddress})
	code, body := get(t, "http://"+adminAddress+"/health")
	require.Equal(t, 200, code)
	require.Equal(t, "serving\n", body)
	_, err := reserve(servetest.Connect(h2c(t), "http://"+address, connect.WithGRPC()), "pay:intent", "s")
	require.NoError(t, err)
	_, body = get(t, "http://"+adminAddress+"/metrics")
	require.Contains(t, body, `dibs_serve_call_seconds_count{code="ok",procedure="/dibs.v1.IntentService/Reserve"} 1`)
	code, _ = get(t, "http://"+address+"/metrics")
	require.Equal(t, 404, code, "clients do not see it")
	r, err := http.NewRequestWithContext(t.Context(), http.MethodPost, "http://"+address+"/grpc.health.v1.Health/Check", strings.NewReader(`{}`))
	require.NoError(t, err)
	r.Header.Set("Content-Type", "application/json")
	code, body = do(t, r)
	require.Equal(t, 200, code)
	require.Contains(t, body, "SERVING")
}
