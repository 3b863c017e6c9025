package tollgate

import (
	"context"
	"errors"
	"net/http"
	"net/netip"
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
	// Key returns the partition key of a request. The default, also for an empty key, is
	// [RemoteIP]. It never reads a header: behind a proxy, set a function that trusts the proxy.
	Key func(*http.Request) string
	// Cost returns the units of a request; the default is 1.
	Cost func(*http.Request) int64
	// Skip reports whether a request passes uncounted.
	Skip func(*http.Request) bool
	// Drain returns units that are known only after the response. They count as far as they fit.
	Drain func(*http.Request, Response) int64
	// OnFailure is Open or Closed, for requests without a decision.
	OnFailure Failure
	// Status is that of a denial; the default is 429.
	Status int
	// Body returns the body of a denial and its content type. The default is a problem document.
	Body func(*http.Request, *Answer) (contentType, body string)
	// OnError gets each failure. The context may have ended, since drains follow the response.
	OnError func(context.Context, error)
}

// Text returns a [Limit.Body] that always answers text.
func Text(text string) func(*http.Request, *Answer) (string, string) {
	return func(*http.Request, *Answer) (string, string) { return "text/plain; charset=utf-8", text }
}

// RemoteIP returns the address of the peer, without its port. It is empty for peers without one, as
// on Unix sockets. Requests with an empty key end with 400.
func RemoteIP(r *http.Request) string {
	peer, err := netip.ParseAddrPort(r.RemoteAddr)
	if err != nil {
		return ""
	}
	return peer.Addr().Unmap().WithZone("").String()
}

// Middleware returns a middleware that passes a request on if its check is allowed.
func (c *Client) Middleware(limit Limit) func(http.Handler) http.Handler {
	if limit.Status == 0 {
		limit.Status = http.StatusTooManyRequests
	}
	return func(next http.Handler) http.Handler {
		return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			c.serve(&limit, w, r, next)
		})
	}
}

func (c *Client) serve(limit *Limit, w http.ResponseWriter, r *http.Request, next http.Handler) {
	if limit.Skip != nil && limit.Skip(r) {
		next.ServeHTTP(w, r)
		return
	}
	check := limit.check(r)
	answer, err := c.Check(traced(r), check)
	if err != nil && limit.failed(w, r, err) {
		return
	}
	if answer != nil {
		answer.SetFields(w.Header())
		if !answer.Allowed {
			limit.deny(w, r, answer)
			return
		}
	}
	if limit.Drain == nil {
		next.ServeHTTP(w, r)
		return
	}
	c.serveAndDrain(limit, w, r, next, check)
}

func (l *Limit) check(r *http.Request) Check {
	check := Check{Policy: l.Policy}
	if l.Key != nil {
		check.Key = SafeKey(l.Key(r))
	}
	if check.Key == "" {
		check.Key = RemoteIP(r)
	}
	if l.Cost != nil {
		check.Cost = Cost(l.Cost(r))
	}
	return check
}

// failed reports whether the request ends here.
func (l *Limit) failed(w http.ResponseWriter, r *http.Request, err error) bool {
	l.report(r.Context(), err)
	switch {
	case badCheck(err):
		badRequest.write(w)
	case l.OnFailure == Closed:
		w.Header()[fieldRetryAfter] = []string{"1"}
		noDecision.write(w)
	default:
		return false
	}
	return true
}

func (l *Limit) report(ctx context.Context, err error) {
	if l.OnError != nil {
		l.OnError(ctx, err)
	}
}

func (l *Limit) deny(w http.ResponseWriter, r *http.Request, answer *Answer) {
	if l.Body == nil {
		denial(l.Status, answer).write(w)
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

// serveAndDrain charges the drain after the response, also after a panic of the handler.
func (c *Client) serveAndDrain(
	limit *Limit, w http.ResponseWriter, r *http.Request, next http.Handler, check Check,
) {
	recorder := &recorder{ResponseWriter: w}
	defer func() {
		units := limit.Drain(r, recorder.response())
		if units == 0 {
			return
		}
		check.Over, check.Cost = Drain, Cost(units)
		ctx := traced(r)
		c.pending.Go(func() {
			if _, err := c.Check(ctx, check); err != nil {
				limit.report(ctx, errors.Join(errDrain, err))
			}
		})
	}()
	next.ServeHTTP(recorder, r)
}

var errDrain = errors.New("tollgate: the charge after the response failed")
