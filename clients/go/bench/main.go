// Bench measures the CPU time per request of a hello world: alone, behind Tollgate's middleware with
// requests that pass and that are denied, and behind redis_rate. Each server is a process of its own.
// A figure is the CPU time of all processes, the node and Redis among them, as the kernel counts it.
// The time of the server alone follows in brackets.
//
//	TOLLGATE_BIN=../../../target/release/tollgate go run .
//
// It needs a binary of Tollgate, and redis-server.
package main

import (
	"flag"
	"fmt"
	"log"
	"net/http"
	"os"
	"slices"
)

const rounds = 7

func main() {
	serve := flag.String("serve", "", "internal: run one server, such as gin/tollgate")
	listen := flag.String("listen", "", "internal: address of the server")
	node := flag.String("node", "", "internal: URL of the node")
	redis := flag.String("redis", "", "internal: address of Redis")
	requests := flag.Int("requests", 10_000, "requests in each round")
	flag.Parse()
	if *serve != "" {
		log.Fatal(listenAndServe(*serve, *listen, *node, *redis))
	}
	if err := measureAll(*requests); err != nil {
		log.Fatal(err)
	}
}

// limiters are the columns of the table.
var limiters = []string{"alone", "tollgate", "denied", "redis_rate"}

func measureAll(requests int) error {
	backends, err := startBackends()
	if err != nil {
		return err
	}
	defer backends.stop()
	for _, connections := range []int{32, 1} {
		fmt.Printf("\n%d connections, µs of CPU per request, of all processes (of the server):\n\n", connections)
		fmt.Println("| framework | alone | Tollgate, allowed | Tollgate, denied | redis_rate |\n|---|---|---|---|---|")
		for _, framework := range []string{"net/http", "gin"} {
			row, err := measure(backends, framework, connections, requests)
			if err != nil {
				return fmt.Errorf("%s: %w", framework, err)
			}
			fmt.Printf("| %s |%s\n", framework, row)
		}
	}
	return nil
}

// measure runs the rounds of the servers by turns, so that other load of the machine meets each of
// them.
func measure(backends *backends, framework string, connections, requests int) (row string, err error) {
	var servers []*process
	for _, limiter := range limiters {
		server, err := startServer(backends, framework+"/"+limiter)
		if err != nil {
			return "", err
		}
		defer server.stop()
		if err := warmUp(server.address, limiter, connections, requests/10); err != nil {
			return "", err
		}
		servers = append(servers, server)
	}
	all, own := make([][]float64, len(servers)), make([][]float64, len(servers))
	for range rounds {
		for i, server := range servers {
			before, others := server.cpu(), backends.cpu()
			if err := load(server.address, connections, requests, statusOf(limiters[i])); err != nil {
				return "", err
			}
			cost := server.cpu() - before
			own[i] = append(own[i], float64(cost.Microseconds())/float64(requests))
			all[i] = append(all[i], float64((cost+backends.cpu()-others).Microseconds())/float64(requests))
		}
	}
	for i := range servers {
		row += fmt.Sprintf(" %.1f (%.1f) |", median(all[i]), median(own[i]))
	}
	return row, nil
}

// warmUp also exhausts the limit of requests that are to be denied.
func warmUp(address, limiter string, connections, requests int) error {
	if limiter == "denied" {
		_ = load(address, 1, 1, http.StatusOK)
	}
	return load(address, connections, requests, statusOf(limiter))
}

func statusOf(limiter string) int {
	if limiter == "denied" {
		return http.StatusTooManyRequests
	}
	return http.StatusOK
}

func median(values []float64) float64 {
	slices.Sort(values)
	return values[len(values)/2]
}

func environment(name, other string) string {
	if value := os.Getenv(name); value != "" {
		return value
	}
	return other
}
