package outbox_test

import (
	"net/http"
	"net/netip"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/dibs-go/dibs/messagestore"
	"github.com/dibs-go/dibs/outbox"
)

func TestPublicAddresses(t *testing.T) {
	t.Parallel()
	for _, address := range []string{"1.1.1.1", "8.8.8.8", "93.184.215.14", "172.15.0.1", "172.32.0.1", "100.63.0.1", "2606:4700:4700::1111", "2a00:1450:4001:830::200e"} {
		require.True(t, outbox.IsPublic(netip.MustParseAddr(address)), address)
	}
	for name, address := range map[string]string{
		"unspecified": "0.0.0.0", "this network": "0.1.2.3", "loopback": "127.8.0.1", "private 10": "10.1.2.3", "private 172": "172.16.0.1",
		"private 172, its end": "172.31.255.255", "private 192": "192.168.1.1", "link-local": "169.254.169.254", "of a carrier": "100.64.0.1",
		"documentation": "203.0.113.9", "benchmarks": "198.19.0.1", "multicast": "224.0.0.1", "reserved": "240.0.0.1", "broadcast": "255.255.255.255",
		"unspecified 6": "::", "loopback 6": "::1", "link-local 6": "fe80::1", "of a zone": "fe80::1%eth0", "of a zone, public": "2606:4700::1%eth0",
		"unique local": "fd00::1", "site-local": "fec0::1", "multicast 6": "ff02::1", "documentation 6": "2001:db8::1", "later documentation": "3fff::1",
		"IPv4 in IPv6": "::ffff:10.0.0.1", "public IPv4 in IPv6": "::ffff:8.8.8.8", "IPv4-compatible": "::10.0.0.1", "NAT64": "64:ff9b::10.0.0.1",
		"local NAT64": "64:ff9b:1::1", "6to4": "2002:a00:1::1", "Teredo": "2001:0:1::1", "discard": "100::1", "segment routing": "5f00::1",
	} {
		require.False(t, outbox.IsPublic(netip.MustParseAddr(address)), name)
	}
	require.False(t, outbox.IsPublic(netip.Addr{}))
}

// A URL of a customer's that leads inside, by its name or its address, is not dialled.
func TestAURLThatIsNotTrustedDoesNotLeadInside(t *testing.T) {
	t.Parallel()
	for _, url := range []string{
		"https://localhost/", "https://127.0.0.1/", "https://127.0.0.1:8443/hooks", "https://0.0.0.0/", "https://[::1]/", "https://[::]/",
		"https://10.0.0.1/", "https://[::ffff:10.0.0.1]/", "https://[::ffff:127.0.0.1]/", "https://169.254.169.254/latest/meta-data", "https://[fe80::1]/",
	} {
		sink, err := outbox.HTTP(url, &outbox.HTTPConfig{Untrusted: true, Timeout: 10 * time.Second})
		require.NoError(t, err, url)

		err = sink.Send(t.Context(), message())

		require.ErrorContains(t, err, "is not public, and the URL is not trusted", url)
		refused, _ := asks(err)
		require.False(t, refused, "the URL may be mended")
	}
	for url, rule := range map[string]string{
		"http://bank.example/": "https", "https://bank.example:22/": "port", "https://bank.example:80/": "port", "https://ann@bank.example/": "user",
		"https://ann:hunter2@bank.example/": "user",
	} {
		_, err := outbox.HTTP(url, &outbox.HTTPConfig{Untrusted: true})
		require.ErrorIs(t, err, messagestore.ErrInvalid, url)
		require.ErrorContains(t, err, rule)
		require.NotContains(t, err.Error(), "hunter2")
		require.NotContains(t, err.Error(), "ann")
	}
	_, err := outbox.HTTP("https://bank.example/", &outbox.HTTPConfig{Untrusted: true, Transport: http.DefaultTransport})
	require.ErrorIs(t, err, messagestore.ErrInvalid)
	require.ErrorContains(t, err, "Transport")
}
