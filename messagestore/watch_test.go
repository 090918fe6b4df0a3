package messagestore_test

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/rs/zerolog"
	"github.com/stretchr/testify/require"

	"github.com/dibs-go/dibs/internal/outage"
	"github.com/dibs-go/dibs/internal/testkit"
	"github.com/dibs-go/dibs/logger"
	"github.com/dibs-go/dibs/messagestore"
	"github.com/dibs-go/dibs/messagestore/memory"
)

var errAway = errors.New("the database is away")

// A telling driver tells the heads that a test sets, and counts the calls.
type telling struct {
	messagestore.Driver

	mu    sync.Mutex
	heads map[messagestore.Category]messagestore.GlobalPosition
	err   error
	looks int
	asked map[messagestore.Category]int
	delay time.Duration // between looking and the answer
}

func newTelling() *telling {
	return &telling{
		Driver: memory.New(),
		heads:  map[messagestore.Category]messagestore.GlobalPosition{},
		asked:  map[messagestore.Category]int{},
	}
}

func (d *telling) Heads(_ context.Context, categories []messagestore.Category) ([]messagestore.GlobalPosition, error) {
	d.mu.Lock()
	d.looks++
	var heads []messagestore.GlobalPosition
	for _, c := range categories {
		d.asked[c]++
		heads = append(heads, d.heads[c])
	}
	err, delay := d.err, d.delay
	d.mu.Unlock()
	time.Sleep(delay)
	if err != nil {
		return nil, err
	}
	return heads, nil
}

func (d *telling) set(change func(*telling)) {
	d.mu.Lock()
	defer d.mu.Unlock()
	change(d)
}

// move says that there is a message at head, which another process wrote.
func (d *telling) move(category messagestore.Category, head messagestore.GlobalPosition) {
	d.set(func(d *telling) { d.heads[category] = head })
}

func (d *telling) counts() (looks int, asked map[messagestore.Category]int) {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.looks, maps.Clone(d.asked)
}

// listenLinger is how long the store listens after the last watch.
const listenLinger = 250 * time.Millisecond

// endListening stops a watch and waits for the end of the goroutines.
func endListening(stop func()) {
	stop()
	time.Sleep(2 * listenLinger)
}

// A listening driver hears the writes that a test makes up.
type listening struct {
	*telling
	calls chan func(heard func(messagestore.Category, messagestore.GlobalPosition)) error
	times int
	live  bool
}

func newListening() *listening {
	return &listening{telling: newTelling(), calls: make(chan func(func(messagestore.Category, messagestore.GlobalPosition)) error)}
}

func (d *listening) Listen(ctx context.Context, heard func(messagestore.Category, messagestore.GlobalPosition)) error {
	d.mu.Lock()
	d.times++
	d.live = true
	err := d.err
	d.mu.Unlock()
	defer d.set(func(*telling) { d.live = false })
	if err != nil {
		return err
	}
	heard("", 0)
	for {
		select {
		case <-ctx.Done():
			return ctx.Err()
		case call := <-d.calls:
			if err := call(heard); err != nil {
				return err
			}
		}
	}
}

// hear has the driver hear of a message, which is there.
func (d *listening) hear(category messagestore.Category, head messagestore.GlobalPosition) {
	d.set(func(d *telling) { d.heads[category] = max(d.heads[category], head) })
	d.calls <- func(heard func(messagestore.Category, messagestore.GlobalPosition)) error {
		heard(category, head)
		return nil
	}
	synctest.Wait()
}

// listened returns how often it was asked to listen, and whether it does.
func (d *listening) listened() (times int, live bool) {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.times, d.live
}

func (d *listening) lose() {
	d.calls <- func(func(messagestore.Category, messagestore.GlobalPosition)) error { return errAway }
	synctest.Wait()
}

// rang returns the position that a wake-up channel received, and -1 for none.
func rang(bell <-chan messagestore.GlobalPosition) messagestore.GlobalPosition {
	synctest.Wait()
	select {
	case head := <-bell:
		return head
	default:
		return -1
	}
}

const silent messagestore.GlobalPosition = -1

func TestOneLookIsForAllWhoWatch(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		driver := newTelling()
		store := testkit.Must(messagestore.New(driver, nil))
		for i := range 100 {
			_, stop := store.Watch(messagestore.Category(fmt.Sprintf("account%d", i)), 100*time.Millisecond)
			defer stop()
			time.Sleep(7 * time.Millisecond) // they do not start together
		}
		time.Sleep(time.Second)
		looksBefore, askedBefore := driver.counts()

		time.Sleep(10 * time.Second)

		looks, asked := driver.counts()
		require.InDelta(t, 100, looks-looksBefore, 1)
		require.Len(t, asked, 100)
		for category, n := range asked {
			require.InDelta(t, 100, n-askedBefore[category], 1)
		}
	})
}

func TestAWatchRingsForTheHeadThatMoved(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		driver := newTelling()
		driver.move("order", 7)
		store := testkit.Must(messagestore.New(driver, nil))
		account, stop := store.Watch("account", time.Second)
		defer stop()
		order, stopOrder := store.Watch("order", time.Second)
		defer stopOrder()
		time.Sleep(time.Minute)
		require.Equal(t, silent, rang(account), "there is nothing in it")
		require.Equal(t, messagestore.GlobalPosition(7), rang(order), "that may have been written before the reader read, or after")
		time.Sleep(time.Minute)

		driver.move("account", 9)
		time.Sleep(time.Second)

		require.Equal(t, messagestore.GlobalPosition(9), rang(account))
		require.Equal(t, silent, rang(order))
		time.Sleep(time.Minute)
		require.Equal(t, silent, rang(account))
	})
}

func TestEveryWatchIsLookedAtAsOftenAsItAsks(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		driver := newTelling()
		store := testkit.Must(messagestore.New(driver, nil))
		for category, interval := range map[messagestore.Category]time.Duration{"slow": time.Hour, "mixed": time.Hour, "never": 0} {
			_, stop := store.Watch(category, interval)
			defer stop()
		}
		_, stop := store.Watch("fast", 10*time.Millisecond)
		defer stop()
		_, stopMixed := store.Watch("mixed", time.Second)

		time.Sleep(10*time.Second + time.Millisecond)

		_, asked := driver.counts()
		require.InDelta(t, 1000, asked["fast"], 1)
		require.InDelta(t, 15, asked["mixed"], 5) // up to twice as often, for company
		require.Zero(t, asked["slow"])
		require.Zero(t, asked["never"])

		stopMixed()
		time.Sleep(time.Second)
		_, before := driver.counts()
		time.Sleep(2 * time.Minute)
		_, after := driver.counts()
		require.Equal(t, before["mixed"], after["mixed"], "who was in a hurry is gone")
	})
}

func TestAWriteThatIsHeardOfTwiceRingsOnce(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		driver := newListening()
		store := testkit.Must(messagestore.New(driver, nil))
		bell, stop := store.Watch("account", time.Second)
		defer endListening(stop)

		synctest.Wait()
		written := testkit.Do(store.Write(t.Context(), stream, messagestore.NoStream, opened{}))(t)
		require.Equal(t, written.GlobalPosition, rang(bell))
		driver.hear("account", written.GlobalPosition)
		time.Sleep(time.Minute)

		require.Equal(t, silent, rang(bell))
		driver.hear("account", written.GlobalPosition+1)
		require.Equal(t, written.GlobalPosition+1, rang(bell))
		driver.hear("account", 0)
		require.Equal(t, messagestore.GlobalPosition(0), rang(bell), "what, is not known")
	})
}

// A watcher hears of the last write of a burst, and not of every one.
func TestABurstRingsOnceForItsHighest(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		driver := newListening()
		bell, stop := testkit.Must(messagestore.New(driver, nil)).Watch("account", 0)
		defer endListening(stop)

		for head := range messagestore.GlobalPosition(10) {
			driver.hear("account", 1+head)
		}
		require.Equal(t, messagestore.GlobalPosition(10), rang(bell))
		require.Equal(t, silent, rang(bell))

		driver.hear("account", 11)
		driver.hear("account", 0)
		driver.hear("account", 12)
		require.Equal(t, messagestore.GlobalPosition(0), rang(bell), "one was not known, so it may be above")
		require.Equal(t, silent, rang(bell))
	})
}

func TestAStoreThatWasPutBackRings(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		driver := newTelling()
		driver.move("account", 100)
		bell, stop := testkit.Must(messagestore.New(driver, nil)).Watch("account", time.Second)
		defer stop()
		time.Sleep(time.Minute)
		require.Equal(t, messagestore.GlobalPosition(100), rang(bell))

		driver.move("account", 50)
		time.Sleep(time.Second)
		require.Equal(t, messagestore.GlobalPosition(0), rang(bell))

		driver.move("account", 51)
		time.Sleep(time.Second)
		require.Equal(t, messagestore.GlobalPosition(51), rang(bell))
	})
}

// A write that came while the answer was on its way is not taken for lost.
func TestAnOldAnswerIsNoNews(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		driver := newListening()
		driver.move("account", 1)
		driver.delay = 300 * time.Millisecond
		bell, stop := testkit.Must(messagestore.New(driver, nil)).Watch("account", time.Second)
		defer endListening(stop)
		time.Sleep(1400 * time.Millisecond)
		require.Equal(t, messagestore.GlobalPosition(1), rang(bell))
		time.Sleep(700 * time.Millisecond) // a look is under way

		driver.hear("account", 2)
		require.Equal(t, messagestore.GlobalPosition(2), rang(bell))
		driver.move("account", 2)
		time.Sleep(time.Minute)

		require.Equal(t, silent, rang(bell))
	})
}

// Such a driver is not asked, and the watchers poll for themselves.
func TestAWatchOnADriverThatCannotTellRingsEveryInterval(t *testing.T) {
	t.Parallel()
	unable := newTelling()
	unable.err = fmt.Errorf("over a transaction: %w", messagestore.ErrNotSupported)
	synctest.Test(t, func(t *testing.T) {
		bell, stop := testkit.Must(messagestore.New(unable, nil)).Watch("account", time.Second)
		defer stop()
		start := time.Now()
		for range 10 {
			require.Equal(t, messagestore.GlobalPosition(0), <-bell)
		}
		require.Equal(t, 10*time.Second, time.Since(start))
	})
	looks, _ := unable.counts()
	require.Equal(t, 1, looks)
}

func TestALookThatFailsRingsAndIsTakenUpAgain(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		driver := newTelling()
		driver.err = errAway
		bell, stop := testkit.Must(messagestore.New(driver, nil)).Watch("account", 100*time.Millisecond)
		defer stop()
		time.Sleep(100 * time.Millisecond)
		require.Equal(t, messagestore.GlobalPosition(0), rang(bell))
		time.Sleep(time.Hour)
		require.Equal(t, messagestore.GlobalPosition(0), rang(bell))
		looks, _ := driver.counts()
		require.Greater(t, looks, 2000)
		require.Less(t, looks, 8000) // it does not spin

		driver.set(func(d *telling) { d.err, d.heads["account"] = nil, 3 })
		time.Sleep(1500 * time.Millisecond)
		require.Equal(t, messagestore.GlobalPosition(3), rang(bell))
		before, _ := driver.counts()
		time.Sleep(time.Minute)
		after, _ := driver.counts()
		require.InDelta(t, 600, after-before, 2)
	})
}

// One waiter may notice the end of an outage and another its beginning, while the latter goes on.
func TestTheEndOfAnOutageIsThatOfItsBeginning(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		driver := newTelling()
		driver.err = errAway
		var lines bytes.Buffer
		store := testkit.Must(messagestore.New(driver, &messagestore.Config{Logger: logger.Zerolog(zerolog.New(&lines).Level(zerolog.WarnLevel))}))
		_, stop := store.Watch("account", 100*time.Millisecond)
		defer stop()
		time.Sleep(150 * time.Millisecond)
		other := outage.Key{By: "another", To: "read"}
		outage.Of(store).Failed(other, logger.Silent())

		driver.set(func(d *telling) { d.err = nil })
		for _, c := range []messagestore.Category{"order", "payment"} {
			_, stop := store.Watch(c, 100*time.Millisecond)
			defer stop()
		}
		time.Sleep(10 * time.Second)
		outage.Of(store).Works(other)

		const about = `"to":"look at heads","categories":1,"failures":1,"error":"the database is away","message":"store `
		said := strings.Split(lines.String(), "\n")
		require.Len(t, said, 3)
		require.Contains(t, said[0], about+`failed: trying again"}`)
		require.Contains(t, said[1], about+`is back"}`)
	})
}

// A closed handle stays closed: that is not an outage, and reading no heads does not end one. Each
// waiter is woken, to find out itself.
func TestAClosedHandleIsNoOutage(t *testing.T) {
	t.Parallel()
	closed, away := newListening(), newTelling()
	closed.err, away.err = fmt.Errorf("look at heads: %w", messagestore.ErrClosed), errAway
	for name, c := range map[string]struct {
		driver messagestore.Driver
		said   []string
	}{
		"closed": {closed, nil},
		"away":   {away, []string{"store failed: trying again"}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				var lines bytes.Buffer
				store := testkit.Must(messagestore.New(c.driver, &messagestore.Config{Logger: logger.Zerolog(zerolog.New(zerolog.SyncWriter(&lines)).Level(zerolog.WarnLevel))}))
				bell, stop := store.Watch("account", 100*time.Millisecond)
				for range 10 {
					time.Sleep(time.Second)
					_, another := store.Watch("order", 0) // nothing is due, and nothing is asked
					another()
				}
				require.Equal(t, messagestore.GlobalPosition(0), rang(bell))
				endListening(stop)
				require.Equal(t, c.said, messagesOf(t, &lines))
			})
		})
	}
}

// messagesOf returns the messages of the lines of a log.
func messagesOf(t *testing.T, lines *bytes.Buffer) (messages []string) {
	t.Helper()
	for d := json.NewDecoder(lines); d.More(); {
		var line struct{ Message string }
		require.NoError(t, d.Decode(&line))
		messages = append(messages, line.Message)
	}
	return messages
}

// An answer for fewer categories than it was asked about says nothing about any.
func TestAnAnswerThatDoesNotFitIsAFailure(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		bell, stop := testkit.Must(messagestore.New(short{newTelling()}, nil)).Watch("account", time.Second)
		defer stop()
		time.Sleep(time.Second)
		require.Equal(t, messagestore.GlobalPosition(0), rang(bell))
	})
}

// A process may wait for more categories than one call of a driver takes.
func TestAnyNumberOfCategoriesIsWatched(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		driver := bounded{newTelling()}
		store := testkit.Must(messagestore.New(driver, nil))
		bells := map[messagestore.Category]<-chan messagestore.GlobalPosition{}
		for n := range 2*maxHeads + 1 {
			category := messagestore.Category(fmt.Sprintf("account%d", n))
			bell, stop := store.Watch(category, time.Second)
			defer stop()
			bells[category] = bell
			driver.move(category, messagestore.GlobalPosition(n+1))
		}
		time.Sleep(2 * time.Second)
		for n := range len(bells) {
			require.Equal(t, messagestore.GlobalPosition(n+1), rang(bells[messagestore.Category(fmt.Sprintf("account%d", n))]))
		}
	})
}

// maxHeads is how many categories a driver is asked for at most.
const maxHeads = 1000

type bounded struct{ *telling }

func (d bounded) Heads(ctx context.Context, categories []messagestore.Category) ([]messagestore.GlobalPosition, error) {
	if len(categories) > maxHeads {
		return nil, messagestore.ErrInvalid
	}
	return d.telling.Heads(ctx, categories)
}

type short struct{ *telling }

func (d short) Heads(context.Context, []messagestore.Category) ([]messagestore.GlobalPosition, error) {
	return []messagestore.GlobalPosition{}, nil
}

func TestWhatIsHeardRingsAtOnce(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		driver := newListening()
		store := testkit.Must(messagestore.New(driver, nil))
		bell, stop := store.Watch("account", time.Hour)
		defer endListening(stop)
		other, stopOther := store.Watch("order", time.Hour)
		defer endListening(stopOther)

		driver.hear("account", 5)
		driver.hear("nobody", 6)

		require.Equal(t, messagestore.GlobalPosition(5), rang(bell))
		require.Equal(t, silent, rang(other))
	})
}

// Writes of the time without a listener are looked for at once, and not after an hour.
func TestListeningIsTakenUpAgain(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		driver := newListening()
		bell, stop := testkit.Must(messagestore.New(driver, nil)).Watch("account", time.Hour)
		defer endListening(stop)
		synctest.Wait()

		driver.lose()
		driver.move("account", 4)
		require.Equal(t, silent, rang(bell))
		time.Sleep(100 * time.Millisecond)
		require.Equal(t, messagestore.GlobalPosition(4), rang(bell))

		driver.set(func(d *telling) { d.err = errAway })
		driver.lose()
		before, _ := driver.listened()
		time.Sleep(30 * time.Minute)
		after, _ := driver.listened()
		require.Less(t, after-before, 400) // it does not spin
		driver.set(func(d *telling) { d.err, d.heads["account"] = nil, 5 })
		time.Sleep(20 * time.Second)
		driver.hear("account", 6)
		require.Equal(t, messagestore.GlobalPosition(6), rang(bell))
	})
}

// A connection that is lost as soon as it listens is not made again and again.
func TestListeningThatDoesNotLastIsNotTakenUpInALoop(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		driver := newListening()
		_, stop := testkit.Must(messagestore.New(driver, nil)).Watch("account", 0)
		defer endListening(stop)
		start := time.Now()
		for range 100 {
			driver.lose()
		}
		require.Greater(t, time.Since(start), 2*time.Second)
	})
}

func TestADriverThatCannotListenIsAskedOnce(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		driver := newListening()
		driver.err = messagestore.ErrNotSupported
		_, stop := testkit.Must(messagestore.New(driver, nil)).Watch("account", time.Second)
		defer endListening(stop)
		time.Sleep(time.Hour)
		times, _ := driver.listened()
		require.Equal(t, 1, times)
	})
}

// The bubble ends only if its goroutines do.
func TestNoGoroutineOutlivesTheLastWatch(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		driver := newListening()
		store := testkit.Must(messagestore.New(driver, nil))
		for range 3 {
			_, stop := store.Watch("account", time.Second)
			_, stopToo := store.Watch("account", time.Second)
			_, stopLast := store.Watch("order", time.Second)
			time.Sleep(time.Minute)
			stop()
			stop()
			stopToo()
			before, _ := driver.counts()
			time.Sleep(time.Minute)
			after, _ := driver.counts()
			require.InDelta(t, 60, after-before, 1)
			_, live := driver.listened()
			require.True(t, live)

			stopLast()
			stopLast()

			time.Sleep(listenLinger - time.Millisecond)
			_, live = driver.listened()
			require.True(t, live)
			time.Sleep(2 * time.Millisecond)
			_, live = driver.listened()
			require.False(t, live)
			time.Sleep(time.Minute)
			last, _ := driver.counts()
			require.Equal(t, after, last)
		}
	})
}

// A connection that listens is not made for each of many short waits.
func TestShortWatchesShareOneListening(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		driver := newListening()
		store := testkit.Must(messagestore.New(driver, nil))
		for range 100 {
			bell, stop := store.Watch("account", 0)
			time.Sleep(10 * time.Millisecond)
			_ = rang(bell)
			driver.hear("account", driver.heads["account"]+1)
			require.NotEqual(t, silent, rang(bell))
			stop()
			time.Sleep(listenLinger / 2)
		}
		times, _ := driver.listened()
		require.Equal(t, 1, times)

		require.NoError(t, store.Close())

		times, live := driver.listened()
		require.Equal(t, 1, times)
		require.False(t, live, "not after Close")
		_, stop := store.Watch("account", 0)
		stop()
		time.Sleep(2 * listenLinger)
	})
}
