package tollgate_test

import (
	"context"
	"errors"
	"net/http"
	"net/http/httptest"
	"testing"
	"time"

	"tollgate-limiter"
)

func TestAFakeAnswersByAListAndTheLastDecisionGoesOn(t *testing.T) {
	fake := tollgate.NewFake(tollgate.Decision{Allowed: true}, tollgate.FakeDenial(30_000))
	for i, want := range []bool{true, false, false} {
		answer, err := fake.Check(t.Context(), tollgate.Check{Policy: "p", Key: "a"})
		if err != nil || answer.Allowed != want || answer.Policy != "p" {
			t.Errorf("check %d: %+v, %v", i, answer, err)
		}
	}
	if stats := fake.Stats(); stats.Allowed != 1 || stats.Denied != 2 || len(fake.Checks()) != 3 {
		t.Errorf("%+v", stats)
	}
}

func TestAFakeHasEveryCall(t *testing.T) {
	fake, check := tollgate.NewFake(), tollgate.Check{Key: "a"}
	if all, err := fake.CheckAll(t.Context(), []tollgate.Check{check, check}); err != nil || !all.Allowed {
		t.Errorf("%+v, %v", all, err)
	}
	if results, err := fake.CheckBatch(t.Context(), []tollgate.Check{check}); err != nil || !results[0].Allowed {
		t.Errorf("%+v, %v", results, err)
	}
	hold, err := fake.Hold(t.Context(), check)
	if err != nil {
		t.Fatal(err)
	}
	if answers, err := hold.Settle(); err != nil || !answers[0].Settled {
		t.Errorf("%+v, %v", answers, err)
	}
	if answer, err := fake.Acquire(t.Context(), check, time.Second); err != nil || !answer.Allowed {
		t.Errorf("%+v, %v", answer, err)
	}
	if _, err := fake.Refund(t.Context(), tollgate.Refund{Key: "a", ID: "a"}); err != nil {
		t.Error(err)
	}
	if usage, err := fake.Usage(t.Context(), check); err != nil || !usage.Allowed {
		t.Errorf("%+v, %v", usage, err)
	}
	var denied *tollgate.Denied
	if _, err := tollgate.NewFake(tollgate.FakeDenial(1)).Hold(t.Context(), check); !errors.As(err, &denied) {
		t.Errorf("the failure is %v", err)
	}
}

func TestAFakeLimitsAMiddleware(t *testing.T) {
	fake := tollgate.NewFake(tollgate.Decision{Allowed: true}, tollgate.FakeDenial(30_000), tollgate.FakeFailure())
	limit := fake.Middleware(tollgate.Limit{OnError: func(context.Context, error) {}})
	handler := limit(http.HandlerFunc(remaining))
	for i, want := range []int{passed, denied, passed} {
		recorder := httptest.NewRecorder()
		handler.ServeHTTP(recorder, httptest.NewRequest(http.MethodGet, "/", nil))
		if recorder.Code != want || want == denied && recorder.Header().Get("Retry-After") != "30" {
			t.Errorf("request %d: %d %v", i, recorder.Code, recorder.Header())
		}
	}
}
