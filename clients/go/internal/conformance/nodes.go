package conformance

import (
	"bytes"
	"context"
	"encoding/json"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"sync"
	"testing"

	"tollgate-limiter/internal/testnode"
)

// nodes are the two real nodes of all cases.
type nodes struct{ plain, secure *testnode.Node }

func startNodes(t *testing.T) *nodes {
	t.Helper()
	return &nodes{testnode.Start(t, "cases.yaml"), testnode.Start(t, "cases-secure.yaml")}
}

// list returns the URLs for the kinds of a case, and the proxy among them.
func (n *nodes) list(t *testing.T, kinds []string) ([]string, *proxy) {
	t.Helper()
	if len(kinds) == 0 {
		kinds = []string{"node"}
	}
	var urls []string
	var recording *proxy
	for _, kind := range kinds {
		switch kind {
		case "node":
			urls = append(urls, n.plain.URL())
		case "secure":
			urls = append(urls, "https://"+n.secure.Address)
		case "down":
			urls = append(urls, "http://"+testnode.FreeAddress(t))
		case "silent":
			urls = append(urls, "http://"+silent(t))
		case "proxy", "lossy":
			recording = newProxy(t, n.plain.URL(), kind == "lossy")
			urls = append(urls, recording.server.URL)
		default:
			t.Fatalf("unknown kind of node %q", kind)
		}
	}
	return urls, recording
}

// silent listens, and never accepts. The kernel completes the connections.
func silent(t *testing.T) string {
	t.Helper()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { listener.Close() })
	return listener.Addr().String()
}

// proxy forwards each call to the node and records it.
type proxy struct {
	server *httptest.Server
	target string

	mutex       sync.Mutex
	lossy       bool
	paths       []string
	headers     []http.Header
	checks      []any
	connections int
}

func newProxy(t *testing.T, target string, lossy bool) *proxy {
	t.Helper()
	proxy := &proxy{target: target, lossy: lossy}
	proxy.server = httptest.NewUnstartedServer(proxy)
	proxy.server.Config.ConnContext = func(ctx context.Context, _ net.Conn) context.Context {
		proxy.mutex.Lock()
		defer proxy.mutex.Unlock()
		proxy.connections++
		return ctx
	}
	proxy.server.Start()
	t.Cleanup(proxy.server.Close)
	return proxy
}

func (p *proxy) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	lose := p.record(r) // before the node acts on the call, which a test may see at the node
	reply, err := p.forward(r)
	if err != nil {
		w.WriteHeader(http.StatusBadGateway)
		return
	}
	defer reply.Body.Close()
	body, _ := io.ReadAll(reply.Body)
	if lose {
		connection, _, err := http.NewResponseController(w).Hijack()
		if err == nil {
			connection.Close()
		}
		return
	}
	w.Header().Set("Content-Type", reply.Header.Get("Content-Type"))
	w.WriteHeader(reply.StatusCode)
	_, _ = w.Write(body)
}

func (p *proxy) forward(r *http.Request) (*http.Response, error) {
	body, err := io.ReadAll(r.Body)
	if err != nil {
		return nil, err
	}
	p.recordChecks(body)
	request, err := http.NewRequestWithContext(r.Context(), r.Method, p.target+r.URL.RequestURI(), bytes.NewReader(body))
	if err != nil {
		return nil, err
	}
	request.Header = r.Header.Clone()
	return http.DefaultClient.Do(request)
}

// recordChecks keeps the checks of a call, of which a batch has several.
func (p *proxy) recordChecks(body []byte) {
	var content map[string]any
	if json.Unmarshal(body, &content) != nil {
		return // a call without a body
	}
	p.mutex.Lock()
	defer p.mutex.Unlock()
	if checks, batch := content["checks"].([]any); batch {
		p.checks = append(p.checks, checks...)
	} else {
		p.checks = append(p.checks, content)
	}
}

// record keeps a call, and reports whether its answer gets lost.
func (p *proxy) record(r *http.Request) bool {
	p.mutex.Lock()
	defer p.mutex.Unlock()
	p.paths = append(p.paths, r.URL.Path)
	p.headers = append(p.headers, r.Header.Clone())
	lose := p.lossy
	p.lossy = false
	return lose
}

type seen struct {
	Calls       any               `json:"calls"`
	Connections any               `json:"connections"`
	Headers     map[string]string `json:"headers"`
	SomePath    string            `json:"some_path"`
	EveryPath   string            `json:"every_path"`
	Checks      []any             `json:"checks"`
}

func (p *proxy) verify(t *testing.T, want *seen) {
	t.Helper()
	if want == nil {
		return
	}
	p.mutex.Lock()
	defer p.mutex.Unlock()
	match(t, "calls", want.Calls, float64(len(p.paths)))
	match(t, "connections", want.Connections, float64(p.connections))
	if want.Checks != nil {
		match(t, "checks", want.Checks, p.checks)
	}
	// An absent header and null are both an empty text here.
	for name, value := range want.Headers {
		for _, headers := range p.headers {
			match(t, name, value, headers.Get(name))
		}
	}
	some := want.SomePath == ""
	for _, path := range p.paths {
		some = some || path == want.SomePath
		if want.EveryPath != "" {
			match(t, "path", want.EveryPath, path)
		}
	}
	if !some {
		t.Errorf("no call has the path %s: %v", want.SomePath, p.paths)
	}
}
