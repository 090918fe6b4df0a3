package gather_test

import (
	"io"
	"net"
	"os"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/dibs-go/dibs/serve/internal/gather"
)

const patience = 10 * time.Second

// pair returns a connection and its peer, which takes nothing by itself.
func pair(t *testing.T) (c, peer net.Conn) {
	t.Helper()
	raw, peer := net.Pipe()
	c = gather.Conn(raw, patience)
	t.Cleanup(func() {
		_ = peer.Close()
		_ = c.Close()
	})
	return c, peer
}

func write(t *testing.T, c net.Conn, text string) {
	t.Helper()
	n, err := c.Write([]byte(text))
	require.NoError(t, err)
	require.Equal(t, len(text), n)
}

// read returns what one call of the other side has sent.
func read(t *testing.T, c net.Conn) string {
	t.Helper()
	p := make([]byte, 1<<20)
	n, err := c.Read(p)
	require.NoError(t, err)
	return string(p[:n])
}

func TestWhatIsWrittenMeanwhileGoesInOneCall(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		c, peer := pair(t)
		for range 3 {
			write(t, c, "first")
			synctest.Wait() // it is being sent
			write(t, c, "second")
			write(t, c, "third")
			require.Equal(t, "first", read(t, peer))
			require.Equal(t, "secondthird", read(t, peer))
		}
	})
}

func TestWriteWaitsWhenMuchWaits(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		c, peer := pair(t)
		write(t, c, "x")
		synctest.Wait()
		large := strings.Repeat("y", 64<<10)
		write(t, c, large)
		wrote := make(chan error, 1)
		go func() {
			_, err := c.Write([]byte("z"))
			wrote <- err
		}()
		synctest.Wait()
		require.Empty(t, wrote)
		require.Equal(t, "x", read(t, peer))
		synctest.Wait()
		require.NoError(t, <-wrote)
		require.Equal(t, large, read(t, peer))
		require.Equal(t, "z", read(t, peer))
	})
}

func TestAPeerThatTakesNothingIsCutOff(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		c, peer := pair(t)
		write(t, c, "abc")
		synctest.Wait()
		require.NoError(t, c.SetWriteDeadline(time.Time{})) // as net/http does after each write
		for range 2 {                                       // a slow one is not
			time.Sleep(patience - time.Second)
			_, err := io.ReadFull(peer, make([]byte, 1))
			require.NoError(t, err)
		}
		began := time.Now()
		_, err := c.Read(make([]byte, 1)) // whoever reads learns of it
		require.Error(t, err)
		require.Less(t, time.Since(began), 2*patience)
		_, err = c.Write([]byte("d"))
		require.ErrorIs(t, err, os.ErrDeadlineExceeded)
	})
}

func TestCloseSendsWhatWasWritten(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		c, peer := pair(t)
		write(t, c, "first")
		synctest.Wait()
		write(t, c, "last")
		closed := make(chan error, 1)
		go func() { closed <- c.Close() }()
		synctest.Wait()
		all, err := io.ReadAll(peer)
		require.NoError(t, err)
		require.Equal(t, "firstlast", string(all))
		require.NoError(t, <-closed)
		_, err = c.Write([]byte("x"))
		require.ErrorIs(t, err, net.ErrClosed)
	})
}

func TestCloseDoesNotWaitForAPeerThatTakesNothing(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		for _, stuck := range []time.Duration{0, patience / 2} {
			c, peer := pair(t)
			write(t, c, "first")
			synctest.Wait()
			write(t, c, "last")
			time.Sleep(stuck)
			began := time.Now()
			if stuck == 0 { // it takes one more
				time.AfterFunc(50*time.Millisecond, func() { _, _ = peer.Read(make([]byte, 100)) })
			}
			_ = c.Close() // it may say that not all was sent
			require.Equal(t, max(100*time.Millisecond-stuck, 0), time.Since(began))
		}
	})
}
