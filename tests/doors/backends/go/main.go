// Two backends: ServeMux, which decodes each segment, and one that cleans the decoded path.
package main

import (
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"path"
	"strings"
)

func say(name string) http.HandlerFunc {
	return func(w http.ResponseWriter, _ *http.Request) { io.WriteString(w, name) }
}

func cleaned(w http.ResponseWriter, r *http.Request) {
	switch name := path.Clean("/" + r.URL.Path); {
	case r.Method == "POST" && name == "/login":
		io.WriteString(w, "login")
	case name == "/account" || strings.HasPrefix(name, "/account/"):
		io.WriteString(w, "account")
	case r.Method == "GET" && name == "/health":
		io.WriteString(w, "health")
	default:
		io.WriteString(w, "rest")
	}
}

func main() {
	mux := http.NewServeMux()
	mux.Handle("POST /login", say("login"))
	mux.Handle("/account/{id}", say("account"))
	mux.Handle("/account/{id}/{rest...}", say("account"))
	mux.Handle("GET /health", say("health"))
	mux.Handle("/", say("rest"))
	var ports []any
	for _, handler := range []http.Handler{mux, http.HandlerFunc(cleaned)} {
		listener, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			panic(err)
		}
		ports = append(ports, listener.Addr().(*net.TCPAddr).Port)
		go http.Serve(listener, handler)
	}
	fmt.Println(ports...)
	io.Copy(io.Discard, os.Stdin)
}
