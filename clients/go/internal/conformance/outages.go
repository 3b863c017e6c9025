package conformance

import (
	"bufio"
	"bytes"
	"encoding/json"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	"tollgate-limiter"
	"tollgate-limiter/internal/testnode"
)

// outage is a row of clients/outages.json.
type outage struct {
	Name     string  `json:"name"`
	State    string  `json:"state"`
	Options  Options `json:"options"`
	Requests *int    `json:"requests"`
	Decides  string  `json:"decides"`
	Failures *int    `json:"failures"`
	What     string  `json:"what"`
	Cause    string  `json:"cause"`
	Warned   string  `json:"warned"`
	Returns  bool    `json:"returns"`
	WithinMS int     `json:"within_ms"`
}

// RunOutages compares what a middleware passes, logs and counts while no node decides.
func RunOutages(t *testing.T, build Build) {
	text, err := os.ReadFile(filepath.Join(testnode.Clients(t), "outages.json"))
	if err != nil {
		t.Fatal(err)
	}
	var rows []outage
	decoder := json.NewDecoder(bytes.NewReader(text))
	decoder.DisallowUnknownFields()
	if err := decoder.Decode(&rows); err != nil {
		t.Fatal(err)
	}
	for _, row := range rows {
		t.Run(row.Name, func(t *testing.T) {
			other := playState(t, row.State)
			for _, onFailure := range []string{"open", "closed"} {
				row.observe(t, other, onFailure, build)
			}
		})
	}
}

func (o outage) observe(t *testing.T, other *otherSide, onFailure string, build Build) {
	t.Helper()
	log, options, open := new(testnode.Log), o.Options, onFailure == "open"
	options.OnFailure, options.Token, options.CAFile = onFailure, other.Token, other.CAFile
	options.logger = log.Logger()
	client := options.client(t, []string{other.URL})
	server := httptest.NewServer(build(client, options))
	defer server.Close()
	requests := valueOr(o.Requests, 3)
	failures := valueOr(o.Failures, requests)
	used := request{Headers: map[string]string{"X-Used": "1"}}
	if o.Returns {
		used.expect(t, server.URL, http.StatusOK)
		other.toggle(t)
	}
	want := tollgate.Stats{Passed: int64(requests)}
	status := http.StatusOK
	switch {
	case o.Decides != "":
		want = tollgate.Stats{Allowed: int64(requests)}
	case !open:
		want, status = tollgate.Stats{}, http.StatusServiceUnavailable
	}
	if o.Returns {
		want.Allowed = 1
	}
	for range requests {
		began := time.Now()
		used.expect(t, server.URL, status)
		within(t, "a request", o.WithinMS, time.Since(began))
	}
	await(t, "the failures", func() bool { return client.Stats().Failures >= int64(failures) })
	got := client.Stats()
	if got.Passed != want.Passed || got.Allowed != want.Allowed || got.Denied != 0 {
		t.Errorf("stats: want %+v, got %+v", want, got)
	}
	if o.Decides != "" && got.Sources[tollgate.Source(o.Decides)] != int64(requests) {
		t.Errorf("sources: want %s, got %v", o.Decides, got.Sources)
	}
	o.verify(t, log, open, failures > 0)
	if o.Returns {
		other.toggle(t)
		await(t, "a decision", func() bool {
			reply, _ := used.get(t, server.URL)
			return reply.Header.Get("RateLimit") != ""
		})
		const quiet = 1100 * time.Millisecond // longer than the pause between two lines
		time.Sleep(quiet)
		used.expect(t, server.URL, http.StatusOK)
		lines := written(log)
		if last := lines[len(lines)-1]; !returned.MatchString(last) {
			t.Errorf("the last line must tell that decisions are back: %s", last)
		}
	}
}

var returned = regexp.MustCompile(`decisions are back after \d+ failures in \d+\.\d s`)

// verify requires the lines of the failures, and one warning if the row has one.
func (o outage) verify(t *testing.T, log *testnode.Log, open, fails bool) {
	t.Helper()
	what := o.What
	if what == "" {
		what = map[bool]string{true: "no decision, so the request passes", false: "no decision, so the request ends with 503"}[open]
	}
	await(t, "a line", func() bool { return !fails || strings.Contains(strings.Join(written(log), "\n"), o.Cause) })
	warnings, failed := 0, 0
	for _, line := range written(log) {
		switch {
		case o.Warned != "" && strings.Contains(line, o.Warned):
			warnings++
		case strings.Contains(line, what+": ") || strings.Contains(line, "the settle of a hold failed: "):
			failed++
			if !strings.Contains(line, o.Cause) {
				t.Errorf("want %q in %s", o.Cause, line)
			}
		default:
			t.Errorf("unexpected line: %s", line)
		}
	}
	if (warnings == 1) != (o.Warned != "") || (failed > 0) != fails {
		t.Errorf("%d warnings and %d lines of failures: %v", warnings, failed, written(log))
	}
}

func (r request) expect(t *testing.T, url string, status int) {
	t.Helper()
	if reply, body := r.get(t, url); reply.StatusCode != status {
		t.Errorf("status: want %d, got %d %s", status, reply.StatusCode, body)
	}
}

// written returns the lines of a log.
func written(log *testnode.Log) []string {
	return strings.FieldsFunc(strings.ReplaceAll(log.String(), `\"`, `"`), func(r rune) bool { return r == '\n' })
}

// otherSide is the program that plays a state.
type otherSide struct {
	URL    string `json:"url"`
	Token  string `json:"token"`
	CAFile string `json:"ca_file"`

	input  io.WriteCloser
	output *bufio.Reader
}

func playState(t *testing.T, state string) *otherSide {
	t.Helper()
	process := exec.Command("python3", filepath.Join(testnode.Clients(t), "outages.py"), state)
	process.Env = append(os.Environ(), "TOLLGATE_BIN="+testnode.Binary(t))
	input, err := process.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	output, err := process.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := process.Start(); err != nil {
		t.Fatalf("install python3: %v", err)
	}
	t.Cleanup(func() {
		input.Close()
		_ = process.Wait()
	})
	other := &otherSide{input: input, output: bufio.NewReader(output)}
	if err := json.Unmarshal(other.line(t), other); err != nil {
		t.Fatal(err)
	}
	return other
}

// toggle kills the node of the other side, or starts it again.
func (o *otherSide) toggle(t *testing.T) {
	t.Helper()
	_, _ = io.WriteString(o.input, "\n")
	o.line(t)
}

func (o *otherSide) line(t *testing.T) []byte {
	t.Helper()
	line, err := o.output.ReadBytes('\n')
	if err != nil {
		t.Fatalf("the other side ended: %v", err)
	}
	return line
}

func await(t *testing.T, what string, holds func() bool) {
	t.Helper()
	for range 1000 {
		if holds() {
			return
		}
		time.Sleep(10 * time.Millisecond)
	}
	t.Errorf("waited in vain for %s", what)
}

func valueOr(value *int, otherwise int) int {
	if value == nil {
		return otherwise
	}
	return *value
}
