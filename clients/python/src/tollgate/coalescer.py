"""Checks that begin in one turn of the event loop share one call.

A check goes on without its caller. Otherwise callers that leave at once would not count.

A timer of 0.2 ms would wait longer: the selectors of asyncio round up to a whole millisecond. The
end of the turn costs a lone check nothing.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import Any

from .batches import MAX_COALESCED, Result, Shared, batch, is_shareable
from .calls import Call
from .errors import ProblemError, TollgateError
from .types import CheckAnswer

Send = Callable[[Call[Any], float], Awaitable[Any]]


@dataclass(slots=True)
class _Waiting(Shared):
    answer: asyncio.Future[CheckAnswer]


class Coalescer:
    def __init__(self, send: Send, loop: asyncio.AbstractEventLoop, shares: bool) -> None:
        self._send = send
        self._loop = loop
        self._shares = shares
        self._waiting: list[_Waiting] = []
        self._began = 0.0
        self._tasks: set[asyncio.Task[None]] = set()

    async def check(self, body: bytes, repeatable: bool, traceparent: str | None) -> CheckAnswer:
        waiting = _Waiting(body, repeatable, traceparent, self._loop.create_future())
        if not self._shares or not is_shareable(body):
            self._start([waiting], time.monotonic())
            return await waiting.answer
        if not self._waiting:
            self._began = time.monotonic()
            self._loop.call_soon(self._flush)
        self._waiting.append(waiting)
        return await waiting.answer

    def _flush(self) -> None:
        waiting, self._waiting = self._waiting, []
        for start in range(0, len(waiting), MAX_COALESCED):
            self._start(waiting[start : start + MAX_COALESCED], self._began)

    def _start(self, share: list[_Waiting], began: float) -> None:
        task = self._loop.create_task(self._decide(share, began))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _decide(self, share: list[_Waiting], began: float) -> None:
        try:
            results: Sequence[CheckAnswer | Exception] = await self._ask(share, began)
        except Exception as error:
            results = [error] * len(share)
        except BaseException:
            for waiting in share:
                waiting.answer.cancel()
            raise
        for waiting, result in zip(share, results, strict=True):
            if waiting.answer.done():
                continue
            if isinstance(result, Exception):
                waiting.answer.set_exception(result)
            else:
                waiting.answer.set_result(result)

    async def _ask(self, share: list[_Waiting], began: float) -> list[Result]:
        if len(share) == 1:
            return [await self._alone(share[0], began)]
        try:
            return list(await self._send(batch(share), began))
        except ProblemError as error:
            # One faulty check spoiled the call. Its checks go one by one.
            if not error.is_bad_check:
                raise
        return await asyncio.gather(*(self._alone(one, began) for one in share))

    async def _alone(self, one: Shared, began: float) -> Result:
        try:
            answer: CheckAnswer = await self._send(one.alone(), began)
            return answer
        except TollgateError as error:
            return error
