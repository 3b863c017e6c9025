package tollgate

import (
	"context"
	"errors"
	"net/http"
	"net/url"
	"testing"
	"time"
)

// slow is a node that answers no caller in time.
type slow struct{}

func (slow) RoundTrip(r *http.Request) (*http.Response, error) {
	<-r.Context().Done()
	return nil, r.Context().Err()
}

func TestATrialThatItsCallerEndsLeavesTheNextCallATrial(t *testing.T) {
	trial := &node{link: newSender(slow{}, &url.URL{}, "")}
	trial.avoidUntil.Store(1)
	client := &Client{nodes: []*node{trial}, deadline: time.Minute}
	ctx, cancel := context.WithTimeout(t.Context(), time.Millisecond)
	defer cancel()
	for range 3 {
		if _, err := client.reply(ctx, &call{}); !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("want the context's error, got %v", err)
		}
	}
}
