package serve_test

import (
	"errors"
	"io"
	"net/http"
	"strings"
	"testing"

	"connectrpc.com/connect"
	"connectrpc.com/grpchealth"
	"github.com/google/uuid"
	"github.com/stretchr/testify/require"
	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/protobuf/proto"

	"github.com/dibs-go/dibs/serve"
	v1 "github.com/dibs-go/dibs/serve/gen/dibs/v1"
	"github.com/dibs-go/dibs/serve/servetest"
)

func requireTooLarge(t *testing.T, err error, says string) {
	t.Helper()
	requireCode(t, connect.CodeResourceExhausted, err)
	coded, _ := errors.AsType[*connect.Error](err)
	require.Len(t, coded.Details(), 1)
	v, err := coded.Details()[0].Value()
	require.NoError(t, err)
	bad, is := v.(*errdetails.BadRequest)
	require.True(t, is, "%T", v)
	require.Equal(t, "request", bad.GetFieldViolations()[0].GetField())
	require.Equal(t, says, bad.GetFieldViolations()[0].GetDescription())
}

// A request that is too large is refused, with the bound and its size, in each protocol; one of just
// the size is not.
func TestARequestThatIsTooLargeIsToldTheBound(t *testing.T) {
	t.Parallel()
	url := start(t, open(t), &serve.Config{MaxBytes: 100_000})
	for name, to := range map[string]servetest.Services{
		"gRPC":                 grpcOf(t, url),
		"gRPC-Web":             servetest.Connect(h2c(t), url, connect.WithGRPCWeb()),
		"gRPC-Web over HTTP/1": servetest.Connect(http.DefaultClient, url, connect.WithGRPCWeb()),
		"Connect":              servetest.Connect(h2c(t), url),
		"Connect over HTTP/1":  servetest.Connect(http.DefaultClient, url),
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			request := &v1.ReserveRequest{Name: &v1.IntentName{Category: "pay:intent", Key: uuid.NewString()}, SessionId: "s"}
			sized := func(size int) *v1.ReserveRequest {
				request.ContentJson = `"` + strings.Repeat("x", size-proto.Size(&v1.ReserveRequest{Name: request.GetName(), SessionId: "s"})-6) + `"`
				require.Equal(t, size, proto.Size(request))
				return request
			}
			_, err := to.Intents.Reserve(t.Context(), sized(100_001))
			requireTooLarge(t, err, "must be at most 100000 bytes: 100001")
			_, err = to.Intents.Reserve(t.Context(), sized(200_000))
			requireTooLarge(t, err, "must be at most 100000 bytes: 200000")
			_, err = to.Intents.Reserve(t.Context(), sized(100_000))
			require.NoError(t, err)
		})
	}
	res, err := http.Post(url+"/dibs.v1.IntentService/Reserve", "application/json", strings.NewReader(`{"contentJson":"`+strings.Repeat("x", 200_000)+`"}`))
	require.NoError(t, err)
	defer res.Body.Close()
	body, err := io.ReadAll(res.Body)
	require.NoError(t, err)
	require.Contains(t, string(body), `"invalid request 200018: must be at most 100000 bytes"`)
	answers(t, url)
}

// Calls without a key are bounded, too.
func TestAHealthCheckIsBounded(t *testing.T) {
	t.Parallel()
	url := start(t, open(t), &serve.Config{MaxBytes: 100_000})
	check := connect.NewClient[v1.IntentName, v1.IntentName](h2c(t), url+"/"+grpchealth.HealthV1ServiceName+"/Check", connect.WithGRPC())
	_, err := check.CallUnary(t.Context(), connect.NewRequest(&v1.IntentName{Category: strings.Repeat("x", 200_000)}))
	requireCode(t, connect.CodeResourceExhausted, err)

	inflates := connect.NewClient[v1.IntentName, v1.IntentName](h2c(t), url+"/"+grpchealth.HealthV1ServiceName+"/Check", connect.WithGRPC(), connect.WithSendGzip())
	_, err = inflates.CallUnary(t.Context(), connect.NewRequest(&v1.IntentName{Category: strings.Repeat("x", 200_000)}))
	requireCode(t, connect.CodeUnimplemented, err)
}
