"""Checks that begin in one turn of the event loop share one call.

A timer of 0.2 ms would wait longer: the selectors of asyncio round up to a whole millisecond. The
end of the turn costs a lone check nothing.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any

from . import calls
from .calls import Call
from .errors import ProblemError, TollgateError
from .settings import MAX_COALESCED
from .types import CheckAnswer

# A longer check has a fault, and a call may reject all checks for the sum of their bytes.
MAX_SHARED_BYTES = 8 * 1024

Send = Callable[[Call[Any], float], Awaitable[Any]]


@dataclass(slots=True)
class _Waiting:
    body: bytes
    repeatable: bool
    traceparent: str | None
    answer: asyncio.Future[CheckAnswer]


class Coalescer:
    def __init__(self, send: Send) -> None:
        self._send = send
        self._waiting: list[_Waiting] = []
        self._began = 0.0
        self._tasks: set[asyncio.Task[None]] = set()

    def follow(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._waiting = []
        self._tasks = set()

    async def check(self, body: bytes, repeatable: bool, traceparent: str | None) -> CheckAnswer:
        if len(body) > MAX_SHARED_BYTES:
            call = calls.check(body, repeatable, traceparent)
            answer: CheckAnswer = await self._send(call, time.monotonic())
            return answer
        if not self._waiting:
            self._began = time.monotonic()
            self._loop.call_soon(self._flush)
        waiting = _Waiting(body, repeatable, traceparent, self._loop.create_future())
        self._waiting.append(waiting)
        return await waiting.answer

    def _flush(self) -> None:
        waiting, self._waiting = self._waiting, []
        for start in range(0, len(waiting), MAX_COALESCED):
            share = waiting[start : start + MAX_COALESCED]
            task = self._loop.create_task(self._decide(share, self._began))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)

    async def _decide(self, share: list[_Waiting], began: float) -> None:
        try:
            results = await self._ask(share, began)
        except TollgateError as error:
            results = [error] * len(share)
        except BaseException:
            for waiting in share:
                waiting.answer.cancel()
            raise
        for waiting, result in zip(share, results, strict=True):
            if waiting.answer.done():
                continue
            if isinstance(result, TollgateError):
                waiting.answer.set_exception(result)
            else:
                waiting.answer.set_result(result)

    async def _ask(
        self, share: list[_Waiting], began: float
    ) -> list[CheckAnswer | ProblemError | TollgateError]:
        if len(share) == 1:
            return [await self._alone(share[0], began)]
        trace = next((one.traceparent for one in share if one.traceparent), None)
        repeatable = all(one.repeatable for one in share)
        call = calls.check_batch([one.body for one in share], repeatable, trace)
        try:
            results: list[CheckAnswer | ProblemError | TollgateError] = await self._send(
                call, began
            )
            return results
        except ProblemError as error:
            if error.problem.status not in (400, 413, 422):
                raise
        return await asyncio.gather(*(self._alone(one, began) for one in share))

    async def _alone(self, one: _Waiting, began: float) -> CheckAnswer | TollgateError:
        try:
            call = calls.check(one.body, one.repeatable, one.traceparent)
            answer: CheckAnswer = await self._send(call, began)
            return answer
        except TollgateError as error:
            return error
