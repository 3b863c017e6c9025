// Package tollgategin limits requests of a Gin engine by the decisions of a Tollgate.
//
//	engine.Use(tollgategin.Middleware(client, tollgategin.Limit{Policy: "per-ip"}))
//
// The default key is [gin.Context.ClientIP]. A new engine trusts every peer to set that address by
// X-Forwarded-For. Call [gin.Engine.SetTrustedProxies] with your proxies, or with nil.
package tollgategin

import (
	"context"
	"net/http"

	"github.com/gin-gonic/gin"

	"tollgate.example/tollgate"
)

// Limit configures the middleware as [tollgate.Limit] does, by functions of Gin's context.
type Limit struct {
	// Policy is a configured policy; empty means "default".
	Policy string
	// Key returns the partition key of a request. The default, also for an empty key, is ClientIP.
	Key func(*gin.Context) string
	// Cost returns the units of a request; the default is 1.
	Cost func(*gin.Context) int64
	// Skip reports whether a request passes uncounted.
	Skip func(*gin.Context) bool
	// Drain returns units that are known only after the handlers, for example by c.Writer.Size.
	// They count as far as they fit.
	Drain func(*gin.Context) int64
	// OnFailure is [tollgate.Open] or [tollgate.Closed], for requests without a decision.
	OnFailure tollgate.Failure
	// Status is that of a denial; the default is 429.
	Status int
	// Body returns the body of a denial and its content type. The default is a problem document.
	Body func(*gin.Context, *tollgate.Answer) (contentType, body string)
	// OnError gets each failure. The context may have ended, since drains follow the response.
	OnError func(context.Context, error)
}

// Text returns a [Limit.Body] that always answers text.
func Text(text string) func(*gin.Context, *tollgate.Answer) (string, string) {
	body := tollgate.Text(text)
	return func(c *gin.Context, answer *tollgate.Answer) (string, string) { return body(c.Request, answer) }
}

// Middleware returns a handler that aborts a request if its check is denied.
func Middleware(client *tollgate.Client, limit Limit) gin.HandlerFunc {
	return func(c *gin.Context) {
		passed := false
		next := http.HandlerFunc(func(http.ResponseWriter, *http.Request) {
			passed = true
			c.Next()
		})
		client.Middleware(limit.of(c))(next).ServeHTTP(c.Writer, c.Request)
		if !passed {
			c.Abort()
		}
	}
}

// of binds the functions to the context of one request.
func (l *Limit) of(c *gin.Context) tollgate.Limit {
	bound := tollgate.Limit{Policy: l.Policy, OnFailure: l.OnFailure, Status: l.Status, OnError: l.OnError}
	bound.Key = func(*http.Request) string { return l.key(c) }
	if l.Cost != nil {
		bound.Cost = func(*http.Request) int64 { return l.Cost(c) }
	}
	if l.Skip != nil {
		bound.Skip = func(*http.Request) bool { return l.Skip(c) }
	}
	if l.Drain != nil {
		bound.Drain = func(*http.Request, tollgate.Response) int64 { return l.Drain(c) }
	}
	if l.Body != nil {
		bound.Body = func(_ *http.Request, answer *tollgate.Answer) (string, string) { return l.Body(c, answer) }
	}
	return bound
}

func (l *Limit) key(c *gin.Context) string {
	if l.Key != nil {
		if key := l.Key(c); key != "" {
			return key
		}
	}
	return c.ClientIP()
}
