"""Checks of several callers in one call."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from . import calls
from .calls import Call
from .errors import ProblemError, TollgateError
from .types import CheckAnswer

MAX_COALESCED = 100
# A longer check has a fault, and a node may reject a call for the sum of its bytes.
MAX_SHARED_BYTES = 8 * 1024

Result = CheckAnswer | TollgateError


@dataclass(slots=True)
class Shared:
    """One check, as bytes."""

    body: bytes
    repeatable: bool
    traceparent: str | None

    def alone(self) -> Call[CheckAnswer]:
        return calls.check(self.body, self.repeatable, self.traceparent)


def is_shareable(body: bytes) -> bool:
    return len(body) <= MAX_SHARED_BYTES


def batch(share: Sequence[Shared]) -> Call[list[CheckAnswer | ProblemError]]:
    """One call of them all, with the first traceparent."""
    trace = next((one.traceparent for one in share if one.traceparent), None)
    repeatable = all(one.repeatable for one in share)
    return calls.check_batch([one.body for one in share], repeatable, trace)
