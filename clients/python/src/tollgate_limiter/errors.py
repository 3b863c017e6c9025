"""Failures. A denial is a decision, not a failure."""

from __future__ import annotations

from .types import Decision, Problem, Violation


class TollgateError(Exception):
    """No decision was made."""


class Unavailable(TollgateError):
    """No node returned a decision within the deadline. The check may have been charged."""

    def __init__(self, reason: str) -> None:
        self.reason = reason
        super().__init__(f"no node answered: {reason}")


class Denied(TollgateError):
    """The work does not begin: its check is denied, or the hold of its id has ended before."""

    def __init__(self, decision: Decision) -> None:
        self.decision = decision
        ended = decision.hold and decision.hold.ended
        super().__init__(f"{decision.policy} denies the check: {ended or decision.reason}")


class HoldEnded(TollgateError):
    """The work no longer has its place: its hold was not renewed in time, or has been ended."""

    def __init__(self, reason: str) -> None:
        self.reason = reason
        super().__init__(f"the hold has ended: {reason}")


class ProblemError(TollgateError):
    """A node rejected the call."""

    def __init__(self, problem: Problem) -> None:
        self.problem = problem
        faults = "; ".join(f"{fault.pointer} {fault.detail}" for fault in problem.violations)
        super().__init__(f"{problem.status} {self.name}: {faults or problem.detail}")

    @property
    def name(self) -> str:
        """The last part of the type, such as `unknown-policy`."""
        return self.problem.type.rpartition(":")[2]

    @property
    def is_bad_check(self) -> bool:
        """Whether the check itself is at fault, and not the caller or the policy."""
        return self.problem.status in (400, 409, 413, 422) and not self.is_unknown_plan

    @property
    def is_unknown_plan(self) -> bool:
        """As an unknown policy, a mistake of the program and not of the check."""
        faults = self.problem.violations
        return len(faults) == 1 and faults[0].pointer.endswith("/plan")


def copy(error: TollgateError) -> TollgateError:
    """Each caller raises an error of its own. One for all would grow by the frames of each."""
    if isinstance(error, ProblemError):
        return ProblemError(error.problem)
    return Unavailable(error.reason) if isinstance(error, Unavailable) else error


def too_large(limit: int) -> ProblemError:
    """As a node reports it, for a call that cannot be sent."""
    kind, title = "urn:tollgate:problem:too-large", "The body is too large"
    return ProblemError(Problem(kind, title, 413, f"a call may have up to {limit} bytes"))


def bad_key(detail: str) -> ProblemError:
    """As a node reports it, for a key that cannot be sent."""
    kind, title = "urn:tollgate:problem:invalid-request", "Invalid request"
    return ProblemError(Problem(kind, title, 422, detail, [Violation(detail, "/key")]))


def no_hold(policy: str) -> ProblemError:
    """Each hold of this policy would fail alike."""
    kind, title = "urn:tollgate:problem:no-hold", "The policy has no hold"
    detail = (
        f'the policy "{policy}" opened no hold: add `hold: {{ttl: 60s}}` to it, and give the check '
        "a cost above 0"
    )
    return ProblemError(Problem(kind, title, 404, detail))
