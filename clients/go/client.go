package tollgate

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"strconv"
	"sync"
	"time"
)

// Client calls the nodes of one Tollgate. It is safe for concurrent use. Make one per process, so
// that checks share calls and connections.
type Client struct {
	nodes     []*node
	deadline  time.Duration
	ids       *ids
	coalescer *coalescer
	pending   sync.WaitGroup
}

// New returns a client. It does not connect yet, and so it succeeds without a node.
func New(options Options) (*Client, error) {
	nodes, err := options.nodes()
	if err != nil {
		return nil, err
	}
	client := &Client{nodes: nodes, deadline: options.Deadline}
	if client.deadline <= 0 {
		client.deadline = DefaultDeadline
	}
	if !options.NoRetry {
		client.ids = newIDs()
	}
	if !options.NoCoalesce {
		client.coalescer = &coalescer{client: client}
	}
	return client, nil
}

// Check asks for one decision. Concurrent checks share a call unless [Options.NoCoalesce] is set.
func (c *Client) Check(ctx context.Context, check Check) (*Answer, error) {
	c.identify(&check)
	if c.coalescer != nil {
		return c.coalescer.check(ctx, check)
	}
	return c.checkAlone(ctx, &check)
}

func (c *Client) checkAlone(ctx context.Context, check *Check) (*Answer, error) {
	return post[Answer](ctx, c, "/v1/check", check, check.repeatable())
}

// CheckBatch decides up to 1000 checks, each for itself. The results have the order of the checks.
func (c *Client) CheckBatch(ctx context.Context, checks []Check) ([]BatchResult, error) {
	batch := make([]*Check, len(checks))
	for i, check := range checks {
		c.identify(&check)
		batch[i] = &check
	}
	return c.checkBatch(ctx, batch)
}

type batchAnswer struct {
	Results []BatchResult `json:"results"`
}

func (c *Client) checkBatch(ctx context.Context, checks []*Check) ([]BatchResult, error) {
	repeatable := true
	for _, check := range checks {
		repeatable = repeatable && check.repeatable()
	}
	body := struct {
		Checks []*Check `json:"checks"`
	}{checks}
	answer, err := post[batchAnswer](ctx, c, "/v1/check/batch", body, repeatable)
	if err != nil {
		return nil, err
	}
	if len(answer.Results) != len(checks) {
		return nil, &Unavailable{fmt.Errorf("%d results for %d checks", len(answer.Results), len(checks))}
	}
	return answer.Results, nil
}

// CheckAll charges up to 16 checks together, or none of them. The checks have no ids, and so the
// client never repeats the call.
func (c *Client) CheckAll(ctx context.Context, checks []Check) (*AllAnswer, error) {
	body := struct {
		Checks []Check `json:"checks"`
	}{checks}
	return post[AllAnswer](ctx, c, "/v1/check/all", body, false)
}

// Refund gives units back. The client repeats a refund by id only: a second one gives back nothing.
func (c *Client) Refund(ctx context.Context, refund Refund) (*RefundAnswer, error) {
	repeatable := c.ids != nil && refund.ID != ""
	return post[RefundAnswer](ctx, c, "/v1/refund", refund, repeatable)
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
	call := &call{method: http.MethodGet, path: "/v1/usage", query: query.Encode(), repeatable: true}
	return answerOf[Usage](ctx, c, call)
}

// Close waits for charges that middlewares made after their responses. Then it closes all idle
// connections. The context bounds the wait. Call it after the server ended.
func (c *Client) Close(ctx context.Context) error {
	done := make(chan struct{})
	go func() { c.pending.Wait(); close(done) }()
	var err error
	select {
	case <-done:
	case <-ctx.Done():
		err = fmt.Errorf("tollgate: charges after responses are pending: %w", ctx.Err())
	}
	for _, node := range c.nodes {
		node.link.closeIdle()
	}
	return err
}

// identify gives the check an id, so that the client may repeat it.
func (c *Client) identify(check *Check) {
	if c.ids != nil && check.ID == "" && check.charges() {
		check.ID = c.ids.next()
	}
}

func post[T any](ctx context.Context, c *Client, path string, body any, repeatable bool) (*T, error) {
	text, err := json.Marshal(body)
	if err != nil {
		return nil, fmt.Errorf("tollgate: %w", err)
	}
	repeatable = repeatable && c.ids != nil
	return answerOf[T](ctx, c, &call{method: http.MethodPost, path: path, body: text, repeatable: repeatable})
}

func answerOf[T any](ctx context.Context, c *Client, call *call) (*T, error) {
	if len(call.body)+len(call.query) > maxCall {
		return nil, tooLarge()
	}
	call.traceparent = traceparentOf(ctx)
	reply, err := c.ask(ctx, call)
	if err != nil {
		return nil, err
	}
	if reply.status != http.StatusOK {
		return nil, problemOf(reply.status, reply.body)
	}
	answer := new(T)
	if scanned(reply.body, answer) {
		return answer, nil
	}
	*answer = *new(T)
	if err := json.Unmarshal(reply.body, answer); err != nil {
		return nil, &Unavailable{fmt.Errorf("the response is none of a node: %w", err)}
	}
	return answer, nil
}

// scanned reports whether the answer has the form that nodes write, and is complete.
func scanned(body []byte, answer any) bool {
	target, ok := answer.(interface{ scan(*scanner) })
	if !ok {
		return false
	}
	scanner := &scanner{text: body}
	target.scan(scanner)
	return scanner.whole()
}

// ask calls the nodes in order until one answers. It never repeats a call that a node answered.
func (c *Client) ask(ctx context.Context, call *call) (*response, error) {
	until, last := time.Now().Add(c.deadline), errAvoided
	for i, node := range c.nodes {
		trial, admitted := node.admit()
		if !admitted {
			continue
		}
		reply, err := node.ask(ctx, c.share(until, c.nodes[i+1:], call), call)
		if err == nil {
			return reply, nil
		}
		last = err
		if left(ctx) != nil {
			node.withdraw(trial)
			break
		}
		if !time.Now().Before(until) || !call.repeatable && !notSent(err) {
			break
		}
	}
	return nil, &Unavailable{last}
}

var errAvoided = errors.New("every node failed less than 500 ms ago")

// share ends an attempt so that each node that may follow has an equal part of the time. A call that
// must not be repeated has no use for the next node.
func (c *Client) share(until time.Time, rest []*node, call *call) time.Time {
	nodes := 1
	for _, node := range rest {
		if !node.avoided() {
			nodes++
		}
	}
	if nodes == 1 || !call.repeatable {
		return until
	}
	return time.Now().Add(time.Until(until) / time.Duration(nodes))
}
