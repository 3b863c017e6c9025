package tollgate

import (
	"context"
	"crypto/rand"
	"encoding/hex"
	"slices"
	"strconv"
	"sync"
	"time"
)

const (
	// maxSettles is the most settles of one call.
	maxSettles = 1000
	// timerSlack is for timers by another clock than that of the leases.
	timerSlack = time.Millisecond
)

// lessee makes the calls of [leases], and runs their timers. The pending calls of the client begin
// under the mutex, so that none begins after its end.
type lessee struct {
	client *Client
	// process is a random text. A program in Go has no forked children, so each lease has one holder.
	process string

	mutex  sync.Mutex
	clock  leaseClock
	leases leases
}

func newLessee(client *Client) *lessee {
	process := make([]byte, 16)
	_, _ = rand.Read(process) // never fails
	return &lessee{
		client: client, process: hex.EncodeToString(process),
		leases: leases{keys: map[leaseName]*leasedKey{}},
	}
}

// pay decides a check by a lease. It returns nil if a node must decide.
func (l *lessee) pay(check *Check) *Answer {
	if l == nil || !check.leasable() {
		return nil
	}
	name, cost := leaseName{named(check.Policy), check.Key}, check.units()
	l.mutex.Lock()
	if l.leases.keys[name] == nil {
		l.mutex.Unlock()
		return nil
	}
	paid, order := l.leases.check(name, cost, l.clock.now())
	if order.units > 0 {
		l.client.pending.Go(func() { l.buy(name, order) })
	}
	l.sendDue()
	l.mutex.Unlock()
	if paid.answer == nil {
		return nil
	}
	return paid.decision(name, cost)
}

// learn reads in the answer of a node whether its key has leases.
func (l *lessee) learn(check *Check, answer *Answer) {
	if l == nil || !check.leasable() {
		return
	}
	name := leaseName{named(check.Policy), check.Key}
	l.mutex.Lock()
	defer l.mutex.Unlock()
	if answer.LeaseSpanMS > 0 || l.leases.keys[name] != nil {
		l.leases.answered(name, answer.Charged, answer.LeaseSpanMS, l.clock.now())
		l.sendDue()
	}
}

func (l *lessee) buy(name leaseName, order order) {
	call := l.client.post("/v1/lease", "granted", struct {
		HoldName
		Want int64 `json:"want"`
	}{l.idOf(name, order.purchase), order.units})
	l.mutex.Lock()
	sent := l.clock.exact()
	l.mutex.Unlock()
	answer, err := send[leaseAnswer](context.Background(), l.client, call)
	l.update(func(now instant) {
		if err != nil {
			l.leases.failed(name, order.purchase, mayHaveHappened(err), now)
			return
		}
		if bought := l.leases.bought(name, order, sent, answer, now); bought != nil {
			tick := func() { l.update(func(now instant) { l.leases.tick(name, now) }) }
			for _, end := range []int64{bought.lasts / 2, bought.lasts} {
				time.AfterFunc(time.Duration(end-now.since(sent))*time.Microsecond+timerSlack, tick)
			}
		}
	})
}

// update changes the leases at the present instant, and sends the settles that this makes due.
func (l *lessee) update(change func(now instant)) {
	l.mutex.Lock()
	defer l.mutex.Unlock()
	change(l.clock.now())
	l.sendDue()
}

// sendDue requires the mutex.
func (l *lessee) sendDue() {
	if due := l.leases.due; len(due) > 0 {
		l.leases.due = nil
		l.client.pending.Go(func() { l.settle(due) })
	}
}

// settle sends each settle once. Without an answer the rest of its lease is lost.
func (l *lessee) settle(due []settle) {
	for len(due) > 0 {
		var body struct {
			Settlements []Settlement `json:"settlements"`
		}
		n := 0
		for bytes := 0; n < len(due) && n < maxSettles && bytes < maxBatchBytes; n++ {
			name := due[n].name
			bytes += (&Check{Policy: name.policy, Key: name.key}).bytes()
			body.Settlements = append(body.Settlements, Settlement{l.idOf(name, due[n].purchase), &due[n].cost})
		}
		call := l.client.post("/v1/settle", "results", body)
		if _, err := sendCounted[struct{}](context.Background(), l.client, call); err != nil {
			l.client.monitor.log("the settle of leases failed", err)
		}
		l.update(func(instant) {
			for _, settle := range due[:n] {
				l.leases.settled(settle.name)
			}
		})
		due = due[n:]
	}
}

func (l *lessee) close() {
	if l != nil {
		l.update(func(instant) { l.leases.close() })
	}
}

func (l *lessee) idOf(name leaseName, purchase int64) HoldName {
	return HoldName{name.policy, name.key, l.process + "-" + strconv.FormatInt(purchase, 10)}
}

// decision counts from the purchase on.
func (p payment) decision(name leaseName, cost int64) *Answer {
	paid := &struct {
		Answer
		remaining, retryAfter, resetAfter int64
	}{Answer: Answer{Decision: p.answer.Decision}}
	paid.Allowed, paid.Policy, paid.Key, paid.Cost, paid.Charged = true, name.policy, name.key, cost, cost
	paid.Source, paid.Reason, paid.RetryAfterMS = SourceLease, ReasonOK, &paid.retryAfter
	ageMS := p.age / 1000
	if paid.Remaining != nil {
		paid.remaining = *paid.Remaining + p.left
		paid.Remaining = &paid.remaining
	}
	if paid.ResetAfterMS != nil {
		paid.resetAfter = max(*paid.ResetAfterMS-ageMS, 0)
		paid.ResetAfterMS = &paid.resetAfter
	}
	paid.Quotas = slices.Clone(paid.Quotas)
	for i := range paid.Quotas {
		quota := &paid.Quotas[i]
		quota.Remaining += p.left
		quota.ResetAfterMS = max(quota.ResetAfterMS-ageMS, 0)
	}
	return &paid.Answer
}

// leaseClock reads the time of leases. A call to the system alone reads the clock that runs on while the
// machine is suspended. So the client reads it every 10 ms, or when the wall clock and the monotonic
// clock moved apart, as after a suspension. In between it adds the monotonic clock.
type leaseClock struct{ readAt, apart, ahead int64 }

const (
	readAgain = 10_000 // us
	movedFar  = 1000   // us
)

// now is never behind the clock of the system.
func (c *leaseClock) now() instant {
	now := time.Now()
	clock, wall := now.Sub(start).Microseconds(), now.UnixMicro()
	moved := wall - clock - c.apart
	if clock-c.readAt >= readAgain || moved >= movedFar || moved <= -movedFar {
		c.readAt, c.apart, c.ahead = clock, wall-clock, sinceBoot()-clock
	}
	return instant{clock + c.ahead, wall}
}

// exact is not ahead of the clock of the system either.
func (c *leaseClock) exact() instant {
	c.readAt = -readAgain
	return c.now()
}
