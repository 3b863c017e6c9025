package tollgate

import (
	"bufio"
	"bytes"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"strconv"
	"sync"
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

// connections are those of one node. They speak HTTP/1.1 in the goroutine of the caller, by one write
// and usually one read. http.Transport needs two more goroutines per connection, and several times
// the CPU. Unlike it, connections never repeat a request, and read each response as a whole.
type connections struct {
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
	since  time.Time
}

func newConnections(config *tls.Config) *connections {
	return &connections{tls: config, places: make(chan struct{}, maxConnections)}
}

// RoundTrip ends when the context does.
func (c *connections) RoundTrip(request *http.Request) (*http.Response, error) {
	ctx := request.Context()
	select {
	case c.places <- struct{}{}:
		defer func() { <-c.places }()
	case <-ctx.Done():
		return nil, context.Cause(ctx)
	}
	connection, err := c.take(request)
	if err != nil {
		return nil, err
	}
	stop := context.AfterFunc(ctx, func() { _ = connection.SetDeadline(time.Unix(1, 0)) })
	reply, err := connection.exchange(request)
	if !stop() || err != nil || reply.Close || connection.reader.Buffered() > 0 {
		connection.Close()
	} else {
		c.put(connection)
	}
	return reply, err
}

// take returns the connection that was in use last, or a new one.
func (c *connections) take(request *http.Request) (*connection, error) {
	for connection := c.pop(); connection != nil; connection = c.pop() {
		if time.Since(connection.since) < idleTimeout && alive(connection.Conn) {
			return connection, nil
		}
		connection.Close()
	}
	return c.dial(request)
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

// CloseIdleConnections makes the next calls connect anew.
func (c *connections) CloseIdleConnections() {
	c.mutex.Lock()
	defer c.mutex.Unlock()
	for _, connection := range c.idle {
		connection.Close()
	}
	c.idle = nil
}

func (c *connections) dial(request *http.Request) (*connection, error) {
	ctx, host := request.Context(), request.URL.Hostname()
	raw, err := c.dialer.DialContext(ctx, "tcp", net.JoinHostPort(host, portOf(request)))
	if err != nil {
		return nil, err
	}
	if request.URL.Scheme == "https" {
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

func portOf(request *http.Request) string {
	switch port := request.URL.Port(); {
	case port != "":
		return port
	case request.URL.Scheme == "https":
		return "443"
	}
	return "80"
}

// handshakeError is a failure of TLS, before a node receives a request.
type handshakeError struct{ err error }

func (h *handshakeError) Error() string { return "TLS: " + h.err.Error() }
func (h *handshakeError) Unwrap() error { return h.err }

func (c *connection) exchange(request *http.Request) (*http.Response, error) {
	message, err := messageOf(request)
	if err != nil {
		return nil, err
	}
	if _, err := c.Write(message); err != nil {
		return nil, err
	}
	for {
		reply, err := http.ReadResponse(c.reader, request)
		if err != nil {
			return nil, fmt.Errorf("the connection broke: %w", err)
		}
		if reply.StatusCode < http.StatusOK {
			continue // an interim response, such as 103
		}
		body, err := readAll(reply)
		reply.Body = io.NopCloser(bytes.NewReader(body))
		return reply, err
	}
}

// messageOf returns the request as one text, for one packet.
func messageOf(request *http.Request) ([]byte, error) {
	const head = 512
	length := max(request.ContentLength, 0)
	message := make([]byte, 0, head+length)
	message = append(append(message, request.Method...), ' ')
	message = append(append(message, request.URL.RequestURI()...), " HTTP/1.1\r\nHost: "...)
	message = append(append(message, request.Host...), "\r\n"...)
	for name, values := range request.Header {
		for _, value := range values {
			if !printable(value) {
				return nil, fmt.Errorf("the header %s must have no control characters", name)
			}
			message = append(append(message, name...), ": "...)
			message = append(append(message, value...), "\r\n"...)
		}
	}
	if request.Body == nil {
		return append(message, "\r\n"...), nil
	}
	message = append(message, "Content-Length: "...)
	message = append(strconv.AppendInt(message, length, 10), "\r\n\r\n"...)
	start := len(message)
	message = message[:start+int(length)]
	_, err := io.ReadFull(request.Body, message[start:])
	return message, err
}

func printable(value string) bool {
	for i := range len(value) {
		if value[i] < ' ' || value[i] == 0x7f {
			return false
		}
	}
	return true
}

func readAll(reply *http.Response) ([]byte, error) {
	defer reply.Body.Close()
	if reply.ContentLength > maxAnswer {
		return nil, fmt.Errorf("the response of %d bytes is too long", reply.ContentLength)
	}
	if reply.ContentLength >= 0 {
		body := make([]byte, reply.ContentLength)
		_, err := io.ReadFull(reply.Body, body)
		return body, err
	}
	body, err := io.ReadAll(io.LimitReader(reply.Body, maxAnswer+1))
	if len(body) > maxAnswer {
		return nil, errors.New("the response is too long")
	}
	return body, err
}
