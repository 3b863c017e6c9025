package tollgate

import (
	"context"
	"errors"
	"fmt"
	"sync/atomic"
	"time"
)

// pause is the time for which calls avoid a failed node. Half a second leaves room for the deadline of
// one call, so that decisions return within a second of the node's return.
const pause = 500 * time.Millisecond

// patience is the time after its newest response for which a node may be busy, rather than silent.
const patience = maxDefaultDeadline

// node is one address of the list, with its own connections.
type node struct {
	link *sender
	// avoidUntil is the end of a pause after a failure, or 0.
	avoidUntil atomic.Int64
	// answered is the time of the newest response.
	answered atomic.Int64
	// asked says that the client asked the node for its timeout.
	asked atomic.Bool
}

var start = time.Now()

// now is monotonic.
func now() int64 { return int64(time.Since(start)) }

// avoided reports whether the node failed within the last pause.
func (n *node) avoided() bool { return n.avoidUntil.Load() > now() }

// admit reports whether a call may try the node. After a pause it admits one call as a trial, and
// begins the next pause for all others. It returns the end of that pause.
func (n *node) admit() (trial int64, admitted bool) {
	until, now := n.avoidUntil.Load(), now()
	if until == 0 {
		return 0, true
	}
	trial = now + int64(pause)
	return trial, until <= now && n.avoidUntil.CompareAndSwap(until, trial)
}

// withdraw ends the pause of a trial whose caller left. So the next call is a trial.
func (n *node) withdraw(trial int64) {
	if trial != 0 {
		n.avoidUntil.CompareAndSwap(trial, now())
	}
}

// avoid begins a pause, unless one is under way. So a slow failure of a trial delays the next trial
// no further.
func (n *node) avoid() {
	until, now := n.avoidUntil.Load(), now()
	if until <= now {
		n.avoidUntil.CompareAndSwap(until, now+int64(pause))
	}
}

func (n *node) respond() {
	n.answered.Store(now())
	if n.avoidUntil.Load() != 0 {
		n.avoidUntil.Store(0)
	}
}

// call is one HTTP request to whichever node answers.
type call struct {
	method, path, query string
	// member is one that each answer has.
	member      string
	body        []byte
	traceparent string
	// repeatable says that a second call lets no more through. It may charge twice without an id.
	repeatable bool
	// again returns the body of a call whose answer was lost; nil means the same body.
	again func() []byte
}

// repeat marks the call as one that a node may have received.
func (c *call) repeat() {
	if c.again != nil {
		c.body, c.again = c.again(), nil
	}
}

type response struct {
	status int
	body   []byte
	// node is the URL of the node.
	node string
}

// ask sends the call, and once more on a new connection if the first one breaks.
func (n *node) ask(ctx context.Context, end end, call *call) (*response, error) {
	began := now()
	answer, err := n.exchange(ctx, end, call)
	broken := err != nil && !ended(ctx, err) && !notSent(err)
	if broken && call.repeatable {
		n.link.closeIdle()
		call.repeat()
		answer, err = n.exchange(ctx, end, call)
		broken = false
	}
	switch {
	case err == nil:
		n.respond()
	case broken || ctx.Err() != nil:
		// One break is no failure of the node: it may have closed an idle connection. And the
		// caller may leave at any time.
	case !errors.Is(err, errDeadline) || n.answered.Load() < began:
		n.avoid()
	}
	return answer, err
}

var errDeadline = fmt.Errorf("the deadline passed: %w", context.DeadlineExceeded)

// ended reports whether the time of the call is over, or its caller left.
func ended(ctx context.Context, err error) bool {
	return ctx.Err() != nil || errors.Is(err, errDeadline)
}

// end is when a call ends. It goes on to the latest time while the node answers other calls.
type end struct{ until, latest time.Time }

// exchange returns the reason if the caller left or the time ended.
func (n *node) exchange(ctx context.Context, end end, call *call) (*response, error) {
	timed, cancel := context.WithCancel(ctx)
	defer cancel()
	defer n.cancelAt(timed, end, cancel).Stop()
	reply, err := n.link.exchange(timed, call)
	switch {
	case err == nil:
		return reply, nil
	case ctx.Err() != nil:
		return nil, context.Cause(ctx)
	case timed.Err() != nil && notSent(err):
		return nil, &notSentError{errDeadline}
	case timed.Err() != nil:
		return nil, errDeadline
	}
	return nil, err
}

// cancelAt ends a call after its time and a short grace. A timer that fires late shows that the whole
// process was late: the answer may wait in the socket. So the grace is as long as the delay.
func (n *node) cancelAt(ctx context.Context, end end, cancel func()) *time.Timer {
	const shortest, longest = 10 * time.Millisecond, time.Second
	return time.AfterFunc(time.Until(end.until), func() {
		late := time.Since(end.until)
		silent := time.Duration(now() - n.answered.Load())
		if more := min(patience-silent, time.Until(end.latest)); more > 0 && ctx.Err() == nil {
			end.until = time.Now().Add(more)
			n.cancelAt(ctx, end, cancel)
			return
		}
		time.AfterFunc(min(max(late, shortest), longest), cancel)
	})
}
