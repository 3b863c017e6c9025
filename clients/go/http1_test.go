package tollgate

import (
	"bufio"
	"errors"
	"strings"
	"testing"
	"time"
)

func TestResponsesEndWhereTheirHeadsSay(t *testing.T) {
	for name, test := range map[string]struct {
		text, body string
		last       bool
	}{
		"length":  {"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\n{}", "{}", false},
		"close":   {"HTTP/1.1 503 No\r\nConnection: close\r\nContent-Length: 0\r\n\r\n", "", true},
		"chunked": {"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n1\r\n{\r\n1\r\n}\r\n0\r\n\r\n", "{}", true},
		"both": {
			"HTTP/1.1 200 OK\r\nContent-Length: 9\r\nTransfer-Encoding: chunked\r\n\r\n2\r\n{}\r\n0\r\n\r\n",
			"{}", true,
		},
		"end":     {"HTTP/1.1 200 OK\r\n\r\n{}", "{}", true},
		"interim": {"HTTP/1.1 103 Early\r\nLink: x\r\n\r\nHTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n{}", "{}", false},
	} {
		t.Run(name, func(t *testing.T) {
			reply, err := readText(test.text)
			if err != nil {
				t.Fatal(err)
			}
			if string(reply.body) != test.body || reply.last != test.last {
				t.Errorf("got %q, last %v", reply.body, reply.last)
			}
		})
	}
}

func TestFaultyResponsesAreErrors(t *testing.T) {
	for _, text := range []string{
		"", "SSH-2.0\r\n", "HTTP/1.0 200 OK\r\n\r\n", "HTTP/1.1 abc\r\n\r\n", "HTTP/1.1 200 OK\r\nA: b",
		"HTTP/1.1 200 OK\r\nContent-Length: 3\r\n\r\n{}", "HTTP/1.1 200 OK\r\nContent-Length: -1\r\n\r\n",
		"HTTP/1.1 200 OK\r\nContent-Length: 99999999999\r\n\r\n",
		"HTTP/1.1 200 OK\r\n" + strings.Repeat("A: b\r\n", 200) + "\r\n",
		"HTTP/1.1 200 OK\r\nA: " + strings.Repeat("b", 10_000) + "\r\n\r\n",
	} {
		if reply, err := readText(text); err == nil {
			t.Errorf("%.60q: got %+v", text, reply)
		}
	}
}

func readText(text string) (*response, error) {
	connection := &connection{reader: bufio.NewReader(strings.NewReader(text))}
	return connection.read()
}

func TestATokenHasVisibleASCIIOnly(t *testing.T) {
	for _, token := range []string{"abc\n", "ü", "a b", "\x7f"} {
		if _, err := New(Options{Token: token}); err == nil || !strings.Contains(err.Error(), "Token") {
			t.Errorf("%q: %v", token, err)
		}
	}
	if _, err := New(Options{Token: "!~"}); err != nil {
		t.Error(err)
	}
}

func TestOnlyATraceparentIsPassedOn(t *testing.T) {
	const valid = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
	if got := traceparentOf(WithTraceparent(t.Context(), valid)); got != valid {
		t.Errorf("passed on %q", got)
	}
	for _, text := range []string{
		"", "a\r\nX: y", valid + "\r\nX: y", strings.ToUpper(valid), strings.Repeat("a", 55),
		strings.Repeat("-", 55), strings.Repeat(valid, 1000),
	} {
		if got := traceparentOf(WithTraceparent(t.Context(), text)); got != "" {
			t.Errorf("passed on %q", got)
		}
	}
}

func TestAFullPoolWaitsOnlyUntilTheDeadline(t *testing.T) {
	nodes := &connections{places: make(chan struct{})}
	if _, err := nodes.exchange(t.Context(), time.Now(), &call{}); !errors.Is(err, errDeadline) {
		t.Error(err)
	}
}
