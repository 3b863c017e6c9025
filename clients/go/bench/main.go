// Bench measures the CPU time per request of a hello world: alone, behind Tollgate's middleware, and
// behind redis_rate. Each server is a process of its own, and its CPU time is what the kernel counts.
//
//	TOLLGATE_BIN=../../../target/release/tollgate go run . -requests 100000
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

const rounds = 3

func main() {
	serve := flag.String("serve", "", "internal: run one server, such as gin/tollgate")
	listen := flag.String("listen", "", "internal: address of the server")
	node := flag.String("node", "", "internal: URL of the node")
	redis := flag.String("redis", "", "internal: address of Redis")
	requests := flag.Int("requests", 50_000, "requests in each round")
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
	for _, connections := range []int{1, 32} {
		fmt.Printf("\n%d connections, %d requests, median of %d rounds, µs of CPU per request:\n\n", connections, requests, rounds)
		fmt.Println("| framework | alone | with Tollgate | with redis_rate |\n|---|---|---|---|")
		for _, framework := range []string{"net/http", "gin"} {
			fmt.Printf("| %s |", framework)
			for _, limiter := range []string{"alone", "tollgate", "redis_rate"} {
				cost, rate, err := measure(backends, framework+"/"+limiter, connections, requests)
				if err != nil {
					return err
				}
				fmt.Printf(" %.1f (%.0f/s) |", cost, rate)
			}
			fmt.Println()
		}
	}
	return nil
}

// measure returns the median CPU time per request in µs, and the median rate.
func measure(backends *backends, kind string, connections, requests int) (cost, rate float64, err error) {
	server, err := startServer(backends, kind)
	if err != nil {
		return 0, 0, err
	}
	defer server.stop()
	if err := load(server.address, connections, requests/10); err != nil {
		return 0, 0, err
	}
	var costs, rates []float64
	for range rounds {
		began, before := time.Now(), server.cpu()
		if err := load(server.address, connections, requests); err != nil {
			return 0, 0, fmt.Errorf("%s: %w", kind, err)
		}
		costs = append(costs, float64((server.cpu()-before).Microseconds())/float64(requests))
		rates = append(rates, float64(requests)/time.Since(began).Seconds())
	}
	slices.Sort(costs)
	slices.Sort(rates)
	return costs[rounds/2], rates[rounds/2], nil
}

func environment(name, other string) string {
	if value := os.Getenv(name); value != "" {
		return value
	}
	return other
}
