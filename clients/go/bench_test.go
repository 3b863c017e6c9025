package tollgate_test

import (
	"testing"
	"time"

	"tollgate-limiter"
	"tollgate-limiter/internal/testnode"
)

func BenchmarkCheck(b *testing.B) {
	node := testnode.Start(b, "go/bench/bench.yaml")
	client, err := tollgate.New(tollgate.Options{Nodes: []string{node.URL()}, Deadline: 5 * time.Second})
	if err != nil {
		b.Fatal(err)
	}
	for name, parallelism := range map[string]int{"alone": 0, "coalesced": 32} {
		b.Run(name, func(b *testing.B) {
			b.ReportAllocs()
			if parallelism == 0 {
				for b.Loop() {
					check(b, client)
				}
				return
			}
			b.SetParallelism(parallelism)
			b.RunParallel(func(loop *testing.PB) {
				for loop.Next() {
					check(b, client)
				}
			})
		})
	}
}

func check(b *testing.B, client *tollgate.Client) {
	answer, err := client.Check(b.Context(), tollgate.Check{Key: "203.0.113.7"})
	if err != nil || !answer.Allowed {
		b.Error(answer, err)
	}
}
