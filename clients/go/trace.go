package tollgate

import "context"

type traceparentKey struct{}

// WithTraceparent returns a context whose calls carry the W3C trace context, the caller's span.
func WithTraceparent(ctx context.Context, traceparent string) context.Context {
	return context.WithValue(ctx, traceparentKey{}, traceparent)
}

// traceparentOf returns nothing for other texts. A caller of a middleware may choose any text, and a
// node would reject a request with a faulty header, so that its check would not count.
func traceparentOf(ctx context.Context) string {
	traceparent, _ := ctx.Value(traceparentKey{}).(string)
	if !isTraceparent(traceparent) {
		return ""
	}
	return traceparent
}

// isTraceparent accepts `00-<32 digits>-<16 digits>-<2 digits>`, in lower-case hexadecimal.
func isTraceparent(text string) bool {
	const length = 55
	if len(text) != length {
		return false
	}
	for i := range len(text) {
		dash := i == 2 || i == 35 || i == 52
		digit := text[i] >= '0' && text[i] <= '9' || text[i] >= 'a' && text[i] <= 'f'
		if dash != (text[i] == '-') || !dash && !digit {
			return false
		}
	}
	return true
}
