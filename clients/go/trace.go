package tollgate

import "context"

type traceparentKey struct{}

// WithTraceparent returns a context whose calls carry the W3C trace context, the caller's span.
func WithTraceparent(ctx context.Context, traceparent string) context.Context {
	return context.WithValue(ctx, traceparentKey{}, traceparent)
}

func traceparentOf(ctx context.Context) string {
	traceparent, _ := ctx.Value(traceparentKey{}).(string)
	if !printable(traceparent) {
		return ""
	}
	return traceparent
}
