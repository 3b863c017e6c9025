package tollgate

import (
	"fmt"
	"net/http"
	"net/netip"
	"slices"
	"strings"

	"tollgate-limiter/internal/address"
)

// RemoteIP returns the address of the peer, without its port. It is empty for peers without one, as
// on Unix sockets. Requests with an empty key end with 400.
func RemoteIP(r *http.Request) string {
	peer, err := address.Parse(r.RemoteAddr)
	if err != nil {
		return ""
	}
	return peer.String()
}

// ForwardedIP returns a [Limit.Address] for servers behind proxies. It reads X-Forwarded-For from the
// end, and returns the first address that none of these proxies has: addresses or networks, such as
// "10.0.0.0/8". It returns the address of the peer if the peer is no such proxy.
func ForwardedIP(proxies ...string) (func(*http.Request) string, error) {
	trusted := make([]netip.Prefix, len(proxies))
	for i, proxy := range proxies {
		network, err := netip.ParsePrefix(proxy)
		if one, other := netip.ParseAddr(proxy); other == nil {
			network, err = one.Unmap().WithZone("").Prefix(one.Unmap().BitLen())
		}
		if err != nil {
			return nil, fmt.Errorf("tollgate: proxy %q must be an address or a network such as 10.0.0.0/8", proxy)
		}
		trusted[i] = network
	}
	return func(r *http.Request) string {
		client := RemoteIP(r)
		hops := address.List(r.Header, forwardedFor)
		for _, hop := range slices.Backward(hops) {
			proxy, err := netip.ParseAddr(client)
			trusts := func(network netip.Prefix) bool { return network.Contains(proxy) }
			if err != nil || !slices.ContainsFunc(trusted, trusts) {
				break
			}
			client = hop
		}
		return client
	}, nil
}

const forwardedFor = "X-Forwarded-For"

// key warns of a key that is an address with a port or a zone.
func (m *monitor) key(key string) {
	if plain := address.Plain(key); plain != key && !strings.HasPrefix(key, "::ffff:") {
		m.warn("key", "the key "+key+" is an address with a port or a zone. Each connection has another port, "+
			"and so a limit of its own: return "+plain+" from Limit.Key")
	}
}

// proxied warns if a proxy names its clients, and the key is the address of the proxy.
func (m *monitor) proxied(r *http.Request, key string) {
	hops := address.List(r.Header, forwardedFor)
	if len(hops) == 0 && r.Header["Forwarded"] == nil || slices.Contains(hops, key) {
		return
	}
	m.warn("proxy", "requests have X-Forwarded-For or Forwarded, but no proxy is trusted, so that all clients "+
		"behind one count as one: set Limit.Address to tollgate.ForwardedIP with the addresses of the proxies, "+
		"in Gin the engine's trusted proxies, or set Limit.Key")
}
