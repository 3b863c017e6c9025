package main

import (
	"net/http"
	"net/http/httptest"
	"testing"
	"time"

	"github.com/gin-gonic/gin"

	"tollgate-limiter"
	"tollgate-limiter/internal/testnode"
)

const trusted = "127.0.0.1"

func TestEachAddressBehindTheProxyHasItsOwnBucket(t *testing.T) {
	server := start(t, trusted)
	statuses := get(t, server, "203.0.113.7", 20)
	if statuses[http.StatusOK] < 10 || statuses[http.StatusTooManyRequests] == 0 {
		t.Errorf("a burst of 20 on a bucket of 10 got %v", statuses)
	}
	if statuses := get(t, server, "203.0.113.8", 1); statuses[http.StatusOK] != 1 {
		t.Errorf("another address got %v", statuses)
	}
}

func TestADenialHasTheFieldsAndAWait(t *testing.T) {
	server := start(t, trusted)
	get(t, server, "203.0.113.9", 30)
	reply := request(t, server, "203.0.113.9")
	if reply.StatusCode != http.StatusTooManyRequests {
		t.Fatalf("status %d after 30 requests at once", reply.StatusCode)
	}
	for _, name := range []string{"Retry-After", "RateLimit"} {
		if reply.Header.Get(name) == "" {
			t.Errorf("%s is absent", name)
		}
	}
}

func TestAnUntrustedPeerCannotChooseItsAddress(t *testing.T) {
	server := start(t, "192.0.2.1")
	denied := 0
	for i := range 30 {
		address := "203.0.113." + string(rune('0'+i%10))
		denied += get(t, server, address, 1)[http.StatusTooManyRequests]
	}
	if denied == 0 {
		t.Error("30 requests of one peer passed a bucket of 10, by different X-Real-Ip")
	}
}

func start(t *testing.T, proxy string) string {
	t.Helper()
	gin.SetMode(gin.TestMode)
	node := testnode.Start(t, "go/gin/examples/realip/tollgate.yaml")
	client, err := tollgate.New(tollgate.Options{Nodes: []string{node.URL()}, Deadline: 5 * time.Second})
	if err != nil {
		t.Fatal(err)
	}
	engine, err := application(client, proxy)
	if err != nil {
		t.Fatal(err)
	}
	server := httptest.NewServer(engine)
	t.Cleanup(server.Close)
	return server.URL
}

func get(t *testing.T, url, address string, times int) map[int]int {
	t.Helper()
	statuses := map[int]int{}
	for range times {
		statuses[request(t, url, address).StatusCode]++
	}
	return statuses
}

func request(t *testing.T, url, address string) *http.Response {
	t.Helper()
	request, err := http.NewRequest(http.MethodGet, url, nil)
	if err != nil {
		t.Fatal(err)
	}
	request.Header.Set("X-Real-Ip", address)
	reply, err := http.DefaultClient.Do(request)
	if err != nil {
		t.Fatal(err)
	}
	reply.Body.Close()
	return reply
}
