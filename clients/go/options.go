package tollgate

import (
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"net/url"
	"os"
	"strings"
	"time"
)

// Defaults of [Options].
const (
	DefaultNode = "http://127.0.0.1:7070"
	// DefaultDeadline is that of a client with one node. Each further node adds as much, up to 1 s.
	DefaultDeadline    = 300 * time.Millisecond
	maxDefaultDeadline = time.Second
	// DefaultDenialCache is the time for which a client denies without a question.
	DefaultDenialCache = time.Second
)

// Options configure a [Client]. The zero value calls a node on this machine.
type Options struct {
	// Nodes are base URLs in the order of preference. The default is [DefaultNode].
	Nodes []string
	// Deadline bounds each call with its retry. The default is [DefaultDeadline] for each node, at
	// most 1 s. It must exceed the node's `store.timeout`, else the node's fallback comes too late.
	// A context may end a call sooner.
	Deadline time.Duration
	// Token is a bearer token of the nodes, of visible ASCII characters.
	Token string
	// CAFile is a PEM file with the authorities of the nodes' certificates. The default is those
	// of the platform.
	CAFile string
	// NoRetry turns off the retry after a broken connection, and after the silence of a node among
	// several. A retry lets no more through, but without [Check.Once] it may charge twice.
	NoRetry bool
	// NoCoalesce sends each check as a call of its own.
	NoCoalesce bool
	// NoLease turns off leases. With them the client buys units of busy keys, and decides their checks
	// without a call, under policies whose `lease` has `callers`. Blocks, resets and lower limits then
	// reach the client when a lease ends, at the latest.
	NoLease bool
	// DenialCache is the time for which the client repeats a denial of the pre-filter without a call.
	// The default is [DefaultDenialCache]; a negative one turns it off.
	DenialCache time.Duration
	// OnDecision gets each decision, also those that need no call. It must not block.
	OnDecision func(*Decision)
	// Logger gets a warning for each mistake in the configuration, and the failures that no caller
	// sees. The default is [slog.Default].
	Logger *slog.Logger
	// Transport replaces the connections of the client, for example by those of a proxy. It must
	// not repeat calls by itself. CAFile is then invalid.
	Transport http.RoundTripper
}

func (o Options) nodes() ([]*node, error) {
	urls := o.Nodes
	if len(urls) == 0 {
		urls = []string{DefaultNode}
	}
	if strings.ContainsFunc(o.Token, func(r rune) bool { return r < '!' || r > '~' }) {
		return nil, errors.New("tollgate: Token must have visible ASCII characters only (0x21 to 0x7e)")
	}
	transport, err := o.transport()
	if err != nil {
		return nil, err
	}
	nodes := make([]*node, len(urls))
	for i, text := range urls {
		base, err := parseNode(text)
		if err != nil {
			return nil, err
		}
		nodes[i] = &node{link: newSender(transport(), base, o.Token)}
	}
	return nodes, nil
}

func parseNode(text string) (*url.URL, error) {
	base, err := url.Parse(text)
	if err != nil || base.Host == "" || (base.Scheme != "http" && base.Scheme != "https") {
		return nil, fmt.Errorf("tollgate: node %q must be a URL such as %s", text, DefaultNode)
	}
	if base.RawQuery != "" || base.Fragment != "" || base.User != nil {
		return nil, fmt.Errorf("tollgate: node %q must have a host and at most a path", text)
	}
	base.Path = strings.TrimSuffix(base.Path, "/")
	return base, nil
}

// transport returns a function that makes the connections of one node. Each node has its own, since
// a retry closes the idle connections of its node only.
func (o Options) transport() (func() http.RoundTripper, error) {
	if o.Transport != nil {
		if o.CAFile != "" {
			return nil, errors.New("tollgate: CAFile has no effect beside Transport; set one of them")
		}
		return func() http.RoundTripper { return o.Transport }, nil
	}
	config := &tls.Config{MinVersion: tls.VersionTLS12}
	if o.CAFile != "" {
		authorities, err := readAuthorities(o.CAFile)
		if err != nil {
			return nil, err
		}
		config.RootCAs = authorities
	}
	return func() http.RoundTripper {
		return &http.Transport{
			TLSClientConfig: config.Clone(), DisableCompression: true, IdleConnTimeout: idleTimeout,
			MaxConnsPerHost: maxConnections, MaxIdleConnsPerHost: maxConnections,
		}
	}, nil
}

func readAuthorities(file string) (*x509.CertPool, error) {
	pem, err := os.ReadFile(file)
	if err != nil {
		return nil, fmt.Errorf("tollgate: CAFile: %w", err)
	}
	pool := x509.NewCertPool()
	if !pool.AppendCertsFromPEM(pem) {
		return nil, fmt.Errorf("tollgate: CAFile %s must have certificates in PEM form", file)
	}
	return pool, nil
}
