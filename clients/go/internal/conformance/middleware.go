package conformance

import (
	"encoding/json"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"
	"time"

	"tollgate-limiter"
)

// Build returns an application that answers `hello`, behind the middleware under test.
type Build func(client *tollgate.Client, options Options) http.Handler

// browser keeps its connections, so that no request waits for a new one.
var browser = &http.Client{Transport: &http.Transport{MaxIdleConnsPerHost: 64}}

type request struct {
	Headers      map[string]string `json:"headers"`
	Times        int               `json:"times"`
	Expect       *expected         `json:"expect"`
	WithinMS     int               `json:"within_ms"`
	Concurrently int               `json:"concurrently"`
	Statuses     map[int]int       `json:"statuses"`
	Until        *counter          `json:"until"`
}

type expected struct {
	Status  int            `json:"status"`
	Headers map[string]any `json:"headers"`
	Body    *string        `json:"body"`
	JSON    any            `json:"json"`
}

// RunMiddleware runs the cases of a middleware.
func RunMiddleware(t *testing.T, build Build) {
	nodes := startNodes(t)
	direct := Options{}.client(t, []string{nodes.plain.URL()})
	for _, testCase := range read(t).Middleware {
		t.Run(testCase.Name, func(t *testing.T) {
			testCase.skipWithout(t, nodes)
			for _, counter := range testCase.Reset {
				nodes.plain.Reset(t, counter.Policy, counter.Key)
			}
			urls, proxy := nodes.list(t, testCase.Nodes)
			client := testCase.Options.client(t, urls)
			server := httptest.NewServer(build(client, testCase.Options))
			defer server.Close()
			for _, request := range testCase.Request {
				request.run(t, server.URL, direct)
			}
			if proxy != nil {
				proxy.verify(t, testCase.Seen)
			}
		})
	}
}

func (r request) run(t *testing.T, url string, client *tollgate.Client) {
	t.Helper()
	switch {
	case r.Until != nil:
		r.Until.await(t, client)
	case r.Concurrently > 0:
		r.concurrently(t, url)
	default:
		for range max(r.Times, 1) {
			began := time.Now()
			reply, body := r.get(t, url)
			within(t, "the request", r.WithinMS, time.Since(began))
			r.Expect.verify(t, reply, body)
		}
	}
}

func (r request) get(t *testing.T, url string) (*http.Response, string) {
	request, err := http.NewRequest(http.MethodGet, url, nil)
	if err != nil {
		t.Fatal(err)
	}
	for name, value := range r.Headers {
		request.Header.Set(name, value)
	}
	reply, err := browser.Do(request)
	if err != nil {
		t.Error(err)
		return &http.Response{}, ""
	}
	defer reply.Body.Close()
	body, err := io.ReadAll(reply.Body)
	if err != nil {
		t.Error(err)
	}
	return reply, string(body)
}

func (r request) concurrently(t *testing.T, url string) {
	t.Helper()
	var all sync.WaitGroup
	var mutex sync.Mutex
	statuses := map[int]int{}
	for range r.Concurrently {
		all.Go(func() {
			reply, _ := r.get(t, url)
			mutex.Lock()
			defer mutex.Unlock()
			statuses[reply.StatusCode]++
		})
	}
	all.Wait()
	for status, count := range r.Statuses {
		if statuses[status] != count {
			t.Errorf("want %v, got %v", r.Statuses, statuses)
			return
		}
	}
}

func (e *expected) verify(t *testing.T, reply *http.Response, body string) {
	t.Helper()
	if reply.StatusCode != e.Status {
		t.Errorf("status: want %d, got %d %s", e.Status, reply.StatusCode, body)
	}
	for name, want := range e.Headers {
		values := reply.Header.Values(name)
		if want == nil && len(values) > 0 {
			t.Errorf("%s: want none, got %v", name, values)
		}
		match(t, name, want, strings.Join(values, ", "))
	}
	if e.Body != nil && *e.Body != body {
		t.Errorf("body: want %q, got %q", *e.Body, body)
	}
	if e.JSON != nil {
		var document any
		if err := json.Unmarshal([]byte(body), &document); err != nil {
			t.Errorf("%v: %s", err, body)
		}
		match(t, "json", e.JSON, document)
	}
}

func (c *counter) await(t *testing.T, client *tollgate.Client) {
	t.Helper()
	var last any
	for range 500 {
		usage, err := client.Usage(t.Context(), tollgate.Check{Policy: c.Policy, Key: c.Key})
		if err == nil && equal(c.Remaining, usage.Remaining) && equal(c.InFlight, usage.InFlight) {
			return
		}
		last = usage
		time.Sleep(10 * time.Millisecond)
	}
	t.Errorf("the usage never is %v: %v", asJSON(t, c), asJSON(t, last))
}

// equal reports whether a number is the wanted one, if one is wanted.
func equal(want, got *int64) bool { return want == nil || got != nil && *want == *got }

// SetCost gives a hold the cost in a header of its request.
func SetCost(r *http.Request) {
	if hold, used := tollgate.HoldFromContext(r.Context()), r.Header.Get("X-Used"); hold != nil && used != "" {
		hold.SetCost(Number(used))
	}
}
