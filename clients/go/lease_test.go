package tollgate

import (
	"encoding/json"
	"os"
	"reflect"
	"strconv"
	"testing"
)

type leaseStep struct {
	At       int64  `json:"at"`
	Wall     *int64 `json:"wall"`
	Answered *struct {
		Key     string
		Cost    int64
		Allowed bool
		Span    int64
	}
	Check *struct {
		Key  string
		Cost int64
	}
	Paid   any
	Buy    *int64
	Bought *struct {
		Purchase      int
		Granted       int64
		Within, Retry int64
		Remaining     int64
	}
	Failed *struct {
		Purchase int
		Unknown  bool
	}
	Tick, Close, Fork bool
	Settled           int
	Due               [][2]int64
}

// leasePlayer plays the cases that the clients of all languages share.
type leasePlayer struct {
	leases leases
	// Purchases are numbered from 1.
	names []leaseName
	buys  []order
	sent  []instant
}

func (p *leasePlayer) play(t *testing.T, step leaseStep) {
	t.Helper()
	now := instant{step.At * 1000, step.At * 1000}
	if step.Wall != nil {
		now.wall = *step.Wall * 1000
	}
	switch {
	case step.Answered != nil:
		var charged int64
		if step.Answered.Allowed {
			charged = step.Answered.Cost
		}
		p.leases.answered(leaseName{"p", step.Answered.Key}, charged, step.Answered.Span, now)
	case step.Check != nil:
		p.check(t, step, now)
	case step.Bought != nil:
		i := step.Bought.Purchase - 1
		p.leases.bought(p.names[i], p.buys[i], p.sent[i], &leaseAnswer{
			Granted: step.Bought.Granted, SpendWithinMS: step.Bought.Within,
			Decision: Decision{Remaining: &step.Bought.Remaining, RetryAfterMS: &step.Bought.Retry},
		}, now)
	case step.Failed != nil:
		i := step.Failed.Purchase - 1
		p.leases.failed(p.names[i], p.buys[i].purchase, step.Failed.Unknown, now)
	case step.Settled > 0:
		p.leases.settled(p.names[step.Settled-1])
	case step.Tick:
		for name := range p.leases.keys {
			p.leases.tick(name, now)
		}
	case step.Close:
		p.leases.close()
	case step.Fork:
		p.leases = leases{keys: map[leaseName]*leasedKey{}}
	default:
		t.Fatalf("an unknown step: %+v", step)
	}
	var due [][2]int64
	for _, settle := range p.leases.due {
		due = append(due, [2]int64{settle.purchase, settle.cost})
	}
	p.leases.due = nil
	if !reflect.DeepEqual(due, step.Due) {
		t.Errorf("at %d: the settles %v are due, want %v", step.At, due, step.Due)
	}
}

func (p *leasePlayer) check(t *testing.T, step leaseStep, now instant) {
	t.Helper()
	name := leaseName{"p", step.Check.Key}
	paid, buy := p.leases.check(name, step.Check.Cost, now)
	var got any = false
	if paid.answer != nil {
		got = float64(*paid.decision(name, step.Check.Cost).Remaining)
	}
	if got != step.Paid {
		t.Errorf("at %d: paid %v, want %v", step.At, got, step.Paid)
	}
	var want int64
	if step.Buy != nil {
		want = *step.Buy
	}
	if buy.units != want {
		t.Errorf("at %d: buys %d, want %d", step.At, buy.units, want)
	}
	if buy.units > 0 {
		p.names, p.buys, p.sent = append(p.names, name), append(p.buys, buy), append(p.sent, now)
	}
}

func TestLeasesKeepTheSharedCases(t *testing.T) {
	text, err := os.ReadFile("../lease-cases.json")
	if err != nil {
		t.Fatal(err)
	}
	var shared struct {
		Cases []struct {
			Name  string
			Steps []leaseStep
		}
	}
	if err := json.Unmarshal(text, &shared); err != nil {
		t.Fatal(err)
	}
	if len(shared.Cases) < 15 {
		t.Errorf("only %d cases", len(shared.Cases))
	}
	for _, each := range shared.Cases {
		t.Run(each.Name, func(t *testing.T) {
			player := leasePlayer{leases: leases{keys: map[leaseName]*leasedKey{}}}
			for _, step := range each.Steps {
				player.play(t, step)
			}
		})
	}
}

func TestKeysAreBoundedAndIdleOnesMakeRoom(t *testing.T) {
	held := leases{keys: map[leaseName]*leasedKey{}}
	answered := func(key string, at int64) { held.answered(leaseName{"p", key}, 1, 1000, instant{at, at}) }
	for i := range maxLeaseKeys + 5 {
		answered(strconv.Itoa(i), 5_000_000)
	}
	if len(held.keys) != maxLeaseKeys {
		t.Errorf("%d keys", len(held.keys))
	}
	if answered("late", 6_999_999); held.keys[leaseName{"p", "late"}] != nil {
		t.Error("a key has room before the demand of another one is over")
	}
	if answered("late", 7_100_000); len(held.keys) != 1 {
		t.Errorf("%d keys after the demand of all others", len(held.keys))
	}
}

func TestTheDemandOfTheLargestCostsDoesNotOverflow(t *testing.T) {
	held := leases{keys: map[leaseName]*leasedKey{}}
	name, span := leaseName{"p", "k"}, int64(1<<40)
	held.answered(name, maxUnits, span/1000, instant{0, 0})
	held.answered(name, maxUnits, span/1000, instant{0, 0})
	if _, buy := held.check(name, maxUnits, instant{span + 1, 0}); buy.units != maxUnits {
		t.Errorf("buys %d units", buy.units)
	}
}

func TestTheClockOfLeasesCountsASuspension(t *testing.T) {
	var clock leaseClock
	before := clock.exact()
	clock.ahead -= 5_000_000 // as if the client had read the system's clock before five seconds of suspension
	if age := clock.now().clock - before.clock; age > 0 {
		t.Fatalf("the client reads the clock of the system at each check: %d us", age)
	}
	clock.apart -= 2 * movedFar // the wall clock shows the suspension
	if age := clock.now().clock - before.clock; age < 0 {
		t.Errorf("%d us after a suspension that the wall clock shows", age)
	}
	clock.ahead -= 5_000_000
	clock.readAt -= readAgain // ten milliseconds later
	if age := clock.now().clock - before.clock; age < 0 {
		t.Errorf("%d us after a suspension that the wall clock does not show", age)
	}
}
