package tollgate

import (
	"encoding/json"
	"net/http"
	"strconv"
)

// document is the problem document (RFC 9457) that a middleware answers.
type document struct {
	Type     string          `json:"type"`
	Title    string          `json:"title"`
	Status   int             `json:"status"`
	Detail   string          `json:"detail"`
	Violated []string        `json:"violated-policies,omitempty"`
	Wait     json.RawMessage `json:"retry_after_ms,omitempty"`
}

const (
	quotaExceeded   = "https://iana.org/assignments/http-problem-types#quota-exceeded"
	reducedCapacity = "https://iana.org/assignments/http-problem-types#temporary-reduced-capacity"
	denyListed      = "urn:tollgate:problem:deny-listed"
)

var (
	badRequest = &document{
		Type: "about:blank", Title: "Bad Request", Status: http.StatusBadRequest,
		Detail: "The request has no valid key or cost.",
	}
	noDecision = &document{
		Type: reducedCapacity, Title: "Temporary reduced capacity", Status: http.StatusServiceUnavailable,
		Detail: "No rate limit decision is available. Try again later.",
	}
)

// denial describes a denied request.
func denial(status int, answer *Answer) *document {
	document := &document{Status: status}
	switch answer.Reason {
	case ReasonDenyListed:
		document.Type, document.Title = denyListed, "Denied"
		document.Detail = "This caller is not admitted."
		return document
	case ReasonStoreUnavailable:
		document.Type, document.Title = reducedCapacity, "Temporary reduced capacity"
		document.Detail = "The service cannot count requests now. Try again later."
	default:
		document.Type, document.Title = quotaExceeded, "Quota exceeded"
		document.Detail = "Too many requests. Try again later."
		if answer.Quota != nil {
			document.Violated = []string{*answer.Quota}
		}
	}
	document.Wait = json.RawMessage("null")
	if answer.RetryAfterMS != nil {
		document.Wait = strconv.AppendInt(nil, *answer.RetryAfterMS, 10)
	}
	return document
}

func (d *document) write(w http.ResponseWriter) {
	body, err := json.Marshal(d)
	if err != nil {
		body = nil
	}
	writeBody(w, d.Status, "application/problem+json", body)
}

func writeBody(w http.ResponseWriter, status int, contentType string, body []byte) {
	w.Header()["Content-Type"] = []string{contentType}
	w.Header()["Content-Length"] = []string{strconv.Itoa(len(body))}
	w.WriteHeader(status)
	_, _ = w.Write(body)
}
