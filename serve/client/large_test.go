package client

import (
	"context"
	"errors"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"connectrpc.com/connect"
	"github.com/stretchr/testify/require"
	"google.golang.org/genproto/googleapis/rpc/errdetails"

	"github.com/dibs-go/dibs/messagestore"
	v1 "github.com/dibs-go/dibs/serve/gen/dibs/v1"
)

func TestTheLargestFieldIsNamed(t *testing.T) {
	t.Parallel()
	x := func(n int) string { return strings.Repeat("x", n) }
	for field, m := range map[string]connect.AnyRequest{
		"content_json": connect.NewRequest(&v1.ReserveRequest{Name: &v1.IntentName{Key: x(100)}, ContentJson: x(110)}),
		"name.key":     connect.NewRequest(&v1.ReserveRequest{Name: &v1.IntentName{Key: x(101)}, ContentJson: x(100)}),
		"writes[1].messages[2].data_json": connect.NewRequest(&v1.ConfirmRequest{ResultJson: x(100), Writes: []*v1.StreamWrite{
			{Stream: "a-1"}, {Messages: []*v1.NewMessage{{DataJson: x(40)}, {}, {DataJson: x(200), MetadataJson: x(100)}}},
		}}),
		"items":        connect.NewRequest(&v1.ProduceRequest{Items: []*v1.NewItem{{DataJson: x(100)}, {DataJson: x(100)}, {DataJson: x(101)}}}),
		"items[0].key": connect.NewRequest(&v1.ProduceRequest{Items: []*v1.NewItem{{Key: x(1000)}, {DataJson: x(100)}}}),
	} {
		made := 0
		next := func(context.Context, connect.AnyRequest) (connect.AnyResponse, error) { made++; return nil, nil }

		_, err := (&repeats{most: 200}).call(t.Context(), m, true, next)

		require.ErrorIs(t, err, messagestore.ErrInvalid)
		require.NotErrorIs(t, err, messagestore.ErrOutcomeUnknown)
		require.Equal(t, connect.CodeInvalidArgument, connect.CodeOf(err))
		refused, _ := errors.AsType[*messagestore.InvalidError](err)
		require.Equal(t, field, refused.Field)
		require.Equal(t, "must be smaller, because the request has that many bytes and may have 200", refused.Rule)
		require.NotEmpty(t, refused.Value)
		require.Zero(t, made)
	}
}

// A server whose bound is lower says so.
func TestTheServersBoundIsNamed(t *testing.T) {
	t.Parallel()
	err := libraryError(wire(connect.CodeResourceExhausted, &errdetails.BadRequest{FieldViolations: []*errdetails.BadRequest_FieldViolation{
		{Field: "request", Description: "must be at most 100000 bytes: 200018"},
	}}), true)
	refused, ok := errors.AsType[*messagestore.InvalidError](err)
	require.True(t, ok)
	require.Equal(t, messagestore.NewInvalidError("request", 200018, "must be at most 100000 bytes"), refused)
	require.NotErrorIs(t, err, messagestore.ErrOutcomeUnknown)
}

// Leases with long keys go in as many calls as their size needs, and one that is too large fails alone.
func TestExtensionsOfLongKeysFitTheirCalls(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		service := &extender{takes: 100 * time.Millisecond}
		e := &extensions{service: service, most: 10_000}
		var all []*v1.Lease
		for range 20 {
			all = append(all, leaseIn("pay:intent", strings.Repeat("k", 1000))...)
		}
		all = append(all, leaseIn("pay:intent", strings.Repeat("k", 20_000))...)

		for _, result := range e.extend(t.Context(), all) {
			require.NoError(t, result.err)
		}

		require.Equal(t, []int{9, 9, 2, 1}, service.calls)
	})
}
