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
	engine.GET("/", func(c *gin.Context) { c.String(http.StatusOK, "hello") })
	return engine
}

func limitOf(options conformance.Options) tollgategin.Limit {
	limit := tollgategin.Limit{Policy: options.Policy, Status: options.Status, OnFailure: options.Failure()}
	if name := options.Key.Name; name != "" {
		limit.Key = func(c *gin.Context) string { return c.GetHeader(name) }
	}
	if name := options.Cost.Name; name != "" {
		limit.Cost = func(c *gin.Context) int64 { return conformance.Number(c.GetHeader(name)) }
	}
	if name := options.Skip.Name; name != "" {
		limit.Skip = func(c *gin.Context) bool { return c.GetHeader(name) != "" }
	}
	if name := options.Drain.Name; name != "" {
		limit.Drain = func(c *gin.Context) int64 { return conformance.Number(c.GetHeader(name)) }
	}
	if options.Body != "" {
		limit.Body = tollgategin.Text(options.Body)
	}
	return limit
}
