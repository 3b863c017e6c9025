package tollgate

import (
	"net/http"
	"strconv"
)

// document is the problem document (RFC 9457) that a middleware answers. It is appended to, since a
// denial should cost no more than the request that it ends.
type document struct {
	status int
	json   []byte
}

const httpProblems = "https://iana.org/assignments/http-problem-types#"

func newDocument(status int, kind, title string) *document {
	json := make([]byte, 0, 320)
	json = append(append(json, `{"type":"`...), kind...)
	json = append(append(json, `","title":"`...), title...)
	json = strconv.AppendInt(append(json, `","status":`...), int64(status), 10)
	return &document{status, json}
}

// wait appends the time until a retry, or null.
func (d *document) wait(ms *int64) *document {
	d.json = append(d.json, `,"retry_after_ms":`...)
	if ms == nil {
		d.json = append(d.json, "null"...)
	} else {
		d.json = strconv.AppendInt(d.json, *ms, 10)
	}
	return d
}

func (d *document) write(w http.ResponseWriter) {
	writeBody(w, d.status, "application/problem+json", append(d.json, '}'))
}

func badRequest() *document {
	const title = "The rate limiter cannot count this request"
	return newDocument(http.StatusBadRequest, "urn:tollgate:problem:invalid-request", title)
}

func reducedCapacity(status int, waitMS *int64) *document {
	const title = "Request cannot be satisfied due to temporary server capacity constraints"
	return newDocument(status, httpProblems+"temporary-reduced-capacity", title).wait(waitMS)
}

// denied describes a denied request.
func denied(status int, answer *Answer) *document {
	switch answer.Reason {
	case ReasonDenyListed:
		return newDocument(status, "urn:tollgate:problem:deny-listed", "Denied by a list")
	case ReasonStoreUnavailable:
		return reducedCapacity(status, answer.RetryAfterMS)
	}
	const title = "Request cannot be satisfied as assigned quota has been exceeded"
	document := newDocument(status, httpProblems+"quota-exceeded", title)
	if answer.Quota != nil {
		// Names of quotas need no escapes.
		document.json = append(append(append(document.json, `,"violated-policies":["`...), *answer.Quota...), `"]`...)
	}
	return document.wait(answer.RetryAfterMS)
}

func writeBody(w http.ResponseWriter, status int, contentType string, body []byte) {
	w.Header()["Content-Type"] = []string{contentType}
	w.WriteHeader(status)
	_, _ = w.Write(body)
}
