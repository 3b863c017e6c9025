package tollgate_test

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"net/url"
	"os"
	"os/exec"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"tollgate-limiter"
	"tollgate-limiter/internal/testnode"
)

// The server, its callers and the node share the processors, so that each of them is late at times.
func TestALimitIsExactAt512ConnectionsWithTheDefaultDeadline(t *testing.T) {
	if race {
		t.Skip("the race detector slows the callers and the server, but not the deadline")
	}
	const limit, connections, requests, runs = 1000, 512, 4, 10
	node := testnode.Start(t, "go/testdata/patient.yaml")
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

// The application is a process of its own, which stops while its checks are on their way. Its timers
// are late then, and the answers wait in its sockets.
func TestAStoppedProcessReadsTheAnswersThatArrivedMeanwhile(t *testing.T) {
	node := testnode.Start(t, "cases.yaml")
	gate := httptest.NewUnstartedServer(nil)
	held, release := make(chan struct{}, 1), make(chan struct{})
	gate.Config.Handler = http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		held <- struct{}{}
		<-release
		target, _ := url.Parse(node.URL())
		httputil.NewSingleHostReverseProxy(target).ServeHTTP(w, r)
	})
	gate.Start()
	defer gate.Close()
	application := exec.Command(os.Args[0], "-test.run=TestStoppedApplication")
	application.Env = append(os.Environ(), "TOLLGATE_STOPPED_NODE="+gate.URL)
	output, err := application.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := application.Start(); err != nil {
		t.Fatal(err)
	}
	<-held
	_ = application.Process.Signal(syscall.SIGSTOP)
	close(release)
	time.Sleep(2 * time.Second) // the deadline passes while the process stands still
	_ = application.Process.Signal(syscall.SIGCONT)
	text, _ := io.ReadAll(output)
	_ = application.Wait()
	if !strings.Contains(string(text), "decided") {
		t.Errorf("after a stop: %s", text)
	}
}

func TestStoppedApplication(t *testing.T) {
	node := os.Getenv("TOLLGATE_STOPPED_NODE")
	if node == "" {
		t.Skip("a part of TestAStoppedProcessReadsTheAnswersThatArrivedMeanwhile")
	}
	client := newClient(t, tollgate.Options{Nodes: []string{node}})
	_, err := client.Check(t.Context(), tollgate.Check{Policy: "ten", Key: "stopped"})
	if err == nil {
		fmt.Println("decided")
	}
	fmt.Println(err)
}

// Each caller has keys of its own and one that is exhausted.
func TestAFrozenStoreLetsNoRequestPassWithoutTheNode(t *testing.T) {
	for _, policy := range []string{"deny", "local"} {
		t.Run(policy, func(t *testing.T) {
			t.Parallel()
			freezeStore(t, policy)
		})
	}
}

func freezeStore(t *testing.T, policy string) {
	const frozen, callers = 10 * time.Second, 64
	store := testnode.StartRedis(t)
	node := testnode.Start(t, "go/testdata/frozen.yaml", "--store", store.URL)
	client := newClient(t, tollgate.Options{Nodes: []string{node.URL()}})
	var away, uncounted, answers atomic.Int64
	handler := client.Middleware(tollgate.Limit{
		Policy:  policy,
		Key:     func(r *http.Request) string { return r.URL.Path },
		OnError: func(_ context.Context, err error) { t.Log(err) },
	})(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		answer := tollgate.FromContext(r.Context())
		if answer == nil || away.Load() > 0 && policy == "deny" && answer.Source != tollgate.SourceStore {
			uncounted.Add(1)
		}
	}))
	ask := func(path string) {
		handler.ServeHTTP(httptest.NewRecorder(), httptest.NewRequest(http.MethodGet, path, nil))
		answers.Add(1)
	}
	for range 10 {
		ask("/exhausted")
	}
	store.Freeze(t)
	away.Store(1)
	until := time.Now().Add(frozen)
	var all sync.WaitGroup
	for caller := range callers {
		all.Go(func() {
			for i := 0; time.Now().Before(until); i++ {
				ask("/exhausted")
				ask(fmt.Sprintf("/%d/%d", caller, i/10))
			}
		})
	}
	all.Wait()
	store.Thaw(t)
	if n := uncounted.Load(); n > 0 {
		t.Errorf("%d of %d requests passed without a decision of the node", n, answers.Load())
	}
	t.Logf("%d requests", answers.Load())
}

func TestChecksOf100KeysKeepAtMost8BytesEachInRedis(t *testing.T) {
	store := testnode.StartRedis(t)
	node := testnode.Start(t, "go/testdata/frozen.yaml", "--store", store.URL)
	client := newClient(t, tollgate.Options{Nodes: []string{node.URL()}, Deadline: time.Minute})
	begin := store.UsedMemory(t)
	for range 100 {
		checks := make([]tollgate.Check, 1000)
		for i := range checks {
			checks[i] = tollgate.Check{Policy: "day", Key: fmt.Sprintf("key-%d", i%100)}
		}
		results, err := client.CheckBatch(t.Context(), checks)
		if err != nil {
			t.Fatal(err)
		}
		for _, result := range results {
			if result.Source != tollgate.SourceStore {
				t.Fatalf("decided by %s: %v", result.Source, result.Error)
			}
		}
	}
	if used := store.UsedMemory(t) - begin; used > 8*100_000 {
		t.Errorf("%d bytes", used)
	}
}
