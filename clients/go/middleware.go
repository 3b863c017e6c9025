package tollgate

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"

	"github.com/felixge/httpsnoop"
)

// Failure says how a middleware treats a request without a decision.
type Failure int

const (
	// Open lets the request pass.
	Open Failure = iota
	// Closed ends the request with 503.
	Closed
)

// Limit configures a middleware. The zero value counts requests by address under "default".
type Limit struct {
	// Policy is a configured policy; empty means "default".
	Policy string
	// PolicyOf returns the policy of a request, for example by the plan of its user. The default,
	// also for an empty policy, is Policy.
	PolicyOf func(*http.Request) string
	// Plan is a plan of the configuration, whose quotas replace those of the policy.
	Plan string
	// PlanOf returns the plan of a request. The default, also for an empty plan, is Plan.
	PlanOf func(*http.Request) string
	// Key returns the partition key of a request. The default, also for an empty key, is Address.
	Key func(*http.Request) string
	// Address returns the address of a client. The default is [RemoteIP], which never reads a header.
	// Behind a proxy, set [ForwardedIP].
	Address func(*http.Request) string
	// Cost returns the units of a request; the default is 1. A request of cost 0 with Drain looks.
	Cost func(*http.Request) int64
	// Hold holds the cost of a request, and a place, until its handler has returned. The handler may
	// set the true cost: see [HoldFromContext]. The policy needs a hold. It excludes Look, Drain and
	// Refund.
	Hold bool
	// Look denies a request if its cost does not fit, and charges nothing. Drain charges afterwards.
	Look bool
	// Once charges a request once, also if a connection breaks. It costs a record in the store.
	Once bool
	// Skip reports whether a request passes uncounted.
	Skip func(*http.Request) bool
	// Drain returns units that are known only after the response. They count as far as they fit.
	Drain func(*http.Request, Response) int64
	// Refund reports after the response whether the request gets its charge back. So only failed
	// logins count, for example. Requests count while they run.
	Refund func(*http.Request, Response) bool
	// OnFailure is Open or Closed, for requests without a decision.
	OnFailure Failure
	// Status is that of a denial; the default is 429.
	Status int
	// Body returns the body of a denial and its content type. The default is a problem document.
	Body func(*http.Request, *Answer) (contentType, body string)
	// OnError gets each failure. By default the client logs the first one, and then at most one a
	// second. The context may have ended, since drains and refunds follow the
	// response.
	OnError func(context.Context, error)
}

// Text returns a [Limit.Body] that always answers text.
func Text(text string) func(*http.Request, *Answer) (string, string) {
	return func(*http.Request, *Answer) (string, string) { return "text/plain; charset=utf-8", text }
}

// JSON returns a [Limit.Body] that always answers value. It panics if value has no JSON.
func JSON(value any) func(*http.Request, *Answer) (string, string) {
	text, err := json.Marshal(value)
	if err != nil {
		panic(err)
	}
	return func(*http.Request, *Answer) (string, string) { return "application/json", string(text) }
}

// Middleware returns a middleware that passes a request on if its check is allowed. The request's
// context has the decision: see [FromContext]. It panics if Hold stands beside Look, Drain or Refund, or
// Look beside Refund.
func (c *Client) Middleware(limit Limit) func(http.Handler) http.Handler {
	follows := limit.Drain != nil || limit.Refund != nil
	if limit.Hold && (limit.Look || follows) {
		panic("tollgate: Hold settles the cost: remove Look, Drain and Refund")
	}
	if limit.Look && limit.Refund != nil {
		panic("tollgate: Look charges nothing to refund: use one of them")
	}
	limit.Status = cmp.Or(limit.Status, http.StatusTooManyRequests)
	if limit.Address == nil {
		limit.Address = RemoteIP
	}
	return func(next http.Handler) http.Handler {
		return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			c.serve(&limit, w, r, next)
		})
	}
}

type (
	decisionKey struct{}
	holdKey     struct{}
)

// FromContext returns the decision of the innermost middleware that let a request pass. It is nil if
// the request was skipped, or passed without a decision.
func FromContext(ctx context.Context) *Answer {
	answer, _ := ctx.Value(decisionKey{}).(*Answer)
	return answer
}

// HoldFromContext returns the hold of the innermost middleware with [Limit.Hold]. It is nil if the
// request was skipped, or passed without a decision.
func HoldFromContext(ctx context.Context) *Hold {
	hold, _ := ctx.Value(holdKey{}).(*Hold)
	return hold
}

func (c *Client) serve(limit *Limit, w http.ResponseWriter, r *http.Request, next http.Handler) {
	if limit.Skip != nil && limit.Skip(r) {
		next.ServeHTTP(w, r)
		return
	}
	check := limit.check(c, r)
	if limit.Hold {
		c.serveHeld(limit, w, r, next, check)
		return
	}
	answer, err := c.known(&check), error(nil)
	if answer == nil {
		answer, err = c.askTogether(traced(r), check)
	}
	c.monitor.decided(&check, answer, err)
	if err != nil && c.failed(limit, w, r, err) {
		return
	}
	if answer != nil {
		answer.SetFields(w.Header())
		if !answer.Allowed {
			limit.deny(w, r, answer)
			return
		}
		r = r.WithContext(context.WithValue(r.Context(), decisionKey{}, answer))
	}
	if limit.Drain == nil && limit.Refund == nil {
		next.ServeHTTP(w, r)
		return
	}
	c.serveAndFollow(limit, w, r, next, check, answer != nil && check.ID != "")
}

// serveHeld settles the hold after the handler, also after its panic. The context of the request ends
// with the hold, and with the caller.
func (c *Client) serveHeld(limit *Limit, w http.ResponseWriter, r *http.Request, next http.Handler, check Check) {
	hold, err := c.Hold(traced(r), check)
	var denied *Denied
	switch {
	case errors.As(err, &denied):
		denied.Decision.SetFields(w.Header())
		limit.deny(w, r, &Answer{Decision: denied.Decision})
		return
	case err != nil:
		if !c.failed(limit, w, r, err) {
			next.ServeHTTP(w, r)
		}
		return
	}
	hold.Decision().SetFields(w.Header())
	ctx, cancel := context.WithCancelCause(r.Context())
	context.AfterFunc(hold.Context(), func() { cancel(context.Cause(hold.Context())) })
	defer c.follow(limit, traced(r), "settle", func() error { _, err := hold.Settle(); return err })
	ctx = context.WithValue(ctx, decisionKey{}, &Answer{Decision: *hold.Decision()})
	next.ServeHTTP(w, r.WithContext(context.WithValue(ctx, holdKey{}, hold)))
}

func (l *Limit) check(c *Client, r *http.Request) Check {
	check := Check{Policy: l.Policy, Plan: l.Plan, Look: l.Look, Once: l.Once}
	if l.PolicyOf != nil {
		check.Policy = cmp.Or(l.PolicyOf(r), l.Policy)
	}
	if l.PlanOf != nil {
		check.Plan = cmp.Or(l.PlanOf(r), l.Plan)
	}
	if l.Key != nil {
		check.Key = SafeKey(l.Key(r))
		c.monitor.key(check.Key)
	}
	if check.Key == "" {
		check.Key = l.Address(r)
		c.monitor.proxied(r, check.Key)
	}
	if l.Cost != nil {
		check.Cost = Cost(l.Cost(r))
	}
	if l.Hold {
		check.Look, check.Once = false, false
		return check
	}
	if l.Drain != nil && check.units() == 0 {
		check.Look, check.Cost = true, nil // a cost of 0 is never denied
	}
	if l.Refund != nil {
		check.Once, check.IDTTLMS, check.refundable = true, refundTTLMS, true
	}
	check.identify(c.deadline)
	return check
}

// refundTTLMS leaves a handler five minutes until its refund.
const refundTTLMS = 300_000

// failed reports whether the request ends here.
func (c *Client) failed(limit *Limit, w http.ResponseWriter, r *http.Request, err error) bool {
	const what = "no decision, so the request "
	switch {
	case badCheck(err):
		c.report(limit, r.Context(), what+"ends with 400", err)
		badRequest().write(w)
	case limit.OnFailure == Closed:
		c.report(limit, r.Context(), what+"ends with 503", err)
		w.Header()[fieldRetryAfter] = []string{"1"}
		second := int64(1000)
		reducedCapacity(http.StatusServiceUnavailable, &second).write(w)
	default:
		c.monitor.passed()
		c.report(limit, r.Context(), what+"passes", err)
		return false
	}
	return true
}

func (c *Client) report(limit *Limit, ctx context.Context, what string, err error) {
	if limit.OnError != nil {
		limit.OnError(ctx, fmt.Errorf("tollgate: %s: %w", what, err))
		return
	}
	c.monitor.log(what, err)
}

func (l *Limit) deny(w http.ResponseWriter, r *http.Request, answer *Answer) {
	if l.Body == nil {
		denied(l.Status, answer).write(w)
		return
	}
	contentType, body := l.Body(r, answer)
	writeBody(w, l.Status, contentType, []byte(body))
}

// traced passes the trace context of the request on. The check goes on without its caller. Else a
// caller that leaves at once would not count, although its handler runs.
func traced(r *http.Request) context.Context {
	ctx := context.WithoutCancel(r.Context())
	if traceparent := r.Header["Traceparent"]; len(traceparent) == 1 {
		return WithTraceparent(ctx, traceparent[0])
	}
	return ctx
}

// Response is what a handler answered.
type Response struct {
	// Status is 200 if the handler set none, and 500 if it panicked instead.
	Status int
	// Bytes is the length of the body.
	Bytes  int64
	Header http.Header
}

// serveAndFollow charges and refunds after the response, also after a panic of the handler.
func (c *Client) serveAndFollow(
	limit *Limit, w http.ResponseWriter, r *http.Request, next http.Handler, check Check, counted bool,
) {
	var metrics httpsnoop.Metrics
	panicked := true
	defer func() {
		ctx, response := traced(r), Response{Status: metrics.Code, Bytes: metrics.Written, Header: w.Header()}
		switch {
		case response.Status == 0 && panicked && response.Bytes == 0:
			response.Status = http.StatusInternalServerError
		case response.Status == 0:
			response.Status = http.StatusOK
		}
		if limit.Drain != nil {
			drain := Check{Policy: check.Policy, Key: check.Key, Plan: check.Plan, Over: Drain, Once: limit.Once}
			if drain.Cost = Cost(limit.Drain(r, response)); *drain.Cost != 0 {
				c.follow(limit, ctx, "drain", func() error { _, err := c.Check(ctx, drain); return err })
			}
		}
		if limit.Refund != nil && counted && limit.Refund(r, response) {
			refund := Refund{Policy: check.Policy, Key: check.Key, ID: check.ID}
			c.follow(limit, ctx, "refund", func() error { _, err := c.Refund(ctx, refund); return err })
		}
	}()
	metrics.CaptureMetrics(w, func(w http.ResponseWriter) { next.ServeHTTP(w, r) })
	panicked = false
}

// follow makes a call that nobody waits for but [Client.Close].
func (c *Client) follow(limit *Limit, ctx context.Context, what string, call func() error) {
	c.pending.Go(func() {
		if err := call(); err != nil {
			c.report(limit, ctx, "the "+what+" after the response failed", err)
		}
	})
}
