"""Denials that a node reported as final. The client repeats them without a call.

A node's pre-filter reports only a denial that no other caller can change before its
`retry_after_ms`. So the client may deny as long, and never longer.
"""

from __future__ import annotations

import math
import threading
import time
from dataclasses import dataclass, replace

from .types import Check, CheckAnswer

MAX_ENTRIES = 10_000

Place = tuple[str, str, str | None]


@dataclass(slots=True)
class _Entry:
    answer: CheckAnswer
    plan: str | None
    sent: float
    until: float
    fresh_until: float


class Denials:
    """At most `MAX_ENTRIES`, the oldest out first. All instants are monotonic seconds.

    An entry answers for `seconds`. After that it answers only while no node does.
    """

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds
        self._entries: dict[Place, _Entry] = {}
        self._lock = threading.Lock()
        self._forgot_at = 0.0

    def place(self, check: Check) -> Place | None:
        """Where the denials of `check` are. None: only a node may answer it."""
        has_own_id = check.get("id") is not None and not check.get("once")
        if not self._seconds or has_own_id or check.get("over") == "drain" or check.get("wait_ms"):
            return None
        # A node rejects other types.
        if not isinstance(check["key"], str) or type(cost_of(check)) is not int:
            return None
        quotas = check.get("quotas")
        return check.get("policy") or "default", check["key"], repr(quotas) if quotas else None

    def find(
        self, place: Place | None, check: Check, now: float, *, stale: bool = False
    ) -> CheckAnswer | None:
        """The denial of `check`, as a node would report it now."""
        entry = self._entries.get(place) if place else None
        if entry is None or now >= (entry.until if stale else entry.fresh_until):
            return None
        known, cost, passed = entry.answer, cost_of(check), (now - entry.sent) * 1000
        # A plan has quotas of its own.
        if cost < known.cost or check.get("plan") != entry.plan:
            return None
        return replace(
            known,
            cost=cost,
            charged=0,
            retry_after_ms=math.ceil((known.retry_after_ms or 0) - passed),
            reset_after_ms=max(0, math.ceil((known.reset_after_ms or 0) - passed)),
            source="client",
            reason="over_limit",
        )

    def learn(
        self, place: Place | None, answer: CheckAnswer, sent: float, plan: str | None = None
    ) -> None:
        """`sent` is when the call with the check began."""
        if place is None or (answer.allowed and place not in self._entries):
            return
        with self._lock:
            if answer.allowed:
                known = self._entries.get(place)
                if known is not None and answer.cost >= known.answer.cost:
                    del self._entries[place]
            elif answer.source == "prefilter" and answer.retry_after_ms and sent > self._forgot_at:
                until = sent + answer.retry_after_ms / 1000
                self._entries.pop(place, None)
                if len(self._entries) >= MAX_ENTRIES:
                    del self._entries[next(iter(self._entries))]
                fresh_until = min(until, sent + self._seconds)
                self._entries[place] = _Entry(answer, plan, sent, until, fresh_until)

    def forget(self, policy: str | None, key: str) -> None:
        """A node may now allow what it denied. Refunds and resets know no quotas of checks."""
        with self._lock:
            self._forgot_at = time.monotonic()
            self._entries.pop((policy or "default", key, None), None)


def cost_of(check: Check) -> int:
    cost = check.get("cost")
    return 1 if cost is None else cost
