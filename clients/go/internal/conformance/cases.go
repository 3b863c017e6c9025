// Package conformance runs clients/cases.json, the cases that clients of all languages share.
package conformance

import (
	"cmp"
	"encoding/json"
	"log/slog"
	"math/rand/v2"
	"net/http"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"tollgate-limiter"
	"tollgate-limiter/internal/testnode"
)

type cases struct {
	Client     []testCase `json:"client"`
	Middleware []testCase `json:"middleware"`
}

type testCase struct {
	Name    string    `json:"name"`
	Nodes   []string  `json:"nodes"`
	Options Options   `json:"options"`
	Needs   string    `json:"needs"`
	Reset   []counter `json:"reset"`
	Steps   []step    `json:"steps"`
	Request []request `json:"requests"`
	Seen    *seen     `json:"seen"`
}

type counter struct {
	Policy    string `json:"policy"`
	Key       string `json:"key"`
	Remaining *int64 `json:"remaining"`
	InFlight  *int64 `json:"in_flight"`
}

// Options are those of the client and the middleware.
type Options struct {
	DeadlineMS int    `json:"deadline_ms"`
	Retry      *bool  `json:"retry"`
	Coalesce   *bool  `json:"coalesce"`
	Token      string `json:"token"`
	CAFile     string `json:"ca_file"`
	// DenialCacheMS is 0 for a client without one.
	DenialCacheMS *int `json:"denial_cache_ms"`

	Policy    Header `json:"policy"`
	Plan      Header `json:"plan"`
	Key       Header `json:"key"`
	Cost      Header `json:"cost"`
	Hold      bool   `json:"hold"`
	Look      bool   `json:"look"`
	Once      bool   `json:"once"`
	Skip      Header `json:"skip"`
	Drain     Header `json:"drain"`
	Refund    Header `json:"refund"`
	OnFailure string `json:"on_failure"`
	Status    int    `json:"status"`
	Body      string `json:"body"`

	logger *slog.Logger
}

// Header is a function of a request: the value of the named header, or else a constant.
type Header struct {
	Name  string `json:"header"`
	Const string `json:"-"`
}

// UnmarshalJSON reads a text or a number as a constant.
func (h *Header) UnmarshalJSON(text []byte) error {
	type plain Header
	if text[0] == '{' {
		return json.Unmarshal(text, (*plain)(h))
	}
	h.Const = strings.Trim(string(text), `"`)
	return nil
}

// Given reports whether a case has the option.
func (h Header) Given() bool { return h != Header{} }

// Of returns the value for a request with these headers.
func (h Header) Of(header http.Header) string { return cmp.Or(h.Const, header.Get(h.Name)) }

// Number returns the value as a number; a missing one is 0.
func Number(value string) int64 {
	number, _ := strconv.ParseInt(value, 10, 64)
	return number
}

// Failure returns the option of the middleware.
func (o Options) Failure() tollgate.Failure {
	if o.OnFailure == "closed" {
		return tollgate.Closed
	}
	return tollgate.Open
}

// defaultDeadline is long, so that a busy machine fails no test.
const defaultDeadline = 5 * time.Second

func (o Options) client(t *testing.T, nodes []string) *tollgate.Client {
	t.Helper()
	options := tollgate.Options{
		Nodes: nodes, Deadline: defaultDeadline, Token: o.Token,
		Logger: o.logger, NoRetry: o.Retry != nil && !*o.Retry, NoCoalesce: o.Coalesce != nil && !*o.Coalesce,
	}
	if o.DeadlineMS > 0 {
		options.Deadline = time.Duration(o.DeadlineMS) * time.Millisecond
	}
	if o.DenialCacheMS != nil {
		options.DenialCache = cmp.Or(time.Duration(*o.DenialCacheMS)*time.Millisecond, -1)
	}
	if o.CAFile != "" {
		options.CAFile = filepath.Join(testnode.Clients(t), o.CAFile)
	}
	client, err := tollgate.New(options)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = client.Close(t.Context()) })
	return client
}

// read returns the cases, with a key for each that no other run has.
func read(t *testing.T) cases {
	t.Helper()
	text, err := os.ReadFile(filepath.Join(testnode.Clients(t), "cases.json"))
	if err != nil {
		t.Fatal(err)
	}
	var raw struct{ Client, Middleware []json.RawMessage }
	if err := json.Unmarshal(text, &raw); err != nil {
		t.Fatal(err)
	}
	return cases{Client: fill(t, raw.Client), Middleware: fill(t, raw.Middleware)}
}

func fill(t *testing.T, raw []json.RawMessage) []testCase {
	t.Helper()
	const long = 2000
	filled := make([]testCase, len(raw))
	for i, text := range raw {
		key := "go-" + strconv.FormatUint(rand.Uint64(), 36)
		replacer := strings.NewReplacer("{key}", key, "{long}", strings.Repeat("k", long))
		decoder := json.NewDecoder(strings.NewReader(replacer.Replace(string(text))))
		decoder.DisallowUnknownFields()
		if err := decoder.Decode(&filled[i]); err != nil {
			t.Fatalf("%s: %v", text, err)
		}
	}
	return filled
}

// skipWithout skips a case that the node is too old for.
func (c testCase) skipWithout(t *testing.T, nodes *nodes) {
	t.Helper()
	checks := map[string]tollgate.Check{
		"look":      {Key: "probe", Look: true},
		"id_ttl_ms": {Key: "probe", ID: "probe", IDTTLMS: 1000},
		"drain":     {Key: "probe", Cost: tollgate.Cost(0), Over: tollgate.Drain},
	}
	check, needed := checks[c.Needs]
	if !needed {
		return
	}
	client := Options{}.client(t, []string{nodes.plain.URL()})
	if _, err := client.Check(t.Context(), check); err != nil {
		t.Skipf("this node knows no %s: %v", c.Needs, err)
	}
}
