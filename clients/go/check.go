package tollgate

import (
	"crypto/rand"
	"crypto/sha256"
	"encoding/hex"
	"time"
	"unicode/utf8"
)

// Over says how a check charges a cost that does not fit.
type Over string

const (
	// Deny charges nothing if the cost does not fit. It is the default.
	Deny Over = "deny"
	// Drain charges as much of the cost as fits, for usage that is known only afterwards.
	Drain Over = "drain"
)

// Check asks whether a key may spend a cost under a policy.
type Check struct {
	// Policy is a configured policy; empty means "default".
	Policy string `json:"policy,omitempty"`
	// Key is the partition key, 1 to 1024 bytes of UTF-8.
	Key string `json:"key"`
	// Plan is a plan of the configuration, whose quotas replace those of the policy.
	Plan string `json:"plan,omitempty"`
	// Cost is the units to charge; nil means 1. Cost 0 charges nothing, and is never denied.
	Cost *int64 `json:"cost,omitempty"`
	// Meta is the cause of the charge, up to 256 bytes. Policies with a sliding log keep it.
	Meta string `json:"meta,omitempty"`
	// ID makes retries of the caller safe, 1 to 64 bytes. A check with an id always asks the store.
	ID string `json:"id,omitempty"`
	// IDTTLMS is how long the node keeps the ID, 1000 to 86,400,000 ms. With it the ID serves
	// retries only, so that the pre-filter may deny the first attempt.
	IDTTLMS int64 `json:"id_ttl_ms,omitempty"`
	// Repeated says that the caller sent this ID before, and got no answer.
	Repeated bool `json:"repeated,omitempty"`
	// Look returns the decision for the cost without charging it. It excludes ID, Drain and cost 0.
	Look bool `json:"look,omitempty"`
	// WaitMS waits in line for a start within this time. [Client.Acquire] sets it, and sleeps.
	WaitMS int64 `json:"wait_ms,omitempty"`
	// Quotas replace those of a policy with `inline: true`.
	Quotas []QuotaSpec `json:"quotas,omitempty"`
	// Over is [Deny] or [Drain]; empty means Deny.
	Over Over `json:"over,omitempty"`
	// Once makes a random ID for the retries of the client, so that none of them charges twice.
	Once bool `json:"-"`
	// refundable says that a refund by the ID may follow, so that a node must decide.
	refundable bool
}

// Cost returns a pointer to n, for [Check.Cost].
func Cost(n int64) *int64 { return &n }

// QuotaSpec is a quota that a check brings: a limit per window, or a rate and a burst.
type QuotaSpec struct {
	Name  string `json:"name,omitempty"`
	Limit int64  `json:"limit,omitempty"`
	Per   string `json:"per,omitempty"`
	Rate  string `json:"rate,omitempty"`
	Burst int64  `json:"burst,omitempty"`
}

// Refund gives units back: those of the check with ID, or Cost units from the oldest charge.
type Refund struct {
	Policy string `json:"policy,omitempty"`
	Key    string `json:"key"`
	Cost   int64  `json:"cost,omitempty"`
	ID     string `json:"id,omitempty"`
}

// units returns the cost.
func (c *Check) units() int64 {
	if c.Cost == nil {
		return 1
	}
	return *c.Cost
}

// hasOwnID reports whether the ID is one of the caller.
func (c *Check) hasOwnID() bool { return c.ID != "" && !c.Once }

// leasable reports whether a lease may pay it. A node decides a check with a record, a cause or quotas
// of its own.
func (c *Check) leasable() bool {
	plain := !c.hasOwnID() && !c.refundable && c.Meta == "" && c.Plan == "" && len(c.Quotas) == 0
	return plain && c.units() > 0 && !c.Look && c.WaitMS <= 0 && (c.Over == "" || c.Over == Deny)
}

// identify makes the id of a check that asks for one. An ID of the caller replaces it.
func (c *Check) identify(deadline time.Duration) {
	if c.Once = c.Once && c.ID == "" && !c.Look && c.units() != 0; !c.Once {
		return
	}
	c.ID = rand.Text()
	if c.IDTTLMS == 0 {
		const rest = 10 * time.Second
		c.IDTTLMS = (deadline + rest + time.Millisecond - 1).Milliseconds()
	}
}

// bytes bounds the length of the check in JSON.
func (c *Check) bytes() int {
	const members, escaped = 192, 6
	n := len(c.Policy) + len(c.Key) + len(c.Plan) + len(c.Meta) + len(c.ID)
	for _, quota := range c.Quotas {
		n += len(quota.Name) + len(quota.Per) + len(quota.Rate)
	}
	return members + escaped*n + len(c.Quotas)*members
}

const maxKey = 1024

// SafeKey returns key, or its hash if the node would not accept it. Middlewares send keys of callers
// through it, since a caller must not choose a key that nobody counts.
func SafeKey(key string) string {
	if len(key) <= maxKey && utf8.ValidString(key) {
		return key
	}
	sum := sha256.Sum256([]byte(key))
	return "sha256:" + hex.EncodeToString(sum[:])
}
