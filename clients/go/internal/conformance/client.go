package conformance

import (
	"context"
	"encoding/json"
	"errors"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"tollgate-limiter"
)

type step struct {
	Call         string          `json:"call"`
	With         json.RawMessage `json:"with"`
	Traceparent  string          `json:"traceparent"`
	Expect       any             `json:"expect"`
	Fails        *failure        `json:"fails"`
	WithinMS     int             `json:"within_ms"`
	Concurrently int             `json:"concurrently"`
	Allowed      int64           `json:"allowed"`
	Together     []step          `json:"together"`
	Stop         bool            `json:"stop"`
	Until        *counter        `json:"until"`
	PauseMS      int             `json:"pause_ms"`
	While        []step          `json:"while"`
	Cost         *int64          `json:"cost"`
	Throws       bool            `json:"throws"`
}

type failure struct {
	Denied      string `json:"denied"`
	Unavailable bool   `json:"unavailable"`
	Status      int    `json:"status"`
	Problem     string `json:"problem"`
	Pointer     string `json:"pointer"`
}

// RunClient runs the cases of the client.
func RunClient(t *testing.T) {
	nodes := startNodes(t)
	for _, testCase := range read(t).Client {
		t.Run(testCase.Name, func(t *testing.T) {
			testCase.skipWithout(t, nodes)
			urls, proxy := nodes.list(t, testCase.Nodes)
			client := testCase.Options.client(t, urls)
			for _, step := range testCase.Steps {
				switch {
				case step.Stop:
					proxy.server.CloseClientConnections()
					proxy.server.Listener.Close()
				case step.Until != nil:
					step.Until.await(t, Options{}.client(t, []string{nodes.plain.URL()}))
				default:
					step.run(t, client)
				}
			}
			if proxy != nil {
				proxy.verify(t, testCase.Seen)
			}
		})
	}
}

func (s step) run(t *testing.T, client *tollgate.Client) {
	t.Helper()
	switch {
	case s.PauseMS > 0:
		time.Sleep(time.Duration(s.PauseMS) * time.Millisecond)
	case s.Together != nil:
		var all sync.WaitGroup
		for _, each := range s.Together {
			all.Go(func() { each.once(t, client) })
		}
		all.Wait()
	case s.Concurrently > 0:
		s.concurrently(t, client)
	default:
		s.once(t, client)
	}
}

func (s step) concurrently(t *testing.T, client *tollgate.Client) {
	t.Helper()
	var all sync.WaitGroup
	var allowed atomic.Int64
	for range s.Concurrently {
		all.Go(func() {
			answer, err := s.ask(t, client)
			if err != nil {
				t.Error(err)
			} else if answer.(*tollgate.Answer).Allowed {
				allowed.Add(1)
			}
		})
	}
	all.Wait()
	if allowed.Load() != s.Allowed {
		t.Errorf("allowed %d of %d, want %d", allowed.Load(), s.Concurrently, s.Allowed)
	}
}

func (s step) once(t *testing.T, client *tollgate.Client) {
	t.Helper()
	began := time.Now()
	answer, err := s.ask(t, client)
	within(t, s.Call, s.WithinMS, time.Since(began))
	switch {
	case s.Fails != nil:
		s.Fails.verify(t, err)
	case err != nil:
		t.Errorf("%s: %v", s.Call, err)
	default:
		match(t, s.Call, s.Expect, asJSON(t, answer))
	}
}

func (f *failure) verify(t *testing.T, err error) {
	t.Helper()
	if f.Denied != "" {
		var denied *tollgate.Denied
		if !errors.As(err, &denied) || !strings.HasSuffix(denied.Error(), ": "+f.Denied) {
			t.Errorf("want a denial for %s, got %v", f.Denied, err)
		}
		return
	}
	if f.Unavailable {
		var unavailable *tollgate.Unavailable
		if !errors.As(err, &unavailable) {
			t.Errorf("want unavailable, got %v", err)
		}
		return
	}
	var problem *tollgate.Problem
	if !errors.As(err, &problem) {
		t.Errorf("want a problem %d, got %v", f.Status, err)
		return
	}
	if problem.Status != f.Status || problem.Name() != f.Problem {
		t.Errorf("want %d %s, got %d %s", f.Status, f.Problem, problem.Status, problem.Name())
	}
	if f.Pointer != "" && (len(problem.Violations) == 0 || problem.Violations[0].Pointer != f.Pointer) {
		t.Errorf("want the pointer %s, got %v", f.Pointer, problem.Violations)
	}
}

func (s step) ask(t *testing.T, client *tollgate.Client) (any, error) {
	ctx := t.Context()
	if s.Traceparent != "" {
		ctx = tollgate.WithTraceparent(ctx, s.Traceparent)
	}
	switch s.Call {
	case "check":
		return client.Check(ctx, checkOf(t, s.With))
	case "acquire":
		check := checkOf(t, s.With)
		return client.Acquire(ctx, check, time.Duration(check.WaitMS)*time.Millisecond)
	case "checkBatch":
		results, err := client.CheckBatch(ctx, checksOf(t, s.With))
		return map[string]any{"results": results}, err
	case "checkAll":
		return client.CheckAll(ctx, checksOf(t, s.With))
	case "usage":
		return client.Usage(ctx, checkOf(t, s.With))
	case "hold":
		return s.hold(ctx, t, client)
	case "settle":
		return client.Settle(ctx, decoded[tollgate.Settlement](t, s.With))
	case "renew":
		return client.Renew(ctx, decoded[tollgate.HoldName](t, s.With))
	case "refund":
		return client.Refund(ctx, decoded[tollgate.Refund](t, s.With))
	}
	t.Errorf("unknown call %q", s.Call)
	return nil, nil
}

// hold returns the decision of the first check. The step has what happens while the hold is open.
func (s step) hold(ctx context.Context, t *testing.T, client *tollgate.Client) (any, error) {
	checks := checksOf(t, s.With)
	if len(checks) == 0 {
		checks = []tollgate.Check{checkOf(t, s.With)}
	}
	hold, err := client.Hold(ctx, checks...)
	if err != nil {
		return nil, err
	}
	for _, step := range s.While {
		step.run(t, client)
	}
	if hold.Context().Err() != nil {
		t.Errorf("the hold has ended: %v", context.Cause(hold.Context()))
	}
	if s.Cost != nil {
		hold.SetCost(*s.Cost)
	}
	_, err = hold.Settle()
	return hold.Decision(), err
}

func decoded[T any](t *testing.T, with json.RawMessage) (value T) {
	if err := json.Unmarshal(with, &value); err != nil {
		t.Error(err)
	}
	return value
}

func checksOf(t *testing.T, with json.RawMessage) []tollgate.Check {
	body := decoded[struct{ Checks []json.RawMessage }](t, with)
	checks := make([]tollgate.Check, len(body.Checks))
	for i, text := range body.Checks {
		checks[i] = checkOf(t, text)
	}
	return checks
}

// checkOf reads quotas as texts, such as "7 per 1h", which the typed client writes as objects.
func checkOf(t *testing.T, with json.RawMessage) tollgate.Check {
	var body struct {
		tollgate.Check
		Quotas []string `json:"quotas"`
		Once   bool     `json:"once"`
	}
	if err := json.Unmarshal(with, &body); err != nil {
		t.Error(err)
	}
	body.Check.Once = body.Once
	for _, text := range body.Quotas {
		number, window, _ := strings.Cut(text, " per ")
		limit, err := strconv.ParseInt(number, 10, 64)
		if err != nil {
			t.Error(err)
		}
		body.Check.Quotas = append(body.Check.Quotas, tollgate.QuotaSpec{Limit: limit, Per: window})
	}
	return body.Check
}
