package tollgategin_test

import (
	"log"
	"net/http"

	"github.com/gin-gonic/gin"

	"tollgate-limiter"
	tollgategin "tollgate-limiter/gin"
)

func Example() {
	client, err := tollgate.New(tollgate.Options{Nodes: []string{"http://127.0.0.1:7070"}})
	if err != nil {
		log.Fatal(err)
	}
	engine := gin.New()
	if err := engine.SetTrustedProxies(nil); err != nil {
		log.Fatal(err)
	}
	engine.Use(tollgategin.Middleware(client, tollgategin.Limit{Policy: "per-ip"}))
	engine.GET("/", func(c *gin.Context) { c.String(http.StatusOK, "hello") })
	log.Fatal(engine.Run("127.0.0.1:8080"))
}
