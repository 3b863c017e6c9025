package tollgate

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"sync/atomic"
	"time"
)

// pause is the time for which calls avoid a failed node. Half a second leaves room for the deadline of
// one call, so that decisions return within a second of the node's return.
const pause = 500 * time.Millisecond

// node is one address of the list, with its own connections.
type node struct {
	base      *url.URL
	transport http.RoundTripper
	// avoidUntil is the end of a pause after a failure, or 0.
	avoidUntil atomic.Int64
	// answered is the time of the newest response.
	answered atomic.Int64
}

var start = time.Now()

// now is monotonic.
func now() int64 { return int64(time.Since(start)) }

func newNode(base *url.URL, transport http.RoundTripper) *node {
	return &node{base: base, transport: transport}
}

// avoided reports whether the node failed within the last pause.
func (n *node) avoided() bool { return n.avoidUntil.Load() > now() }

// admit reports whether a call may try the node. After a pause it admits one call, and begins the
// next pause for all others.
func (n *node) admit() bool {
	until, now := n.avoidUntil.Load(), now()
	if until == 0 {
		return true
	}
	return until <= now && n.avoidUntil.CompareAndSwap(until, now+int64(pause))
}

func (n *node) avoid() { n.avoidUntil.Store(now() + int64(pause)) }

func (n *node) respond() {
	n.answered.Store(now())
	if n.avoidUntil.Load() != 0 {
		n.avoidUntil.Store(0)
	}
}

// call is one HTTP request to whichever node answers.
type call struct {
	method, path, query string
	body                []byte
	traceparent         string
	// repeatable says that a second call cannot charge twice.
	repeatable bool
}

type response struct {
	status int
	body   []byte
}

// ask sends the call, and once more on a new connection if the first one breaks.
func (n *node) ask(ctx context.Context, header http.Header, call *call) (*response, error) {
	began := now()
	answer, err := n.exchange(ctx, header, call)
	broken := err != nil && ctx.Err() == nil && !notSent(err)
	if broken && call.repeatable {
		n.closeIdle()
		answer, err = n.exchange(ctx, header, call)
		broken = false
	}
	switch {
	case err == nil:
		n.respond()
	case broken:
		// One break is no failure of the node: it may have closed an idle connection.
	case ctx.Err() == nil || silent(ctx) && n.answered.Load() < began:
		n.avoid()
	}
	return answer, err
}

// silent reports whether the time of the call ended, and not the patience of its caller.
func silent(ctx context.Context) bool { return errors.Is(context.Cause(ctx), errDeadline) }

var errDeadline = fmt.Errorf("the deadline passed: %w", context.DeadlineExceeded)

func (n *node) exchange(ctx context.Context, header http.Header, call *call) (*response, error) {
	reply, err := n.transport.RoundTrip(n.request(ctx, header, call))
	if err != nil {
		return nil, because(ctx, err)
	}
	body, err := readAll(reply)
	if err != nil {
		return nil, because(ctx, err)
	}
	return &response{reply.StatusCode, body}, nil
}

// request has no Idempotency-Key: with one, an http.Transport would repeat it by itself.
func (n *node) request(ctx context.Context, header http.Header, call *call) *http.Request {
	address := *n.base
	address.Path += call.path
	address.RawQuery = call.query
	request := &http.Request{
		Method: call.method, URL: &address, Host: address.Host,
		Proto: "HTTP/1.1", ProtoMajor: 1, ProtoMinor: 1,
		Header: header,
	}
	if call.body != nil {
		request.ContentLength = int64(len(call.body))
		request.Body = io.NopCloser(bytes.NewReader(call.body))
	}
	return request.WithContext(ctx)
}

func (n *node) closeIdle() {
	if transport, ok := n.transport.(interface{ CloseIdleConnections() }); ok {
		transport.CloseIdleConnections()
	}
}

// because returns the reason why a context ended, else err.
func because(ctx context.Context, err error) error {
	if cause := context.Cause(ctx); cause != nil {
		return cause
	}
	return err
}

// notSent reports whether the node surely received nothing.
func notSent(err error) bool {
	var dial *net.OpError
	var handshake *handshakeError
	return errors.As(err, &dial) && dial.Op == "dial" || errors.As(err, &handshake)
}
