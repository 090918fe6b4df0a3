package serve

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/http/pprof"
	"net/netip"
	"os"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus/promhttp"
	"golang.org/x/sync/errgroup"

	"github.com/dibs-go/dibs/messagestore"
)

// A Listen says where a server listens, and for whom.
type Listen struct {
	// Address is where clients call: "127.0.0.1:7070". Any address but one of the loopback needs
	// TLS and keys, or BehindProxy.
	Address string

	// Admin is where health, metrics and profiles are: "127.0.0.1:7071". They have no keys, so keep
	// the address to yourself.
	//
	// Defaults to nowhere.
	Admin string

	// CertFile and KeyFile are the server's certificate and its key. The server reads them again
	// when they change.
	CertFile, KeyFile string

	// ClientCAFile has the authorities of clients' certificates. A certificate that one of them has
	// signed takes the place of the key with the name of its first DNS name.
	ClientCAFile string

	// BehindProxy says that something in front of the server lets only the right clients through.
	// The server logs that at each start.
	BehindProxy bool

	// Ready is called with the address of the clients as soon as the server listens.
	Ready func(address string)
}

// Bounds for clients that are slow, many, or gone.
const (
	headerTimeout  = 5 * time.Second
	idleTimeout    = 2 * time.Minute
	maxHeaderBytes = 16 << 10
	maxStreams     = 4096 // of a connection
	pingAfter      = 15 * time.Second
	pingTimeout    = 5 * time.Second
	frameTimeout   = 20 * time.Second // until a client has read a frame
	drainTimeout   = 900 * time.Millisecond
	certInterval   = 10 * time.Second // how old a certificate may be before its file is looked at
)

// validate checks where a server is to listen: a stranger who can reach it must need a key.
func (l Listen) validate(keys *Keys) error {
	if l.Address == "" {
		return messagestore.NewInvalidError("address", l.Address, "must not be empty")
	}
	if (l.CertFile == "") != (l.KeyFile == "") {
		return messagestore.NewInvalidError("certificate", l.CertFile, "must come with its key")
	}
	if l.ClientCAFile != "" && (l.CertFile == "" || keys == nil) {
		return messagestore.NewInvalidError("client authorities", l.ClientCAFile, "must come with a certificate of the server, and with keys")
	}
	if l.BehindProxy || isLoopback(l.Address) {
		return nil
	}
	if l.CertFile == "" || keys == nil {
		return messagestore.NewInvalidError("address", l.Address, "must be of the loopback, unless the server has a certificate and keys")
	}
	return nil
}

func isLoopback(address string) bool {
	host, _, err := net.SplitHostPort(address)
	if err != nil {
		return false
	}
	if host == "localhost" {
		return true
	}
	ip, err := netip.ParseAddr(host)
	return err == nil && ip.IsLoopback()
}

// Run answers calls until ctx ends. Then it drains: it says that it does not serve any more, has
// calls that wait answered, and returns as soon as the calls in hand have their answers, within a
// second. It returns nil then, and an error if it cannot listen.
func (s *Server) Run(ctx context.Context, l Listen) error {
	if err := l.validate(s.config.Keys); err != nil {
		return fmt.Errorf("serve: %w", err)
	}
	s.keyed.Store(!l.BehindProxy && !isLoopback(l.Address))
	var config *tls.Config
	if l.CertFile != "" {
		var err error
		if config, err = l.tls(); err != nil {
			return fmt.Errorf("serve: %w", err)
		}
	}
	if l.BehindProxy {
		s.config.Logger.Warn().Str("address", l.Address).Msg("whoever reaches this address is let in: a proxy in front of it must say who may")
	}
	var protocols http.Protocols
	protocols.SetHTTP1(true)
	protocols.SetHTTP2(config != nil)
	protocols.SetUnencryptedHTTP2(config == nil)
	server := &http.Server{
		Handler: s.Handler(), Protocols: &protocols, TLSConfig: config,
		ReadHeaderTimeout: headerTimeout, IdleTimeout: idleTimeout, MaxHeaderBytes: maxHeaderBytes,
		HTTP2: &http.HTTP2Config{MaxConcurrentStreams: maxStreams, SendPingTimeout: pingAfter, PingTimeout: pingTimeout, WriteByteTimeout: frameTimeout},
	}
	listener, err := new(net.ListenConfig).Listen(ctx, "tcp", l.Address)
	if err != nil {
		return fmt.Errorf("serve: %w", err)
	}
	servers := []*http.Server{server}
	var group errgroup.Group
	if l.Admin != "" {
		admin := &http.Server{Handler: s.adminHandler(), ReadHeaderTimeout: headerTimeout}
		adminListener, err := new(net.ListenConfig).Listen(ctx, "tcp", l.Admin)
		if err != nil {
			return errors.Join(fmt.Errorf("serve: %w", err), listener.Close())
		}
		servers = append(servers, admin)
		group.Go(func() error { return closed(admin.Serve(adminListener)) })
	}
	ctx, failed := context.WithCancel(ctx)
	group.Go(func() error {
		defer failed()
		if config != nil {
			return closed(server.ServeTLS(listener, "", ""))
		}
		return closed(server.Serve(listener))
	})
	if l.Ready != nil {
		l.Ready(listener.Addr().String())
	}
	<-ctx.Done()
	s.Drain()
	end, cancel := context.WithTimeout(context.WithoutCancel(ctx), drainTimeout)
	defer cancel()
	for _, one := range servers {
		if one.Shutdown(end) != nil {
			_ = one.Close() // what is left does not end
		}
	}
	if err := group.Wait(); err != nil {
		return fmt.Errorf("serve: %w", err)
	}
	return nil
}

func closed(err error) error {
	if errors.Is(err, http.ErrServerClosed) {
		return nil
	}
	return err
}

// tls returns the configuration of a listener for clients.
func (l Listen) tls() (*tls.Config, error) {
	cert := &certificate{l: l}
	if _, err := cert.get(nil); err != nil {
		return nil, err
	}
	config := &tls.Config{MinVersion: tls.VersionTLS13, GetCertificate: cert.get}
	if l.ClientCAFile == "" {
		return config, nil
	}
	pem, err := os.ReadFile(l.ClientCAFile)
	if err != nil {
		return nil, err
	}
	config.ClientCAs = x509.NewCertPool()
	if !config.ClientCAs.AppendCertsFromPEM(pem) {
		return nil, messagestore.NewInvalidError("client authorities", l.ClientCAFile, "must have certificates")
	}
	config.ClientAuth = tls.VerifyClientCertIfGiven
	return config, nil
}

// A certificate is one that is read again when its files change.
type certificate struct {
	l Listen

	mu      sync.Mutex
	looked  time.Time
	changed time.Time
	last    *tls.Certificate
}

// get returns the certificate. If its files cannot be read any more, that is the last one.
func (c *certificate) get(*tls.ClientHelloInfo) (*tls.Certificate, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.last != nil && time.Since(c.looked) < certInterval {
		return c.last, nil
	}
	c.looked = time.Now()
	stat, err := os.Stat(c.l.CertFile)
	if err == nil && c.last != nil && stat.ModTime().Equal(c.changed) {
		return c.last, nil
	}
	var loaded tls.Certificate
	if err == nil {
		loaded, err = tls.LoadX509KeyPair(c.l.CertFile, c.l.KeyFile)
	}
	if err != nil {
		if c.last != nil {
			return c.last, nil
		}
		return nil, err
	}
	c.last, c.changed = &loaded, stat.ModTime()
	return c.last, nil
}

// adminHandler answers those who look after the server.
func (s *Server) adminHandler() http.Handler {
	mux := http.NewServeMux()
	mux.HandleFunc("GET /health", func(w http.ResponseWriter, r *http.Request) {
		ctx, cancel := context.WithTimeout(r.Context(), time.Second)
		defer cancel()
		if _, err := s.store.Now(ctx); err != nil || s.drain.happened() {
			http.Error(w, "not serving", http.StatusServiceUnavailable)
			return
		}
		fmt.Fprintln(w, "serving")
	})
	mux.Handle("GET /metrics", promhttp.HandlerFor(s.metrics.registry, promhttp.HandlerOpts{}))
	mux.HandleFunc("GET /debug/pprof/", pprof.Index)
	mux.HandleFunc("GET /debug/pprof/profile", pprof.Profile)
	mux.HandleFunc("GET /debug/pprof/trace", pprof.Trace)
	return mux
}
