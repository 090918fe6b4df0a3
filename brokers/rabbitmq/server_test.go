package rabbitbroker_test

import (
	"context"
	_ "embed"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"
	"github.com/stretchr/testify/require"

	"github.com/dibs-go/dibs/internal/testkit"
	"github.com/dibs-go/dibs/internal/testserver"
)

// program is that of Debian's package itself: the one in the PATH changes the user.
const program = "/usr/lib/rabbitmq/bin/rabbitmq-server"

// ask.erl has the server evaluate expressions of Erlang for the tests: AMQP does not tell how many
// messages of a queue are delivered and not acknowledged.
//
//go:embed testdata/ask.erl
var askErl string

// A server is a RabbitMQ of the test's own, in a folder, on ports of the loopback.
type server struct {
	*testserver.Process
	dir     string
	port    int
	program string
	env     []string
}

// startServer starts a server that takes messages of up to so many bytes. Without RabbitMQ the test
// skips; in CI it fails.
func startServer(t testing.TB, maxMessage int) *server {
	t.Helper()
	testkit.NeedsLong(t)
	s := &server{program: program}
	if _, err := os.Stat(program); err != nil {
		if s.program, err = exec.LookPath("rabbitmq-server"); err != nil {
			if os.Getenv("CI") != "" {
				t.Fatal("no rabbitmq-server: install the package rabbitmq-server")
			}
			t.Skip("no rabbitmq-server: install the package rabbitmq-server")
		}
	}
	var err error
	s.dir, err = os.MkdirTemp("", "rabbit.") //nolint:usetesting // the path of a socket has at most 107 bytes
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, os.RemoveAll(s.dir)) })
	s.port = freePort(t)
	names := freePort(t) // of epmd, by which nodes of Erlang find each other
	config := fmt.Sprintf(`[{rabbit, [{tcp_listeners, [{"127.0.0.1", %d}]}, {max_message_size, %d}]}].`, s.port, maxMessage)
	for name, text := range map[string]string{"rabbitmq.config": config, "ask.erl": askErl, "plugins": "[]."} {
		require.NoError(t, os.WriteFile(filepath.Join(s.dir, name), []byte(text), 0o600))
	}
	s.env = append(os.Environ(),
		"HOME="+s.dir, "RABBITMQ_MNESIA_BASE="+s.dir, "RABBITMQ_LOG_BASE="+s.dir, "RABBITMQ_LOGS="+filepath.Join(s.dir, "log"),
		"RABBITMQ_CONFIG_FILE="+filepath.Join(s.dir, "rabbitmq.config"), // Erlang: the newer form takes two seconds to be read
		"RABBITMQ_CONF_ENV_FILE="+filepath.Join(s.dir, "none"), "RABBITMQ_ENABLED_PLUGINS_FILE="+filepath.Join(s.dir, "plugins"),
		"RABBITMQ_NODENAME=test@localhost", "RABBITMQ_DIST_PORT="+strconv.Itoa(freePort(t)),
		"ERL_EPMD_PORT="+strconv.Itoa(names), "ERL_EPMD_ADDRESS=127.0.0.1",
		"RABBITMQ_ALLOW_INPUT=1", // the script becomes the server
		"ASK_SOCKET="+s.socket(),
		"RABBITMQ_SERVER_ADDITIONAL_ERL_ARGS=-noinput -sname test@localhost +S 2:2 +sbwt none -kernel inet_dist_use_interface {127,0,0,1} "+
			`-eval file:eval("`+filepath.Join(s.dir, "ask.erl")+`").`)
	epmd, err := testserver.Start(exec.Command("epmd", "-port", strconv.Itoa(names), "-address", "127.0.0.1"), nil, syscall.SIGKILL)
	require.NoError(t, err)
	t.Cleanup(func() { end(epmd) })
	testkit.Await(t, "epmd listens", func() (bool, any) {
		conn, err := (&net.Dialer{}).DialContext(context.Background(), "tcp", net.JoinHostPort("127.0.0.1", strconv.Itoa(names)))
		if err == nil {
			_ = conn.Close()
		}
		return err == nil, err
	})
	s.Start(t)
	t.Cleanup(func() { s.Kill(t) })
	return s
}

func freePort(t testing.TB) int {
	t.Helper()
	l, err := (&net.ListenConfig{}).Listen(t.Context(), "tcp", "127.0.0.1:0")
	require.NoError(t, err)
	defer l.Close()
	return l.Addr().(*net.TCPAddr).Port //nolint:errcheck // it is one
}

func end(p *testserver.Process) {
	p.Signal(syscall.SIGKILL)
	<-p.Done()
}

func (s *server) socket() string { return filepath.Join(s.dir, "ask") }

func (s *server) Kill(testing.TB) { end(s.Process) }

func (s *server) Start(t testing.TB) {
	t.Helper()
	require.NoError(t, os.RemoveAll(s.socket()))
	cmd := exec.Command(s.program)
	cmd.Env = s.env
	var err error
	s.Process, err = testserver.Start(cmd, nil, syscall.SIGKILL)
	require.NoError(t, err)
	err = s.Await(context.Background(), func(ctx context.Context) error {
		if _, err := s.ask(ctx, "ok"); err != nil {
			return err
		}
		conn, err := s.dial(ctx)
		if err != nil {
			return err
		}
		return conn.Close()
	})
	if err != nil {
		log, _ := os.ReadFile(filepath.Join(s.dir, "log"))
		t.Fatalf("%v\n%s", err, log)
	}
}

func (s *server) url() string { return fmt.Sprintf("amqp://guest:guest@127.0.0.1:%d/", s.port) }

func (s *server) dial(context.Context) (*amqp.Connection, error) { return amqp.Dial(s.url()) }

// ask has the server evaluate an expression of Erlang.
func (s *server) ask(ctx context.Context, expression string) (string, error) {
	conn, err := (&net.Dialer{Timeout: time.Second}).DialContext(ctx, "unix", s.socket())
	if err != nil {
		return "", err
	}
	defer conn.Close()
	if err := conn.SetDeadline(time.Now().Add(testkit.WaitLimit)); err != nil {
		return "", err
	}
	if _, err := fmt.Fprintf(conn, "%s.\n", expression); err != nil {
		return "", err
	}
	answer := make([]byte, 1000)
	n, err := conn.Read(answer)
	if text, is := strings.CutPrefix(string(answer[:n]), "answer "); is {
		return text, nil
	}
	return "", errors.Join(fmt.Errorf("the server answers %q", answer[:n]), err)
}

// messages returns how many messages a queue has, those that are delivered and not acknowledged
// among them.
func (s *server) messages(t testing.TB, queue string) (n int) {
	t.Helper()
	testkit.Await(t, "the server tells of "+queue, func() (bool, any) {
		text, err := s.ask(context.Background(),
			fmt.Sprintf(`element(2, hd(rabbit_amqqueue:info(element(2, rabbit_amqqueue:lookup(rabbit_misc:r(<<"/">>, queue, <<%q>>))), [messages])))`, queue))
		if err == nil {
			n, err = strconv.Atoi(text)
		}
		return err == nil, err
	})
	return n
}

// channel returns a channel in confirm mode, over a connection of its own.
func (s *server) channel(t testing.TB) *amqp.Channel {
	t.Helper()
	conn, err := s.dial(t.Context())
	require.NoError(t, err)
	t.Cleanup(func() { _ = conn.Close() })
	channel, err := conn.Channel()
	require.NoError(t, err)
	require.NoError(t, channel.Confirm(false))
	return channel
}
