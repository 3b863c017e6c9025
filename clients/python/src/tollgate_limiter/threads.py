"""Checks of many threads share calls.

A check goes at once while fewer than `MAX_ALONE` calls are under way. Then the next thread waits
0.2 ms, and sends the checks that arrived meanwhile as one batch. With fewer threads such a batch
would be small, and the wait would delay each check.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass, field

from .calls import MAX_COALESCED, Decide, Result, Shared
from .errors import Unavailable

GATHER_SECONDS = 0.0002
MAX_ALONE = 4
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
        self._under_way = 0
        self._waiting: list[_Waiting] = []

    async def check(self, one: Shared) -> Result:
        with self._lock:
            if goes_alone := self._under_way < MAX_ALONE:
                self._under_way += 1
            else:
                waiting = _Waiting(one)
                self._waiting.append(waiting)
                leads = len(self._waiting) == 1
        if goes_alone:
            return (await self._send([one]))[0]
        if leads:
            await self._lead()
        elif not waiting.done.wait(2 * self._deadline + SLACK_SECONDS):
            return Unavailable("another thread, which sends the check, does not answer")
        return waiting.result or Unavailable("another thread, which sent the check, ended early")

    async def _lead(self) -> None:
        share: list[_Waiting] = []
        try:
            try:
                time.sleep(GATHER_SECONDS)  # noqa: ASYNC251  No event loop waits.
            finally:
                with self._lock:
                    share, self._waiting = self._waiting, []
            for start in range(0, len(share), MAX_COALESCED):
                part = share[start : start + MAX_COALESCED]
                with self._lock:
                    self._under_way += 1
                results = await self._send([waiting.one for waiting in part])
                for waiting, result in zip(part, results, strict=True):
                    waiting.result = result
        finally:
            # Also if an exception ends this thread.
            for waiting in share:
                waiting.done.set()

    async def _send(self, share: Sequence[Shared]) -> list[Result]:
        try:
            return await self._decide(share)
        finally:
            with self._lock:
                self._under_way -= 1
