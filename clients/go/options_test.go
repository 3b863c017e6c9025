package tollgate

import (
	"strings"
	"testing"
)

func TestATokenHasVisibleASCIIOnly(t *testing.T) {
	for _, token := range []string{"abc\n", "ü", "a b", "\x7f"} {
		if _, err := New(Options{Token: token}); err == nil || !strings.Contains(err.Error(), "Token") {
			t.Errorf("%q: %v", token, err)
		}
	}
	if _, err := New(Options{Token: "!~"}); err != nil {
		t.Error(err)
	}
}

func TestOnlyATraceparentIsPassedOn(t *testing.T) {
	const valid = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
	if got := traceparentOf(WithTraceparent(t.Context(), valid)); got != valid {
		t.Errorf("passed on %q", got)
	}
	for _, text := range []string{
		"", "a\r\nX: y", valid + "\r\nX: y", strings.ToUpper(valid), strings.Repeat("a", 55),
		strings.Repeat("-", 55), strings.Repeat(valid, 1000),
	} {
		if got := traceparentOf(WithTraceparent(t.Context(), text)); got != "" {
			t.Errorf("passed on %q", got)
		}
	}
}
