package admin_test

import (
	"context"
	"errors"
	"sync"
	"testing"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	"github.com/dibs-go/dibs/internal/testkit"
	"github.com/dibs-go/dibs/messagestore"
)

func TestMain(m *testing.M) {
	testkit.FewerCases()
	testkit.ManyAtOnce()
	goleak.VerifyTestMain(m)
}

// errCut is why outcomes are unknown that nothing was cut for.
var errCut = errors.New("cut")

// contextOf returns a context for a cleanup, when the test's own is over.
func contextOf(t *testing.T) context.Context { return context.WithoutCancel(t.Context()) }

func connect(t *testing.T, url string) *pgx.Conn {
	t.Helper()
	conn := testkit.Do(pgx.Connect(t.Context(), url))(t)
	t.Cleanup(func() { require.NoError(t, conn.Close(contextOf(t))) })
	return conn
}

// over returns a channel that is closed at the end of a group.
func over(group *sync.WaitGroup) <-chan struct{} {
	done := make(chan struct{})
	go func() {
		group.Wait()
		close(done)
	}()
	return done
}

func begin(t *testing.T, url string, level pgx.TxIsoLevel) pgx.Tx {
	t.Helper()
	return testkit.Do(connect(t, url).BeginTx(t.Context(), pgx.TxOptions{IsoLevel: level}))(t)
}

func opened() messagestore.Envelope {
	return messagestore.Envelope{ID: uuid.Must(uuid.NewV7()), Body: messagestore.Raw{Type: "Opened", Data: []byte(`{"name":"Ann"}`)}}
}

func write(t *testing.T, store *messagestore.Store, stream messagestore.StreamName, expected messagestore.Version, bodies ...messagestore.Body) messagestore.Written {
	t.Helper()
	return testkit.Do(store.Write(t.Context(), stream, expected, bodies...))(t)
}

// requireRefused demands the code and the column by which a client in any language
// can tell, and that the value is not shown.
func requireRefused(t *testing.T, err error, column string) {
	t.Helper()
	refused := testkit.As[*pgconn.PgError](t, err)
	require.Equal(t, "DB001", refused.Code, refused.Message)
	require.Equal(t, column, refused.ColumnName)
	require.NotContains(t, refused.Message+refused.Detail+refused.Hint, "canary")
}

func requireDenied(t *testing.T, err error) {
	t.Helper()
	refused := testkit.As[*pgconn.PgError](t, err)
	require.Equal(t, "42501", refused.Code)
}
