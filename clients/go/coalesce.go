package tollgate

import (
	"context"
	"sync"
	"time"
)

const (
	// longestWait is for a silent node, whose call does not end.
	longestWait = 5 * time.Millisecond
	// maxBatch and maxBatchBytes bound one call. The node accepts 1000 checks and 1 MiB.
	maxBatch      = 100
	maxBatchBytes = 512 << 10
)

// coalescer merges concurrent checks into one call. A check is sent at once if no call is under way.
// Others wait for its end, since more small calls would only cost more.
type coalescer struct {
	client *Client

	mutex   sync.Mutex
	waiting []*waiter
	bytes   int
	calls   int
}

type waiter struct {
	ctx    context.Context
	check  Check
	done   chan struct{}
	answer *Answer
	err    error
}

func (c *coalescer) check(ctx context.Context, check Check) (*Answer, error) {
	if c.alone() {
		defer c.finish()
		return c.client.ask(ctx, &check)
	}
	waiter := &waiter{ctx: ctx, check: check, done: make(chan struct{})}
	c.enqueue(waiter)
	select {
	case <-waiter.done:
		return waiter.answer, waiter.err
	case <-ctx.Done():
		return nil, context.Cause(ctx)
	}
}

// alone begins a call if no other is in flight.
func (c *coalescer) alone() bool {
	c.mutex.Lock()
	defer c.mutex.Unlock()
	if c.calls > 0 {
		return false
	}
	c.calls++
	return true
}

func (c *coalescer) enqueue(waiter *waiter) {
	c.mutex.Lock()
	defer c.mutex.Unlock()
	size := waiter.check.bytes()
	if c.bytes+size > maxBatchBytes {
		c.flush()
	}
	c.waiting = append(c.waiting, waiter)
	c.bytes += size
	switch len(c.waiting) {
	case maxBatch:
		c.flush()
	case 1:
		// A timer of an earlier batch only flushes sooner.
		time.AfterFunc(longestWait, c.flushLate)
	}
}

func (c *coalescer) flushLate() {
	c.mutex.Lock()
	defer c.mutex.Unlock()
	c.flush()
}

func (c *coalescer) finish() {
	c.mutex.Lock()
	defer c.mutex.Unlock()
	c.calls--
	c.flush()
}

// flush requires the mutex.
func (c *coalescer) flush() {
	if len(c.waiting) == 0 {
		return
	}
	batch := c.waiting
	c.waiting, c.bytes = nil, 0
	c.calls++
	go c.send(batch)
}

func (c *coalescer) send(batch []*waiter) {
	defer c.finish()
	batch = c.open(batch)
	if len(batch) == 0 {
		return
	}
	ctx := contextOf(batch)
	if len(batch) == 1 {
		c.sendEach(ctx, batch)
		return
	}
	checks := make([]*Check, len(batch))
	for i, waiter := range batch {
		checks[i] = &waiter.check
	}
	results, err := c.client.askBatch(ctx, checks)
	if badCheck(err) {
		c.sendEach(ctx, batch)
		return
	}
	for i, waiter := range batch {
		waiter.settle(results[i], err)
	}
}

// sendEach finds the checks at fault after a node rejected their whole batch.
func (c *coalescer) sendEach(ctx context.Context, batch []*waiter) {
	var calls sync.WaitGroup
	for _, waiter := range batch[1:] {
		calls.Go(func() { waiter.sendAlone(ctx, c.client) })
	}
	batch[0].sendAlone(ctx, c.client)
	calls.Wait()
}

// open drops the checks that no caller waits for any more, so that they are not charged. It decides
// those whose denial became known meanwhile, or that a lease pays now.
func (c *coalescer) open(batch []*waiter) []*waiter {
	kept := batch[:0]
	for _, waiter := range batch {
		if waiter.ctx.Err() != nil {
			continue
		}
		if waiter.answer = c.client.known(&waiter.check); waiter.answer != nil {
			close(waiter.done)
			continue
		}
		kept = append(kept, waiter)
	}
	return kept
}

// contextOf outlives each single caller. It has the first trace.
func contextOf(batch []*waiter) context.Context {
	for _, waiter := range batch {
		if traceparent := traceparentOf(waiter.ctx); traceparent != "" {
			return WithTraceparent(context.Background(), traceparent)
		}
	}
	return context.Background()
}

func (w *waiter) sendAlone(ctx context.Context, client *Client) {
	w.answer, w.err = client.ask(ctx, &w.check)
	close(w.done)
}

func (w *waiter) settle(result *BatchResult, err error) {
	switch {
	case result == nil:
		w.err = err
	case result.Error != nil:
		w.err = result.Error.alone()
	default:
		w.answer = &result.Answer
	}
	close(w.done)
}
