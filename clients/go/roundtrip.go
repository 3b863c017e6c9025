package tollgate

import (
	"bytes"
	"context"
	"io"
	"net/http"
	"net/url"
	"time"
)

// roundTripper sends calls by [Options.Transport].
type roundTripper struct {
	http.RoundTripper
	base  *url.URL
	token string
}

func (r *roundTripper) exchange(ctx context.Context, until time.Time, call *call) (*response, error) {
	ctx, cancel := context.WithDeadline(ctx, until)
	defer cancel()
	reply, err := r.RoundTrip(r.request(ctx, call))
	if err != nil {
		return nil, err
	}
	defer reply.Body.Close()
	body, err := readMost(reply.Body)
	if err != nil {
		return nil, err
	}
	return &response{status: reply.StatusCode, body: body}, nil
}

// request has no Idempotency-Key: with one, an http.Transport would repeat it by itself.
func (r *roundTripper) request(ctx context.Context, call *call) *http.Request {
	address := *r.base
	address.Path += call.path
	address.RawQuery = call.query
	request := &http.Request{Method: call.method, URL: &address, Host: address.Host, Header: http.Header{}}
	request.Header.Set("User-Agent", userAgent)
	if r.token != "" {
		request.Header.Set("Authorization", "Bearer "+r.token)
	}
	if call.traceparent != "" {
		request.Header.Set("Traceparent", call.traceparent)
	}
	if call.body != nil {
		request.Header.Set("Content-Type", "application/json")
		request.ContentLength = int64(len(call.body))
		request.Body = io.NopCloser(bytes.NewReader(call.body))
	}
	return request.WithContext(ctx)
}

func (r *roundTripper) closeIdle() {
	if transport, ok := r.RoundTripper.(interface{ CloseIdleConnections() }); ok {
		transport.CloseIdleConnections()
	}
}
