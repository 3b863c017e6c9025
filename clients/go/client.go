package tollgate

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"sync"
	"time"
)

// Client calls the nodes of one Tollgate. It is safe for concurrent use. Make one per process, so
// that checks share calls and connections.
type Client struct {
	nodes    []*node
	deadline time.Duration
	// extension of the deadline while the node answers other calls.
	extension time.Duration
	retry     bool
	coalescer *coalescer
	denials   *denials
	lessee    *lessee
	monitor   *monitor
	pending   sync.WaitGroup
}

// New returns a client. It does not connect yet, and so it succeeds without a node.
func New(options Options) (*Client, error) {
	nodes, err := options.nodes()
	if err != nil {
		return nil, err
	}
	client := &Client{nodes: nodes, deadline: options.Deadline, retry: !options.NoRetry, monitor: newMonitor(options)}
	if client.deadline <= 0 {
		client.deadline = min(DefaultDeadline*time.Duration(len(nodes)), maxDefaultDeadline)
		client.extension = maxDefaultDeadline - client.deadline
	}
	if life := cmp.Or(options.DenialCache, DefaultDenialCache); life > 0 {
		client.denials = newDenials(life)
	}
	if !options.NoLease {
		client.lessee = newLessee(client)
	}
	if !options.NoCoalesce {
		client.coalescer = &coalescer{client: client}
	}
	return client, nil
}

// Check asks for one decision. Concurrent checks share a call unless [Options.NoCoalesce] is set.
func (c *Client) Check(ctx context.Context, check Check) (*Answer, error) {
	check.identify(c.deadline)
	return c.decide(ctx, check)
}

func (c *Client) decide(ctx context.Context, check Check) (*Answer, error) {
	answer, err := c.known(&check), error(nil)
	if answer == nil {
		answer, err = c.askTogether(ctx, check)
	}
	c.monitor.decided(&check, answer, err)
	return answer, err
}

// known decides a check without a call, by a denial or a lease. It returns nil if a node must decide.
func (c *Client) known(check *Check) *Answer {
	if denied := c.denials.fresh(check); denied != nil {
		return denied
	}
	return c.lessee.pay(check)
}

func (c *Client) askTogether(ctx context.Context, check Check) (*Answer, error) {
	if c.coalescer != nil {
		return c.coalescer.check(ctx, check)
	}
	return c.ask(ctx, &check)
}

// ask decides one check by a call.
func (c *Client) ask(ctx context.Context, check *Check) (*Answer, error) {
	sent := time.Now()
	answer, err := send[Answer](ctx, c, c.post("/v1/check", "allowed", check, check))
	if err == nil {
		c.lessee.learn(check, answer)
	}
	return c.denials.settle(check, sent, answer, err)
}

// CheckBatch decides up to 1000 checks, each for itself. The results have the order of the checks.
func (c *Client) CheckBatch(ctx context.Context, checks []Check) ([]BatchResult, error) {
	results := make([]BatchResult, len(checks))
	var asked []*Check
	var places []int
	for i, check := range checks {
		check.identify(c.deadline)
		if answer := c.known(&check); answer != nil {
			results[i].Answer = *answer
			continue
		}
		asked, places = append(asked, &check), append(places, i)
	}
	if len(asked) == 0 && len(checks) > 0 {
		return c.countBatch(checks, results), nil
	}
	decided, err := c.askBatch(ctx, asked)
	if err != nil {
		c.monitor.failed(len(asked))
	}
	if err != nil && (len(decided) == 0 || slices.Contains(decided, nil)) {
		return nil, err
	}
	for i, result := range decided {
		results[places[i]] = *result
	}
	return c.countBatch(checks, results), nil
}

func (c *Client) countBatch(checks []Check, results []BatchResult) []BatchResult {
	for i := range results {
		var err error
		if problem := results[i].Error; problem != nil {
			err = problem
		}
		c.monitor.decided(&checks[i], &results[i].Answer, err)
	}
	return results
}

// askBatch decides checks by one call. With an error, the results that are not nil are known all the
// same.
func (c *Client) askBatch(ctx context.Context, checks []*Check) ([]*BatchResult, error) {
	body := struct {
		Checks []*Check `json:"checks"`
	}{checks}
	sent := time.Now()
	reply, err := send[batchAnswer](ctx, c, c.post("/v1/check/batch", "results", body, checks...))
	if err == nil && len(reply.Results) != len(checks) {
		err = &Unavailable{fmt.Errorf("%d results for %d checks", len(reply.Results), len(checks))}
	}
	results := make([]*BatchResult, len(checks))
	for i, check := range checks {
		var answer *Answer
		if err == nil {
			results[i] = &reply.Results[i]
			answer = &reply.Results[i].Answer
			if problem := reply.Results[i].Error; problem != nil {
				c.monitor.heed(problem)
			} else {
				c.lessee.learn(check, answer)
			}
		}
		if known, _ := c.denials.settle(check, sent, answer, err); err != nil && known != nil {
			results[i] = &BatchResult{Answer: *known}
		}
	}
	return results, err
}

type batchAnswer struct {
	Results []BatchResult `json:"results"`
}

// CheckAll charges up to 16 checks together, or none of them. The client repeats the call only if
// each check has an ID.
func (c *Client) CheckAll(ctx context.Context, checks []Check) (*AllAnswer, error) {
	body := struct {
		Checks []Check `json:"checks"`
	}{checks}
	call := c.post("/v1/check/all", "allowed", body)
	unnamed := func(check Check) bool { return check.ID == "" }
	call.repeatable = call.repeatable && !slices.ContainsFunc(checks, unnamed)
	answer, err := sendCounted[AllAnswer](ctx, c, call)
	if err == nil {
		for i := range answer.Results {
			c.monitor.count(&answer.Results[i])
		}
	}
	return answer, err
}

// maxWait is the longest wait that a node accepts.
const maxWait = time.Hour

// Acquire waits in line for at most wait, under a token bucket, and returns at the start of the check.
// It returns [Denied] if no start lies within that time, nor before the deadline of ctx. The end of ctx
// ends the wait with its cause, and gives the place back. A policy with a hold needs an ID, which the caller settles.
func (c *Client) Acquire(ctx context.Context, check Check, wait time.Duration) (*Answer, error) {
	if wait < 0 || wait > maxWait {
		return nil, fmt.Errorf("tollgate: wait must be from 0 to 1h, not %s", wait)
	}
	if ctx.Err() != nil {
		return nil, context.Cause(ctx)
	}
	if end, bounded := ctx.Deadline(); bounded {
		wait = min(wait, max(time.Until(end), 0)) // a later place would be lost
	}
	check.Once, check.WaitMS = true, wait.Milliseconds()
	check.identify(c.deadline)
	unnamed := check.Once
	check.Once = false // a refund by this id may follow
	// Only the end of the check tells what a refund finds. It ends within the deadline.
	rest := context.WithoutCancel(ctx)
	answer, err := c.decide(rest, check)
	switch {
	case err != nil:
	case !answer.Allowed || answer.holdEnded():
		return nil, &Denied{answer.Decision}
	case unnamed && answer.Hold != nil:
		err = fmt.Errorf("tollgate: the policy %q has a `hold`, which the caller must settle: give the check an ID",
			answer.Policy)
	default:
		select {
		case <-time.After(milliseconds(answer.StartInMS)):
		case <-ctx.Done():
		}
		if ctx.Err() == nil {
			return answer, nil
		}
		err = context.Cause(ctx)
	}
	if mayHaveHappened(err) {
		go c.repeat("the refund of a place failed", 0, func() error {
			_, err := c.Refund(rest, Refund{Policy: check.Policy, Key: check.Key, ID: check.ID})
			return err
		})
	}
	return nil, err
}

// Refund gives units back. The client repeats a refund by id only: a second one gives back nothing.
func (c *Client) Refund(ctx context.Context, refund Refund) (*RefundAnswer, error) {
	defer c.denials.forget(refund.Policy, refund.Key)
	call := c.post("/v1/refund", "refunded", refund)
	call.repeatable = call.repeatable && refund.ID != ""
	return sendCounted[RefundAnswer](ctx, c, call)
}

// Usage returns what counts now for the policy and key of the check. With a cost it returns the
// decision that the check would get. It charges nothing.
func (c *Client) Usage(ctx context.Context, check Check) (*Usage, error) {
	query := url.Values{"key": {check.Key}}
	if check.Policy != "" {
		query.Set("policy", check.Policy)
	}
	if check.Cost != nil {
		query.Set("cost", strconv.FormatInt(*check.Cost, 10))
	}
	return sendCounted[Usage](ctx, c, &call{
		method: http.MethodGet, path: "/v1/usage", query: query.Encode(), member: "allowed", repeatable: c.retry,
	})
}

// Close returns all leases. It waits for these calls, and for charges and refunds that middlewares made
// after their responses. Then it closes all idle connections. The context bounds the wait. Call it after the server ended.
func (c *Client) Close(ctx context.Context) error {
	c.lessee.close()
	done := make(chan struct{})
	go func() { c.pending.Wait(); close(done) }()
	var err error
	select {
	case <-done:
	case <-ctx.Done():
		err = fmt.Errorf("tollgate: settles of leases or charges after responses are pending: %w", ctx.Err())
	}
	for _, node := range c.nodes {
		node.link.closeIdle()
	}
	return err
}

// post returns a call, whose answer has the member. Its repetition marks the checks that have an id.
func (c *Client) post(path, member string, content any, checks ...*Check) *call {
	encode := func() []byte {
		text, _ := json.Marshal(content) // these types have no values that fail
		return text
	}
	again := func() []byte {
		for _, check := range checks {
			check.Repeated = check.ID != ""
		}
		return encode()
	}
	return &call{
		method: http.MethodPost, path: path, member: member, body: encode(), again: again, repeatable: c.retry,
	}
}

// send returns the answer of whichever node answers.
func send[T any](ctx context.Context, c *Client, call *call) (*T, error) {
	if len(call.body)+len(call.query) > maxCall {
		return nil, tooLarge()
	}
	call.traceparent = traceparentOf(ctx)
	reply, err := c.reply(ctx, call)
	if err != nil {
		return nil, err
	}
	answer := new(T)
	if reply.status != http.StatusOK {
		if problem := problemOf(reply.status, reply.body); problem != nil {
			c.monitor.heed(problem)
			return nil, problem
		}
	} else if bytes.Contains(reply.body, []byte(`"`+call.member+`":`)) && json.Unmarshal(reply.body, answer) == nil {
		return answer, nil
	}
	return nil, &Unavailable{fmt.Errorf("%s is no node of Tollgate: it answered %d without a decision", reply.node, reply.status)}
}

// reply calls the nodes in order until one answers. It never repeats a call that a node answered.
func (c *Client) reply(ctx context.Context, call *call) (*response, error) {
	until, last := time.Now().Add(c.deadline), errAvoided
	for i, node := range c.nodes {
		trial, admitted := node.admit()
		if !admitted {
			continue
		}
		end := c.share(until, c.nodes[i+1:], call)
		share := time.Until(end.until).Round(time.Millisecond)
		reply, err := node.ask(ctx, end, call)
		if err == nil {
			return reply, nil
		}
		last = err
		if ctx.Err() != nil {
			node.withdraw(trial)
			return nil, context.Cause(ctx)
		}
		if errors.Is(err, errDeadline) {
			c.suspect(node, share)
		}
		if !notSent(err) {
			call.repeat()
			if !call.repeatable {
				break
			}
		}
		if !time.Now().Before(until) {
			break
		}
	}
	return nil, &Unavailable{last}
}

var errAvoided = errors.New("every node failed less than 500 ms ago")

// share ends an attempt so that each node that may follow has an equal part of the time. A call that
// must not be repeated has no use for the next node.
func (c *Client) share(until time.Time, rest []*node, call *call) end {
	nodes := 1
	for _, node := range rest {
		if !node.avoided() {
			nodes++
		}
	}
	if nodes == 1 || !call.repeatable {
		return end{until, until.Add(c.extension)}
	}
	until = time.Now().Add(time.Until(until) / time.Duration(nodes))
	return end{until, until}
}

// suspect asks a silent node once for the time that its decisions may take. If its fallback answers
// too late for this client, the program learns nothing from it.
func (c *Client) suspect(node *node, share time.Duration) {
	if !node.asked.CompareAndSwap(false, true) {
		return
	}
	go func() {
		const longest = 5 * time.Second
		ready := &call{method: http.MethodGet, path: "/health/ready"}
		ctx, cancel := context.WithTimeout(context.Background(), longest)
		defer cancel()
		reply, err := node.link.exchange(ctx, ready)
		var health struct {
			TimeoutMS int64 `json:"timeout_ms"`
		}
		if err != nil || json.Unmarshal(reply.body, &health) != nil || health.TimeoutMS == 0 {
			node.asked.Store(err == nil) // a node without an answer gets the question again
			return
		}
		if timeout := time.Duration(health.TimeoutMS) * time.Millisecond; timeout >= share {
			c.monitor.warn("deadline", fmt.Sprintf(
				"the deadline of %d ms is below the node's timeout of %d ms, so its fallback answers too late: "+
					"set Options.Deadline to at least %s", share.Milliseconds(), health.TimeoutMS,
				2*timeout*time.Duration(len(c.nodes))))
		}
	}()
}
