package tollgate

import (
	"bufio"
	"context"
	"crypto/tls"
	"net"
	"net/url"
	"sync"
	"time"
)

const (
	// maxConnections bounds the connections to one node, also while it is silent.
	maxConnections = 64
	// idleTimeout is shorter than the node's, so that the node rarely closes a connection in use.
	idleTimeout = 30 * time.Second
	// fresh connections are probably open. Only a call that must not be repeated makes sure.
	fresh = time.Second
)

// connections are those of one node. They speak HTTP/1.1 in the goroutine of the caller, by one write
// and usually one read. http.Transport needs two more goroutines per connection, and several times
// the CPU.
type connections struct {
	base   *url.URL
	head   string
	tls    *tls.Config
	dialer net.Dialer
	// places has an element for each open or opening connection.
	places chan struct{}

	mutex sync.Mutex
	idle  []*connection
}

type connection struct {
	net.Conn
	reader *bufio.Reader
	// message is the space of the last request.
	message []byte
	since   time.Time
}

func newConnections(base *url.URL, token string, config *tls.Config) *connections {
	head := " HTTP/1.1\r\nHost: " + base.Host + "\r\nUser-Agent: " + userAgent + "\r\n"
	if token != "" {
		head += "Authorization: Bearer " + token + "\r\n"
	}
	return &connections{base: base, head: head, tls: config, places: make(chan struct{}, maxConnections)}
}

func (c *connections) exchange(ctx context.Context, until time.Time, call *call) (*response, error) {
	if err := c.enter(ctx, until); err != nil {
		return nil, err
	}
	defer func() { <-c.places }()
	connection, err := c.take(ctx, until, call)
	if err != nil {
		return nil, err
	}
	reply, err := connection.exchangeUntil(ctx, until, c, call)
	if err != nil || reply.last || connection.reader.Buffered() > 0 {
		connection.Close()
	} else {
		c.put(connection)
	}
	return reply, err
}

// enter waits for a place only if all are in use.
func (c *connections) enter(ctx context.Context, until time.Time) error {
	select {
	case c.places <- struct{}{}:
		return nil
	default:
	}
	timer := time.NewTimer(time.Until(until))
	defer timer.Stop()
	select {
	case c.places <- struct{}{}:
		return nil
	case <-timer.C:
		return errDeadline
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

// exchangeUntil ends when the caller leaves or the time is over.
func (c *connection) exchangeUntil(
	ctx context.Context, until time.Time, node *connections, call *call,
) (*response, error) {
	if err := c.SetDeadline(until); err != nil {
		return nil, err
	}
	if ctx.Done() == nil {
		return c.exchange(node, call)
	}
	stop := context.AfterFunc(ctx, func() { _ = c.SetDeadline(time.Unix(1, 0)) })
	reply, err := c.exchange(node, call)
	if !stop() && reply != nil {
		reply.last = true // the next call must not get the deadline of this one
	}
	return reply, err
}

// take returns the connection that was in use last, or a new one.
func (c *connections) take(ctx context.Context, until time.Time, call *call) (*connection, error) {
	for connection := c.pop(); connection != nil; connection = c.pop() {
		idle := time.Since(connection.since)
		sure := call.repeatable && idle < fresh
		if sure || idle < idleTimeout && alive(connection.Conn) {
			return connection, nil
		}
		connection.Close()
	}
	ctx, cancel := context.WithDeadline(ctx, until)
	defer cancel()
	return c.dial(ctx)
}

func (c *connections) pop() *connection {
	c.mutex.Lock()
	defer c.mutex.Unlock()
	if len(c.idle) == 0 {
		return nil
	}
	last := len(c.idle) - 1
	connection := c.idle[last]
	c.idle = c.idle[:last]
	return connection
}

// put also closes the oldest connection, if it was idle for too long.
func (c *connections) put(connection *connection) {
	connection.since = time.Now()
	c.mutex.Lock()
	defer c.mutex.Unlock()
	if len(c.idle) > 0 && connection.since.Sub(c.idle[0].since) > idleTimeout {
		c.idle[0].Close()
		c.idle = append(c.idle[:0], c.idle[1:]...)
	}
	c.idle = append(c.idle, connection)
}

// closeIdle makes the next calls connect anew.
func (c *connections) closeIdle() {
	c.mutex.Lock()
	defer c.mutex.Unlock()
	for _, connection := range c.idle {
		connection.Close()
	}
	c.idle = nil
}

func (c *connections) dial(ctx context.Context) (*connection, error) {
	host := c.base.Hostname()
	raw, err := c.dialer.DialContext(ctx, "tcp", net.JoinHostPort(host, portOf(c.base)))
	if err != nil {
		return nil, err
	}
	if c.base.Scheme == "https" {
		config := c.tls.Clone()
		config.ServerName = host
		secure := tls.Client(raw, config)
		if err := secure.HandshakeContext(ctx); err != nil {
			raw.Close()
			return nil, &handshakeError{err}
		}
		raw = secure
	}
	return &connection{Conn: raw, reader: bufio.NewReader(raw)}, nil
}

func portOf(base *url.URL) string {
	switch port := base.Port(); {
	case port != "":
		return port
	case base.Scheme == "https":
		return "443"
	}
	return "80"
}

// handshakeError is a failure of TLS, before a node receives a request.
type handshakeError struct{ err error }

func (h *handshakeError) Error() string { return "TLS: " + h.err.Error() }
func (h *handshakeError) Unwrap() error { return h.err }
