package tollgate

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"net/http/httputil"
	"strconv"
)

const (
	userAgent = "tollgate-go"
	// maxAnswer bounds the memory of one response, and maxLines that of its head.
	maxAnswer = 8 << 20
	maxLines  = 100
)

var (
	errTooLong = errors.New("the response is too long")
	errNoHTTP  = errors.New("the response is no HTTP/1.1")
)

func (c *connection) exchange(node *connections, call *call) (*response, error) {
	c.message = node.appendMessage(c.message[:0], call)
	if _, err := c.Write(c.message); err != nil {
		return nil, err
	}
	reply, err := c.read()
	if err != nil {
		return nil, fmt.Errorf("the connection broke: %w", err)
	}
	return reply, nil
}

// appendMessage appends the request as one text, for one packet.
func (c *connections) appendMessage(message []byte, call *call) []byte {
	message = append(append(message, call.method...), ' ')
	message = append(append(message, c.base.EscapedPath()...), call.path...)
	if call.query != "" {
		message = append(append(message, '?'), call.query...)
	}
	message = append(message, c.head...)
	if call.traceparent != "" {
		message = append(append(append(message, "Traceparent: "...), call.traceparent...), "\r\n"...)
	}
	if call.body != nil {
		message = append(message, "Content-Type: application/json\r\nContent-Length: "...)
		message = append(strconv.AppendInt(message, int64(len(call.body)), 10), "\r\n"...)
	}
	return append(append(message, "\r\n"...), call.body...)
}

// framing is what the head of a response says of its end.
type framing struct {
	status  int
	length  int
	chunked bool
	last    bool
}

func (c *connection) read() (*response, error) {
	for {
		head, err := c.readHead()
		if err != nil {
			return nil, err
		}
		const final = 200
		if head.status < final {
			continue // an interim response, such as 103
		}
		reply := &response{status: head.status, last: head.last || head.chunked || head.length < 0}
		reply.body, err = c.readBody(head)
		return reply, err
	}
}

func (c *connection) readHead() (head framing, err error) {
	line, err := c.line()
	if err != nil {
		return head, err
	}
	version, rest, _ := bytes.Cut(line, []byte(" "))
	code, _, _ := bytes.Cut(rest, []byte(" "))
	if head.status, err = strconv.Atoi(string(code)); err != nil || !bytes.Equal(version, []byte("HTTP/1.1")) {
		return head, errNoHTTP
	}
	head.length = -1
	for range maxLines {
		if line, err = c.line(); err != nil || len(line) == 0 {
			return head, err
		}
		name, value, _ := bytes.Cut(line, []byte(":"))
		if err := head.field(name, bytes.TrimSpace(value)); err != nil {
			return head, err
		}
	}
	return head, errTooLong
}

func (h *framing) field(name, value []byte) (err error) {
	switch {
	case bytes.EqualFold(name, []byte("content-length")):
		h.length, err = strconv.Atoi(string(value))
		if err == nil && (h.length < 0 || h.length > maxAnswer) {
			err = errTooLong
		}
	case bytes.EqualFold(name, []byte("transfer-encoding")):
		h.chunked = bytes.EqualFold(value, []byte("chunked"))
	case bytes.EqualFold(name, []byte("connection")):
		h.last = bytes.EqualFold(value, []byte("close"))
	}
	return err
}

func (c *connection) line() ([]byte, error) {
	line, err := c.reader.ReadSlice('\n')
	return bytes.TrimRight(line, "\r\n"), err
}

// readBody reads a body without a length to its end. Such a connection has no next call.
func (c *connection) readBody(head framing) ([]byte, error) {
	if head.length >= 0 && !head.chunked {
		body := make([]byte, head.length)
		_, err := io.ReadFull(c.reader, body)
		return body, err
	}
	var source io.Reader = c.reader
	if head.chunked {
		source = httputil.NewChunkedReader(c.reader)
	}
	return readMost(source)
}

func readMost(source io.Reader) ([]byte, error) {
	body, err := io.ReadAll(io.LimitReader(source, maxAnswer+1))
	if len(body) > maxAnswer {
		return nil, errTooLong
	}
	return body, err
}
