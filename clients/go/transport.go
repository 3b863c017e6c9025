package tollgate

import (
	"bytes"
	"context"
	"errors"
	"io"
	"net/http"
	"net/http/httptrace"
	"net/url"
	"sync/atomic"
	"time"
)

const (
	// maxConnections bounds the connections to one node, also while it is silent.
	maxConnections = 64
	// idleTimeout is shorter than the node's, so that the node rarely closes a connection in use.
	idleTimeout = 30 * time.Second
	// maxAnswer bounds the memory of one response.
	maxAnswer = 8 << 20
)

var errTooLong = errors.New("the response is too long")

// sender sends calls to one node.
type sender struct {
	http.RoundTripper
	base   *url.URL
	header http.Header
}

func newSender(transport http.RoundTripper, base *url.URL, token string) *sender {
	header := http.Header{"User-Agent": {"tollgate-go"}, "Content-Type": {"application/json"}}
	if token != "" {
		header.Set("Authorization", "Bearer "+token)
	}
	return &sender{transport, base, header}
}

func (s *sender) exchange(ctx context.Context, call *call) (*response, error) {
	var sent connected
	reply, err := s.RoundTrip(s.request(sent.trace(ctx), call))
	if err != nil {
		return nil, sent.explain(err)
	}
	defer reply.Body.Close()
	body, err := readAll(reply)
	if err != nil {
		return nil, err
	}
	return &response{reply.StatusCode, body, s.base.String()}, nil
}

// request has no Idempotency-Key: with one, an http.Transport would repeat it by itself. By GetBody it
// repeats only a call that it could not write, for example on a connection that the node closed.
func (s *sender) request(ctx context.Context, call *call) *http.Request {
	address := *s.base
	address.Path += call.path
	address.RawQuery = call.query
	request := &http.Request{Method: call.method, URL: &address, Host: address.Host, Header: s.header}
	if call.traceparent != "" {
		request.Header = s.header.Clone()
		request.Header.Set("Traceparent", call.traceparent)
	}
	if body := call.body; body != nil {
		request.ContentLength = int64(len(body))
		request.GetBody = func() (io.ReadCloser, error) { return io.NopCloser(bytes.NewReader(body)), nil }
		request.Body, _ = request.GetBody()
	}
	return request.WithContext(ctx)
}

func (s *sender) closeIdle() {
	if transport, ok := s.RoundTripper.(interface{ CloseIdleConnections() }); ok {
		transport.CloseIdleConnections()
	}
}

func readAll(reply *http.Response) ([]byte, error) {
	if reply.ContentLength > maxAnswer {
		return nil, errTooLong
	}
	if reply.ContentLength >= 0 {
		body := make([]byte, reply.ContentLength)
		_, err := io.ReadFull(reply.Body, body)
		return body, err
	}
	body, err := io.ReadAll(io.LimitReader(reply.Body, maxAnswer+1))
	if len(body) > maxAnswer {
		return nil, errTooLong
	}
	return body, err
}

// connected observes whether a call got a connection. Other transports than http.Transport may report
// nothing, and then the node may have received the call.
type connected struct{ wanted, got atomic.Bool }

func (c *connected) trace(ctx context.Context) context.Context {
	return httptrace.WithClientTrace(ctx, &httptrace.ClientTrace{
		GetConn: func(string) { c.wanted.Store(true) },
		GotConn: func(httptrace.GotConnInfo) { c.got.Store(true) },
	})
}

func (c *connected) explain(err error) error {
	if c.wanted.Load() && !c.got.Load() {
		return &notSentError{err}
	}
	return err
}

// notSentError says that the node surely received nothing.
type notSentError struct{ error }

func (n *notSentError) Unwrap() error { return n.error }

func notSent(err error) bool {
	var unsent *notSentError
	return errors.As(err, &unsent)
}
