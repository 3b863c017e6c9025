// Bench serves hello world by net/http or Gin behind a limiter, for clients/bench/run:
//
//	bench FRAMEWORK LIMITER SITUATION NODE_URL REDIS_URL CELL_URL PORT
package main

import (
	"context"
	"fmt"
	"io"
	"log"
	"net/http"
	"os"
	"strconv"
	"time"

	"github.com/gin-gonic/gin"
	"github.com/go-redis/redis_rate/v10"
	"github.com/redis/go-redis/v9"

	"tollgate-limiter"
	tollgategin "tollgate-limiter/gin"
)

func main() {
	framework, limiter, situation := os.Args[1], os.Args[2], os.Args[3]
	handler, err := bench{limiter, situation, os.Args[4], os.Args[5]}.handler(framework)
	if err != nil {
		log.Fatal(err)
	}
	log.Fatal(http.ListenAndServe("127.0.0.1:"+os.Args[7], handler))
}

type bench struct{ limiter, situation, node, redis string }

func (b bench) handler(framework string) (http.Handler, error) {
	if framework == "gin" {
		return b.gin()
	}
	var hello http.Handler = http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		_, _ = io.WriteString(w, "hello")
	})
	switch b.limiter {
	case "Tollgate":
		client, err := b.client()
		if err != nil {
			return nil, err
		}
		limit := tollgate.Limit{Policy: b.situation, Key: userOf, OnFailure: tollgate.Closed}
		return client.Middleware(limit)(hello), nil
	case "redis_rate":
		allowed, err := b.redisRate()
		if err != nil {
			return nil, err
		}
		return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			if allowed(w, r) {
				hello.ServeHTTP(w, r)
			}
		}), nil
	}
	return hello, nil
}

func (b bench) gin() (http.Handler, error) {
	gin.SetMode(gin.ReleaseMode)
	engine := gin.New()
	switch b.limiter {
	case "Tollgate":
		client, err := b.client()
		if err != nil {
			return nil, err
		}
		user := func(c *gin.Context) string { return userOf(c.Request) }
		limit := tollgategin.Limit{Policy: b.situation, Key: user, OnFailure: tollgate.Closed}
		engine.Use(tollgategin.Middleware(client, limit))
	case "redis_rate":
		allowed, err := b.redisRate()
		if err != nil {
			return nil, err
		}
		engine.Use(func(c *gin.Context) {
			if !allowed(c.Writer, c.Request) {
				c.Abort()
			}
		})
	}
	engine.GET("/", func(c *gin.Context) { c.String(http.StatusOK, "hello") })
	return engine, nil
}

func userOf(r *http.Request) string { return r.Header.Get("X-User") }

func (b bench) client() (*tollgate.Client, error) {
	return tollgate.New(tollgate.Options{Nodes: []string{b.node}, Deadline: 5 * time.Second})
}

// redisRate returns a function that answers as much as the middleware of Tollgate does.
func (b bench) redisRate() (func(w http.ResponseWriter, r *http.Request) bool, error) {
	options, err := redis.ParseURL(b.redis)
	if err != nil {
		return nil, err
	}
	options.PoolSize = 32
	limiter, units := redis_rate.NewLimiter(redis.NewClient(options)), 1_000_000_000
	if b.situation == "denied" {
		units = 1
	}
	limit := redis_rate.Limit{Rate: units, Burst: units, Period: time.Hour}
	return func(w http.ResponseWriter, r *http.Request) bool {
		result, err := limiter.Allow(context.WithoutCancel(r.Context()), b.situation+userOf(r), limit)
		if err != nil {
			w.WriteHeader(http.StatusServiceUnavailable)
			return false
		}
		header := w.Header()
		header.Set("RateLimit-Policy", fmt.Sprintf(`"1h";q=%d;w=3600`, units))
		header.Set("RateLimit", fmt.Sprintf(`"1h";r=%d;t=%d`, result.Remaining, int(result.ResetAfter.Seconds())+1))
		if result.Allowed > 0 {
			return true
		}
		header.Set("Retry-After", strconv.Itoa(int(result.RetryAfter.Seconds())+1))
		w.WriteHeader(http.StatusTooManyRequests)
		return false
	}, nil
}
