package tollgate_test

import (
	"context"
	"errors"
	"net"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"tollgate-limiter"
	"tollgate-limiter/internal/testnode"
)

// unit is the time in which the policy bucket gives one.
const unit = 360 * time.Second

// awaitLine waits until the key has a line, or none any more.
func awaitLine(t *testing.T, client *tollgate.Client, key string, empty bool) {
	t.Helper()
	for range 2000 {
		check := tollgate.Check{Policy: "bucket", Key: key, Cost: tollgate.Cost(1)}
		usage, err := client.Usage(context.Background(), check)
		if err != nil {
			t.Fatal(err)
		}
		if wait, known := usage.RetryAfter(); known && (wait <= unit) == empty {
			return
		}
		time.Sleep(10 * time.Millisecond)
	}
	t.Fatalf("the line of %s is never empty: %t", key, empty)
}

func TestAcquireGivesItsPlaceBackWhenItsContextEnds(t *testing.T) {
	node := testnode.Start(t, "cases.yaml")
	client := holdClient(t, node, 5*time.Second)
	check := tollgate.Check{Policy: "bucket", Key: "left", Cost: tollgate.Cost(25)}
	if _, err := client.Check(t.Context(), check); err != nil {
		t.Fatal(err)
	}
	left := errors.New("the caller leaves")
	ctx, leave := context.WithCancelCause(t.Context())
	ended := make(chan error, 1)
	go func() {
		_, err := client.Acquire(ctx, tollgate.Check{Policy: "bucket", Key: "left"}, time.Hour)
		ended <- err
	}()
	awaitLine(t, client, "left", false)
	leave(left)
	if err := <-ended; !errors.Is(err, left) {
		t.Errorf("the failure is %v", err)
	}
	awaitLine(t, client, "left", true)
	if _, err := client.Acquire(ctx, tollgate.Check{Policy: "bucket", Key: "left"}, time.Hour); !errors.Is(err, left) {
		t.Errorf("the failure is %v", err)
	}
	awaitLine(t, client, "left", true)
}

// The node must not hold a place that the caller cannot reach.
func TestAcquireAsksForNoLongerWaitThanItsContextHas(t *testing.T) {
	node := testnode.Start(t, "cases.yaml")
	client := holdClient(t, node, 5*time.Second)
	check := tollgate.Check{Policy: "bucket", Key: "short", Cost: tollgate.Cost(25)}
	if _, err := client.Check(t.Context(), check); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	var denied *tollgate.Denied
	_, err := client.Acquire(ctx, tollgate.Check{Policy: "bucket", Key: "short"}, time.Hour)
	if !errors.As(err, &denied) {
		t.Errorf("the failure is %v", err)
	}
}

func TestTheEndOfAContextIsItsOwnError(t *testing.T) {
	silent, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer silent.Close()
	nodes := []string{"http://" + silent.Addr().String()}
	client := newClient(t, tollgate.Options{Nodes: nodes, Deadline: 5 * time.Second})
	left := errors.New("the caller leaves")
	check := tollgate.Check{Key: "left"}
	for name, call := range map[string]func(context.Context) error{
		"Check":   func(ctx context.Context) error { _, err := client.Check(ctx, check); return err },
		"Hold":    func(ctx context.Context) error { _, err := client.Hold(ctx, check); return err },
		"Usage":   func(ctx context.Context) error { _, err := client.Usage(ctx, check); return err },
		"Acquire": func(ctx context.Context) error { _, err := client.Acquire(ctx, check, time.Second); return err },
	} {
		ctx, leave := context.WithCancelCause(t.Context())
		leave(left)
		if err := call(ctx); err != left {
			t.Errorf("%s: the failure is %v", name, err)
		}
	}
	if stats := client.Stats(); stats.Failures != 0 {
		t.Errorf("a caller that leaves is no failure: %+v", stats)
	}
}

func TestManyCallersStartNoFasterThanTheRate(t *testing.T) {
	node := testnode.Start(t, "cases.yaml")
	client := holdClient(t, node, 5*time.Second)
	began := time.Now()
	starts := make([]time.Duration, 60)
	var all sync.WaitGroup
	for i := range starts {
		all.Go(func() {
			_, err := client.Acquire(t.Context(), tollgate.Check{Policy: "partner", Key: "many"}, time.Minute)
			if err != nil {
				t.Error(err)
			}
			starts[i] = time.Since(began)
		})
	}
	all.Wait()
	// 50 a second, after a burst of 10.
	slices.Sort(starts)
	for i, start := range starts[10:] {
		if earliest := time.Duration(i+1) * 20 * time.Millisecond; start < earliest-time.Millisecond {
			t.Errorf("start %d comes after %s", i+11, start)
		}
	}
}

func TestAcquireGivesAHoldWithoutAnIDOfItsCallerBack(t *testing.T) {
	node := testnode.Start(t, "cases.yaml")
	client := holdClient(t, node, 5*time.Second)
	_, err := client.Acquire(t.Context(), tollgate.Check{Policy: "calls", Key: "left"}, time.Hour)
	if err == nil || !strings.Contains(err.Error(), "give the check an ID") {
		t.Errorf("the failure is %v", err)
	}
	awaitUsage(t, node, "calls", "left", 0, 25)
}

func TestAcquireRejectsAWaitOutsideOfItsBounds(t *testing.T) {
	client := newClient(t, tollgate.Options{Nodes: []string{"http://127.0.0.1:1"}})
	for _, wait := range []time.Duration{-1, time.Hour + 1} {
		_, err := client.Acquire(t.Context(), tollgate.Check{Key: "k"}, wait)
		if err == nil || !strings.Contains(err.Error(), "wait must be from 0 to 1h") {
			t.Errorf("the failure is %v", err)
		}
	}
}
