package tollgate_test

import (
	"io"
	"net/http"
	"net/http/httptest"
	"slices"
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

// It also has the time of the purchases and settles.
func BenchmarkLease(b *testing.B) {
	node := testnode.Start(b, "go/testdata/callers.yaml")
	client, err := tollgate.New(tollgate.Options{Nodes: []string{node.URL()}, Deadline: 5 * time.Second})
	if err != nil {
		b.Fatal(err)
	}
	ctx, key := b.Context(), tollgate.Check{Policy: "endless", Key: "203.0.113.7"}
	var took []time.Duration
	b.ReportAllocs()
	for b.Loop() {
		began := time.Now()
		answer, err := client.Check(ctx, key)
		if err != nil {
			b.Fatal(err)
		}
		if answer.Source == tollgate.SourceLease {
			took = append(took, time.Since(began))
		}
	}
	slices.Sort(took)
	if len(took) > 0 {
		b.ReportMetric(float64(took[len(took)/2].Nanoseconds()), "median-ns")
	}
	b.ReportMetric(float64(len(took))/float64(b.N), "leased/op")
}

// The second row is the cost of a denial that the client remembers, the first one that of a handler
// without a limit.
func BenchmarkDenial(b *testing.B) {
	node := testnode.Start(b, "go/bench/bench.yaml")
	client, err := tollgate.New(tollgate.Options{
		Nodes: []string{node.URL()}, Deadline: 5 * time.Second, DenialCache: time.Hour,
	})
	if err != nil {
		b.Fatal(err)
	}
	hello := http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { _, _ = io.WriteString(w, "hello") })
	limited := client.Middleware(tollgate.Limit{Policy: "denied"})(hello)
	for range 10 {
		limited.ServeHTTP(httptest.NewRecorder(), httptest.NewRequest(http.MethodGet, "/", nil))
	}
	for name, handler := range map[string]http.Handler{"alone": hello, "denied": limited} {
		b.Run(name, func(b *testing.B) {
			b.ReportAllocs()
			request := httptest.NewRequest(http.MethodGet, "/", nil)
			for b.Loop() {
				handler.ServeHTTP(discard{http.Header{}}, request)
			}
		})
	}
}

type discard struct{ header http.Header }

func (d discard) Header() http.Header                { return d.header }
func (discard) Write(body []byte) (int, error)       { return len(body), nil }
func (discard) WriteString(text string) (int, error) { return len(text), nil }
func (discard) WriteHeader(int)                      {}
