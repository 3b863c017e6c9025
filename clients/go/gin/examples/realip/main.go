// Realip limits a Gin application behind a proxy by the address in X-Real-Ip.
//
//	tollgate serve --config tollgate.yaml
//	go run . -proxy 127.0.0.1/32
//	curl -i -H 'X-Real-Ip: 203.0.113.7' http://127.0.0.1:8080/
//
// Only requests of the proxy may name an address. For every other peer its own address counts.
package main

import (
	"flag"
	"log"
	"net/http"

	"github.com/gin-gonic/gin"

	"tollgate-limiter"
	tollgategin "tollgate-limiter/gin"
)

func main() {
	listen := flag.String("listen", "127.0.0.1:8080", "address of the application")
	node := flag.String("node", tollgate.DefaultNode, "URL of a node")
	proxy := flag.String("proxy", "127.0.0.1/32", "address or network of the trusted proxy")
	flag.Parse()

	client, err := tollgate.New(tollgate.Options{Nodes: []string{*node}})
	if err != nil {
		log.Fatal(err)
	}
	engine, err := application(client, *proxy)
	if err != nil {
		log.Fatal(err)
	}
	log.Fatal(engine.Run(*listen))
}

func application(client *tollgate.Client, proxy string) (*gin.Engine, error) {
	engine := gin.New()
	engine.RemoteIPHeaders = []string{"X-Real-Ip"}
	if err := engine.SetTrustedProxies([]string{proxy}); err != nil {
		return nil, err
	}
	engine.Use(tollgategin.Middleware(client, tollgategin.Limit{Policy: "per-ip"}))
	engine.GET("/", func(c *gin.Context) { c.String(http.StatusOK, "hello") })
	return engine, nil
}
