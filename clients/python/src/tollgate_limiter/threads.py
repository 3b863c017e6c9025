"""Checks of many threads share calls.

A check goes at once if no call is under way. Otherwise the first thread to wait sends all checks
that arrive until the end of that call. More small calls would only cost more.
"""

from __future__ import annotations

import threading
from dataclasses import dataclass, field

from .calls import MAX_COALESCED, Decide, Result, Shared
from .errors import Unavailable

# The call under way may be one to a silent node.
LONGEST_WAIT_SECONDS = 0.005
# The thread that sends the batch answers within its deadline, which begins later.
SLACK_SECONDS = 0.2


@dataclass(slots=True)
class _Waiting:
    one: Shared
    done: threading.Event = field(default_factory=threading.Event)
    result: Result | None = None


class ThreadCoalescer:
    """`decide` must not suspend."""

    def __init__(self, decide: Decide, deadline: float) -> None:
        self._decide = decide
        self._deadline = deadline
        self._lock = threading.Lock()
        # Held by the call that is under way.
        self._turn = threading.Lock()
        self._waiting: list[_Waiting] = []

    async def check(self, one: Shared) -> Result:
        waiting = _Waiting(one)
        with self._lock:
            self._waiting.append(waiting)
            leads = len(self._waiting) == 1
        if leads:
            await self._lead()
        elif not waiting.done.wait(2 * self._deadline + SLACK_SECONDS):
            return Unavailable("another thread, which sends the check, does not answer")
        return waiting.result or Unavailable("another thread, which sent the check, ended early")

    async def _lead(self) -> None:
        share: list[_Waiting] = []
        has_turn = False
        try:
            try:
                has_turn = self._turn.acquire(timeout=LONGEST_WAIT_SECONDS)
            finally:
                with self._lock:
                    share, self._waiting = self._waiting, []
            for start in range(0, len(share), MAX_COALESCED):
                part = share[start : start + MAX_COALESCED]
                results = await self._decide([waiting.one for waiting in part])
                for waiting, result in zip(part, results, strict=True):
                    waiting.result = result
        finally:
            # Also if an exception ends this thread.
            if has_turn:
                self._turn.release()
            for waiting in share:
                waiting.done.set()
