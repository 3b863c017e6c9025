"""Checks of many threads share calls.

A check goes at once while fewer than `MAX_ALONE` calls are under way. Then the next thread waits
0.2 ms, and sends the checks that arrived meanwhile as one batch. With fewer threads such a batch
would be small, and the wait would delay each check.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from . import calls
from .batches import MAX_COALESCED, Result, Shared, batch, is_shareable
from .calls import Call
from .errors import ProblemError, TollgateError, Unavailable
from .types import CheckAnswer

GATHER_SECONDS = 0.0002
MAX_ALONE = 4
# The thread that sends the batch answers within its deadline, which begins earlier.
SLACK_SECONDS = 0.1

Send = Callable[[Call[Any], float], Any]


def _locked() -> threading.Lock:
    lock = threading.Lock()
    lock.acquire()
    return lock


@dataclass(slots=True)
class _Waiting(Shared):
    done: threading.Lock = field(default_factory=_locked)
    result: Result | None = None


class ThreadCoalescer:
    def __init__(self, send: Send, deadline: float) -> None:
        self._send = send
        self._deadline = deadline
        self.forget()

    def forget(self) -> None:
        """After a fork no other thread exists."""
        self._lock = threading.Lock()
        self._under_way = 0
        self._waiting: list[_Waiting] = []

    def check(self, body: bytes, repeatable: bool, traceparent: str | None) -> CheckAnswer:
        began = time.monotonic()
        if not is_shareable(body):
            answer: CheckAnswer = self._send(calls.check(body, repeatable, traceparent), began)
            return answer
        with self._lock:
            goes_alone = self._under_way < MAX_ALONE
            if goes_alone:
                self._under_way += 1
            else:
                waiting = _Waiting(body, repeatable, traceparent)
                self._waiting.append(waiting)
                leads = len(self._waiting) == 1
        if goes_alone:
            return self._send_alone(calls.check(body, repeatable, traceparent), began)
        return self._lead(waiting, began) if leads else self._follow(waiting)

    def _send_alone(self, call: Call[CheckAnswer], began: float) -> CheckAnswer:
        try:
            answer: CheckAnswer = self._send(call, began)
            return answer
        finally:
            with self._lock:
                self._under_way -= 1

    def _follow(self, waiting: _Waiting) -> CheckAnswer:
        if not waiting.done.acquire(timeout=self._deadline + SLACK_SECONDS):
            raise Unavailable("another thread, which sends the check, does not answer")
        return _answer(waiting)

    def _lead(self, waiting: _Waiting, began: float) -> CheckAnswer:
        share: list[_Waiting] = []
        try:
            try:
                time.sleep(GATHER_SECONDS)
            finally:
                with self._lock:
                    share, self._waiting = self._waiting, []
            for start in range(0, len(share), MAX_COALESCED):
                self._decide(share[start : start + MAX_COALESCED], began)
        finally:
            # Also if an exception ends this thread.
            for one in share:
                one.done.release()
        return _answer(waiting)

    def _decide(self, share: list[_Waiting], began: float) -> None:
        with self._lock:
            self._under_way += 1
        try:
            results = self._ask(share, began)
        except TollgateError as error:
            results = [error] * len(share)
        finally:
            with self._lock:
                self._under_way -= 1
        for one, result in zip(share, results, strict=True):
            one.result = result

    def _ask(self, share: list[_Waiting], began: float) -> list[Result]:
        if len(share) == 1:
            return [self._send(share[0].alone(), began)]
        try:
            return list(self._send(batch(share), began))
        except ProblemError as error:
            # One faulty check spoiled the call. Its checks go one by one.
            if not error.is_bad_check:
                raise
        return [self._alone(one, began) for one in share]

    def _alone(self, one: _Waiting, began: float) -> Result:
        try:
            answer: CheckAnswer = self._send(one.alone(), began)
            return answer
        except TollgateError as error:
            return error


def _answer(waiting: _Waiting) -> CheckAnswer:
    if waiting.result is None:
        raise Unavailable("another thread, which sent the check, ended before its answer")
    if isinstance(waiting.result, TollgateError):
        raise waiting.result
    return waiting.result
