// Package tollgategin limits requests of a Gin engine by the decisions of a Tollgate.
//
//	engine.Use(tollgategin.Middleware(client, tollgategin.Limit{Policy: "per-ip"}))
//
// The default key is [gin.Context.ClientIP]. A new engine trusts every peer to set that address by
// X-Forwarded-For: then the address of the peer counts, and the client warns. Behind a proxy call
// [gin.Engine.SetTrustedProxies].
//
// [tollgate.FromContext] returns the decision for the context of c.Request.
package tollgategin

import (
	"context"
	"net/http"
	"strings"
	"sync"

	"github.com/gin-gonic/gin"

	"tollgate-limiter"
	"tollgate-limiter/internal/address"
)

// Limit configures the middleware as [tollgate.Limit] does, by functions of Gin's context. Drain and
// Refund may use c.Writer.Size and c.Writer.Status.
type Limit struct {
	Policy   string
	PolicyOf func(*gin.Context) string
	Plan     string
	PlanOf   func(*gin.Context) string
	// Key returns the partition key of a request. The default, also for an empty key, is ClientIP.
	Key       func(*gin.Context) string
	Cost      func(*gin.Context) int64
	Hold      bool
	Look      bool
	Once      bool
	Skip      func(*gin.Context) bool
	Drain     func(*gin.Context) int64
	Refund    func(*gin.Context) bool
	OnFailure tollgate.Failure
	Status    int
	Body      func(*gin.Context, *tollgate.Answer) (contentType, body string)
	OnError   func(context.Context, error)
}

// Text returns a [Limit.Body] that always answers text.
func Text(text string) func(*gin.Context, *tollgate.Answer) (string, string) {
	body := tollgate.Text(text)
	return func(c *gin.Context, answer *tollgate.Answer) (string, string) { return body(c.Request, answer) }
}

// Middleware returns a handler that aborts a request if its check is denied.
func Middleware(client *tollgate.Client, limit Limit) gin.HandlerFunc {
	var first sync.Once
	var trusting bool
	return func(c *gin.Context) {
		first.Do(func() { trusting = trustsEveryone(c) })
		passed := false
		next := http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
			passed, c.Request = true, r
			c.Next()
		})
		client.Middleware(limit.of(c, trusting))(next).ServeHTTP(c.Writer, c.Request)
		if !passed {
			c.Abort()
		}
	}
}

// of binds the functions to the context of one request.
func (l *Limit) of(c *gin.Context, trusting bool) tollgate.Limit {
	bound := tollgate.Limit{
		Policy: l.Policy, Plan: l.Plan, Hold: l.Hold, Look: l.Look, Once: l.Once,
		OnFailure: l.OnFailure, Status: l.Status, OnError: l.OnError,
		PolicyOf: onRequest(l.PolicyOf, c), PlanOf: onRequest(l.PlanOf, c),
		Key: onRequest(l.Key, c), Cost: onRequest(l.Cost, c),
		Skip: onRequest(l.Skip, c), Drain: onResponse(l.Drain, c), Refund: onResponse(l.Refund, c),
		Address: func(*http.Request) string { return clientIP(c, trusting) },
	}
	if l.Body != nil {
		bound.Body = func(_ *http.Request, answer *tollgate.Answer) (string, string) { return l.Body(c, answer) }
	}
	return bound
}

func onRequest[T any](option func(*gin.Context) T, c *gin.Context) func(*http.Request) T {
	if option == nil {
		return nil
	}
	return func(*http.Request) T { return option(c) }
}

func onResponse[T any](option func(*gin.Context) T, c *gin.Context) func(*http.Request, tollgate.Response) T {
	if option == nil {
		return nil
	}
	return func(*http.Request, tollgate.Response) T { return option(c) }
}

// forwarded are the headers from which a new engine reads the address of a client.
var forwarded = []string{"X-Forwarded-For", "X-Real-Ip"}

// trustsEveryone reports whether each caller may choose its address, as in a new engine. No proxy has
// the address of this peer.
func trustsEveryone(c *gin.Context) bool {
	const chosen = "0.0.0.1"
	original := c.Request
	defer func() { c.Request = original }()
	c.Request = &http.Request{RemoteAddr: "255.255.255.255:0", Header: http.Header{}}
	for _, name := range forwarded {
		c.Request.Header.Set(name, chosen)
	}
	return c.ClientIP() == chosen
}

// clientIP shows Gin addresses without ports and zones. Gin reads no others, and would return the
// address of a proxy for each of its clients. An engine that trusts everyone sees no header.
func clientIP(c *gin.Context, trusting bool) string {
	original := c.Request
	defer func() { c.Request = original }()
	plain := *original
	if strings.Contains(plain.RemoteAddr, "%") {
		plain.RemoteAddr = "[" + address.Plain(plain.RemoteAddr) + "]:0"
	}
	for _, name := range forwarded {
		if trusting && plain.Header[name] != nil {
			plain.Header = plain.Header.Clone()
			plain.Header.Del(name)
		} else if strings.ContainsAny(strings.Join(plain.Header[name], ""), ":%[") {
			plain.Header = plain.Header.Clone()
			plain.Header[name] = []string{strings.Join(address.List(original.Header, name), ",")}
		}
	}
	c.Request = &plain
	return c.ClientIP()
}
