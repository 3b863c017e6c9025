package tollgate_test

import (
	"context"
	"errors"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
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

// The node counts drains only if it knows them. Each other one reports an error here.
func TestADrainFollowsTheResponseAndClosingWaitsForIt(t *testing.T) {
	var got tollgate.Response
	failures := make(chan error, 1)
	node := testnode.Start(t, "cases.yaml")
	client, err := tollgate.New(tollgate.Options{Nodes: []string{node.URL()}, Deadline: 5 * time.Second})
	if err != nil {
		t.Fatal(err)
	}
	limit := tollgate.Limit{
		Policy:  "ten",
		Key:     func(*http.Request) string { return "drained" },
		Drain:   func(_ *http.Request, response tollgate.Response) int64 { got = response; return 4 },
		OnError: func(_ context.Context, err error) { failures <- err },
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
	select {
	case err := <-failures:
		if !strings.Contains(err.Error(), "over") {
			t.Error(err)
		}
	default:
		usage, err := client.Usage(t.Context(), tollgate.Check{Policy: "ten", Key: "drained"})
		if err != nil || *usage.Remaining != 5 {
			t.Errorf("usage after 1 and 4 units: %+v, %v", usage, err)
		}
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
	server := httptest.NewServer(outer(inner(http.NotFoundHandler())))
	defer server.Close()
	reply, _ := get(t, server.URL)
	if fields := reply.Header.Values("RateLimit"); len(fields) != 2 {
		t.Errorf("want the fields of both limits, got %v", fields)
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
