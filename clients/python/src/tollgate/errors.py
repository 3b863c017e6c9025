"""Failures. A denial is a decision, not a failure."""

from __future__ import annotations

from .types import Problem


class TollgateError(Exception):
    """No decision was made."""


class Unavailable(TollgateError):
    """No node returned a decision within the deadline. The check may have been charged."""


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
