package tollgate

import (
	"bytes"
	"encoding/json"
	"errors"
	"io"
	"net/http"
	"sync"
)

// Fake is a client for unit tests, without a node.
type Fake struct {
	*Client

	mutex     sync.Mutex
	decisions []Decision
	checks    []Check
}

// NewFake returns a client whose checks get the next of decisions, and the last one again and again.
// Policy, Key and Cost are those of the check. By default all checks are allowed. Policies always have a
// hold. [FakeDenial] makes a denial, and [FakeFailure] a check without a decision.
func NewFake(decisions ...Decision) *Fake {
	if len(decisions) == 0 {
		decisions = []Decision{{Allowed: true}}
	}
	fake := &Fake{decisions: decisions}
	fake.Client, _ = New(Options{Transport: fake, NoCoalesce: true, NoLease: true, DenialCache: -1}) // has no fault
	return fake
}

// FakeDenial is a decision of [NewFake]: a denial, whose cost fits after retryAfterMS milliseconds.
func FakeDenial(retryAfterMS int64) Decision {
	return Decision{Reason: ReasonOverLimit, RetryAfterMS: &retryAfterMS}
}

// FakeFailure is a decision of [NewFake]: none.
func FakeFailure() Decision { return Decision{Reason: fakeFailure} }

const fakeFailure Reason = "fake failure"

// Checks returns the checks that arrived.
func (f *Fake) Checks() []Check {
	f.mutex.Lock()
	defer f.mutex.Unlock()
	return append([]Check(nil), f.checks...)
}

// RoundTrip answers a call.
func (f *Fake) RoundTrip(request *http.Request) (*http.Response, error) {
	var asked struct {
		Check
		Checks []Check `json:"checks"`
	}
	if request.Body != nil {
		if err := json.NewDecoder(request.Body).Decode(&asked); err != nil {
			return nil, err
		}
	}
	answer, err := f.answer(request.URL.Path, asked.Check, asked.Checks)
	if err != nil {
		return nil, err
	}
	text, _ := json.Marshal(answer) // these types have no values that fail
	reply := &http.Response{StatusCode: http.StatusOK, ContentLength: int64(len(text))}
	reply.Body = io.NopCloser(bytes.NewReader(text))
	return reply, nil
}

func (f *Fake) answer(path string, check Check, checks []Check) (any, error) {
	if path == "/v1/check" {
		return f.decide(check)
	}
	results, denied := []Decision{}, []int{}
	for i, check := range checks {
		decision, err := f.decide(check)
		if err != nil {
			return nil, err
		}
		if results = append(results, *decision); !decision.Allowed {
			denied = append(denied, i)
		}
	}
	const minute = 60_000
	return map[string]any{
		"allowed": len(denied) == 0, "denied_by": denied, "results": results,
		"settled": true, "renewed": true, "expires_in_ms": minute, "refunded": 0, "reason": "",
	}, nil
}

func (f *Fake) decide(check Check) (*Decision, error) {
	f.mutex.Lock()
	defer f.mutex.Unlock()
	f.checks = append(f.checks, check)
	decision := f.decisions[0]
	if len(f.decisions) > 1 {
		f.decisions = f.decisions[1:]
	}
	if decision.Reason == fakeFailure {
		return nil, errors.New("a fake failure")
	}
	decision.Policy, decision.Key, decision.Cost = named(check.Policy), check.Key, check.units()
	if decision.Source == "" {
		decision.Source = SourceStore
	}
	if decision.Allowed {
		decision.RetryAfterMS, decision.Charged = new(int64), decision.Cost
		if decision.Reason == "" {
			decision.Reason = ReasonOK
		}
		if check.ID != "" && check.WaitMS == 0 && decision.Hold == nil {
			const minute = 60_000
			decision.Hold = &HoldState{ExpiresInMS: minute}
		}
	}
	return &decision, nil
}
