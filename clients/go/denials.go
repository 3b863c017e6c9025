package tollgate

import (
	"container/list"
	"encoding/json"
	"errors"
	"sync"
	"time"
)

// maxDenials bounds the memory of [denials].
const maxDenials = 10_000

// denials remembers what the pre-filter of a node denied. Such a denial is final until its wait ends,
// unless an operator raises the limit. So a denial is fresh for a short time only. Later, the client
// asks again. Without an answer the denial stands to the end of its wait.
type denials struct {
	life time.Duration

	mutex   sync.Mutex
	entries map[denialKey]*list.Element
	// order has the entries by age, the oldest first.
	order list.List
	// inline says that some entry has quotas or a plan.
	inline bool
}

type denialKey struct{ policy, key, plan, quotas string }

// denial does not change. Without an answer it marks a refund: a decision about a check that was sent
// earlier is void.
type denial struct {
	denialKey
	sent   time.Time
	ends   time.Time
	cost   int64
	answer *Answer
}

func newDenials(life time.Duration) *denials {
	return &denials{life: life, entries: map[denialKey]*list.Element{}}
}

// fresh denies the check if the client knows the answer. It returns nil if a node must decide.
func (d *denials) fresh(check *Check) *Answer {
	denial := d.find(check)
	if denial == nil {
		return nil
	}
	now := time.Now()
	if now.Sub(denial.sent) >= d.life {
		return nil
	}
	return denial.answerAt(now, check)
}

// settle learns from the answer to a check. It denies a check without an answer if an older denial
// still stands.
func (d *denials) settle(check *Check, sent time.Time, answer *Answer, err error) (*Answer, error) {
	if err == nil {
		d.learn(check, sent, answer)
		return answer, nil
	}
	var unavailable *Unavailable
	if denial := d.find(check); denial != nil && errors.As(err, &unavailable) {
		if denied := denial.answerAt(time.Now(), check); denied != nil {
			return denied, nil
		}
	}
	return nil, err
}

// forget ends the denials of a key, also those that are on their way.
func (d *denials) forget(policy, key string) {
	if d == nil {
		return
	}
	d.mutex.Lock()
	defer d.mutex.Unlock()
	refunded := denial{denialKey: denialKey{policy: named(policy), key: key}, sent: time.Now()}
	if d.inline {
		for each, element := range d.entries {
			if each.policy == refunded.policy && each.key == key {
				d.order.Remove(element)
				delete(d.entries, each)
			}
		}
	}
	d.put(&refunded)
}

// find returns a denial of the same cost or a lower one.
func (d *denials) find(check *Check) *denial {
	key, known := d.keyOf(check)
	if !known {
		return nil
	}
	d.mutex.Lock()
	denial := d.get(key)
	d.mutex.Unlock()
	if denial == nil || denial.answer == nil || check.units() < denial.cost {
		return nil
	}
	return denial
}

func (d *denials) learn(check *Check, sent time.Time, answer *Answer) {
	final := !answer.Allowed && answer.Source == SourcePrefilter
	if !final || answer.RetryAfterMS == nil || *answer.RetryAfterMS <= 0 {
		return
	}
	key, known := d.keyOf(check)
	if !known {
		return
	}
	wait := time.Duration(*answer.RetryAfterMS) * time.Millisecond
	d.mutex.Lock()
	defer d.mutex.Unlock()
	refunded := d.get(denialKey{policy: key.policy, key: key.key})
	if refunded != nil && refunded.answer == nil && !sent.After(refunded.sent) {
		return
	}
	d.inline = d.inline || key.quotas != "" || key.plan != ""
	d.put(&denial{key, sent, sent.Add(wait), check.units(), answer})
}

// keyOf returns false for checks that only a node decides.
func (d *denials) keyOf(check *Check) (denialKey, bool) {
	if d == nil || check.hasOwnID() || check.Over == Drain || check.WaitMS > 0 || check.units() == 0 {
		return denialKey{}, false
	}
	key := denialKey{policy: named(check.Policy), key: check.Key, plan: check.Plan}
	if len(check.Quotas) > 0 {
		quotas, _ := json.Marshal(check.Quotas)
		key.quotas = string(quotas)
	}
	return key, true
}

func named(policy string) string {
	if policy == "" {
		return "default"
	}
	return policy
}

// get requires the mutex.
func (d *denials) get(key denialKey) *denial {
	if element := d.entries[key]; element != nil {
		return element.Value.(*denial)
	}
	return nil
}

// put requires the mutex.
func (d *denials) put(entry *denial) {
	if element := d.entries[entry.denialKey]; element != nil {
		element.Value = entry
		d.order.MoveToBack(element)
		return
	}
	if d.order.Len() >= maxDenials {
		oldest := d.order.Remove(d.order.Front()).(*denial)
		delete(d.entries, oldest.denialKey)
	}
	d.entries[entry.denialKey] = d.order.PushBack(entry)
}

// answerAt counts from the time when the check was sent, so that no denial lasts longer than on the
// node. It returns nil after the end.
func (d *denial) answerAt(now time.Time, check *Check) *Answer {
	left := d.ends.Sub(now)
	if left <= 0 {
		return nil
	}
	denied := &struct {
		Answer
		retryAfter, resetAfter int64
	}{Answer: *d.answer}
	denied.Cost, denied.Source, denied.Reason = check.units(), SourceClient, ReasonOverLimit
	denied.Charged, denied.Quotas, denied.Fallback = 0, nil, nil
	denied.retryAfter = (left + time.Millisecond - 1).Milliseconds()
	denied.RetryAfterMS = &denied.retryAfter
	if d.answer.ResetAfterMS != nil {
		denied.resetAfter = max(*d.answer.ResetAfterMS-now.Sub(d.sent).Milliseconds(), 0)
		denied.ResetAfterMS = &denied.resetAfter
	}
	return &denied.Answer
}
