package conformance

import (
	"net/http"
	"net/http/httptest"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"tollgate-limiter/internal/testnode"
)

const (
	deadline = 200 * time.Millisecond
	// grace is for a busy machine; a request without a deadline would hang far longer.
	grace   = 800 * time.Millisecond
	callers = 16
)

// RunFaults kills and freezes a node under load, and starts it again.
func RunFaults(t *testing.T, build Build) {
	faults := map[string]func(*testing.T, *testnode.Node){
		"killed": func(_ *testing.T, node *testnode.Node) { node.Kill() },
		"frozen": func(t *testing.T, node *testnode.Node) { node.Freeze(t) },
	}
	returns := map[string]func(*testing.T, *testnode.Node){
		"killed": func(t *testing.T, node *testnode.Node) { node.Restart(t) },
		"frozen": func(t *testing.T, node *testnode.Node) { node.Thaw(t) },
	}
	for name, fail := range faults {
		for _, mode := range []string{"open", "closed"} {
			t.Run("a_"+name+"_node_leaves_requests_"+mode, func(t *testing.T) {
				runFault(t, build, mode, fail, returns[name])
			})
		}
	}
}

func runFault(t *testing.T, build Build, mode string, fail, back func(*testing.T, *testnode.Node)) {
	node := testnode.Start(t, "cases.yaml")
	options := Options{DeadlineMS: int(deadline.Milliseconds()), Policy: Header{Const: "thousand"}, OnFailure: mode}
	server := httptest.NewServer(build(options.client(t, []string{node.URL()}), options))
	defer server.Close()
	load := startLoad(t, server.URL)
	defer load.stop()

	load.await(t, "decisions while the node runs", time.Second+grace, func(s sample) bool { return s.decided })
	fail(t, node)
	failed := time.Now()
	load.await(t, "the failure mode", deadline+grace, func(s sample) bool { return !s.decided })
	time.Sleep(time.Second)
	want := map[string]int{"open": http.StatusOK, "closed": http.StatusServiceUnavailable}[mode]
	for _, sample := range load.drop() {
		if sample.began.After(failed) && (sample.decided || sample.status != want) {
			t.Fatalf("without a node a request got %+v", sample)
		}
	}
	back(t, node)
	load.await(t, "decisions after the return", time.Second+grace, func(s sample) bool { return s.decided })
	load.stop()
	if longest := time.Duration(load.longest.Load()); longest > deadline+grace {
		t.Errorf("a request took %s with a deadline of %s", longest, deadline)
	}
}

// sample is one response. Only decisions have rate limit fields.
type sample struct {
	began   time.Time
	status  int
	decided bool
}

// load sends requests by several callers until it stops.
type load struct {
	url      string
	longest  atomic.Int64
	stopped  atomic.Bool
	callers  sync.WaitGroup
	mutex    sync.Mutex
	received []sample
}

func startLoad(t *testing.T, url string) *load {
	load := &load{url: url}
	for range callers {
		load.callers.Go(func() {
			for !load.stopped.Load() {
				load.once(t)
			}
		})
	}
	return load
}

func (l *load) once(t *testing.T) {
	began := time.Now()
	reply, _ := request{}.get(t, l.url)
	took := int64(time.Since(began))
	for longest := l.longest.Load(); took > longest && !l.longest.CompareAndSwap(longest, took); {
		longest = l.longest.Load()
	}
	l.keep(sample{began, reply.StatusCode, reply.Header.Get("RateLimit") != ""})
	time.Sleep(time.Millisecond)
}

func (l *load) keep(sample sample) {
	l.mutex.Lock()
	defer l.mutex.Unlock()
	l.received = append(l.received, sample)
}

func (l *load) stop() {
	l.stopped.Store(true)
	l.callers.Wait()
}

func (l *load) drop() []sample {
	l.mutex.Lock()
	defer l.mutex.Unlock()
	dropped := l.received
	l.received = nil
	return dropped
}

// await ends when a request that begins from now on gets a response as wanted.
func (l *load) await(t *testing.T, event string, limit time.Duration, wanted func(sample) bool) {
	t.Helper()
	for began := time.Now(); time.Since(began) < limit; time.Sleep(time.Millisecond) {
		for _, sample := range l.drop() {
			if sample.began.After(began) && wanted(sample) {
				return
			}
		}
	}
	t.Fatalf("%s did not come within %s", event, limit)
}
