package tollgate_test

import (
	"context"
	"errors"
	"io"
	"net/http"
	"net/http/httptest"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"tollgate-limiter"
	"tollgate-limiter/internal/testnode"
)

// The server, its callers and the node share the processors, so that each of them is late at times.
func TestALimitIsExactAt512ConnectionsWithTheDefaultDeadline(t *testing.T) {
	const limit, connections, requests, runs = 1000, 512, 4, 10
	store := testnode.StartRedis(t)
	node := testnode.Start(t, "go/testdata/patient.yaml", "--store", store)
	client := newClient(t, tollgate.Options{Nodes: []string{node.URL()}})
	var failures atomic.Int64
	handler := client.Middleware(tollgate.Limit{
		Key:     func(r *http.Request) string { return r.URL.Path },
		OnError: func(_ context.Context, err error) { failures.Add(1) },
	})(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { _, _ = io.WriteString(w, "hello") }))
	server := httptest.NewServer(handler)
	defer server.Close()
	transport := &http.Transport{MaxIdleConnsPerHost: connections}
	defer transport.CloseIdleConnections()
	for run := range runs {
		passed := map[int]*atomic.Int64{http.StatusOK: {}, http.StatusTooManyRequests: {}}
		url := server.URL + "/" + string(rune('a'+run))
		var all sync.WaitGroup
		for range connections {
			all.Go(func() {
				for range requests {
					reply, err := (&http.Client{Transport: transport}).Get(url)
					if err != nil {
						t.Error(err)
						return
					}
					_, _ = io.Copy(io.Discard, reply.Body)
					reply.Body.Close()
					passed[reply.StatusCode].Add(1)
				}
			})
		}
		all.Wait()
		if got := passed[http.StatusOK].Load(); got != limit {
			t.Errorf("run %d: %d of %d requests passed a limit of %d", run, got, connections*requests, limit)
		}
	}
	if n := failures.Load(); n > 0 {
		t.Errorf("%d checks had no decision", n)
	}
}

var _ = errors.Is
var _ = time.Second
