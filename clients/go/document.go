package tollgate

import (
	"encoding/json"
	"net/http"
	"strconv"
)

// document is the problem document (RFC 9457) that a middleware answers.
type document struct {
	Type     string   `json:"type"`
	Title    string   `json:"title"`
	Status   int      `json:"status"`
	Violated []string `json:"violated-policies,omitempty"`
	// Wait is a number or null.
	Wait json.RawMessage `json:"retry_after_ms,omitempty"`
}

func badRequest() *document {
	return &document{
		Type: "urn:tollgate:problem:invalid-request", Title: "The rate limiter cannot count this request",
		Status: http.StatusBadRequest,
	}
}

func reducedCapacity(status int, waitMS *int64) *document {
	return &document{
		Type:   "https://iana.org/assignments/http-problem-types#temporary-reduced-capacity",
		Title:  "Request cannot be satisfied due to temporary server capacity constraints",
		Status: status, Wait: numberOrNull(waitMS),
	}
}

// denial describes a denied request.
func denialDocument(status int, answer *Answer) *document {
	switch answer.Reason {
	case ReasonDenyListed:
		return &document{Type: "urn:tollgate:problem:deny-listed", Title: "Denied by a list", Status: status}
	case ReasonStoreUnavailable:
		return reducedCapacity(status, answer.RetryAfterMS)
	}
	document := &document{
		Type:   "https://iana.org/assignments/http-problem-types#quota-exceeded",
		Title:  "Request cannot be satisfied as assigned quota has been exceeded",
		Status: status, Wait: numberOrNull(answer.RetryAfterMS),
	}
	if answer.Quota != nil {
		document.Violated = []string{*answer.Quota}
	}
	return document
}

func numberOrNull(number *int64) json.RawMessage {
	if number == nil {
		return json.RawMessage("null")
	}
	return strconv.AppendInt(nil, *number, 10)
}

func (d *document) write(w http.ResponseWriter) {
	body, _ := json.Marshal(d) // a document has no values that fail
	writeBody(w, d.Status, "application/problem+json", body)
}

func writeBody(w http.ResponseWriter, status int, contentType string, body []byte) {
	w.Header()["Content-Type"] = []string{contentType}
	w.Header()["Content-Length"] = []string{strconv.Itoa(len(body))}
	w.WriteHeader(status)
	_, _ = w.Write(body)
}
