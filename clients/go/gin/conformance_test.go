package tollgategin_test

import (
	"net/http"
	"testing"

	"github.com/gin-gonic/gin"

	"tollgate-limiter"
	tollgategin "tollgate-limiter/gin"
	"tollgate-limiter/internal/conformance"
)

func TestMain(m *testing.M) {
	gin.SetMode(gin.TestMode)
	m.Run()
}

func TestMiddlewarePassesTheSharedCases(t *testing.T) { conformance.RunMiddleware(t, hello) }

// hello answers every request behind the middleware of Gin, as an engine without proxies.
func hello(client *tollgate.Client, options conformance.Options) http.Handler {
	engine := gin.New()
	if err := engine.SetTrustedProxies(nil); err != nil {
		panic(err)
	}
	engine.Use(tollgategin.Middleware(client, limitOf(options)))
	engine.GET("/", func(c *gin.Context) {
		conformance.SetCost(c.Request)
		c.String(http.StatusOK, "hello")
	})
	return engine
}

func limitOf(options conformance.Options) tollgategin.Limit {
	limit := tollgategin.Limit{
		Hold: options.Hold, Look: options.Look, Once: options.Once, Status: options.Status, OnFailure: options.Failure(),
		PolicyOf: func(c *gin.Context) string { return options.Policy.Of(c.Request.Header) },
		PlanOf:   func(c *gin.Context) string { return options.Plan.Of(c.Request.Header) },
		Key:      func(c *gin.Context) string { return options.Key.Of(c.Request.Header) },
		Skip:     func(c *gin.Context) bool { return options.Skip.Of(c.Request.Header) != "" },
	}
	if options.Cost.Given() {
		limit.Cost = func(c *gin.Context) int64 { return conformance.Number(options.Cost.Of(c.Request.Header)) }
	}
	if options.Drain.Given() {
		limit.Drain = func(c *gin.Context) int64 {
			return conformance.Number(options.Drain.Of(c.Request.Header))
		}
	}
	if options.Refund.Given() {
		limit.Refund = func(c *gin.Context) bool { return options.Refund.Of(c.Request.Header) != "" }
	}
	if options.Body != "" {
		limit.Body = tollgategin.Text(options.Body)
	}
	return limit
}
