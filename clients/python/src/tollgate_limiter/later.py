"""Coroutines without an event loop: at once, and later in a thread of their client."""

from __future__ import annotations

import heapq
import threading
import time
from collections.abc import Callable, Coroutine
from dataclasses import dataclass, field
from typing import Any, TypeVar

T = TypeVar("T")

# More cancelled calls than this do not wait for their time.
MAX_CANCELLED = 1000


def run(coroutine: Coroutine[Any, Any, T]) -> T:
    """Runs a coroutine that never suspends."""
    try:
        coroutine.send(None)
    except StopIteration as end:
        result: T = end.value
        return result
    coroutine.close()
    raise TypeError("a function of a blocking middleware waits; use one that blocks, or ASGI")


@dataclass(slots=True, order=True)
class Call:
    due: float
    run: Callable[[], object] | None = field(compare=False)

    def cancel(self) -> None:
        self.run = None


class Later:
    """The thread begins with the first call. It dies with the process."""

    def __init__(self) -> None:
        self._calls: list[Call] = []
        self._changed = threading.Condition()
        self._thread: threading.Thread | None = None
        self._cleaned = MAX_CANCELLED

    def after(self, seconds: float, run: Callable[[], object]) -> Call:
        call = Call(time.monotonic() + seconds, run)
        with self._changed:
            if len(self._calls) >= self._cleaned:
                self._calls = [known for known in self._calls if known.run]
                heapq.heapify(self._calls)
                self._cleaned = 2 * len(self._calls) + MAX_CANCELLED
            heapq.heappush(self._calls, call)
            self._changed.notify()
            if self._thread is None:
                self._thread = threading.Thread(target=self._work, daemon=True)
                self._thread.start()
        return call

    def _work(self) -> None:
        while True:
            with self._changed:
                left = self._calls[0].due - time.monotonic() if self._calls else None
                if left is None or left > 0:
                    self._changed.wait(left)
                    continue
                run = heapq.heappop(self._calls).run
            if run:
                run()
