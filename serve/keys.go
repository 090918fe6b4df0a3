package serve

import (
	"context"
	"crypto/rand"
	"crypto/sha256"
	"crypto/subtle"
	"encoding/hex"
	"errors"
	"fmt"
	"maps"
	"os/user"
	"regexp"
	"slices"
	"strings"
	"sync/atomic"
	"time"

	"golang.org/x/time/rate"

	"github.com/dibs-go/dibs/logger"
	"github.com/dibs-go/dibs/messagestore"
)

// KeyCategory is the category of the messages that add and revoke keys, one stream for each key.
// They are the record of who did that and when. The services neither write nor show it.
const KeyCategory messagestore.Category = "dibs:key"

// A Right is what a key lets a client do in its categories. Each includes the ones before it.
type Right string

// The rights.
const (
	Read    Right = "read"    // look
	Write   Right = "write"   // reserve, produce, receive, settle, write
	Operate Right = "operate" // release others' leases, change items, pause queues
)

var rights = []Right{Read, Write, Operate}

// A Key lets a client call a server. Its text, which [AddKey] returns, is nowhere stored.
type Key struct {
	// ID names the key: 1 to 26 lower-case letters, digits and hyphens. Sessions belong to the key
	// that made them, by this name.
	ID string

	// Categories are those in which the key has its right. "payment" is for payment and for all
	// categories that begin with payment: and * is for all.
	Categories []string

	// Right is what the key lets a client do.
	Right Right

	// Expires is when the key ends by itself.
	//
	// Defaults to never.
	Expires time.Time

	// CallsPerSecond is how many calls a second a server answers for the key.
	//
	// Defaults to any number.
	CallsPerSecond int

	// MaxWaiting is how many calls of the key may wait in a server at a time.
	//
	// Defaults to 1,000.
	MaxWaiting int

	// Set by the store.
	Added, Revoked     time.Time
	AddedBy, RevokedBy string
	Reason             string // of the revocation
}

type keyAdded struct {
	Hash           string    `json:"hash"` // SHA-256 of the secret, which has 256 random bits
	Categories     []string  `json:"categories"`
	Right          Right     `json:"right"`
	Expires        time.Time `json:"expires,omitzero"`
	CallsPerSecond int       `json:"callsPerSecond,omitempty"`
	MaxWaiting     int       `json:"maxWaiting,omitempty"`
	By             string    `json:"by"`
}

// MessageType returns KeyAdded.
func (keyAdded) MessageType() string { return "KeyAdded" }

type keyRevoked struct {
	By     string `json:"by"`
	Reason string `json:"reason"`
}

// MessageType returns KeyRevoked.
func (keyRevoked) MessageType() string { return "KeyRevoked" }

var keyID = regexp.MustCompile(`^[a-z0-9-]{1,26}$`)

func checkKeyID(id string) error {
	if !keyID.MatchString(id) {
		return messagestore.NewInvalidError("key", id, "must be 1 to 26 lower-case letters, digits and hyphens")
	}
	return nil
}

func (k Key) validate() error {
	err := checkKeyID(k.ID)
	if len(k.Categories) == 0 || len(k.Categories) > 100 {
		err = errors.Join(err, messagestore.NewInvalidError("categories", k.Categories, "must be between 1 and 100"))
	}
	for _, c := range k.Categories {
		if c != "*" {
			err = errors.Join(err, messagestore.Category(c).Validate())
		}
	}
	if !slices.Contains(rights, k.Right) {
		err = errors.Join(err, messagestore.NewInvalidError("right", string(k.Right), "must be read, write or operate"))
	}
	if k.CallsPerSecond < 0 {
		err = errors.Join(err, messagestore.NewInvalidError("calls per second", k.CallsPerSecond, "must not be negative"))
	}
	if k.MaxWaiting < 0 {
		err = errors.Join(err, messagestore.NewInvalidError("waiting calls", k.MaxWaiting, "must not be negative"))
	}
	return err
}

// AddKey stores a key and returns its text, which the client sends as "Authorization: Bearer TEXT".
// There is no other copy of the text. The error matches [messagestore.ErrVersionConflict] if there
// is a key of that name, also if it was revoked.
func AddKey(ctx context.Context, store *messagestore.Store, k Key) (string, error) {
	if err := k.validate(); err != nil {
		return "", fmt.Errorf("add key: %w", err)
	}
	var secret [32]byte
	_, _ = rand.Read(secret[:]) // it never fails
	text := hex.EncodeToString(secret[:])
	_, err := store.Write(ctx, KeyCategory.Stream(k.ID), messagestore.NoStream, keyAdded{
		Hash: hashOf(text), Categories: k.Categories, Right: k.Right, Expires: k.Expires, CallsPerSecond: k.CallsPerSecond, MaxWaiting: k.MaxWaiting, By: operator(),
	})
	if err != nil {
		return "", fmt.Errorf("add key %s: %w", k.ID, err)
	}
	return "dibs_" + k.ID + "_" + text, nil
}

// RevokeKey ends a key for ever: every server refuses it within a second, and ends its calls that
// wait. To revoke it again changes nothing. The error matches [messagestore.ErrNotFound] if there
// is no such key.
func RevokeKey(ctx context.Context, store *messagestore.Store, id, reason string) error {
	if err := checkKeyID(id); err != nil {
		return fmt.Errorf("revoke key: %w", err)
	}
	stream := KeyCategory.Stream(id)
	last, err := store.Last(ctx, stream)
	if err == nil && last.Type != (keyRevoked{}).MessageType() {
		_, err = store.Write(ctx, stream, messagestore.StreamExists, keyRevoked{By: operator(), Reason: reason})
	}
	if err != nil {
		return fmt.Errorf("revoke key %s: %w", id, err)
	}
	return nil
}

// AllKeys returns the keys of a store, also those that were revoked, in the order in which they
// were added.
func AllKeys(ctx context.Context, store *messagestore.Store) ([]Key, error) {
	var all []Key
	for m, err := range store.ReadCategory(ctx, KeyCategory, 0, messagestore.Filter{}) {
		if err != nil {
			return nil, fmt.Errorf("read keys: %w", err)
		}
		id := m.Stream.ID()
		switch at := slices.IndexFunc(all, func(k Key) bool { return k.ID == id }); m.Type {
		case (keyAdded{}).MessageType():
			b, err := messagestore.Decode[keyAdded](m)
			if err != nil {
				return nil, fmt.Errorf("read key %s: %w", id, err)
			}
			all = append(all, Key{
				ID: id, Categories: b.Categories, Right: b.Right, Expires: b.Expires, CallsPerSecond: b.CallsPerSecond, MaxWaiting: b.MaxWaiting, Added: m.Time, AddedBy: b.By,
			})
		case (keyRevoked{}).MessageType():
			b, err := messagestore.Decode[keyRevoked](m)
			if err != nil {
				return nil, fmt.Errorf("read key %s: %w", id, err)
			}
			if at >= 0 && all[at].Revoked.IsZero() {
				all[at].Revoked, all[at].RevokedBy, all[at].Reason = m.Time, b.By, b.Reason
			}
		}
	}
	return all, nil
}

// operator names who runs this process.
func operator() string {
	if u, err := user.Current(); err == nil {
		return u.Username
	}
	return ""
}

func hashOf(secret string) string {
	sum := sha256.Sum256([]byte(secret))
	return hex.EncodeToString(sum[:])
}

// Keys are the keys of a store as they are now. They are safe for concurrent use.
type Keys struct {
	store *messagestore.Store
	log   logger.Logger
	all   atomic.Pointer[map[string]*caller]
	read  atomic.Int64 // when the store was last read, in nanoseconds since start
	start time.Time
	next  messagestore.GlobalPosition
	ever  atomic.Bool // there is a key, or there was one
}

const (
	keysPoll  = time.Second            // how often keys are read without a wake-up
	keysWatch = 100 * time.Millisecond // how often the store is asked for wake-ups
	keysStale = 5 * time.Second        // after this time without a read nobody is let in
)

// FollowKeys reads the keys of a store, and follows them until ctx ends. So each key that is added
// or revoked is known a moment later, and no call reads the store to find out who calls. If the
// store cannot be read for 5 seconds, the server lets nobody in.
func FollowKeys(ctx context.Context, store *messagestore.Store, log logger.Logger) (*Keys, error) {
	k := &Keys{store: store, log: log, start: time.Now()}
	k.all.Store(&map[string]*caller{})
	if err := k.readNew(ctx); err != nil {
		return nil, fmt.Errorf("follow keys: %w", err)
	}
	go k.follow(ctx)
	return k, nil
}

func (k *Keys) follow(ctx context.Context) {
	wakeups, stop := k.store.Watch(KeyCategory, keysWatch)
	defer stop()
	tick := time.NewTicker(keysPoll)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-wakeups:
		case <-tick.C:
		}
		if err := k.readNew(ctx); err != nil && ctx.Err() == nil {
			k.log.Warn().Err(err).Msg("the keys cannot be read")
		}
	}
}

// readNew reads the messages about keys that came since the last time.
func (k *Keys) readNew(ctx context.Context) error {
	asked := time.Since(k.start)
	all := *k.all.Load()
	changed := false
	for more := true; more; {
		page, err := k.store.ReadCategoryPage(ctx, messagestore.CategoryQuery{Category: KeyCategory, From: k.next, Limit: 200})
		if err != nil {
			return err
		}
		if len(page.Messages) > 0 && !changed {
			changed = true
			fresh := make(map[string]*caller, len(all)+1)
			maps.Copy(fresh, all)
			all = fresh
		}
		for _, m := range page.Messages {
			k.apply(all, m)
		}
		k.next, more = page.Next, page.More
	}
	if changed {
		k.all.Store(&all)
	}
	k.read.Store(int64(asked))
	return nil
}

func (k *Keys) apply(all map[string]*caller, m *messagestore.Message) {
	id := m.Stream.ID()
	old := all[id]
	k.ever.Store(true)
	if m.Type != (keyAdded{}).MessageType() { // revoked, or deleted by an operator
		if old != nil {
			delete(all, id)
			old.revoked.now()
		}
		return
	}
	b, err := messagestore.Decode[keyAdded](m)
	if err != nil {
		k.log.Error().Err(err).Str("key", id).Msg("the key cannot be read, and is refused")
		return
	}
	all[id] = newCaller(Key{ID: id, Categories: b.Categories, Right: b.Right, Expires: b.Expires, CallsPerSecond: b.CallsPerSecond, MaxWaiting: b.MaxWaiting}, b.Hash)
}

// A caller is who makes a call: a key.
type caller struct {
	key     Key
	hash    []byte
	revoked end
	calls   *rate.Limiter // nil: any number
	waiting atomic.Int64
}

func newCaller(k Key, hash string) *caller {
	c := &caller{key: k, hash: []byte(hash), revoked: newEnd()}
	if k.CallsPerSecond > 0 {
		c.calls = rate.NewLimiter(rate.Limit(k.CallsPerSecond), k.CallsPerSecond)
	}
	if c.key.MaxWaiting == 0 {
		c.key.MaxWaiting = 1000
	}
	return c
}

// everybody calls if the server has no keys.
var everybody = func() *caller {
	c := newCaller(Key{Categories: []string{"*"}, Right: Operate}, "")
	c.key.MaxWaiting = 0
	return c
}()

// wait counts a call that waits, and reports whether it may.
func (c *caller) wait() bool {
	if n := c.waiting.Add(1); c.key.MaxWaiting > 0 && n > int64(c.key.MaxWaiting) {
		c.waiting.Add(-1)
		return false
	}
	return true
}

func (c *caller) waited() { c.waiting.Add(-1) }

// may reports whether the caller has a right in a category.
func (c *caller) may(right Right, category messagestore.Category) bool {
	if slices.Index(rights, c.key.Right) < slices.Index(rights, right) {
		return false
	}
	component, _, _ := strings.Cut(string(category), ":")
	if component == "dibs" && c != everybody || category == KeyCategory {
		return false
	}
	return slices.ContainsFunc(c.key.Categories, func(own string) bool {
		return own == "*" || string(category) == own || strings.HasPrefix(string(category), own+":")
	})
}

// owns says how sessions of the caller begin in the store, so that nobody else's are taken for its
// own.
func (c *caller) owns() string {
	if c == everybody {
		return ""
	}
	return c.key.ID + "/"
}

// session returns the name in the store of a session of the caller.
func (c *caller) session(id string) string { return c.owns() + id }

// own returns a session's name as its caller knows it, and false if it is another caller's.
func (c *caller) own(session string) (string, bool) { return strings.CutPrefix(session, c.owns()) }

var nobody = newCaller(Key{}, strings.Repeat("0", sha256.Size*2))

// of returns the caller with the text of a key, or nil. For an unknown key it does the same work.
func (k *Keys) of(text string) *caller {
	text, ok := strings.CutPrefix(text, "dibs_")
	id, secret, cut := strings.Cut(text, "_")
	if !ok || !cut || len(secret) > 128 {
		return nil
	}
	c := k.named(id)
	found := c
	if found == nil {
		found = nobody
	}
	if same := subtle.ConstantTimeCompare([]byte(hashOf(secret)), found.hash) == 1; !same {
		return nil
	}
	return c
}

// named returns the caller with the key of a name, or nil.
func (k *Keys) named(id string) *caller {
	c := (*k.all.Load())[id]
	if c == nil || !c.key.Expires.IsZero() && time.Now().After(c.key.Expires) {
		return nil
	}
	return c
}

// fresh reports whether the keys were read in time.
func (k *Keys) fresh() bool {
	return time.Since(k.start)-time.Duration(k.read.Load()) < keysStale
}
