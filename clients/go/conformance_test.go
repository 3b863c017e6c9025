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

// hello answers every request behind the middleware of net/http.
func hello(client *tollgate.Client, options conformance.Options) http.Handler {
	limit := tollgate.Limit{Policy: options.Policy, Status: options.Status, OnFailure: options.Failure()}
	if name := options.Key.Name; name != "" {
		limit.Key = func(r *http.Request) string { return r.Header.Get(name) }
	}
	if name := options.Cost.Name; name != "" {
		limit.Cost = func(r *http.Request) int64 { return conformance.Number(r.Header.Get(name)) }
	}
	if name := options.Skip.Name; name != "" {
		limit.Skip = func(r *http.Request) bool { return r.Header.Get(name) != "" }
	}
	if name := options.Drain.Name; name != "" {
		limit.Drain = func(r *http.Request, _ tollgate.Response) int64 {
			return conformance.Number(r.Header.Get(name))
		}
	}
	if options.Body != "" {
		limit.Body = tollgate.Text(options.Body)
	}
	return client.Middleware(limit)(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		_, _ = io.WriteString(w, "hello")
	}))
}
