package tollgate_test

import (
	"context"
	"errors"
	"net"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"tollgate-limiter"
	"tollgate-limiter/internal/testnode"
)

func newClient(t *testing.T, options tollgate.Options) *tollgate.Client {
	t.Helper()
	client, err := tollgate.New(options)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = client.Close(context.Background()) })
	return client
}

func TestNewRejectsNodesThatAreNoURLs(t *testing.T) {
	for _, node := range []string{"127.0.0.1:7070", "ftp://host", "http://", "http://h?x=1", "http://u:p@h"} {
		_, err := tollgate.New(tollgate.Options{Nodes: []string{node}})
		if err == nil || !strings.Contains(err.Error(), "node") {
			t.Errorf("%s: %v", node, err)
		}
	}
}

func TestNewRejectsFilesWithoutCertificates(t *testing.T) {
	for _, file := range []string{"absent.pem", "doc.go"} {
		_, err := tollgate.New(tollgate.Options{CAFile: file})
		if err == nil || !strings.Contains(err.Error(), "CAFile") {
			t.Errorf("%s: %v", file, err)
		}
	}
}

func TestAContextEndsACheckBeforeTheDeadline(t *testing.T) {
	silent, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer silent.Close()
	nodes := []string{"http://" + silent.Addr().String()}
	client := newClient(t, tollgate.Options{Nodes: nodes, Deadline: time.Minute})
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Millisecond)
	defer cancel()
	var checks sync.WaitGroup
	for range 3 {
		checks.Go(func() {
			if _, err := client.Check(ctx, tollgate.Check{Key: "a"}); !errors.Is(err, context.DeadlineExceeded) {
				t.Errorf("want the context's error, got %v", err)
			}
		})
	}
	checks.Wait()
}

func TestALeavingCallerIsNoFailureOfTheNode(t *testing.T) {
	node := testnode.Start(t, "cases.yaml")
	client := newClient(t, tollgate.Options{Nodes: []string{node.URL()}, Deadline: 5 * time.Second})
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := client.Check(ctx, tollgate.Check{Key: "leaving"}); !errors.Is(err, context.Canceled) {
		t.Fatalf("want a cancelled context, got %v", err)
	}
	if _, err := client.Check(t.Context(), tollgate.Check{Key: "leaving"}); err != nil {
		t.Error(err)
	}
}

func TestAnAnswerOfAnotherServerIsAProblemOrUnavailable(t *testing.T) {
	answers := map[string]func(http.ResponseWriter, *http.Request){
		"html":  func(w http.ResponseWriter, _ *http.Request) { _, _ = w.Write([]byte("<html>")) },
		"error": func(w http.ResponseWriter, _ *http.Request) { http.Error(w, "no", http.StatusBadGateway) },
	}
	for name, answer := range answers {
		t.Run(name, func(t *testing.T) {
			server := httptest.NewServer(http.HandlerFunc(answer))
			defer server.Close()
			client := newClient(t, tollgate.Options{Nodes: []string{server.URL}, Deadline: 5 * time.Second})
			_, err := client.Check(t.Context(), tollgate.Check{Key: "a"})
			var problem *tollgate.Problem
			var unavailable *tollgate.Unavailable
			if !errors.As(err, &unavailable) && (!errors.As(err, &problem) || problem.Status != http.StatusBadGateway) {
				t.Errorf("got %v", err)
			}
		})
	}
}

func TestARejectedBatchGoesOneByOne(t *testing.T) {
	for _, status := range []int{http.StatusUnprocessableEntity, http.StatusRequestEntityTooLarge} {
		t.Run(http.StatusText(status), func(t *testing.T) { rejectBatches(t, status) })
	}
}

func rejectBatches(t *testing.T, status int) {
	node := testnode.Start(t, "cases.yaml")
	transport := roundTripper(func(r *http.Request) (*http.Response, error) {
		if r.URL.Path == "/v1/check/batch" {
			recorder := httptest.NewRecorder()
			recorder.WriteHeader(status)
			_, _ = recorder.WriteString(`{"type":"urn:tollgate:problem:invalid-request"}`)
			return recorder.Result(), nil
		}
		return http.DefaultTransport.RoundTrip(r)
	})
	client := newClient(t, tollgate.Options{
		Nodes: []string{node.URL()}, Deadline: 10 * time.Second, Transport: transport,
	})
	var checks sync.WaitGroup
	for range 16 {
		checks.Go(func() {
			if _, err := client.Check(t.Context(), tollgate.Check{Policy: "thousand", Key: "each"}); err != nil {
				t.Error(err)
			}
		})
	}
	checks.Wait()
}

// Without a bound of the client, the node closes the connection before it has read such a call.
func TestACallThatNoNodeReadsIsAProblemAndNoFailureOfTheNode(t *testing.T) {
	node := testnode.Start(t, "cases.yaml")
	client := newClient(t, tollgate.Options{Nodes: []string{node.URL()}, Deadline: 10 * time.Second})
	huge := tollgate.Check{Key: strings.Repeat("k", 32<<20)}
	for range 3 {
		var problem *tollgate.Problem
		if _, err := client.Check(t.Context(), huge); !errors.As(err, &problem) || problem.Name() != "too-large" {
			t.Errorf("a check of 32 MiB got %v", err)
		}
		if _, err := client.Usage(t.Context(), huge); !errors.As(err, &problem) {
			t.Errorf("a usage of 32 MiB got %v", err)
		}
		if _, err := client.Check(t.Context(), tollgate.Check{Policy: "thousand", Key: "small"}); err != nil {
			t.Error(err)
		}
	}
}

func TestACheckThatIsTooLargeLeavesTheChecksBesideIt(t *testing.T) {
	node := testnode.Start(t, "cases.yaml")
	client := newClient(t, tollgate.Options{Nodes: []string{node.URL()}, Deadline: 10 * time.Second})
	large := tollgate.Check{Policy: "inline", Key: "large", Quotas: []tollgate.QuotaSpec{{
		Name: strings.Repeat("q", 2<<20), Limit: 1, Per: "1h",
	}}}
	var checks sync.WaitGroup
	for range 16 {
		checks.Go(func() {
			var problem *tollgate.Problem
			_, err := client.Check(t.Context(), large)
			if !errors.As(err, &problem) || problem.Status != http.StatusRequestEntityTooLarge {
				t.Errorf("a check of 2 MiB got %v", err)
			}
		})
		checks.Go(func() {
			if _, err := client.Check(t.Context(), tollgate.Check{Policy: "thousand", Key: "beside"}); err != nil {
				t.Error(err)
			}
		})
	}
	checks.Wait()
}

// A node that restarts leaves dead connections in the pool. Each call must survive its own.
func TestChecksSurviveARestartOfTheirNode(t *testing.T) {
	node := testnode.Start(t, "cases.yaml")
	client := newClient(t, tollgate.Options{
		Nodes: []string{node.URL()}, Deadline: 10 * time.Second, NoCoalesce: true, DenialCache: -1,
	})
	var allowed atomic.Int64
	round := func() {
		var checks sync.WaitGroup
		for range 32 {
			checks.Go(func() {
				answer, err := client.Check(t.Context(), tollgate.Check{Policy: "ten", Key: "restart"})
				if err != nil {
					t.Error(err)
				} else if answer.Allowed {
					allowed.Add(1)
				}
			})
		}
		checks.Wait()
	}
	round()
	node.Kill()
	node.Restart(t)
	round()
	if allowed.Load() != 20 {
		t.Errorf("allowed %d in two lives of a node, want 10 in each", allowed.Load())
	}
}

// A check that the lost node charged without an answer counts once by its id.
func TestALimitIsExactWhileOneOfTwoNodesIsLost(t *testing.T) {
	for name, lose := range map[string]func(*testnode.Node){
		"killed": func(node *testnode.Node) { node.Kill() },
		"frozen": func(node *testnode.Node) { node.Freeze(t) },
	} {
		t.Run(name, func(t *testing.T) { loseOneOfTwo(t, lose) })
	}
}

func loseOneOfTwo(t *testing.T, lose func(*testnode.Node)) {
	const limit, checks, callers = 1000, 3000, 32
	store := testnode.StartRedis(t).URL
	nodes := []*testnode.Node{
		testnode.Start(t, "go/testdata/patient.yaml", "--store", store),
		testnode.Start(t, "go/testdata/patient.yaml", "--store", store),
	}
	urls := []string{nodes[0].URL(), nodes[1].URL()}
	client := newClient(t, tollgate.Options{Nodes: urls, Deadline: 10 * time.Second})
	var allowed, sent atomic.Int64
	var all sync.WaitGroup
	for range callers {
		all.Go(func() {
			for sent.Add(1) <= checks {
				answer, err := client.Check(t.Context(), tollgate.Check{Key: "two-nodes", Once: true})
				if err != nil {
					t.Error(err)
				} else if answer.Allowed {
					allowed.Add(1)
				}
			}
		})
	}
	for sent.Load() < limit/2 {
		time.Sleep(time.Millisecond)
	}
	lose(nodes[0])
	all.Wait()
	if allowed.Load() != limit {
		t.Errorf("allowed %d, with a limit of %d", allowed.Load(), limit)
	}
}

// Such a call must not be repeated, and so it must not begin on a dead connection.
func TestChecksOfOneRequestFindDeadConnectionsFirst(t *testing.T) {
	node := testnode.Start(t, "cases.yaml")
	client := newClient(t, tollgate.Options{Nodes: []string{node.URL()}, Deadline: 10 * time.Second})
	for range 3 {
		answer, err := client.CheckAll(t.Context(), []tollgate.Check{{Key: "all"}, {Policy: "ten", Key: "all"}})
		if err != nil || !answer.Allowed {
			t.Errorf("%+v, %v", answer, err)
		}
		node.Kill()
		node.Restart(t)
	}
}

func TestALostRefundByIDIsRepeatedAndOneByCostIsNot(t *testing.T) {
	node := testnode.Start(t, "cases.yaml")
	direct := newClient(t, tollgate.Options{Nodes: []string{node.URL()}, Deadline: 10 * time.Second})
	check := tollgate.Check{Policy: "ten", Key: "refunds", ID: "one", Cost: tollgate.Cost(5)}
	if _, err := direct.Check(t.Context(), check); err != nil {
		t.Fatal(err)
	}
	lossy := func() *tollgate.Client {
		lose := true
		transport := roundTripper(func(r *http.Request) (*http.Response, error) {
			reply, err := http.DefaultTransport.RoundTrip(r)
			if lose && err == nil {
				lose = false
				reply.Body.Close()
				return nil, errors.New("lost")
			}
			return reply, err
		})
		return newClient(t, tollgate.Options{Nodes: []string{node.URL()}, Deadline: 10 * time.Second, Transport: transport})
	}
	refund := tollgate.Refund{Policy: "ten", Key: "refunds"}
	byCost, byID := refund, refund
	byCost.Cost, byID.ID = 1, "one"
	var unavailable *tollgate.Unavailable
	if _, err := lossy().Refund(t.Context(), byCost); !errors.As(err, &unavailable) {
		t.Errorf("a lost refund by cost got %v", err)
	}
	if answer, err := lossy().Refund(t.Context(), byID); err != nil || *answer.Remaining != 10 {
		t.Errorf("a lost refund by id got %+v, %v", answer, err)
	}
}

func TestTheFieldsEqualThoseOfTheNode(t *testing.T) {
	node := testnode.Start(t, "cases.yaml")
	for _, policy := range []string{"pair", "bucket", "log", "trial", "default", "ten"} {
		t.Run(policy, func(t *testing.T) {
			for range 4 {
				compareFields(t, node, policy)
			}
		})
	}
}

// compareFields checks by a transport that keeps the node's own fields of the same answer.
func compareFields(t *testing.T, node *testnode.Node, policy string) {
	t.Helper()
	var theirs http.Header
	transport := roundTripper(func(r *http.Request) (*http.Response, error) {
		reply, err := http.DefaultTransport.RoundTrip(r)
		if err == nil {
			theirs = reply.Header
		}
		return reply, err
	})
	client := newClient(t, tollgate.Options{
		Nodes: []string{node.URL()}, Deadline: 5 * time.Second, NoCoalesce: true, Transport: transport,
	})
	answer, err := client.Check(t.Context(), tollgate.Check{Policy: policy, Key: "fields"})
	if err != nil {
		t.Fatal(err)
	}
	ours := http.Header{}
	answer.SetFields(ours)
	for _, name := range []string{"RateLimit", "RateLimit-Policy", "Retry-After"} {
		if name == "RateLimit-Policy" && len(answer.Quotas) == 0 {
			continue // a denial of the pre-filter does not list the quotas
		}
		if !slices.Equal(ours.Values(name), theirs.Values(name)) {
			t.Errorf("%s: ours %q, the node's %q", name, ours.Values(name), theirs.Values(name))
		}
	}
}

type roundTripper func(*http.Request) (*http.Response, error)

func (f roundTripper) RoundTrip(r *http.Request) (*http.Response, error) { return f(r) }
