package tollgate

import (
	"net/http"
	"slices"
	"strconv"
	"strings"
)

// maxInteger is the largest integer of a structured field (RFC 9651).
const maxInteger = 999_999_999_999_999

// Canonical names, which need no lookup.
const (
	fieldPolicy     = "Ratelimit-Policy"
	fieldLimit      = "Ratelimit"
	fieldRetryAfter = "Retry-After"
)

// SetFields adds RateLimit-Policy and RateLimit, and sets Retry-After of a denial, as the node
// writes them (draft-ietf-httpapi-ratelimit-headers-11). Without counters there are none. If a name
// of a quota stands in a field already, the policy goes in front: `"login/1m"`.
func (d *Decision) SetFields(header http.Header) {
	latest := int64(maxInteger)
	if wait, fits := d.wait(); fits && !d.Allowed {
		header[fieldRetryAfter] = []string{strconv.FormatInt(wait, 10)}
		latest = wait
	}
	if d.Quota == nil || d.Remaining == nil || d.ResetAfterMS == nil {
		return
	}
	var policy []byte
	limit := make([]byte, 0, 64)
	if len(d.Quotas) == 0 {
		name := d.nameBeside(header, *d.Quota)
		limit = appendItem(limit, name, "r", *d.Remaining, "t", min(seconds(*d.ResetAfterMS), latest))
	}
	for _, quota := range d.Quotas {
		name := d.nameBeside(header, quota.Name)
		policy = appendItem(policy, name, "q", quota.Limit, "w", seconds(quota.WindowMS))
		limit = appendItem(limit, name, "r", quota.Remaining, "t", min(seconds(quota.ResetAfterMS), latest))
	}
	if policy != nil {
		header[fieldPolicy] = append(header[fieldPolicy], string(policy))
	}
	header[fieldLimit] = append(header[fieldLimit], string(limit))
}

// nameBeside returns the name of a quota in fields that may have those of another limit.
func (d *Decision) nameBeside(header http.Header, quota string) string {
	for _, field := range slices.Concat(header[fieldPolicy], header[fieldLimit]) {
		if strings.Contains(field, `"`+quota+`"`) {
			return d.Policy + "/" + quota
		}
	}
	return quota
}

// wait returns the seconds until a denied cost fits, and false if it never does.
func (d *Decision) wait() (int64, bool) {
	if d.RetryAfterMS == nil {
		return 0, false
	}
	return max(seconds(*d.RetryAfterMS), 1), true
}

func seconds(ms int64) int64 { return (ms + 999) / 1000 }

// appendItem appends `"1s";r=12;t=1`.
func appendItem(list []byte, quota, first string, one int64, second string, two int64) []byte {
	if len(list) > 0 {
		list = append(list, ", "...)
	}
	list = append(append(append(list, '"'), quota...), '"')
	list = appendParameter(list, first, one)
	return appendParameter(list, second, two)
}

func appendParameter(list []byte, name string, number int64) []byte {
	list = append(append(append(list, ';'), name...), '=')
	return strconv.AppendInt(list, min(number, maxInteger), 10)
}
