package tollgate

import (
	"context"
	"errors"
	"fmt"
	"net"
	"sync/atomic"
	"time"
)

// pause is the time for which calls avoid a failed node. Half a second leaves room for the deadline of
// one call, so that decisions return within a second of the node's return.
const pause = 500 * time.Millisecond

// node is one address of the list, with its own connections.
type node struct {
	link link
	// avoidUntil is the end of a pause after a failure, or 0.
	avoidUntil atomic.Int64
	// answered is the time of the newest response.
	answered atomic.Int64
}

// link sends one call to one node.
type link interface {
	exchange(ctx context.Context, until time.Time, call *call) (*response, error)
	// closeIdle makes the next calls connect anew.
	closeIdle()
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
	body                []byte
	traceparent         string
	// repeatable says that a second call cannot charge twice.
	repeatable bool
}

type response struct {
	status int
	body   []byte
	// last says that the node closes the connection.
	last bool
}

// ask sends the call, and once more on a new connection if the first one breaks.
func (n *node) ask(ctx context.Context, until time.Time, call *call) (*response, error) {
	began := now()
	answer, err := n.exchange(ctx, until, call)
	broken := err != nil && !ended(ctx, err) && !notSent(err)
	if broken && call.repeatable {
		n.link.closeIdle()
		answer, err = n.exchange(ctx, until, call)
		broken = false
	}
	switch {
	case err == nil:
		n.respond()
	case broken || left(ctx) != nil:
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
	return left(ctx) != nil || errors.Is(err, errDeadline)
}

// left returns why the caller waits no more, or nil. The timer of a context may be late. A dial to its
// deadline then ends first, by a timeout of its own.
func left(ctx context.Context) error {
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	if deadline, ok := ctx.Deadline(); ok && !time.Now().Before(deadline) {
		return context.DeadlineExceeded
	}
	return nil
}

// exchange returns the reason if the caller left or the time ended.
func (n *node) exchange(ctx context.Context, until time.Time, call *call) (*response, error) {
	reply, err := n.link.exchange(ctx, until, call)
	if err == nil {
		return reply, nil
	}
	if cause := left(ctx); cause != nil {
		return nil, cause
	}
	if !time.Now().Before(until) {
		return nil, errDeadline
	}
	return nil, err
}

// notSent reports whether the node surely received nothing.
func notSent(err error) bool {
	var dial *net.OpError
	var handshake *handshakeError
	return errors.As(err, &dial) && dial.Op == "dial" || errors.As(err, &handshake)
}
