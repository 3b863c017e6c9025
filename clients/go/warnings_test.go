package tollgate_test

import (
	"context"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"tollgate-limiter"
	"tollgate-limiter/internal/testnode"
)

// warnings keeps what a client logs.
type warnings struct{ testnode.Log }

// await requires one line, with all the texts.
func (w *warnings) await(t *testing.T, texts ...string) {
	t.Helper()
	for range 500 {
		logged := w.String()
		if strings.Count(logged, "\n") == 0 {
			time.Sleep(10 * time.Millisecond)
			continue
		}
		for _, text := range append(texts, "level=WARN") {
			if strings.Count(logged, "\n") != 1 || !strings.Contains(logged, text) {
				t.Errorf("want one warning with %q, got %s", text, logged)
			}
		}
		return
	}
	t.Error("no warning")
}

func TestAnUnknownPolicyIsNamedOnceWithThoseOfTheNode(t *testing.T) {
	node := testnode.Start(t, "cases.yaml")
	log := new(warnings)
	client := newClient(t, tollgate.Options{Nodes: []string{node.URL()}, Deadline: 5 * time.Second, Logger: log.Logger()})
	handler := client.Middleware(tollgate.Limit{
		Policy: "thousands", OnError: func(context.Context, error) {},
	})(http.NotFoundHandler())
	for range 3 {
		handler.ServeHTTP(httptest.NewRecorder(), httptest.NewRequest(http.MethodGet, "/", nil))
	}
	if _, err := client.CheckBatch(t.Context(), []tollgate.Check{{Policy: "thousands", Key: "a"}}); err != nil {
		t.Error(err)
	}
	log.await(t, "thousands", "bucket, calls, default", "set `policy` to one")
}

func TestAPolicyWithoutAHoldIsReportedOnce(t *testing.T) {
	node := testnode.Start(t, "cases.yaml")
	log := new(warnings)
	client := newClient(t, tollgate.Options{Nodes: []string{node.URL()}, Deadline: 5 * time.Second, Logger: log.Logger()})
	for range 2 {
		if _, err := client.Hold(t.Context(), tollgate.Check{Policy: "ten", Key: "a"}); err == nil {
			t.Error("a policy without a hold opens one")
		}
	}
	log.await(t, "opened no hold", "add `hold: {ttl: 60s}` to it")
}

func TestARefusedTokenIsReportedOnce(t *testing.T) {
	node := testnode.Start(t, "cases-secure.yaml")
	log := new(warnings)
	client := newClient(t, tollgate.Options{
		Nodes: []string{"https://" + node.Address}, CAFile: "../testdata/ca.pem", Token: "wrong",
		Deadline: 5 * time.Second, Logger: log.Logger(),
	})
	for range 3 {
		if _, err := client.Check(t.Context(), tollgate.Check{Key: "a"}); err == nil {
			t.Error("a wrong token is admitted")
		}
	}
	log.await(t, "token", "set `token`")
}

func TestClientsBehindAnUntrustedProxyAreReportedOnce(t *testing.T) {
	for _, header := range []string{"X-Forwarded-For", "Forwarded"} {
		log := new(warnings)
		passThroughProxy(t, log, tollgate.Limit{}, header, "192.0.2.1:4711")
		log.await(t, header, "ForwardedIP")
	}
}

func TestATrustedProxyOrAKeyIsNoMistake(t *testing.T) {
	trusted, err := tollgate.ForwardedIP("192.0.2.1")
	if err != nil {
		t.Fatal(err)
	}
	for name, limit := range map[string]tollgate.Limit{
		"ForwardedIP": {Address: trusted},
		"Key":         {Key: func(*http.Request) string { return "user" }},
	} {
		log := new(warnings)
		passThroughProxy(t, log, limit, "X-Forwarded-For", "192.0.2.1:4711")
		if log.String() != "" {
			t.Errorf("%s: %s", name, log.String())
		}
	}
	// Other middlewares, such as chi's RealIP, set RemoteAddr without a port.
	log := new(warnings)
	passThroughProxy(t, log, tollgate.Limit{}, "X-Forwarded-For", "203.0.113.7")
	if log.String() != "" {
		t.Errorf("RemoteAddr: %s", log.String())
	}
}

func passThroughProxy(t *testing.T, log *warnings, limit tollgate.Limit, header, peer string) {
	t.Helper()
	node := testnode.Start(t, "cases.yaml")
	client := newClient(t, tollgate.Options{Nodes: []string{node.URL()}, Deadline: 5 * time.Second, Logger: log.Logger()})
	limit.Policy = "thousand"
	handler := client.Middleware(limit)(http.NotFoundHandler())
	for range 3 {
		request := httptest.NewRequest(http.MethodGet, "/", nil)
		request.RemoteAddr = peer
		request.Header.Set(header, "203.0.113.7")
		handler.ServeHTTP(httptest.NewRecorder(), request)
	}
}

func TestAKeyWithAPortIsReportedOnce(t *testing.T) {
	node := testnode.Start(t, "cases.yaml")
	log := new(warnings)
	client := newClient(t, tollgate.Options{Nodes: []string{node.URL()}, Deadline: 5 * time.Second, Logger: log.Logger()})
	limit := tollgate.Limit{Policy: "thousand", Key: func(r *http.Request) string { return r.RemoteAddr }}
	handler := client.Middleware(limit)(http.NotFoundHandler())
	for range 3 {
		handler.ServeHTTP(httptest.NewRecorder(), httptest.NewRequest(http.MethodGet, "/", nil))
	}
	log.await(t, "192.0.2.1:1234", "return 192.0.2.1 from Limit.Key")
}

func TestADeadlineBelowTheNodesTimeoutIsReportedOnce(t *testing.T) {
	node := testnode.Start(t, "cases.yaml") // its timeout is 5 s
	log := new(warnings)
	release := make(chan struct{})
	transport := roundTripper(func(r *http.Request) (*http.Response, error) {
		if r.URL.Path == "/v1/check" {
			select {
			case <-r.Context().Done():
			case <-release:
			}
			return nil, context.Canceled
		}
		return http.DefaultTransport.RoundTrip(r)
	})
	defer close(release)
	client := newClient(t, tollgate.Options{
		Nodes: []string{node.URL()}, Deadline: 20 * time.Millisecond, Transport: transport, Logger: log.Logger(),
	})
	for range 3 {
		if _, err := client.Check(t.Context(), tollgate.Check{Key: "a"}); err == nil {
			t.Error("a silent node answered")
		}
	}
	log.await(t, "20 ms", "5000 ms", "at least 10s")
}
