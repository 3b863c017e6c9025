package tollgate_test

import (
	"io"
	"net/http"
	"testing"

	"tollgate-limiter"
	"tollgate-limiter/internal/conformance"
)

func TestClientPassesTheSharedCases(t *testing.T) { conformance.RunClient(t) }

func TestMiddlewarePassesTheSharedCases(t *testing.T) { conformance.RunMiddleware(t, hello) }

func TestFailuresAreLoggedAndCounted(t *testing.T) { conformance.RunOutages(t, hello) }

// hello answers every request behind the middleware of net/http.
func hello(client *tollgate.Client, options conformance.Options) http.Handler {
	limit := tollgate.Limit{
		Hold: options.Hold, Look: options.Look, Once: options.Once, Status: options.Status, OnFailure: options.Failure(),
		PolicyOf: func(r *http.Request) string { return options.Policy.Of(r.Header) },
		PlanOf:   func(r *http.Request) string { return options.Plan.Of(r.Header) },
		Key:      func(r *http.Request) string { return options.Key.Of(r.Header) },
		Skip:     func(r *http.Request) bool { return options.Skip.Of(r.Header) != "" },
	}
	if options.Cost.Given() {
		limit.Cost = func(r *http.Request) int64 { return conformance.Number(options.Cost.Of(r.Header)) }
	}
	if options.Drain.Given() {
		limit.Drain = func(r *http.Request, _ tollgate.Response) int64 {
			return conformance.Number(options.Drain.Of(r.Header))
		}
	}
	if options.Refund.Given() {
		limit.Refund = func(r *http.Request, _ tollgate.Response) bool { return options.Refund.Of(r.Header) != "" }
	}
	if options.Body != "" {
		limit.Body = tollgate.Text(options.Body)
	}
	return client.Middleware(limit)(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		conformance.SetCost(r)
		_, _ = io.WriteString(w, "hello")
	}))
}
