package tollgate

import "time"

// Source names the part that decided. More values may follow.
type Source string

const (
	SourceStore     Source = "store"
	SourcePrefilter Source = "prefilter"
	SourceFallback  Source = "fallback"
	SourceList      Source = "list"
	// SourceLease is units that the node or the client bought before.
	SourceLease Source = "lease"
	// SourceClient is a denial that the client remembers.
	SourceClient Source = "client"
)

// Reason is the reason of a decision. More values may follow.
type Reason string

const (
	ReasonOK               Reason = "ok"
	ReasonOverLimit        Reason = "over_limit"
	ReasonCostExceedsLimit Reason = "cost_exceeds_limit"
	ReasonStoreUnavailable Reason = "store_unavailable"
	ReasonShadow           Reason = "shadow"
	ReasonAllowListed      Reason = "allow_listed"
	ReasonDenyListed       Reason = "deny_listed"
	ReasonRefunded         Reason = "refunded"
	ReasonInFlight         Reason = "in_flight"
)

// Decision is the answer to a check. Limit, Remaining, ResetAfterMS and Quota are those of the
// binding quota, the one with the least remaining units. They are nil if no counter was read.
type Decision struct {
	Allowed bool   `json:"allowed"`
	Policy  string `json:"policy"`
	Key     string `json:"key"`
	Cost    int64  `json:"cost"`
	// Charged is the units that the store has certainly charged.
	Charged int64 `json:"charged"`
	// Owed is the units of a drain that did not fit.
	Owed      int64  `json:"owed,omitempty"`
	Limit     *int64 `json:"limit"`
	Remaining *int64 `json:"remaining"`
	// RetryAfterMS is the time until the cost fits. It is 0 if allowed, and nil if the cost can
	// never fit or a list denies.
	RetryAfterMS *int64       `json:"retry_after_ms"`
	ResetAfterMS *int64       `json:"reset_after_ms"`
	Quota        *string      `json:"quota"`
	Source       Source       `json:"source"`
	Reason       Reason       `json:"reason"`
	Quotas       []QuotaState `json:"quotas,omitempty"`
	Fallback     *Fallback    `json:"fallback,omitempty"`
	// StartInMS is the time until a check with WaitMS may start.
	StartInMS int64 `json:"start_in_ms,omitempty"`
	// Replayed is true if an earlier check with this id made the decision.
	Replayed bool `json:"replayed,omitempty"`
	// Hold is the hold that the check opened, or that its id opened before.
	Hold *HoldState `json:"hold,omitempty"`
	// LeaseSpanMS is how long units that a caller buys may be spent. It is 0 if the key sells none.
	LeaseSpanMS int64 `json:"lease_span_ms,omitempty"`
}

// holdEnded reports whether the hold of a repeated id has ended, so that no work may begin.
func (d Decision) holdEnded() bool { return d.Hold != nil && d.Hold.Ended != "" }

// HoldState is the hold of an id.
type HoldState struct {
	// ExpiresInMS is the time until the hold expires unless it is renewed. It is 0 after its end.
	ExpiresInMS int64 `json:"expires_in_ms"`
	// InFlight is the open holds of the key, this one included.
	InFlight *int64 `json:"in_flight,omitempty"`
	// InFlightLimit is nil if the policy does not bound them.
	InFlightLimit *int64 `json:"in_flight_limit,omitempty"`
	// Ended says how the hold of a repeated id ended: "settled", "expired" or "reset".
	Ended string `json:"ended,omitempty"`
}

// SettleAnswer is the end of a hold, and the counts after it.
type SettleAnswer struct {
	// Settled is false if the id has no hold. Reason says why.
	Settled bool   `json:"settled"`
	Reason  string `json:"reason,omitempty"`
	// Charged is the units that the hold has charged.
	Charged int64 `json:"charged"`
	// Refunded is the units that count again.
	Refunded int64 `json:"refunded"`
	// Owed is the units above the charge that did not fit.
	Owed int64 `json:"owed"`
	// Replayed is true if an earlier settle made the answer.
	Replayed     bool         `json:"replayed"`
	Limit        *int64       `json:"limit"`
	Remaining    *int64       `json:"remaining"`
	RetryAfterMS *int64       `json:"retry_after_ms"`
	ResetAfterMS *int64       `json:"reset_after_ms"`
	Quota        *string      `json:"quota"`
	Source       Source       `json:"source"`
	Quotas       []QuotaState `json:"quotas,omitempty"`
}

// RenewAnswer says how long a hold is open.
type RenewAnswer struct {
	Renewed     bool  `json:"renewed"`
	ExpiresInMS int64 `json:"expires_in_ms"`
	// Reason is "expired", "settled" or "unknown_id" if the hold is not renewed.
	Reason string `json:"reason,omitempty"`
}

// RetryAfter returns the time until a denied cost fits, and false if it never does.
func (d *Decision) RetryAfter() (time.Duration, bool) {
	if d.RetryAfterMS == nil {
		return 0, false
	}
	return time.Duration(*d.RetryAfterMS) * time.Millisecond, true
}

// QuotaState is one quota of the policy.
type QuotaState struct {
	Name         string `json:"name"`
	Limit        int64  `json:"limit"`
	WindowMS     int64  `json:"window_ms"`
	Remaining    int64  `json:"remaining"`
	ResetAfterMS int64  `json:"reset_after_ms"`
	// Charged is the units that the quota took of a drain.
	Charged int64 `json:"charged,omitempty"`
}

// Fallback says how the node decided without the store.
type Fallback struct {
	Mode  string `json:"mode"`
	Cause string `json:"cause"`
}

// Answer is the decision of [Client.Check].
type Answer struct {
	Decision
	// Refunded is true if the charge of the id was refunded. A new charge needs a new id.
	Refunded bool `json:"refunded,omitempty"`
}

// BatchResult is a decision, or the problem of a check without one.
type BatchResult struct {
	Answer
	Error *Problem `json:"error,omitempty"`
}

// AllAnswer is the verdict on several checks that are charged together.
type AllAnswer struct {
	Allowed bool `json:"allowed"`
	// DeniedBy has the positions of the denied checks, from 0.
	DeniedBy []int `json:"denied_by"`
	// RetryAfterMS is the longest wait of the denied checks; nil if one can never fit.
	RetryAfterMS *int64     `json:"retry_after_ms"`
	Results      []Decision `json:"results"`
}

// RefundAnswer is the decision for cost 0 after a refund.
type RefundAnswer struct {
	Decision
	// Refunded is the most units that any quota got back.
	Refunded int64 `json:"refunded"`
}

// Usage is what counts now for a key.
type Usage struct {
	Decision
	// Entries are the newest charges of a sliding log, the newest first.
	Entries []Entry `json:"entries,omitempty"`
	// TopMetas are the largest causes in a sliding log.
	TopMetas []TopMeta `json:"top_metas,omitempty"`
	// Ticks are those of a sliding counter that are not 0, the newest first.
	Ticks []Tick `json:"ticks,omitempty"`
	// Holds are the newest open holds, at most 100.
	Holds []UsageHold `json:"holds,omitempty"`
	// InFlight is the number of open holds.
	InFlight *int64 `json:"in_flight,omitempty"`
	// InFlightLimit is the most open holds.
	InFlightLimit *int64 `json:"in_flight_limit,omitempty"`
}

// UsageHold is an open hold.
type UsageHold struct {
	ID          string  `json:"id"`
	AgeMS       int64   `json:"age_ms"`
	Cost        int64   `json:"cost"`
	ExpiresInMS int64   `json:"expires_in_ms"`
	Meta        *string `json:"meta"`
}

// Entry is a charge in a sliding log.
type Entry struct {
	AgeMS int64   `json:"age_ms"`
	Cost  int64   `json:"cost"`
	Meta  *string `json:"meta"`
}

// TopMeta is a cause of charges.
type TopMeta struct {
	Meta  string `json:"meta"`
	Cost  int64  `json:"cost"`
	Count int64  `json:"count"`
}

// Tick is a counter of a sliding counter. At is its start in seconds since 1970, or in milliseconds
// if a tick is no whole number of seconds.
type Tick struct {
	At    int64 `json:"at"`
	Count int64 `json:"count"`
}
