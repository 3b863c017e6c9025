package tollgate_test

import (
	"encoding/json"
	"net/http"
	"net/http/httptest"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"tollgate-limiter"
	"tollgate-limiter/internal/testnode"
)

const callers = "go/testdata/callers.yaml"

// heat checks a key until the client has units of it in hand.
func heat(t *testing.T, client *tollgate.Client, check tollgate.Check) {
	t.Helper()
	for end := time.Now().Add(10 * time.Second); time.Now().Before(end); {
		if decide(t, client, check).Source == tollgate.SourceLease {
			return
		}
	}
	t.Fatalf("no lease pays %+v", check)
}

func unitsLeft(t *testing.T, node *testnode.Node, policy, key string) int64 {
	t.Helper()
	client := newClient(t, tollgate.Options{Nodes: []string{node.URL()}, Deadline: 5 * time.Second})
	usage, err := client.Usage(t.Context(), tollgate.Check{Policy: policy, Key: key})
	if err != nil {
		t.Fatal(err)
	}
	return *usage.Remaining
}

func TestLeasesPayMostChecksOfABusyKey(t *testing.T) {
	const requests = 5000
	node := testnode.Start(t, callers)
	client, calls := counted(t, node.URL(), tollgate.Options{})
	leased := 0
	for range requests {
		answer := decide(t, client, tollgate.Check{Key: "busy"})
		if answer.Source != tollgate.SourceLease {
			continue
		}
		leased++
		if !answer.Allowed || answer.Policy != "default" || answer.Key != "busy" || answer.Cost != 1 || answer.Charged != 1 ||
			*answer.Limit != 1_000_000 || *answer.RetryAfterMS != 0 || *answer.ResetAfterMS < 50_000 || *answer.Quota != "1m" ||
			answer.Reason != tollgate.ReasonOK || len(answer.Quotas) != 1 || answer.Quotas[0].Remaining != *answer.Remaining {
			t.Fatalf("a lease answers %+v", answer)
		}
	}
	if leased < requests*90/100 || calls.Load() > requests*5/100 {
		t.Errorf("leases paid %d of %d checks, with %d calls", leased, requests, calls.Load())
	}
	if err := client.Close(t.Context()); err != nil {
		t.Fatal(err)
	}
	if left := unitsLeft(t, node, "default", "busy"); left != 1_000_000-requests {
		t.Errorf("%d units remain after %d checks", left, requests)
	}
}

func TestClientsWithLeasesTogetherNeverExceedALimit(t *testing.T) {
	node := testnode.Start(t, callers)
	var allowed, leased atomic.Int64
	var clients sync.WaitGroup
	for range 2 {
		client := newClient(t, tollgate.Options{Nodes: []string{node.URL()}, Deadline: 5 * time.Second})
		for range 4 {
			clients.Go(func() {
				for range 1500 {
					answer, err := client.Check(t.Context(), tollgate.Check{Policy: "thousand", Key: "shared"})
					if err != nil {
						t.Error(err)
						return
					}
					if answer.Allowed {
						allowed.Add(1)
					}
					if answer.Source == tollgate.SourceLease {
						leased.Add(1)
					}
				}
			})
		}
	}
	clients.Wait()
	if allowed.Load() > 1000 || allowed.Load() < 900 || leased.Load() == 0 {
		t.Errorf("%d of 1000 units are spent, %d by leases", allowed.Load(), leased.Load())
	}
}

func TestOtherChecksAskANodeBesideALease(t *testing.T) {
	node := testnode.Start(t, callers)
	client := newClient(t, tollgate.Options{Nodes: []string{node.URL()}, Deadline: 5 * time.Second})
	units := tollgate.Cost(1000)
	for range 5 {
		decide(t, client, tollgate.Check{Key: "other", Cost: units})
	}
	heat(t, client, tollgate.Check{Key: "other"})
	for name, check := range map[string]tollgate.Check{
		"an id":   {Key: "other", ID: "own"},
		"a cause": {Key: "other", Meta: "why"},
		"a look":  {Key: "other", Look: true},
		"cost 0":  {Key: "other", Cost: tollgate.Cost(0)},
		"a drain": {Key: "other", Over: tollgate.Drain},
	} {
		if answer := decide(t, client, check); answer.Source != tollgate.SourceStore {
			t.Errorf("%s: %+v", name, answer)
		}
	}
	for name, check := range map[string]tollgate.Check{"plain": {Key: "other"}, "once": {Key: "other", Once: true}} {
		if answer := decide(t, client, check); answer.Source != tollgate.SourceLease {
			t.Errorf("%s: %+v", name, answer)
		}
	}
	results, err := client.CheckBatch(t.Context(), []tollgate.Check{{Key: "other"}, {Key: "other", ID: "two"}})
	if err != nil || results[0].Source != tollgate.SourceLease || results[1].Source != tollgate.SourceStore {
		t.Errorf("a batch gets %+v, %v", results, err)
	}
}

func TestNoLeaseTurnsLeasesOff(t *testing.T) {
	node := testnode.Start(t, callers)
	client, calls := counted(t, node.URL(), tollgate.Options{NoLease: true})
	for range 200 {
		if answer := decide(t, client, tollgate.Check{Key: "off"}); answer.Source != tollgate.SourceStore {
			t.Fatalf("%+v", answer)
		}
	}
	if calls.Load() != 200 {
		t.Errorf("%d calls for 200 checks", calls.Load())
	}
}

func TestALeasePaysWhileEveryNodeIsAway(t *testing.T) {
	node := testnode.Start(t, callers)
	client := newClient(t, tollgate.Options{Nodes: []string{node.URL()}})
	check := tollgate.Check{Policy: "slow", Key: "away"}
	decide(t, client, tollgate.Check{Policy: "slow", Key: "away", Cost: tollgate.Cost(200)})
	heat(t, client, check)
	node.Kill()
	for range 100 {
		if answer := decide(t, client, check); answer.Source != tollgate.SourceLease {
			t.Fatalf("without a node: %+v", answer)
		}
	}
}

func TestAnUnspentLeaseIsReturnedAfterHalfOfItsTime(t *testing.T) {
	node := testnode.Start(t, callers)
	client := newClient(t, tollgate.Options{Nodes: []string{node.URL()}, Deadline: 5 * time.Second})
	// The last check starts the purchase, and nothing spends it.
	for range 4 {
		decide(t, client, tollgate.Check{Key: "idle", Cost: tollgate.Cost(100)})
	}
	left := func() int64 { return unitsLeft(t, node, "default", "idle") }
	began := time.Now()
	for left() != 1_000_000-400 || time.Since(began) < 100*time.Millisecond {
		if time.Since(began) > 10*time.Second {
			t.Fatalf("%d units remain after 400", left())
		}
		time.Sleep(10 * time.Millisecond)
	}
	if spent := time.Since(began); spent < 400*time.Millisecond {
		t.Errorf("returned after %s", spent)
	}
}

func TestALostPurchaseIsReturned(t *testing.T) {
	node := testnode.Start(t, callers)
	var mutex sync.Mutex
	var settles []map[string]any
	client := newClient(t, tollgate.Options{
		Nodes: []string{node.URL()}, Deadline: 5 * time.Second, NoRetry: true,
		Transport: roundTripper(func(r *http.Request) (*http.Response, error) {
			reply, err := http.DefaultTransport.RoundTrip(r)
			switch {
			case err == nil && r.URL.Path == "/v1/lease":
				reply.Body.Close()
				return nil, http.ErrHandlerTimeout
			case err == nil && r.URL.Path == "/v1/settle":
				body, _ := r.GetBody()
				var sent struct{ Settlements []map[string]any }
				_ = json.NewDecoder(body).Decode(&sent)
				mutex.Lock()
				settles = append(settles, sent.Settlements...)
				mutex.Unlock()
			}
			return reply, err
		}),
	})
	for range 5 {
		decide(t, client, tollgate.Check{Key: "lost", Cost: tollgate.Cost(100)})
	}
	if err := client.Close(t.Context()); err != nil {
		t.Fatal(err)
	}
	if left := unitsLeft(t, node, "default", "lost"); left != 1_000_000-500 {
		t.Errorf("%d units remain", left)
	}
	if len(settles) == 0 || settles[0]["cost"] != 0.0 {
		t.Errorf("settles %v", settles)
	}
}

func TestAMiddlewareIsPaidByALeaseExceptWithARefund(t *testing.T) {
	node := testnode.Start(t, callers)
	client := newClient(t, tollgate.Options{Nodes: []string{node.URL()}, Deadline: 5 * time.Second})
	sources := func(limit tollgate.Limit) (found []tollgate.Source) {
		limit.Key = func(*http.Request) string { return "served" }
		handler := client.Middleware(limit)(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
			found = append(found, tollgate.FromContext(r.Context()).Source)
		}))
		for range 200 {
			handler.ServeHTTP(httptest.NewRecorder(), httptest.NewRequest(http.MethodGet, "/", nil))
		}
		return found
	}
	if got := sources(tollgate.Limit{}); len(got) != 200 || got[199] != tollgate.SourceLease {
		t.Errorf("decided by %v", got)
	}
	refund := func(*http.Request, tollgate.Response) bool { return true }
	if got := sources(tollgate.Limit{Refund: refund}); slices.Contains(got, tollgate.SourceLease) {
		t.Errorf("with a refund decided by %v", got)
	}
	if err := client.Close(t.Context()); err != nil {
		t.Fatal(err)
	}
	if left := unitsLeft(t, node, "default", "served"); left != 1_000_000-200 {
		t.Errorf("%d units remain after 200 requests and as many refunds", left)
	}
}

func TestALeaseEndsWithItsTime(t *testing.T) {
	node := testnode.Start(t, callers)
	client := newClient(t, tollgate.Options{Nodes: []string{node.URL()}, Deadline: 5 * time.Second})
	heat(t, client, tollgate.Check{Key: "late"})
	time.Sleep(1100 * time.Millisecond)
	if answer := decide(t, client, tollgate.Check{Key: "late"}); answer.Source == tollgate.SourceLease {
		t.Errorf("after its time: %+v", answer)
	}
}
