package tollgate

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"net/http"
	"strings"
	"sync"
	"time"
)

// Stats are the counts of a client since it was made.
type Stats struct {
	// Allowed and Denied count decisions. Drains, settles and refunds are none.
	Allowed, Denied int64
	// Sources counts the decisions by their source.
	Sources map[Source]int64
	// Passed is the requests that a middleware passed without a decision.
	Passed int64
	// Failures is the checks and calls that no node answered, or that one rejected.
	Failures int64
}

const (
	// linePause is the shortest time between two lines about failures.
	linePause = time.Second
	// maxWarnings bounds the memory, since a program may choose policies by the text of a caller.
	maxWarnings = 100
)

// monitor counts and logs. A limiter that fails open would otherwise pass requests in silence.
type monitor struct {
	logger     *slog.Logger
	onDecision func(*Decision)

	mutex  sync.Mutex
	counts Stats
	given  map[string]bool
	// outage is the failures since the last return of decisions.
	outage                int
	began, newest, logged time.Time
}

func newMonitor(options Options) *monitor {
	return &monitor{
		logger: options.Logger, onDecision: options.OnDecision,
		counts: Stats{Sources: map[Source]int64{}}, given: map[string]bool{},
	}
}

// Stats returns the counts of decisions and failures, for metrics.
func (c *Client) Stats() Stats {
	c.monitor.mutex.Lock()
	defer c.monitor.mutex.Unlock()
	stats := c.monitor.counts
	stats.Sources = maps.Clone(stats.Sources)
	return stats
}

// decided counts the end of a check.
func (m *monitor) decided(check *Check, answer *Answer, err error) {
	switch {
	case isFailure(err):
		m.failed(1)
	case err == nil && check.Over != Drain:
		m.count(&answer.Decision)
	}
}

func (m *monitor) count(decision *Decision) {
	m.mutex.Lock()
	if decision.Allowed {
		m.counts.Allowed++
	} else {
		m.counts.Denied++
	}
	m.counts.Sources[decision.Source]++
	if m.outage > 0 {
		m.returned(decision.Source)
	}
	m.mutex.Unlock()
	if m.onDecision != nil {
		m.onDecision(decision)
	}
}

func (m *monitor) failed(count int) {
	m.mutex.Lock()
	defer m.mutex.Unlock()
	m.counts.Failures += int64(count)
}

func (m *monitor) passed() {
	m.mutex.Lock()
	defer m.mutex.Unlock()
	m.counts.Passed++
}

// isFailure reports whether no node decided. The end of the caller's context is none.
func isFailure(err error) bool {
	var problem *Problem
	var unavailable *Unavailable
	return errors.As(err, &problem) || errors.As(err, &unavailable)
}

// sendCounted counts the failure of a call that is no check.
func sendCounted[T any](ctx context.Context, c *Client, call *call) (*T, error) {
	answer, err := send[T](ctx, c, call)
	if isFailure(err) {
		c.monitor.failed(1)
	}
	return answer, err
}

// log logs a failure that no caller sees: the first one, and then at most one a second.
func (m *monitor) log(what string, err error) {
	m.mutex.Lock()
	defer m.mutex.Unlock()
	now := time.Now()
	if m.outage == 0 {
		m.began = now
	}
	m.outage++
	m.newest = now
	if now.Sub(m.logged) < linePause {
		return
	}
	m.logged = now
	text := what + ": " + strings.TrimPrefix(err.Error(), "tollgate: ")
	if m.outage > 1 {
		text += " (" + m.summary(now) + ")"
	}
	m.write(text)
}

// returned requires the mutex. Failures go on for a while beside decisions. So decisions return after
// a quiet second.
func (m *monitor) returned(source Source) {
	now := time.Now()
	if now.Sub(m.newest) < linePause || source == SourceClient || source == SourceLease {
		return
	}
	m.write("decisions are back after " + m.summary(m.newest))
	m.outage, m.logged = 0, now
}

func (m *monitor) summary(now time.Time) string {
	failures := "1 failure"
	if m.outage > 1 {
		failures = fmt.Sprintf("%d failures", m.outage)
	}
	return fmt.Sprintf("%s in %.1f s", failures, now.Sub(m.began).Seconds())
}

func (m *monitor) write(text string) {
	cmp.Or(m.logger, slog.Default()).Warn("tollgate: " + text)
}

// warn logs the first warning with this id.
func (m *monitor) warn(id, text string) {
	m.mutex.Lock()
	defer m.mutex.Unlock()
	if m.given[id] || len(m.given) >= maxWarnings {
		return
	}
	m.given[id] = true
	m.write(text)
}

// heed warns of the problems that a change of the configuration cures.
func (m *monitor) heed(problem *Problem) {
	const until = ". Until then its checks get no decision"
	switch {
	case problem.Name() == "unknown-policy":
		known := strings.Join(problem.Known[:min(len(problem.Known), 20)], ", ")
		m.warn(problem.Detail, problem.Detail+" (the node has "+known+"): set `policy` to one of the node's"+until)
	case problem.unknownPlan():
		m.warn(problem.Detail, problem.Detail+": set `plan` to one of them"+until)
	case problem.Name() == "no-hold":
		m.warn(problem.Detail, problem.Detail)
	case problem.Status == http.StatusUnauthorized || problem.Status == http.StatusForbidden:
		m.warn("token", fmt.Sprintf("the node refused the token (%d %s): set `token` to one that may make this call",
			problem.Status, problem.Detail))
	}
}
