package tollgate_test

import (
	"errors"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"tollgate-limiter"
	"tollgate-limiter/internal/testnode"
)

// counted returns a transport that counts calls, and a client that uses it.
func counted(t *testing.T, node string, options tollgate.Options) (*tollgate.Client, *atomic.Int64) {
	t.Helper()
	calls := new(atomic.Int64)
	options.Nodes, options.Deadline = []string{node}, 5*time.Second
	options.Transport = roundTripper(func(r *http.Request) (*http.Response, error) {
		calls.Add(1)
		return http.DefaultTransport.RoundTrip(r)
	})
	return newClient(t, options), calls
}

// exhaust denies the check by the store, by the pre-filter, and from then on by the client.
func exhaust(t *testing.T, client *tollgate.Client, check tollgate.Check) {
	t.Helper()
	for range 1000 {
		if decide(t, client, check).Source == tollgate.SourceClient {
			return
		}
	}
	t.Fatalf("the client never denies %+v by itself", check)
}

func decide(t *testing.T, client *tollgate.Client, check tollgate.Check) *tollgate.Answer {
	t.Helper()
	answer, err := client.Check(t.Context(), check)
	if err != nil {
		t.Fatal(err)
	}
	return answer
}

func TestAFinalDenialIsRepeatedWithoutACall(t *testing.T) {
	node := testnode.Start(t, "cases.yaml")
	client, calls := counted(t, node.URL(), tollgate.Options{DenialCache: time.Hour})
	check := tollgate.Check{Policy: "ten", Key: "final"}
	exhaust(t, client, check)
	before := calls.Load()
	first := decide(t, client, check)
	for _, cost := range []int64{1, 2, 10} {
		for _, look := range []bool{false, true} {
			answer := decide(t, client, tollgate.Check{Policy: "ten", Key: "final", Cost: tollgate.Cost(cost), Look: look})
			if answer.Allowed || answer.Source != tollgate.SourceClient || answer.Reason != tollgate.ReasonOverLimit ||
				answer.Cost != cost || answer.Charged != 0 || *answer.Limit != 10 || *answer.Remaining != 0 ||
				*answer.Quota != "1h" || *answer.RetryAfterMS > *first.RetryAfterMS || *answer.RetryAfterMS <= 0 {
				t.Errorf("cost %d, look %v: %+v", cost, look, answer)
			}
		}
	}
	results, err := client.CheckBatch(t.Context(), []tollgate.Check{check, check})
	if err != nil || results[0].Source != tollgate.SourceClient || results[1].Source != tollgate.SourceClient {
		t.Errorf("a batch got %+v, %v", results, err)
	}
	if more := calls.Load() - before; more != 0 {
		t.Errorf("%d calls for denials that the client knows", more)
	}
}

func TestOtherChecksAskANode(t *testing.T) {
	node := testnode.Start(t, "cases.yaml")
	client, _ := counted(t, node.URL(), tollgate.Options{DenialCache: time.Hour})
	quota := []tollgate.QuotaSpec{{Limit: 2, Per: "1h"}}
	decide(t, client, tollgate.Check{Policy: "ten", Key: "other", Cost: tollgate.Cost(10)})
	exhaust(t, client, tollgate.Check{Policy: "ten", Key: "other", Cost: tollgate.Cost(3)})
	exhaust(t, client, tollgate.Check{Policy: "inline", Key: "other", Quotas: quota})
	for name, check := range map[string]tollgate.Check{
		"a lower cost":   {Policy: "ten", Key: "other"},
		"another key":    {Policy: "ten", Key: "another"},
		"another policy": {Policy: "thousand", Key: "other"},
		"other quotas":   {Policy: "inline", Key: "other", Quotas: []tollgate.QuotaSpec{{Limit: 9, Per: "1h"}}},
		"no quotas":      {Policy: "inline", Key: "other"},
		"cost 0":         {Policy: "ten", Key: "other", Cost: tollgate.Cost(0)},
		"a drain":        {Policy: "ten", Key: "other", Cost: tollgate.Cost(5), Over: tollgate.Drain},
		"an id":          {Policy: "ten", Key: "other", Cost: tollgate.Cost(5), ID: "own"},
	} {
		if answer := decide(t, client, check); answer.Source == tollgate.SourceClient {
			t.Errorf("%s: %+v", name, answer)
		}
	}
}

func TestADenialIsFreshForASecondAndStandsWhileEveryNodeIsAway(t *testing.T) {
	node := testnode.Start(t, "cases.yaml")
	client, calls := counted(t, node.URL(), tollgate.Options{DenialCache: time.Millisecond})
	check := tollgate.Check{Policy: "ten", Key: "stands"}
	for range 12 {
		decide(t, client, check)
		time.Sleep(2 * time.Millisecond) // beyond the time for which a denial is fresh
	}
	if calls.Load() < 12 {
		t.Errorf("only %d calls for 12 checks after the denials' time", calls.Load())
	}
	node.Kill()
	if answer := decide(t, client, check); answer.Allowed || answer.Source != tollgate.SourceClient {
		t.Errorf("without a node: %+v", answer)
	}
	results, err := client.CheckBatch(t.Context(), []tollgate.Check{check})
	if err != nil || results[0].Source != tollgate.SourceClient {
		t.Errorf("a batch without a node: %+v, %v", results, err)
	}
	mixed := []tollgate.Check{check, {Policy: "ten", Key: "unknown"}}
	var unavailable *tollgate.Unavailable
	if _, err := client.CheckBatch(t.Context(), mixed); !errors.As(err, &unavailable) {
		t.Errorf("a batch with an unknown key: %v", err)
	}
}

func TestADenialEndsWithItsWait(t *testing.T) {
	node := testnode.Start(t, "cases.yaml")
	client, _ := counted(t, node.URL(), tollgate.Options{DenialCache: time.Hour})
	check := tollgate.Check{Policy: "blink", Key: "ends"}
	exhaust(t, client, check)
	wait, _ := decide(t, client, check).RetryAfter()
	for began := time.Now(); ; time.Sleep(10 * time.Millisecond) {
		answer := decide(t, client, check)
		if answer.Allowed {
			break
		}
		if time.Since(began) > wait+2*time.Second {
			t.Fatalf("denied %s after a wait of %s: %+v", time.Since(began), wait, answer)
		}
	}
}

func TestARefundEndsTheDenialsOfItsKey(t *testing.T) {
	node := testnode.Start(t, "cases.yaml")
	client, _ := counted(t, node.URL(), tollgate.Options{DenialCache: time.Hour})
	for _, check := range []tollgate.Check{
		{Policy: "ten", Key: "refunded"},
		{Key: "refunded"}, // of the default policy
	} {
		exhaust(t, client, check)
		if _, err := client.Refund(t.Context(), tollgate.Refund{Policy: check.Policy, Key: check.Key, Cost: 1}); err != nil {
			t.Fatal(err)
		}
		if answer := decide(t, client, check); !answer.Allowed {
			t.Errorf("after a refund of %q: %+v", check.Policy, answer)
		}
	}
}

func TestADenialByTheStoreIsNotRemembered(t *testing.T) {
	node := testnode.Start(t, "cases.yaml")
	client, _ := counted(t, node.URL(), tollgate.Options{DenialCache: time.Hour})
	check := tollgate.Check{Policy: "ten", Key: "sources", Cost: tollgate.Cost(11)} // never fits
	for range 3 {
		if answer := decide(t, client, check); answer.Source == tollgate.SourceClient {
			t.Fatalf("a denial without an end: %+v", answer)
		}
	}
}

func TestMostDenialsOfAnExhaustedKeyNeedNoStore(t *testing.T) {
	const requests = 2000
	node := testnode.Start(t, "cases.yaml", "--store", testnode.StartRedis(t).URL)
	client := newClient(t, tollgate.Options{Nodes: []string{node.URL()}})
	sources := map[tollgate.Source]int{}
	for range requests {
		answer := decide(t, client, tollgate.Check{Policy: "ten", Key: "exhausted"})
		if !answer.Allowed {
			sources[answer.Source]++
		}
	}
	local := sources[tollgate.SourceClient] + sources[tollgate.SourcePrefilter]
	if denied := requests - 10; local < denied*99/100 {
		t.Errorf("%d of %d denials need no store: %v", local, denied, sources)
	}
}

func TestMostChecksOfALeaseNeedNoStore(t *testing.T) {
	const requests = 2000
	node := testnode.Start(t, "go/testdata/lease.yaml", "--store", testnode.StartRedis(t).URL)
	client := newClient(t, tollgate.Options{Nodes: []string{node.URL()}})
	leased := 0
	for range requests {
		if answer := decide(t, client, tollgate.Check{Key: "leased"}); answer.Source == tollgate.SourceLease {
			leased++
		}
	}
	if leased < requests*90/100 {
		t.Errorf("leases paid %d of %d checks", leased, requests)
	}
}

func TestAMiddlewareAnswersAKnownDenialLikeAnyOther(t *testing.T) {
	node := testnode.Start(t, "cases.yaml")
	client, calls := counted(t, node.URL(), tollgate.Options{DenialCache: time.Hour})
	handler := client.Middleware(tollgate.Limit{Policy: "ten"})(http.NotFoundHandler())
	var bodies []string
	for range 15 {
		recorder := httptest.NewRecorder()
		handler.ServeHTTP(recorder, httptest.NewRequest(http.MethodGet, "/", nil))
		if recorder.Code == http.StatusTooManyRequests {
			header := recorder.Header()
			if header.Get("Retry-After") == "" || !strings.HasPrefix(header.Get("RateLimit"), `"1h";r=0;t=`) {
				t.Errorf("fields %v", header)
			}
			body, _, _ := strings.Cut(recorder.Body.String(), `"retry_after_ms"`)
			bodies = append(bodies, body)
		}
	}
	if len(bodies) != 5 || bodies[0] != bodies[4] {
		t.Errorf("bodies %q", bodies)
	}
	if calls.Load() > 12 {
		t.Errorf("%d calls for 10 passes and 2 denials", calls.Load())
	}
}
