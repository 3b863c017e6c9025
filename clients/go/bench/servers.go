package main

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"strconv"
	"strings"
	"time"

	"github.com/gin-gonic/gin"
	"github.com/go-redis/redis_rate/v10"
	"github.com/redis/go-redis/v9"

	"tollgate-limiter"
	tollgategin "tollgate-limiter/gin"
)

// unlimited is the limit of bench.yaml in the terms of redis_rate.
var unlimited = redis_rate.Limit{Rate: 1_000_000_000, Burst: 1_000_000_000, Period: time.Hour}

func listenAndServe(kind, listen, node, redisAddress string) error {
	framework, limiter, _ := cut(kind)
	var handler http.Handler
	var err error
	if framework == "gin" {
		handler, err = ginServer(limiter, node, redisAddress)
	} else {
		handler, err = netServer(limiter, node, redisAddress)
	}
	if err != nil {
		return err
	}
	return http.ListenAndServe(listen, handler)
}

// cut splits at the last slash, since net/http has one.
func cut(kind string) (framework, limiter string, found bool) {
	i := strings.LastIndexByte(kind, '/')
	return kind[:max(i, 0)], kind[i+1:], i >= 0
}

func netServer(limiter, node, redisAddress string) (http.Handler, error) {
	var hello http.Handler = http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		_, _ = io.WriteString(w, "hello")
	})
	switch limiter {
	case "tollgate", "denied":
		client, err := newClient(node)
		if err != nil {
			return nil, err
		}
		return client.Middleware(tollgate.Limit{Policy: policyOf(limiter), OnFailure: tollgate.Closed})(hello), nil
	case "redis_rate":
		limiter := newLimiter(redisAddress)
		return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			if allowed(r.Context(), limiter, tollgate.RemoteIP(r), w) {
				hello.ServeHTTP(w, r)
			}
		}), nil
	}
	return hello, nil
}

func ginServer(limiter, node, redisAddress string) (http.Handler, error) {
	gin.SetMode(gin.ReleaseMode)
	engine := gin.New()
	if err := engine.SetTrustedProxies(nil); err != nil {
		return nil, err
	}
	switch limiter {
	case "tollgate", "denied":
		client, err := newClient(node)
		if err != nil {
			return nil, err
		}
		engine.Use(tollgategin.Middleware(client, tollgategin.Limit{Policy: policyOf(limiter), OnFailure: tollgate.Closed}))
	case "redis_rate":
		limiter := newLimiter(redisAddress)
		engine.Use(func(c *gin.Context) {
			if !allowed(c.Request.Context(), limiter, c.ClientIP(), c.Writer) {
				c.Abort()
			}
		})
	}
	engine.GET("/", func(c *gin.Context) { c.String(http.StatusOK, "hello") })
	return engine, nil
}

func policyOf(limiter string) string {
	if limiter == "denied" {
		return "denied"
	}
	return "default"
}

func newClient(node string) (*tollgate.Client, error) {
	return tollgate.New(tollgate.Options{Nodes: []string{node}, Deadline: time.Second})
}

func newLimiter(address string) *redis_rate.Limiter {
	return redis_rate.NewLimiter(redis.NewClient(&redis.Options{Addr: address, PoolSize: 32}))
}

// allowed answers as much as the middleware of Tollgate does.
func allowed(ctx context.Context, limiter *redis_rate.Limiter, key string, w http.ResponseWriter) bool {
	result, err := limiter.Allow(ctx, key, unlimited)
	if err != nil {
		w.WriteHeader(http.StatusServiceUnavailable)
		return false
	}
	header := w.Header()
	header.Set("RateLimit-Policy", fmt.Sprintf(`"1h";q=%d;w=3600`, unlimited.Burst))
	header.Set("RateLimit", fmt.Sprintf(`"1h";r=%d;t=%d`, result.Remaining, int(result.ResetAfter.Seconds())+1))
	if result.Allowed > 0 {
		return true
	}
	header.Set("Retry-After", strconv.Itoa(int(result.RetryAfter.Seconds())+1))
	w.WriteHeader(http.StatusTooManyRequests)
	return false
}
