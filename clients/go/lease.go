package tollgate

import "math/bits"

// This file decides which checks a lease pays, without calls and without a clock. The clients of all
// languages have these rules, and clients/lease-cases.json tests them. Times are in microseconds.

const (
	// leastUnits is the smallest lease.
	leastUnits = 4
	maxUnits   = 1_000_000_000_000_000
	// drift is the share of its time that a lease does not use, since clocks drift apart: 1/256.
	drift = 256
	// ahead is the share of the units, or of the time, with which the client buys the next lease: 1/8.
	ahead = 8
	// failedPause follows a purchase without an answer.
	failedPause = 1_000_000
	// apart is how far the wall clock may run ahead of the other clock.
	apart = 1_000_000
	// maxLeaseKeys bounds the memory, and sweepPause the search for keys to drop.
	maxLeaseKeys = 10_000
	sweepPause   = 100_000
)

// instant is a time by two clocks.
type instant struct {
	// clock runs on while the machine is suspended, if the system has such a clock.
	clock int64
	wall  int64
}

// since returns the age of earlier. The wall clock decides if it ran far ahead: then the other clock
// stood still. A wall clock that is set back has no effect.
func (i instant) since(earlier instant) int64 {
	age, wall := i.clock-earlier.clock, i.wall-earlier.wall
	if wall > age+apart {
		return wall
	}
	return age
}

type leaseName struct{ policy, key string }

// leases has the units in hand of all keys, and their demand.
type leases struct {
	keys      map[leaseName]*leasedKey
	purchases int64
	closed    bool
	sweepAt   int64
	// due are the settles to send.
	due []settle
}

type leasedKey struct {
	name   leaseName
	span   int64
	demand demand
	// hands are up to two leases, the older one first.
	hands []*lease
	// buying is the purchase under way, or 0.
	buying int64
	// settling is the number of settles without an answer. Until then a node counts their leases.
	settling int
	// cut says that the last purchase got fewer units than it wanted.
	cut        bool
	pauseUntil int64
}

type lease struct {
	purchase    int64
	left, lasts int64
	sent        instant
	answer      *leaseAnswer
}

// leaseAnswer is the answer of a node to a purchase.
type leaseAnswer struct {
	Granted       int64 `json:"granted"`
	SpendWithinMS int64 `json:"spend_within_ms"`
	Decision
}

// order is a purchase to make, or none.
type order struct{ purchase, units int64 }

// payment is a check that a lease paid. Its answer is nil if none did.
type payment struct {
	answer    *leaseAnswer
	left, age int64
}

type settle struct {
	name           leaseName
	purchase, cost int64
}

// check pays a check from a lease if one has enough units.
func (l *leases) check(name leaseName, cost int64, now instant) (paid payment, buy order) {
	key := l.keys[name]
	if key == nil {
		return payment{}, order{}
	}
	l.end(key, func(lease *lease) bool { return lease.over(now) })
	// A denied check raises no demand, so its cost counts once it is allowed.
	wanted := min(key.demand.add(key.span, now.clock, 0)+cost, maxUnits)
	for _, lease := range key.hands {
		if lease.left >= cost {
			lease.left -= cost
			key.demand.add(key.span, now.clock, cost)
			paid = payment{lease.answer, lease.left, now.since(lease.sent)}
			break
		}
	}
	if paid.answer != nil && paid.left == 0 {
		l.end(key, func(lease *lease) bool { return lease.left == 0 })
	}
	if units := wanted - wanted%cost; units >= leastUnits && key.mayBuy(now) {
		l.purchases++
		key.buying = l.purchases
		buy = order{l.purchases, units}
	}
	return paid, buy
}

// answered learns from the answer of a node. Without a span the key has no leases.
func (l *leases) answered(name leaseName, charged, spanMS int64, now instant) {
	key, span := l.keys[name], spanMS*1000
	switch {
	case span <= 0:
		if key != nil {
			l.end(key, func(*lease) bool { return true })
			delete(l.keys, name)
		}
		return
	case key == nil && (l.closed || !l.room(now.clock)):
		return
	case key == nil:
		key = &leasedKey{name: name}
		l.keys[name] = key
	}
	if key.span != span {
		key.span, key.demand = span, demand{}
	}
	key.demand.add(span, now.clock, charged)
}

// bought takes a lease in hand, unless its time is over or its key is forgotten.
func (l *leases) bought(name leaseName, buy order, sent instant, answer *leaseAnswer, now instant) *lease {
	within := answer.SpendWithinMS * 1000
	lasts := within - (within+drift-1)/drift
	bought := &lease{buy.purchase, answer.Granted, lasts, sent, answer}
	key := l.buyer(name, buy.purchase)
	switch {
	case key != nil && answer.Granted == 0:
		wait, _ := answer.RetryAfter()
		key.pauseUntil = now.clock + wait.Microseconds()
	case key != nil:
		key.cut = answer.Granted < buy.units
		key.hands = append(key.hands, bought)
		l.end(key, func(lease *lease) bool { return lease == bought && lease.over(now) })
		if bought.over(now) {
			return nil
		}
		return bought
	case answer.Granted > 0:
		l.due = append(l.due, settle{name, buy.purchase, 0})
	}
	return nil
}

// failed notes that a purchase has no answer, or a problem. One that may have happened is returned.
func (l *leases) failed(name leaseName, purchase int64, mayHaveHappened bool, now instant) {
	key := l.buyer(name, purchase)
	if key != nil {
		key.pauseUntil = now.clock + failedPause
	}
	if mayHaveHappened {
		if key != nil {
			key.settling++
		}
		l.due = append(l.due, settle{name, purchase, 0})
	}
}

// settled notes the end of a settle, also without an answer.
func (l *leases) settled(name leaseName) {
	if key := l.keys[name]; key != nil {
		key.settling = max(key.settling-1, 0)
	}
}

// tick ends the leases of a key whose time is over, and those of which nothing was spent in half of it.
func (l *leases) tick(name leaseName, now instant) {
	if key := l.keys[name]; key != nil {
		l.end(key, func(lease *lease) bool {
			unspent := lease.left == lease.answer.Granted
			return lease.over(now) || unspent && 2*now.since(lease.sent) >= lease.lasts
		})
	}
}

// close ends all leases. The client buys no more.
func (l *leases) close() {
	for _, key := range l.keys {
		l.end(key, func(*lease) bool { return true })
	}
	l.closed = true
	clear(l.keys)
}

// end makes the settles of some leases due.
func (l *leases) end(key *leasedKey, ends func(*lease) bool) {
	kept := key.hands[:0]
	for _, lease := range key.hands {
		if !ends(lease) {
			kept = append(kept, lease)
			continue
		}
		key.settling++
		l.due = append(l.due, settle{key.name, lease.purchase, lease.answer.Granted - lease.left})
	}
	clear(key.hands[len(kept):])
	key.hands = kept
}

// buyer returns the key that made the purchase. It is nil if the key is forgotten.
func (l *leases) buyer(name leaseName, purchase int64) *leasedKey {
	key := l.keys[name]
	if key == nil || key.buying != purchase {
		return nil
	}
	key.buying = 0
	return key
}

// room drops idle keys if there are too many. It reports whether one more fits.
func (l *leases) room(now int64) bool {
	if len(l.keys) >= maxLeaseKeys && now >= l.sweepAt {
		l.sweepAt = now + sweepPause
		for name, key := range l.keys {
			if len(key.hands) == 0 && key.buying == 0 && key.demand.over(key.span, now) {
				delete(l.keys, name)
			}
		}
	}
	return len(l.keys) < maxLeaseKeys
}

// mayBuy reports whether the key may buy now. After a cut, its share is free once the lease is settled.
func (k *leasedKey) mayBuy(now instant) bool {
	switch {
	case k.buying != 0 || now.clock < k.pauseUntil:
		return false
	case len(k.hands) == 0:
		return k.settling == 0 || !k.cut
	case len(k.hands) == 1 && !k.cut:
		lease := k.hands[0]
		return lease.left*ahead <= lease.answer.Granted || now.since(lease.sent)*ahead >= lease.lasts*(ahead-1)
	}
	return false
}

func (l *lease) over(now instant) bool { return now.since(l.sent) >= l.lasts }

// demand is the units that a key asks for in a span. It weighs the present span and the previous one.
type demand struct{ number, present, previous int64 }

// add counts a cost, and returns the demand.
func (d *demand) add(span, now, cost int64) int64 {
	if number := now / span; number != d.number {
		if d.previous = 0; number == d.number+1 {
			d.previous = d.present
		}
		d.number, d.present = number, 0
	}
	d.present = min(d.present+cost, maxUnits)
	high, low := bits.Mul64(uint64(d.previous), uint64(span-now%span))
	rest, _ := bits.Div64(high, low, uint64(span))
	return d.present + int64(rest)
}

func (d *demand) over(span, now int64) bool { return now/span > d.number+1 }
