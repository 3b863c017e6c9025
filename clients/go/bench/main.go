// Bench measures the CPU time per request of a hello world: alone, behind Tollgate's middleware, and
// behind redis_rate. Each server is a process of its own, and its CPU time is what the kernel counts.
//
//	TOLLGATE_BIN=../../../target/release/tollgate go run .
//
// It needs a binary of Tollgate, and redis-server. Both stay out of the figures. The node keeps its
// own counts, so that each limiter answers after one trip.
package main

import (
	"flag"
	"fmt"
	"log"
	"os"
	"slices"
	"time"
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

func measureAll(requests int) error {
	backends, err := startBackends()
	if err != nil {
		return err
	}
	defer backends.stop()
	for _, connections := range []int{32, 1} {
		fmt.Printf("\n%d connections, µs of CPU per request (and requests per second):\n\n", connections)
		fmt.Println("| framework | alone | with Tollgate | with redis_rate |\n|---|---|---|---|")
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

// measure runs the rounds of the three servers by turns, so that other load of the machine meets
// each of them.
func measure(backends *backends, framework string, connections, requests int) (row string, err error) {
	var servers []*process
	for _, limiter := range []string{"alone", "tollgate", "redis_rate"} {
		server, err := startServer(backends, framework+"/"+limiter)
		if err != nil {
			return "", err
		}
		defer server.stop()
		if err := load(server.address, connections, requests/10); err != nil {
			return "", err
		}
		servers = append(servers, server)
	}
	costs, rates := make([][]float64, len(servers)), make([][]float64, len(servers))
	for range rounds {
		for i, server := range servers {
			began, before := time.Now(), server.cpu()
			if err := load(server.address, connections, requests); err != nil {
				return "", err
			}
			costs[i] = append(costs[i], float64((server.cpu()-before).Microseconds())/float64(requests))
			rates[i] = append(rates[i], float64(requests)/time.Since(began).Seconds())
		}
	}
	for i := range servers {
		row += fmt.Sprintf(" %.1f (%.0f/s) |", median(costs[i]), median(rates[i]))
	}
	return row, nil
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
