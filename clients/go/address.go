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

// keyOfAddress returns the address of a key such as `203.0.113.7:51234` or `fe80::1%eth0`. A port is
// another one on each connection, so that such keys would never reach a limit.
func (w *warnings) keyOfAddress(key string) string {
	if _, err := netip.ParseAddrPort(key); err != nil && !strings.ContainsAny(key, "%[") {
		return key
	}
	plain := address.Plain(key)
	if plain != key {
		w.once("address", "the key "+key+" is an address with a port or a zone: the limit counts "+plain+
			". Return the address alone from Limit.Key")
	}
	return plain
}

// proxied warns if a proxy names its clients, and the key is the address of the proxy.
func (w *warnings) proxied(r *http.Request, key string) {
	hops := address.List(r.Header, forwardedFor)
	if len(hops) == 0 && r.Header["Forwarded"] == nil || slices.Contains(hops, key) {
		return
	}
	w.once("proxy", "a request by a proxy has the key "+key+", the address of the peer, so that all clients "+
		"of the proxy share a limit. Set the framework's trusted proxies, or Limit.Address to "+
		"tollgate.ForwardedIP with the addresses of the proxies")
}
