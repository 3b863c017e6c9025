package tollgategin_test

import (
	"net/http"
	"net/http/httptest"
	"testing"
	"time"

	"github.com/gin-gonic/gin"

	"tollgate-limiter"
	tollgategin "tollgate-limiter/gin"
	"tollgate-limiter/internal/testnode"
)

func TestADeniedRequestReachesNoFurtherHandler(t *testing.T) {
	engine, reached := newEngine(t, tollgategin.Limit{Policy: "default"})
	for range 4 {
		engine.ServeHTTP(httptest.NewRecorder(), httptest.NewRequest(http.MethodGet, "/", nil))
	}
	if *reached != 2 {
		t.Errorf("%d requests reached the handler, with a limit of 2", *reached)
	}
}

func TestAGroupMayHaveALimitOfItsOwn(t *testing.T) {
	engine, _ := newEngine(t, tollgategin.Limit{Policy: "thousand"})
	costly := func(*gin.Context) int64 { return 2 }
	group := engine.Group("/group", tollgategin.Middleware(clientOf(t), tollgategin.Limit{Cost: costly}))
	group.GET("/", func(c *gin.Context) { c.Status(http.StatusNoContent) })
	for _, want := range []int{http.StatusNoContent, http.StatusTooManyRequests} {
		recorder := httptest.NewRecorder()
		engine.ServeHTTP(recorder, httptest.NewRequest(http.MethodGet, "/group/", nil))
		if recorder.Code != want {
			t.Errorf("want %d, got %d", want, recorder.Code)
		}
		if fields := recorder.Header().Values("RateLimit"); len(fields) != 2 {
			t.Errorf("want the fields of both limits, got %v", fields)
		}
	}
}

func TestADrainSeesTheResponse(t *testing.T) {
	status, size := 0, 0
	engine, _ := newEngine(t, tollgategin.Limit{Policy: "ten", Drain: func(c *gin.Context) int64 {
		status, size = c.Writer.Status(), c.Writer.Size()
		return 0
	}})
	engine.ServeHTTP(httptest.NewRecorder(), httptest.NewRequest(http.MethodGet, "/", nil))
	if status != http.StatusAccepted || size != len("hello") {
		t.Errorf("the drain saw the status %d and %d bytes", status, size)
	}
}

func TestAnAddressWithAPortOrAZoneIsThatOfTheClient(t *testing.T) {
	keys := map[string]string{
		"203.0.113.7": "203.0.113.7", "203.0.113.7:51234": "203.0.113.7", "[2001:db8::7]:443": "2001:db8::7",
		"2001:db8::7": "2001:db8::7", "fe80::1%eth0": "fe80::1", "198.51.100.1:1, 203.0.113.7:2": "203.0.113.7",
		"": "192.0.2.1",
	}
	for forwarded, want := range keys {
		engine, got := gin.New(), ""
		if err := engine.SetTrustedProxies([]string{"192.0.2.1", "fe80::9"}); err != nil {
			t.Fatal(err)
		}
		engine.Use(tollgategin.Middleware(clientOf(t), tollgategin.Limit{Policy: "thousand"}))
		engine.GET("/", func(c *gin.Context) {
			got = tollgate.FromContext(c.Request.Context()).Key
			if c.GetHeader("X-Forwarded-For") != forwarded {
				t.Errorf("the handler sees another header: %s", c.GetHeader("X-Forwarded-For"))
			}
		})
		for _, peer := range []string{"192.0.2.1:1234", "[fe80::9%eth0]:1234"} {
			request := httptest.NewRequest(http.MethodGet, "/", nil)
			request.RemoteAddr = peer
			request.Header.Set("X-Forwarded-For", forwarded)
			engine.ServeHTTP(httptest.NewRecorder(), request)
			if peer != "192.0.2.1:1234" && forwarded == "" {
				want = "fe80::9"
			}
			if got != want {
				t.Errorf("%s by %s: the key is %q", forwarded, peer, got)
			}
		}
	}
}

func TestACallerDoesNotChooseItsKeyUnderANewEngine(t *testing.T) {
	for _, header := range []string{"X-Forwarded-For", "X-Real-Ip"} {
		engine, got := gin.New(), ""
		engine.Use(tollgategin.Middleware(clientOf(t), tollgategin.Limit{Policy: "thousand"}))
		engine.GET("/", func(c *gin.Context) { got = tollgate.FromContext(c.Request.Context()).Key })
		request := httptest.NewRequest(http.MethodGet, "/", nil)
		request.Header.Set(header, "203.0.113.7")
		engine.ServeHTTP(httptest.NewRecorder(), request)
		if got != "192.0.2.1" {
			t.Errorf("%s: the key is %q", header, got)
		}
	}
}

func newEngine(t *testing.T, limit tollgategin.Limit) (*gin.Engine, *int) {
	t.Helper()
	engine, reached := gin.New(), 0
	if err := engine.SetTrustedProxies(nil); err != nil {
		t.Fatal(err)
	}
	engine.Use(tollgategin.Middleware(clientOf(t), limit))
	engine.GET("/", func(c *gin.Context) {
		reached++
		c.String(http.StatusAccepted, "hello")
	})
	return engine, &reached
}

func clientOf(t *testing.T) *tollgate.Client {
	t.Helper()
	node := testnode.Start(t, "cases.yaml")
	client, err := tollgate.New(tollgate.Options{Nodes: []string{node.URL()}, Deadline: 5 * time.Second})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = client.Close(t.Context()) })
	return client
}
