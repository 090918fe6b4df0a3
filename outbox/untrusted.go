package outbox

import (
	"context"
	"fmt"
	"net"
	"net/netip"
	"net/url"
	"syscall"
	"time"

	"github.com/dibs-go/dibs/messagestore"
)

// checkUntrusted refuses a customer's URL that names more than a host.
func checkUntrusted(u *url.URL) error {
	port := u.Port()
	switch {
	case u.Scheme != "https":
		return messagestore.NewInvalidError("URL", redacted(u), "must be https if it is not trusted")
	case u.User != nil:
		return messagestore.NewInvalidError("URL", redacted(u), "must not have a user if it is not trusted")
	case port != "" && port != "443" && port != "8443":
		return messagestore.NewInvalidError("URL", redacted(u), "must have port 443 or 8443 if it is not trusted")
	}
	return nil
}

// dialPublic dials, but refuses every address that is not public. It checks the address itself,
// after the name is resolved.
var dialPublic = (&net.Dialer{Timeout: 30 * time.Second, KeepAlive: 30 * time.Second, ControlContext: onlyPublic}).DialContext

func onlyPublic(_ context.Context, network, address string, _ syscall.RawConn) error {
	at, err := netip.ParseAddrPort(address)
	if err != nil || network != "tcp4" && network != "tcp6" || !isPublic(at.Addr()) {
		return fmt.Errorf("address %.80q is not public, and the URL is not trusted", address)
	}
	return nil
}

// isPublic reports whether an address belongs to a host on the Internet, by the special-purpose
// registries of IANA (RFC 6890). IPv6 addresses that stand for an IPv4 address are not public: a
// gateway might lead them inside.
func isPublic(a netip.Addr) bool {
	if !a.IsValid() || a.Zone() != "" {
		return false
	}
	if a.Is6() && !globalUnicast.Contains(a) {
		return false
	}
	for _, p := range special {
		if p.Contains(a) {
			return false
		}
	}
	return true
}

var (
	globalUnicast = netip.MustParsePrefix("2000::/3")

	special = prefixes(
		"0.0.0.0/8", "10.0.0.0/8", "100.64.0.0/10", "127.0.0.0/8", "169.254.0.0/16", "172.16.0.0/12", "192.0.0.0/24", "192.0.2.0/24",
		"192.31.196.0/24", "192.52.193.0/24", "192.88.99.0/24", "192.168.0.0/16", "192.175.48.0/24", "198.18.0.0/15", "198.51.100.0/24",
		"203.0.113.0/24", "224.0.0.0/4", "240.0.0.0/4",
		"2001::/23", "2001:db8::/32", "2002::/16", "2620:4f:8000::/48", "3fff::/20",
	)
)

func prefixes(all ...string) []netip.Prefix {
	parsed := make([]netip.Prefix, len(all))
	for i, p := range all {
		parsed[i] = netip.MustParsePrefix(p)
	}
	return parsed
}
