package tollgate

import (
	"bufio"
	"cmp"
	"io"
	"net"
	"net/http"
)

// Response is what a handler answered.
type Response struct {
	// Status is 200 if the handler set none, and 500 if it panicked instead.
	Status int
	// Bytes is the length of the body.
	Bytes  int64
	Header http.Header
}

// recorder counts a response for [Limit.Drain] and [Limit.Refund]. It keeps the optional methods of writers that
// handlers look for, else streams and WebSockets would break.
type recorder struct {
	http.ResponseWriter
	status int
	bytes  int64
}

// response is that of a handler that panicked, unless it wrote a status or finished.
func (r *recorder) response() Response {
	return Response{Status: cmp.Or(r.status, http.StatusInternalServerError), Bytes: r.bytes, Header: r.Header()}
}

func (r *recorder) finish() { r.status = cmp.Or(r.status, http.StatusOK) }

func (r *recorder) WriteHeader(status int) {
	const final = 200
	if r.status == 0 && (status >= final || status == http.StatusSwitchingProtocols) {
		r.status = status
	}
	r.ResponseWriter.WriteHeader(status)
}

func (r *recorder) Write(body []byte) (int, error) {
	r.finish()
	n, err := r.ResponseWriter.Write(body)
	r.bytes += int64(n)
	return n, err
}

func (r *recorder) ReadFrom(source io.Reader) (int64, error) {
	r.finish()
	n, err := io.Copy(r.ResponseWriter, source)
	r.bytes += n
	return n, err
}

func (r *recorder) Flush() { _ = http.NewResponseController(r.ResponseWriter).Flush() }

func (r *recorder) Hijack() (net.Conn, *bufio.ReadWriter, error) {
	return http.NewResponseController(r.ResponseWriter).Hijack()
}

// Unwrap is for [http.ResponseController].
func (r *recorder) Unwrap() http.ResponseWriter { return r.ResponseWriter }
