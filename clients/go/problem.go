package tollgate

import (
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"strings"
)

// Problem is the error of a call that a node rejected (RFC 9457).
type Problem struct {
	Type              string      `json:"type"`
	Title             string      `json:"title"`
	Status            int         `json:"status"`
	Detail            string      `json:"detail"`
	Violations        []Violation `json:"violations,omitempty"`
	OmittedViolations int         `json:"omitted_violations,omitempty"`
	// Known has the configured policies, for `unknown-policy`.
	Known []string `json:"known,omitempty"`
}

// Violation is one fault of a request.
type Violation struct {
	// Pointer is a JSON pointer into the request.
	Pointer string `json:"pointer"`
	Detail  string `json:"detail"`
}

// Name returns the last part of the type, such as "unknown-policy".
func (p *Problem) Name() string {
	return strings.TrimPrefix(p.Type, problems)
}

// Error returns the problem with its first violation.
func (p *Problem) Error() string {
	text := fmt.Sprintf("tollgate: %s (%d): %s", p.Title, p.Status, p.Detail)
	if len(p.Violations) > 0 {
		text += fmt.Sprintf(" (%s: %s)", p.Violations[0].Pointer, p.Violations[0].Detail)
	}
	return text
}

// badCheck reports whether the node rejected the check itself, and not the caller or the policy.
func badCheck(err error) bool {
	var problem *Problem
	bad := []int{400, 409, 413, 422}
	return errors.As(err, &problem) && slices.Contains(bad, problem.Status) && !problem.unknownPlan()
}

// unknownPlan is, as an unknown policy, a mistake of the program and not of the check.
func (p *Problem) unknownPlan() bool {
	return len(p.Violations) == 1 && strings.HasSuffix(p.Violations[0].Pointer, "/plan")
}

// maxCall is the largest body that a node reads.
const maxCall = 1 << 20

// tooLarge is the problem of a call above maxCall. A node closes the connection of such a call before
// its end. The client would then avoid the node for all its calls.
func tooLarge() *Problem {
	return &Problem{
		Type: "urn:tollgate:problem:too-large", Title: "The body is too large",
		Status: http.StatusRequestEntityTooLarge,
		Detail: fmt.Sprintf("a call may have up to %d bytes", maxCall),
	}
}

// noHold is the problem of a hold under a policy without one. Each of its holds would fail alike.
func noHold(policy string) *Problem {
	return &Problem{
		Type: "urn:tollgate:problem:no-hold", Title: "The policy has no hold", Status: http.StatusNotFound,
		Detail: fmt.Sprintf("the policy %q opened no hold: add `hold: {ttl: 60s}` to it, and give the check a cost "+
			"above 0", policy),
	}
}

// problemOf reads the problem document of a node. It returns nil for an answer of another program.
func problemOf(status int, body []byte) *Problem {
	problem := &Problem{}
	if json.Unmarshal(body, problem) != nil || !strings.HasPrefix(problem.Type, problems) {
		return nil
	}
	problem.Status = status
	return problem
}

// problems begins the types of all problems of a node.
const problems = "urn:tollgate:problem:"

// alone makes the pointers of a problem in a batch those of its check: `/checks/3/key` is `/key`.
func (p *Problem) alone() *Problem {
	for i, violation := range p.Violations {
		if rest, found := strings.CutPrefix(violation.Pointer, "/checks/"); found {
			_, member, _ := strings.Cut(rest, "/")
			p.Violations[i].Pointer = "/" + member
		}
	}
	return p
}

// Unavailable is the error of a call that no node answered within the deadline.
type Unavailable struct {
	// Cause is the failure of the last attempt.
	Cause error
}

func (u *Unavailable) Error() string { return "tollgate: no node answered: " + u.Cause.Error() }

// Unwrap returns the cause, for example [context.DeadlineExceeded].
func (u *Unavailable) Unwrap() error { return u.Cause }
