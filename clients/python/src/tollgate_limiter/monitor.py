"""What a client counts and logs. A limiter that fails open would else pass requests silently."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import TypeVar

from .errors import ProblemError
from .types import Decision

D = TypeVar("D", bound=Decision)

# The shortest time between two lines about failures.
LINE_SECONDS = 1.0
MAX_WARNINGS = 32

log = logging.getLogger("tollgate_limiter")


@dataclass(slots=True)
class Stats:
    """The counts of a client since it was made.

    `allowed` and `denied` count decisions; drains, settles and refunds are none. `sources` counts
    them by their `source`, such as `store`, `prefilter`, `fallback`, `lease` or `client`. `passed`
    are requests that a middleware passed without a decision. `failures` are checks and calls that
    no node answered, or that one rejected.
    """

    allowed: int = 0
    denied: int = 0
    sources: dict[str, int] = field(default_factory=dict)
    passed: int = 0
    failures: int = 0


class Monitor:
    """Threads share it."""

    def __init__(self, on_decision: Callable[[Decision], object] | None) -> None:
        self._on_decision = on_decision
        self._lock = threading.Lock()
        self._counts = Stats()
        self._warned: set[str] = set()
        # Failures since the last return of decisions.
        self._outage = 0
        self._began = self._newest = 0.0
        self._logged = float("-inf")

    def stats(self) -> Stats:
        with self._lock:
            return replace(self._counts, sources=dict(self._counts.sources))

    def decided(self, decision: D) -> D:
        with self._lock:
            counts = self._counts
            counts.allowed += decision.allowed
            counts.denied += not decision.allowed
            counts.sources[decision.source] = counts.sources.get(decision.source, 0) + 1
        if self._outage:
            self._returned(decision)
        if self._on_decision:
            try:
                self._on_decision(decision)
            except Exception as error:
                self.log("on_decision failed", error)
        return decision

    def passed(self) -> None:
        """A request passes without a decision."""
        with self._lock:
            self._counts.passed += 1

    def failed(self) -> None:
        with self._lock:
            self._counts.failures += 1

    def log(self, what: str, error: BaseException) -> None:
        """Logs a failure that no caller sees: the first one, and then at most one a second."""
        with self._lock:
            now = time.monotonic()
            self._began = self._began if self._outage else now
            self._outage += 1
            self._newest = now
            if now - self._logged < LINE_SECONDS:
                return
            self._logged = now
            more = f" ({self._summary(now)})" if self._outage > 1 else ""
        log.warning("%s: %s%s", what, error, more)

    def warn(self, mistake: str, text: str) -> None:
        """Warns of each mistake once."""
        if mistake not in self._warned and len(self._warned) < MAX_WARNINGS:
            self._warned.add(mistake)
            log.warning(text)

    def heed(self, error: ProblemError) -> None:
        """Warns of a problem that each further check would have, too."""
        problem = error.problem
        if error.name == "unknown-policy":
            known = ", ".join(problem.known[:20])
            text = f"{problem.detail} (the node has {known}): set `policy` to one of the node's"
            self.warn(problem.detail, f"{text}. Until then its checks get no decision")
        elif error.is_unknown_plan:
            text = f"{problem.detail}: set `plan` to one of them"
            self.warn(problem.detail, f"{text}. Until then its checks get no decision")
        elif error.name == "no-hold":
            self.warn(problem.detail, problem.detail)
        elif problem.status in (401, 403):
            text = f"the node refused the token ({problem.status} {problem.detail})"
            self.warn("token", f"{text}: set `token` to one that may make this call")

    def _returned(self, decision: Decision) -> None:
        """Failures go on for a while beside decisions. So decisions return after a quiet second."""
        with self._lock:
            now = time.monotonic()
            if not self._outage or now - self._newest < LINE_SECONDS:
                return
            if decision.source in ("client", "lease"):
                return
            summary = self._summary(self._newest)
            self._outage, self._logged = 0, now
        log.warning("decisions are back after %s", summary)

    def _summary(self, now: float) -> str:
        failures = "1 failure" if self._outage == 1 else f"{self._outage} failures"
        return f"{failures} in {now - self._began:.1f} s"
