package cli

import (
	"context"
	"fmt"
	"net"
	"strings"
	"time"

	"github.com/google/uuid"
	"github.com/rs/zerolog"

	"github.com/dibs-go/dibs/logger"
	"github.com/dibs-go/dibs/messagestore"
	"github.com/dibs-go/dibs/serve"
)

type serveCommand struct {
	Listen     string `default:"127.0.0.1:7070" placeholder:"HOST:PORT" help:"Where clients call."`
	Admin      string `placeholder:"HOST:PORT" help:"Where health, metrics and profiles are. Defaults to nowhere."`
	Cert       string `placeholder:"FILE" help:"The server's certificate; it is read again when it changes."`
	Key        string `placeholder:"FILE" help:"The key of the certificate."`
	ClientCA   string `name:"client-ca" placeholder:"FILE" help:"The authorities of clients' certificates, which take the place of keys."`
	Proxy      bool   `name:"insecure-behind-proxy" help:"Listen beyond this machine without TLS or keys: a proxy in front says who may call."`
	MaxWaiting int    `default:"20000" placeholder:"N" help:"How many calls may wait at a time."`
	Reflection bool   `help:"Let clients ask which services there are."`
}

// servedStore is the store of dibs serve if nothing names another.
const servedStore = "sqlite:dibs.db"

// orServed chooses that store if nothing names another.
func (a *app) orServed() {
	if a.Store == "" {
		if _, err := a.chooseStore(); err != nil {
			a.Store = servedStore
		}
	}
}

func (c *serveCommand) Run(ctx context.Context, a *app) error {
	a.orServed()
	a.mayCreate = true
	return a.withStore(ctx, 1000, func(store *messagestore.Store) error {
		if err := store.Check(ctx); err != nil {
			return err
		}
		log := logger.Zerolog(zerolog.New(warnings{a}).Level(zerolog.WarnLevel).With().Timestamp().Logger())
		keys, err := serve.FollowKeys(ctx, store, log)
		if err != nil {
			return err
		}
		server, err := serve.New(store, &serve.Config{Keys: keys, MaxWaiting: c.MaxWaiting, Reflection: c.Reflection, Logger: log})
		if err != nil {
			return err
		}
		return server.Run(ctx, serve.Listen{
			Address: c.Listen, Admin: c.Admin, CertFile: c.Cert, KeyFile: c.Key, ClientCAFile: c.ClientCA, BehindProxy: c.Proxy,
			Ready: func(address string) { c.ready(a, address) },
		})
	})
}

// ready prints how to call the server.
func (c *serveCommand) ready(a *app, address string) {
	scheme, key := "http", ""
	if c.Cert != "" {
		scheme, key = "https", `-H "Authorization: Bearer $DIBS_KEY" `
	}
	if host, port, err := net.SplitHostPort(address); err == nil && net.ParseIP(host).IsUnspecified() {
		address = net.JoinHostPort("localhost", port)
	}
	base := scheme + "://" + address + "/dibs.v1."
	if a.JSON {
		_ = a.out.tell(fields{"url", scheme + "://" + address, "store", a.redact(a.Store)}, "")
	} else {
		fmt.Fprintf(a.out, "serves %s on %s://%s\n\n", a.redact(a.Store), scheme, address)
		for _, example := range []struct{ what, call, body string }{
			{"Reserve an intent", "IntentService/Reserve", fmt.Sprintf(`{"name":{"category":"payment:intent","key":"order 1"},"sessionId":"%s","contentJson":"{\"amount\":10}"}`, uuid.New())},
			{"Produce an item", "QueueService/Produce", fmt.Sprintf(`{"queue":{"category":"mail"},"items":[{"id":"%s","type":"Send","dataJson":"{\"to\":\"ann\"}"}]}`, uuid.New())},
			{"Receive it", "QueueService/Receive", fmt.Sprintf(`{"queue":{"category":"mail"},"receiveId":"%s","maxWait":"10s"}`, uuid.New())},
		} {
			fmt.Fprintf(a.out, "%s:\n    curl -s %s--json '%s' %s%s\n", example.what, key, example.body, base, example.call)
		}
	}
	_ = a.out.flush() // who started the server may have gone
}

// A keysCommand is dibs keys: who may call dibs serve.
type keysCommand struct {
	Ls     keysLsCommand     `cmd:"" default:"withargs" help:"Print the keys."`
	Add    keysAddCommand    `cmd:"" help:"Add a key, and print its text, once."`
	Revoke keysRevokeCommand `cmd:"" help:"End a key, on all servers."`
}

type keysLsCommand struct{}

func (keysLsCommand) Run(ctx context.Context, a *app) error {
	a.orServed()
	return a.withStore(ctx, 1000, func(store *messagestore.Store) error {
		all, err := serve.AllKeys(ctx, store)
		if err != nil {
			return err
		}
		for _, k := range all {
			state := "valid"
			switch {
			case !k.Revoked.IsZero():
				state = fmt.Sprintf("revoked %s by %s: %s", k.Revoked.UTC().Format(time.RFC3339), k.RevokedBy, k.Reason)
			case !k.Expires.IsZero():
				state = "until " + k.Expires.UTC().Format(time.RFC3339)
			}
			line := fields{"id", k.ID, "right", string(k.Right), "categories", k.Categories, "added", k.Added, "addedBy", k.AddedBy, "revoked", !k.Revoked.IsZero(), "reason", k.Reason}
			if err := a.out.tell(line, "%s  %s in %s, added %s by %s, %s", k.ID, k.Right, strings.Join(k.Categories, " "), k.Added.UTC().Format(time.RFC3339), k.AddedBy, state); err != nil {
				return err
			}
		}
		if len(all) == 0 {
			a.nothing("dibs: there are no keys")
		}
		return nil
	})
}

type keysAddCommand struct {
	ID         string        `arg:"" help:"The key's name: lower-case letters, digits and hyphens."`
	Categories []string      `arg:"" help:"Where the key may be used: payment is payment and all that begins with payment:, and '*' is everything."`
	Right      string        `default:"write" enum:"read,write,operate" help:"What it may be used for: read, write or operate. Each includes the ones before it."`
	Life       time.Duration `placeholder:"TIME" help:"The key ends by itself after this time."`
	Calls      int           `placeholder:"N" help:"How many calls a second a server answers. Defaults to any number."`
	MaxWaiting int           `placeholder:"N" help:"How many calls may wait at a time. Defaults to 1,000."`
}

func (c *keysAddCommand) Run(ctx context.Context, a *app) error {
	a.orServed()
	if c.Life < 0 {
		return usage("--life: must not be negative")
	}
	return a.withStore(ctx, 1000, func(store *messagestore.Store) error {
		k := serve.Key{ID: c.ID, Categories: c.Categories, Right: serve.Right(c.Right), CallsPerSecond: c.Calls, MaxWaiting: c.MaxWaiting}
		if c.Life > 0 {
			now, err := store.Now(ctx)
			if err != nil {
				return err
			}
			k.Expires = now.Add(c.Life)
		}
		text, err := serve.AddKey(ctx, store, k)
		if err != nil {
			return err
		}
		return a.out.tell(fields{"id", c.ID, "key", text}, "%s", text)
	})
}

type keysRevokeCommand struct {
	ID     string `arg:"" help:"The key's name."`
	Reason string `required:"" help:"Why, for the record."`
}

func (c *keysRevokeCommand) Run(ctx context.Context, a *app) error {
	a.orServed()
	return a.withStore(ctx, 1000, func(store *messagestore.Store) error {
		if err := serve.RevokeKey(ctx, store, c.ID, c.Reason); err != nil {
			return err
		}
		return a.out.tell(fields{"id", c.ID, "revoked", true}, "revoked %s", c.ID)
	})
}
