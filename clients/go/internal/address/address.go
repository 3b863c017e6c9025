// Package address reads the addresses of clients.
package address

import (
	"net/http"
	"net/netip"
	"strings"
)

// Parse reads an address with or without a port and a zone, and drops both.
func Parse(text string) (netip.Addr, error) {
	peer, err := netip.ParseAddrPort(text)
	address := peer.Addr()
	if err != nil {
		bare := strings.TrimSuffix(strings.TrimPrefix(text, "["), "]")
		address, err = netip.ParseAddr(bare)
	}
	return address.Unmap().WithZone(""), err
}

// Plain returns the address in a text without its port and zone, and other texts as they are.
func Plain(text string) string {
	if address, err := Parse(text); err == nil {
		return address.String()
	}
	return text
}

// List returns the elements of a header such as X-Forwarded-For, plain.
func List(header http.Header, name string) []string {
	var addresses []string
	for _, line := range header[name] {
		for element := range strings.SplitSeq(line, ",") {
			addresses = append(addresses, Plain(strings.TrimSpace(element)))
		}
	}
	return addresses
}
