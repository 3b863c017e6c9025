package tollgate_test

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"tollgate-limiter"
	"tollgate-limiter/internal/testnode"
)

const ttl = time.Second // of the policy brief

func holdClient(t *testing.T, node *testnode.Node, deadline time.Duration) *tollgate.Client {
	t.Helper()
	return newClient(t, tollgate.Options{Nodes: []string{node.URL()}, Deadline: deadline})
}

// awaitUsage waits until the key has so many open holds and remaining units. A negative number is any.
func awaitUsage(t *testing.T, node *testnode.Node, policy, key string, inFlight, remaining int64) {
	t.Helper()
	client := holdClient(t, node, 5*time.Second)
	var last *tollgate.Usage
	for range 2000 {
		usage, err := client.Usage(context.Background(), tollgate.Check{Policy: policy, Key: key})
		if err == nil && *usage.InFlight == inFlight && (remaining < 0 || *usage.Remaining == remaining) {
			return
		}
		last = usage
		time.Sleep(10 * time.Millisecond)
	}
	t.Fatalf("%s of %s never has %d in flight and %d remaining: %+v", policy, key, inFlight, remaining, last)
}

func endedBy(t *testing.T, ctx context.Context) string {
	t.Helper()
	select {
	case <-ctx.Done():
	case <-time.After(20 * time.Second):
		t.Fatal("the context of the hold does not end")
	}
	var ended *tollgate.HoldEnded
	if !errors.As(context.Cause(ctx), &ended) {
		t.Fatalf("the cause is %v", context.Cause(ctx))
	}
	return ended.Reason
}

func TestHoldEndsItsContextWhenTheNodeIsSilentForTheTTL(t *testing.T) {
	node := testnode.Start(t, "cases.yaml")
	client := holdClient(t, node, 2*time.Second)
	hold, err := client.Hold(t.Context(), tollgate.Check{Policy: "brief", Key: "silent", Cost: tollgate.Cost(4)})
	if err != nil {
		t.Fatal(err)
	}
	opened := time.Now()
	node.Freeze(t)
	if reason := endedBy(t, hold.Context()); reason != "expired" {
		t.Errorf("the reason is %s", reason)
	}
	if lasted := time.Since(opened); lasted < ttl*9/10 || lasted > 20*ttl {
		t.Errorf("it lasted %s", lasted)
	}
	hold.SetCost(1)
	if _, err := hold.Settle(); err == nil {
		t.Error("a silent node settles nothing")
	}
	node.Thaw(t)
	// The settle without an answer goes on.
	awaitUsage(t, node, "brief", "silent", 0, 9)
}

func TestHoldEndsItsContextWhenSomebodyElseSettlesIt(t *testing.T) {
	node := testnode.Start(t, "cases.yaml")
	client := holdClient(t, node, 5*time.Second)
	hold, err := client.Hold(t.Context(), tollgate.Check{Policy: "steady", Key: "other", ID: "other"})
	if err != nil {
		t.Fatal(err)
	}
	settlement := tollgate.Settlement{HoldName: tollgate.HoldName{Policy: "steady", Key: "other", ID: "other"}}
	if _, err := client.Settle(t.Context(), settlement); err != nil {
		t.Fatal(err)
	}
	if reason := endedBy(t, hold.Context()); reason != "settled" {
		t.Errorf("the reason is %s", reason)
	}
	if answers, err := hold.Settle(); err != nil || !answers[0].Replayed {
		t.Errorf("%+v, %v", answers, err)
	}
}

func TestNoMoreWorkAtOnceThanThePolicyLets(t *testing.T) {
	node := testnode.Start(t, "cases.yaml")
	client := holdClient(t, node, 5*time.Second)
	var running atomic.Int64
	job := func() error {
		hold, err := client.Hold(t.Context(), tollgate.Check{Policy: "tokens", Key: "crowd"})
		if err != nil {
			return err
		}
		defer hold.Settle()
		if n := running.Add(1); n > 2 {
			t.Errorf("%d at once", n)
		}
		time.Sleep(2 * time.Millisecond)
		running.Add(-1)
		return nil
	}
	var all sync.WaitGroup
	for range 64 {
		all.Go(func() {
			var denied *tollgate.Denied
			err := job()
			for ; errors.As(err, &denied); err = job() {
				time.Sleep(2 * time.Millisecond)
			}
			if err != nil {
				t.Error(err)
			}
		})
	}
	all.Wait()
	awaitUsage(t, node, "tokens", "crowd", 0, 936)
}

func TestHoldSettlesOnceByItsFirstCost(t *testing.T) {
	node := testnode.Start(t, "cases.yaml")
	client := holdClient(t, node, 5*time.Second)
	hold, err := client.Hold(t.Context(), tollgate.Check{Policy: "tokens", Key: "once", Cost: tollgate.Cost(900)})
	if err != nil {
		t.Fatal(err)
	}
	hold.SetCost(100)
	first, err := hold.Settle()
	hold.SetCost(200)
	second, _ := hold.Settle()
	if err != nil || first[0].Charged != 100 || second[0].Charged != 100 {
		t.Errorf("%+v, %+v, %v", first, second, err)
	}
	if reason := endedBy(t, hold.Context()); reason != "settled" {
		t.Errorf("the reason is %s", reason)
	}
}

func TestHoldOfAnEndedContextIsNotRenewed(t *testing.T) {
	node := testnode.Start(t, "cases.yaml")
	client := holdClient(t, node, 5*time.Second)
	ctx, cancel := context.WithCancel(t.Context())
	if _, err := client.Hold(ctx, tollgate.Check{Policy: "brief", Key: "ended"}); err != nil {
		t.Fatal(err)
	}
	cancel()
	awaitUsage(t, node, "brief", "ended", 0, -1)
}

func TestHoldOfACallerThatLeavesWhileItOpensIsGivenBack(t *testing.T) {
	node := testnode.Start(t, "cases.yaml")
	client := holdClient(t, node, 5*time.Second)
	for range 20 {
		ctx, cancel := context.WithCancel(t.Context())
		cancel()
		hold, err := client.Hold(ctx, tollgate.Check{Policy: "tokens", Key: "left", Cost: tollgate.Cost(10)})
		if err == nil {
			hold.SetCost(0)
			_, _ = hold.Settle()
		} else if !errors.Is(err, context.Canceled) {
			t.Fatal(err)
		}
	}
	awaitUsage(t, node, "tokens", "left", 0, 1000)
}

// The test runs itself as the process that is killed.
func TestHoldOfAKilledProcessFreesItsPlaceAfterTheTTL(t *testing.T) {
	if url := os.Getenv("TOLLGATE_HOLDER"); url != "" {
		client, err := tollgate.New(tollgate.Options{Nodes: []string{url}, Deadline: 5 * time.Second})
		if err != nil {
			t.Fatal(err)
		}
		if _, err := client.Hold(t.Context(), tollgate.Check{Policy: "brief", Key: "killed"}); err != nil {
			t.Fatal(err)
		}
		fmt.Println("open")
		select {}
	}
	node := testnode.Start(t, "cases.yaml")
	holder := exec.Command(os.Args[0], "-test.run", "^TestHoldOfAKilledProcess")
	holder.Env = append(os.Environ(), "TOLLGATE_HOLDER="+node.URL())
	output, err := holder.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := holder.Start(); err != nil {
		t.Fatal(err)
	}
	defer func() { _ = holder.Wait() }()
	defer func() { _ = holder.Process.Kill() }()
	if line, err := bufio.NewReader(output).ReadString('\n'); line != "open\n" {
		t.Fatalf("%q %v", line, err)
	}
	if err := holder.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	awaitUsage(t, node, "brief", "killed", 0, -1)
}

// streaming sends parts until the context of its request ends. Its hold costs the number of parts.
func streaming(ended chan<- error) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path == "/panics" {
			panic(http.ErrAbortHandler)
		}
		hold := tollgate.HoldFromContext(r.Context())
		for parts := int64(1); r.Context().Err() == nil; parts++ {
			hold.SetCost(parts)
			_, _ = io.WriteString(w, "a part\n")
			_ = http.NewResponseController(w).Flush()
			time.Sleep(10 * time.Millisecond)
		}
		ended <- context.Cause(r.Context())
	})
}

func held(t *testing.T, client *tollgate.Client, policy, key string, ended chan<- error) *httptest.Server {
	limit := client.Middleware(tollgate.Limit{
		Policy: policy, Hold: true,
		Key:  func(*http.Request) string { return key },
		Cost: func(*http.Request) int64 { return 5 },
	})
	server := httptest.NewServer(limit(streaming(ended)))
	t.Cleanup(server.Close)
	return server
}

func TestStreamHoldsItsPlaceUntilItsCallerLeaves(t *testing.T) {
	node := testnode.Start(t, "cases.yaml")
	ended := make(chan error, 1)
	server := held(t, holdClient(t, node, 5*time.Second), "places", "stream", ended)
	reply, err := http.Get(server.URL)
	if err != nil {
		t.Fatal(err)
	}
	awaitUsage(t, node, "places", "stream", 1, -1)
	second, err := http.Get(server.URL)
	if err != nil || second.StatusCode != http.StatusTooManyRequests {
		t.Errorf("%v %v", second, err)
	}
	reply.Body.Close()
	awaitUsage(t, node, "places", "stream", 0, -1)
	if cause := <-ended; !errors.Is(cause, context.Canceled) {
		t.Errorf("the handler stops by %v", cause)
	}
}

func TestStreamEndsWithItsHold(t *testing.T) {
	node := testnode.Start(t, "cases.yaml")
	ended := make(chan error, 1)
	server := held(t, holdClient(t, node, 2*time.Second), "brief", "frozen", ended)
	reply, err := http.Get(server.URL)
	if err != nil {
		t.Fatal(err)
	}
	defer reply.Body.Close()
	node.Freeze(t)
	defer node.Thaw(t)
	var reason *tollgate.HoldEnded
	if cause := <-ended; !errors.As(cause, &reason) || reason.Reason != "expired" {
		t.Errorf("the handler stops by %v", cause)
	}
}

func TestHandlerThatPanicsFreesItsPlace(t *testing.T) {
	node := testnode.Start(t, "cases.yaml")
	server := held(t, holdClient(t, node, 5*time.Second), "places", "panics", nil)
	for range 2 {
		if reply, err := http.Get(server.URL + "/panics"); err == nil {
			t.Errorf("the handler answers %s", reply.Status)
		}
		awaitUsage(t, node, "places", "panics", 0, -1)
	}
}
