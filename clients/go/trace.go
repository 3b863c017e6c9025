package tollgate

import (
	"context"
	"regexp"
)

type traceparentKey struct{}

// WithTraceparent returns a context whose calls carry the W3C trace context, the caller's span.
func WithTraceparent(ctx context.Context, traceparent string) context.Context {
	return context.WithValue(ctx, traceparentKey{}, traceparent)
}

var traceparent = regexp.MustCompile(`^[0-9a-f]{2}-[0-9a-f]{32}-[0-9a-f]{16}-[0-9a-f]{2}$`)

// traceparentOf returns nothing for other texts. A caller of a middleware may choose any text, and a
// node would reject a request with a faulty header, so that its check would not count.
func traceparentOf(ctx context.Context) string {
	const length = 55
	if text, _ := ctx.Value(traceparentKey{}).(string); len(text) == length && traceparent.MatchString(text) {
		return text
	}
	return ""
}
