package tollgate

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"sync"
	"time"
)

const (
	// shortestRenewal is the shortest time between two attempts to renew.
	shortestRenewal = 50 * time.Millisecond
	// repeatFor is how long a call without an answer is repeated.
	repeatFor    = time.Minute
	firstPause   = 100 * time.Millisecond
	longestPause = 5 * time.Second
)

// HoldName is the name of a hold: the id of the check that opened it.
type HoldName struct {
	Policy string `json:"policy,omitempty"`
	Key    string `json:"key"`
	ID     string `json:"id"`
}

// Settlement ends a hold. Cost replaces its charge; nil keeps the charge.
type Settlement struct {
	HoldName
	Cost *int64 `json:"cost,omitempty"`
}

// Denied is the error of Hold and Acquire: the check is denied, or the hold of its id has ended
// before.
type Denied struct{ Decision Decision }

func (d *Denied) Error() string {
	reason := string(d.Decision.Reason)
	if d.Decision.holdEnded() {
		reason = d.Decision.Hold.Ended
	}
	return fmt.Sprintf("tollgate: %s denies the check: %s", d.Decision.Policy, reason)
}

// HoldEnded is the cause of the context of a hold that has ended. Reason is "settled", "expired",
// "unknown_id" or another one of a node.
type HoldEnded struct{ Reason string }

func (e *HoldEnded) Error() string { return "tollgate: the hold has ended: " + e.Reason }

// Settle ends the hold of a check.
func (c *Client) Settle(ctx context.Context, settlement Settlement) (*SettleAnswer, error) {
	defer c.denials.forget(settlement.Policy, settlement.Key)
	return sendCounted[SettleAnswer](ctx, c, c.post("/v1/settle", "settled", settlement))
}

// Renew lets a hold last for the ttl of its policy from now on.
func (c *Client) Renew(ctx context.Context, name HoldName) (*RenewAnswer, error) {
	return sendCounted[RenewAnswer](ctx, c, c.post("/v1/renew", "renewed", name))
}

// Hold is what a check charged, and its place, until Settle. It renews itself meanwhile.
type Hold struct {
	// Decisions has the decision of each check.
	Decisions []Decision
	client    *Client
	ctx       context.Context
	cancel    context.CancelCauseFunc
	held      []HoldName

	mutex   sync.Mutex
	cost    *int64
	settled sync.Once
	answers []SettleAnswer
	failure error
}

// Hold opens a hold for each check, all or none. It returns [Denied] if they are denied. Each ID is
// random by default. Checks under policies without a hold only charge.
//
// The hold renews itself until Settle, or until ctx ends. Then it expires after its ttl.
func (c *Client) Hold(ctx context.Context, checks ...Check) (*Hold, error) {
	hold := &Hold{client: c}
	hold.ctx, hold.cancel = context.WithCancelCause(ctx)
	checks = slices.Clone(checks)
	for i := range checks {
		if checks[i].ID == "" {
			checks[i].ID = rand.Text()
		}
	}
	// The opening goes on without its caller. Otherwise nobody would know what it opened.
	opened := make(chan error, 1)
	go func() { opened <- hold.open(context.WithoutCancel(ctx), checks) }()
	select {
	case err := <-opened:
		if err != nil {
			hold.cancel(err)
			return nil, err
		}
		return hold, nil
	case <-ctx.Done():
		go func() {
			if <-opened == nil {
				hold.SetCost(0)
				_, _ = hold.Settle()
			}
		}()
		return nil, context.Cause(ctx)
	}
}

// Context ends when the hold does: work under the hold has to stop. Its cause is [HoldEnded].
func (h *Hold) Context() context.Context { return h.ctx }

// Decision returns the decision of the first check.
func (h *Hold) Decision() *Decision { return &h.Decisions[0] }

// SetCost sets the true cost, which replaces the charge of each check in Settle.
func (h *Hold) SetCost(units int64) {
	h.mutex.Lock()
	defer h.mutex.Unlock()
	h.cost = &units
}

// Settle ends the hold, once. Without SetCost the charge stays. There is an answer for each check
// under a policy with a hold. A settle that gets none is repeated in the background for a minute.
func (h *Hold) Settle() ([]SettleAnswer, error) {
	h.settled.Do(func() {
		h.cancel(&HoldEnded{"settled"})
		h.mutex.Lock()
		defer h.mutex.Unlock()
		ctx := context.WithoutCancel(h.ctx)
		for _, name := range h.held {
			settlement := Settlement{name, h.cost}
			answer, err := h.client.Settle(ctx, settlement)
			if err != nil {
				h.failure = err
				if mayHaveHappened(err) {
					go h.client.settleLater(ctx, settlement, firstPause)
				}
				continue
			}
			h.answers = append(h.answers, *answer)
		}
	})
	return h.answers, h.failure
}

func (h *Hold) open(ctx context.Context, checks []Check) error {
	sent := time.Now()
	decisions, allowed, err := h.client.decideAll(ctx, checks)
	if err != nil {
		if mayHaveHappened(err) {
			h.giveBack(ctx, checks) // a node may have opened the hold, and its answer is lost
		}
		return err
	}
	h.Decisions = decisions
	ended := slices.IndexFunc(decisions, Decision.holdEnded)
	switch {
	case !allowed:
		return &Denied{slices.MaxFunc(decisions, compareWaits)}
	case ended >= 0:
		for i, decision := range decisions {
			if !decision.Replayed {
				h.giveBack(ctx, checks[i:i+1])
			}
		}
		return &Denied{decisions[ended]}
	}
	for i, decision := range decisions {
		// Without a hold, the policy has none and the charge is final, or no store has decided.
		if decision.Hold == nil && decision.Source == SourceStore && decision.Reason == ReasonOK {
			continue
		}
		name := HoldName{checks[i].Policy, checks[i].Key, checks[i].ID}
		h.held = append(h.held, name)
		if decision.Hold != nil {
			go h.keep(name, sent.Add(milliseconds(decision.Hold.ExpiresInMS)))
		}
	}
	if len(h.held) == 0 {
		problem := noHold(decisions[0].Policy)
		h.client.monitor.heed(problem)
		return problem
	}
	return nil
}

// decideAll decides one check, which may share a call, or several that are charged all or none.
func (c *Client) decideAll(ctx context.Context, checks []Check) ([]Decision, bool, error) {
	if len(checks) == 1 {
		answer, err := c.Check(ctx, checks[0])
		if err != nil {
			return nil, false, err
		}
		return []Decision{answer.Decision}, answer.Allowed, nil
	}
	answer, err := c.CheckAll(ctx, checks)
	if err != nil {
		return nil, false, err
	}
	return answer.Results, answer.Allowed, nil
}

// keep renews after a third of the time that is left. So a failure is followed by more attempts. The
// node counts from a later instant than the client sends, so the hold is open until expires.
func (h *Hold) keep(name HoldName, expires time.Time) {
	for {
		left := time.Until(expires)
		select {
		case <-h.ctx.Done():
			return
		case <-time.After(min(max(left/3, shortestRenewal), left)):
		}
		sent := time.Now()
		ctx, cancel := context.WithDeadline(h.ctx, expires)
		answer, err := h.client.Renew(ctx, name)
		cancel()
		switch {
		case err == nil && answer.Renewed:
			expires = sent.Add(milliseconds(answer.ExpiresInMS))
		case err == nil:
			h.cancel(&HoldEnded{answer.Reason})
			return
		case !time.Now().Before(expires):
			h.cancel(&HoldEnded{"expired"})
			return
		}
	}
}

// giveBack settles what no work began under.
func (h *Hold) giveBack(ctx context.Context, checks []Check) {
	for _, check := range checks {
		settlement := Settlement{HoldName{check.Policy, check.Key, check.ID}, Cost(0)}
		go h.client.settleLater(ctx, settlement, 0)
	}
}

func (c *Client) settleLater(ctx context.Context, settlement Settlement, pause time.Duration) {
	c.repeat("the settle of a hold failed", pause, func() error {
		_, err := c.Settle(ctx, settlement)
		return err
	})
}

// repeat makes a call until a node answers it, for a minute.
func (c *Client) repeat(failed string, pause time.Duration, call func() error) {
	for end := time.Now().Add(repeatFor); time.Now().Before(end); pause = min(max(2*pause, firstPause), longestPause) {
		time.Sleep(pause)
		err := call()
		if err == nil {
			return
		}
		if c.monitor.log(failed, err); !mayHaveHappened(err) {
			return
		}
	}
}

// mayHaveHappened reports whether a node may have made the call without an answer.
func mayHaveHappened(err error) bool {
	var problem *Problem
	return !errors.As(err, &problem) || problem.Status >= http.StatusInternalServerError
}

// compareWaits puts the longest wait last, and one without an end behind it.
func compareWaits(one, other Decision) int {
	wait := func(d Decision) int64 {
		switch {
		case d.Allowed:
			return -1
		case d.RetryAfterMS == nil:
			return maxInteger
		}
		return *d.RetryAfterMS
	}
	return int(min(max(wait(one)-wait(other), -1), 1))
}

func milliseconds(ms int64) time.Duration { return time.Duration(ms) * time.Millisecond }
