package tollgate_test

import (
	"cmp"
	"context"
	"errors"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"regexp"
	"strings"
	"testing"
	"time"

	"tollgate-limiter"
	"tollgate-limiter/internal/testnode"
)

func TestRemoteIPIsTheAddressOfThePeer(t *testing.T) {
	for peer, want := range map[string]string{
		"203.0.113.7:1234":          "203.0.113.7",
		"[2001:db8::1]:1234":        "2001:db8::1",
		"[::ffff:203.0.113.7]:1234": "203.0.113.7",
		"[fe80::1%eth0]:1234":       "fe80::1",
		"fe80::1%eth0":              "fe80::1",
		"203.0.113.7":               "203.0.113.7",
		"[::1]":                     "::1",
		"@":                         "",
	} {
		if got := tollgate.RemoteIP(&http.Request{RemoteAddr: peer}); got != want {
			t.Errorf("%s: want %q, got %q", peer, want, got)
		}
	}
}

func TestSafeKeyHashesKeysThatANodeRejects(t *testing.T) {
	for key, safe := range map[string]bool{
		"user-7": true, strings.Repeat("k", 1024): true, strings.Repeat("k", 1025): false, "\xff": false,
	} {
		got := tollgate.SafeKey(key)
		if (got == key) != safe || !safe && !strings.HasPrefix(got, "sha256:") {
			t.Errorf("%q: got %q", key, got)
		}
	}
	if tollgate.SafeKey("\xff") == tollgate.SafeKey("\xfe") {
		t.Error("two invalid keys share a hash")
	}
}

func TestABodyMayDependOnTheDecision(t *testing.T) {
	server := serve(t, tollgate.Limit{
		Policy: "ten",
		Cost:   func(*http.Request) int64 { return 11 },
		Body: func(r *http.Request, answer *tollgate.Answer) (string, string) {
			return "text/html", r.URL.Path + " " + string(answer.Reason)
		},
	}, io.WriteString)
	reply, body := get(t, server+"/page")
	if body != "/page cost_exceeds_limit" || reply.Header.Get("Content-Type") != "text/html" {
		t.Errorf("got %q as %q", body, reply.Header.Get("Content-Type"))
	}
}

func TestFailuresReachOnError(t *testing.T) {
	reported := make(chan error, 1)
	client := newClient(t, tollgate.Options{Nodes: []string{"http://" + testnode.FreeAddress(t)}})
	limit := tollgate.Limit{OnError: func(_ context.Context, err error) { reported <- err }}
	server := httptest.NewServer(client.Middleware(limit)(http.NotFoundHandler()))
	defer server.Close()
	if reply, _ := get(t, server.URL); reply.StatusCode != http.StatusNotFound {
		t.Errorf("an open failure got %s", reply.Status)
	}
	var unavailable *tollgate.Unavailable
	if err := <-reported; !errors.As(err, &unavailable) {
		t.Errorf("reported %v", err)
	}
}

func TestForwardedIPIsTheFirstAddressBeforeTheTrustedProxies(t *testing.T) {
	address, err := tollgate.ForwardedIP("192.0.2.1", "10.0.0.0/8", "2001:db8::/32")
	if err != nil {
		t.Fatal(err)
	}
	for _, test := range []struct{ peer, forwarded, want string }{
		{"192.0.2.1:80", "203.0.113.7", "203.0.113.7"},
		{"192.0.2.1:80", "198.51.100.1, 203.0.113.7, 10.1.2.3", "203.0.113.7"},
		{"192.0.2.1:80", "203.0.113.7:51234", "203.0.113.7"},
		{"[2001:db8::1]:80", "[2a00::7]:443", "2a00::7"},
		{"10.0.0.1:80", "fe80::1%eth0", "fe80::1"},
		{"10.0.0.1:80", "::ffff:203.0.113.7", "203.0.113.7"},
		{"192.0.2.1:80", "", "192.0.2.1"},
		{"203.0.113.9:80", "203.0.113.7", "203.0.113.9"},
		{"10.0.0.1:80", "10.0.0.2", "10.0.0.2"},
	} {
		request := &http.Request{RemoteAddr: test.peer, Header: http.Header{}}
		if test.forwarded != "" {
			request.Header["X-Forwarded-For"] = []string{test.forwarded}
		}
		if got := address(request); got != test.want {
			t.Errorf("%+v: got %q", test, got)
		}
	}
	if _, err := tollgate.ForwardedIP("10.0.0.0/99"); err == nil || !strings.Contains(err.Error(), "10.0.0.0/8") {
		t.Error(err)
	}
}

func TestAddressesWithAZoneCountUnderAPolicyForAddresses(t *testing.T) {
	node := testnode.Start(t, "cases.yaml")
	client := newClient(t, tollgate.Options{Nodes: []string{node.URL()}, Deadline: 5 * time.Second})
	handler := client.Middleware(tollgate.Limit{Policy: "address", OnFailure: tollgate.Closed})(http.NotFoundHandler())
	for i, want := range []int{http.StatusNotFound, http.StatusNotFound, http.StatusTooManyRequests} {
		request := httptest.NewRequest(http.MethodGet, "/", nil)
		request.RemoteAddr = []string{"[fe80::1%eth0]:1", "[fe80::1%2]:2", "[fe80::1]:3"}[i]
		recorder := httptest.NewRecorder()
		handler.ServeHTTP(recorder, request)
		if recorder.Code != want {
			t.Errorf("%s: want %d, got %d", request.RemoteAddr, want, recorder.Code)
		}
	}
}

func TestADrainFollowsTheResponseAndClosingWaitsForIt(t *testing.T) {
	var got tollgate.Response
	node := testnode.Start(t, "cases.yaml")
	client := newClient(t, tollgate.Options{Nodes: []string{node.URL()}, Deadline: 5 * time.Second})
	limit := tollgate.Limit{
		Policy:  "ten",
		Key:     func(*http.Request) string { return "drained" },
		Drain:   func(_ *http.Request, response tollgate.Response) int64 { got = response; return 4 },
		OnError: func(_ context.Context, err error) { t.Error(err) },
	}
	server := httptest.NewServer(client.Middleware(limit)(http.HandlerFunc(
		func(w http.ResponseWriter, _ *http.Request) {
			w.WriteHeader(http.StatusCreated)
			_, _ = io.WriteString(w, "four")
			_, _ = io.Copy(w, strings.NewReader("four"))
		})))
	get(t, server.URL)
	server.Close()
	if err := client.Close(t.Context()); err != nil {
		t.Fatal(err)
	}
	if got.Status != http.StatusCreated || got.Bytes != 8 {
		t.Errorf("the drain saw %+v", got)
	}
	usage, err := client.Usage(t.Context(), tollgate.Check{Policy: "ten", Key: "drained"})
	if err != nil || *usage.Remaining != 5 {
		t.Errorf("usage after 1 and 4 units: %+v, %v", usage, err)
	}
}

func TestARefundOfAPanicSeesAFailure(t *testing.T) {
	for name, write := range map[string]int{"before a status": 0, "after a status": http.StatusOK} {
		statuses := make(chan int, 1)
		node := testnode.Start(t, "cases.yaml")
		client := newClient(t, tollgate.Options{Nodes: []string{node.URL()}, Deadline: 5 * time.Second})
		handler := client.Middleware(tollgate.Limit{Refund: func(_ *http.Request, response tollgate.Response) bool {
			statuses <- response.Status
			return false
		}})(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
			if write != 0 {
				w.WriteHeader(write)
			}
			panic(http.ErrAbortHandler)
		}))
		func() {
			defer func() { _ = recover() }()
			handler.ServeHTTP(httptest.NewRecorder(), httptest.NewRequest(http.MethodGet, "/", nil))
		}()
		if got, want := <-statuses, cmp.Or(write, http.StatusInternalServerError); got != want {
			t.Errorf("%s: the refund saw %d, want %d", name, got, want)
		}
	}
}

func TestAHandlerSeesTheDecision(t *testing.T) {
	node := testnode.Start(t, "cases.yaml")
	client := newClient(t, tollgate.Options{Nodes: []string{node.URL()}, Deadline: 5 * time.Second})
	skip := func(r *http.Request) bool { return r.URL.Path == "/skipped" }
	var seen []*tollgate.Answer
	handler := client.Middleware(tollgate.Limit{Policy: "ten", Skip: skip})(http.HandlerFunc(
		func(_ http.ResponseWriter, r *http.Request) { seen = append(seen, tollgate.FromContext(r.Context())) }))
	for _, path := range []string{"/", "/skipped"} {
		handler.ServeHTTP(httptest.NewRecorder(), httptest.NewRequest(http.MethodGet, path, nil))
	}
	if seen[0] == nil || !seen[0].Allowed || *seen[0].Remaining != 9 || seen[1] != nil {
		t.Errorf("the handlers saw %+v", seen)
	}
}

func TestAWriterKeepsItsOptionalMethodsBesideADrain(t *testing.T) {
	drain := func(*http.Request, tollgate.Response) int64 { return 0 }
	server := serve(t, tollgate.Limit{Policy: "thousand", Drain: drain}, func(w io.Writer, text string) (int, error) {
		w.(http.Flusher).Flush()
		connection, _, err := w.(http.Hijacker).Hijack()
		if err != nil {
			return 0, err
		}
		defer connection.Close()
		return io.WriteString(connection, text)
	})
	connection, err := net.Dial("tcp", strings.TrimPrefix(server, "http://"))
	if err != nil {
		t.Fatal(err)
	}
	defer connection.Close()
	_, _ = io.WriteString(connection, "GET / HTTP/1.1\r\nHost: a\r\n\r\n")
	response, err := io.ReadAll(connection)
	if err != nil {
		t.Fatal(err)
	}
	text := string(response)
	if !strings.HasPrefix(text, "HTTP/1.1 200") || !strings.HasSuffix(text, "hello") {
		t.Errorf("a flush and a hijack sent %q", text)
	}
}

func TestACallerThatLeavesCountsAllTheSame(t *testing.T) {
	node := testnode.Start(t, "cases.yaml")
	client := newClient(t, tollgate.Options{Nodes: []string{node.URL()}, Deadline: 5 * time.Second})
	passed := 0
	handler := client.Middleware(tollgate.Limit{Policy: "ten"})(http.HandlerFunc(
		func(http.ResponseWriter, *http.Request) { passed++ }))
	left, leave := context.WithCancel(t.Context())
	leave()
	for range 20 {
		request := httptest.NewRequestWithContext(left, http.MethodGet, "/", nil)
		handler.ServeHTTP(httptest.NewRecorder(), request)
	}
	if passed != 10 {
		t.Errorf("%d requests passed a limit of 10", passed)
	}
}

func TestAFaultyTraceparentDoesNotEvadeTheLimit(t *testing.T) {
	node := testnode.Start(t, "cases.yaml")
	client := newClient(t, tollgate.Options{Nodes: []string{node.URL()}, Deadline: 5 * time.Second})
	handler := client.Middleware(tollgate.Limit{})(http.NotFoundHandler())
	for _, traceparent := range []string{strings.Repeat("0", 100_000), "\xff", "a\r\nb: c"} {
		for range 3 {
			recorder := httptest.NewRecorder()
			request := httptest.NewRequest(http.MethodGet, "/", nil)
			request.Header["Traceparent"] = []string{traceparent}
			handler.ServeHTTP(recorder, request)
			if recorder.Header().Get("RateLimit") == "" {
				t.Errorf("uncounted with the traceparent %.20q", traceparent)
			}
		}
	}
}

// The node answers 413 to the first size. The client does not send the second one.
func TestACheckThatIsTooLargeDoesNotPassUncounted(t *testing.T) {
	node := testnode.Start(t, "cases.yaml")
	client := newClient(t, tollgate.Options{Nodes: []string{node.URL()}, Deadline: 10 * time.Second})
	for _, size := range []int{100 << 10, 32 << 20} {
		limit := tollgate.Limit{Policy: strings.Repeat("p", size)}
		handler := client.Middleware(limit)(http.HandlerFunc(func(http.ResponseWriter, *http.Request) {
			t.Errorf("a request passed with a check of %d bytes", size)
		}))
		recorder := httptest.NewRecorder()
		handler.ServeHTTP(recorder, httptest.NewRequest(http.MethodGet, "/", nil))
		if recorder.Code != http.StatusBadRequest {
			t.Errorf("%d bytes got %d", size, recorder.Code)
		}
	}
}

func TestTwoLimitsListTheirFieldsTogether(t *testing.T) {
	node := testnode.Start(t, "cases.yaml")
	client := newClient(t, tollgate.Options{Nodes: []string{node.URL()}, Deadline: 5 * time.Second})
	outer := client.Middleware(tollgate.Limit{Policy: "ten"})
	inner := client.Middleware(tollgate.Limit{Policy: "thousand"})
	other := client.Middleware(tollgate.Limit{})
	server := httptest.NewServer(outer(other(inner(http.NotFoundHandler()))))
	defer server.Close()
	reply, _ := get(t, server.URL)
	for name, want := range map[string]string{
		"RateLimit-Policy": `"1h";q=10;w=3600, "1m";q=2;w=60, "thousand/1h";q=1000;w=3600`,
		"RateLimit":        `"1h";r=9;t=, "1m";r=1;t=, "thousand/1h";r=999;t=`,
	} {
		got := strings.Join(reply.Header.Values(name), ", ")
		if name == "RateLimit" {
			got = regexp.MustCompile(`t=\d+`).ReplaceAllString(got, "t=")
		}
		if got != want {
			t.Errorf("%s: want %s, got %s", name, want, got)
		}
	}
}

// serve runs a handler that writes hello, behind a middleware and a real node.
func serve(t *testing.T, limit tollgate.Limit, write func(io.Writer, string) (int, error)) string {
	t.Helper()
	node := testnode.Start(t, "cases.yaml")
	client := newClient(t, tollgate.Options{Nodes: []string{node.URL()}, Deadline: 5 * time.Second})
	server := httptest.NewServer(client.Middleware(limit)(http.HandlerFunc(
		func(w http.ResponseWriter, _ *http.Request) {
			if _, err := write(w, "hello"); err != nil {
				t.Error(err)
			}
		})))
	t.Cleanup(server.Close)
	return server.URL
}

func get(t *testing.T, url string) (*http.Response, string) {
	t.Helper()
	reply, err := http.Get(url)
	if err != nil {
		t.Fatal(err)
	}
	defer reply.Body.Close()
	body, err := io.ReadAll(reply.Body)
	if err != nil {
		t.Fatal(err)
	}
	return reply, string(body)
}

func TestOptionsThatExcludeEachOtherPanic(t *testing.T) {
	client := tollgate.NewFake()
	drain := func(*http.Request, tollgate.Response) int64 { return 1 }
	refund := func(*http.Request, tollgate.Response) bool { return true }
	for _, limit := range []tollgate.Limit{
		{Hold: true, Look: true}, {Hold: true, Drain: drain}, {Hold: true, Refund: refund}, {Look: true, Refund: refund},
	} {
		func() {
			defer func() {
				if recover() == nil {
					t.Errorf("no panic: %+v", limit)
				}
			}()
			client.Middleware(limit)
		}()
	}
}
