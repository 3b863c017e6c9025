"""The client for asyncio."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Iterable, Sequence
from typing import Any, TypeVar

from . import calls
from .calls import Call
from .coalescer import Coalescer
from .connection import AsyncPool
from .errors import ProblemError, Unavailable
from .nodes import AttemptFailed, Attempts, Failure
from .settings import DEFAULT_DEADLINE, DEFAULT_NODE, Settings, as_check
from .types import Check, CheckAnswer, RefundAnswer, TogetherAnswer, Usage

T = TypeVar("T")


class AsyncClient:
    """Asks nodes of Tollgate. Tasks, and also event loops, share one client.

    The options and failures are those of `Client`. With `coalesce`, the checks of one turn of the
    event loop share a call.
    """

    def __init__(
        self,
        nodes: str | Iterable[str] = DEFAULT_NODE,
        *,
        deadline: float = DEFAULT_DEADLINE,
        token: str | None = None,
        ca_file: str | None = None,
        retry: bool = True,
        coalesce: bool = True,
    ) -> None:
        self._settings = Settings(nodes, deadline, token, ca_file, retry)
        self._coalesce = coalesce
        self._lock = threading.Lock()
        self._parts: dict[asyncio.AbstractEventLoop, _LoopPart] = {}
        self._last: _LoopPart | None = None

    async def check(
        self,
        key: str,
        policy: str | None = None,
        cost: int | None = None,
        *,
        meta: str | None = None,
        id: str | None = None,
        quotas: list[str | dict[str, Any]] | None = None,
        over: str | None = None,
        traceparent: str | None = None,
    ) -> CheckAnswer:
        """May `key` spend `cost` under `policy`, now? A cancelled check counts all the same."""
        check = as_check(key, policy, cost, meta, id, quotas, over)
        body, repeatable = self._settings.encode(check)
        trace = calls.traceparent(traceparent)
        return await self._part().coalescer.check(body, repeatable, trace)

    async def check_batch(self, checks: Sequence[Check]) -> list[CheckAnswer | ProblemError]:
        """Decides each of 1 to 1000 checks alone. A rejected one is returned as its problem."""
        encoded = [self._settings.encode(check) for check in checks]
        repeatable = all(repeatable for _, repeatable in encoded)
        return await self._call(calls.check_batch([body for body, _ in encoded], repeatable))

    async def check_all(self, checks: Sequence[Check]) -> TogetherAnswer:
        """Charges all of 1 to 16 checks or none."""
        return await self._call(calls.check_all(checks))

    async def refund(
        self, key: str, policy: str | None = None, *, cost: int | None = None, id: str | None = None
    ) -> RefundAnswer:
        """Gives the charge of `id` back, or `cost` units."""
        return await self._call(calls.refund(key, policy, cost, id))

    async def usage(self, key: str, policy: str | None = None, *, cost: int | None = None) -> Usage:
        """The decision for cost 0, or for `cost`, without a charge."""
        return await self._call(calls.usage(key, policy, cost))

    async def _call(self, call: Call[T]) -> T:
        return await self._part().send(call, time.monotonic())

    def _part(self) -> _LoopPart:
        loop, last = asyncio.get_running_loop(), self._last
        if last is not None and last.loop is loop:
            return last
        with self._lock:
            for other in [other for other in self._parts if other.is_closed()]:
                del self._parts[other]
            if loop not in self._parts:
                self._parts[loop] = _LoopPart(self._settings, loop, self._coalesce)
            self._last = part = self._parts[loop]
        return part

    async def close(self) -> None:
        """Closes the connections of the running loop."""
        self._part().close()

    async def __aenter__(self) -> AsyncClient:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()


class _LoopPart:
    """Connections and waiting checks belong to one event loop."""

    def __init__(self, settings: Settings, loop: asyncio.AbstractEventLoop, coalesce: bool) -> None:
        self.loop = loop
        self.coalescer = Coalescer(self.send, loop, coalesce)
        self._settings = settings
        self._pools = {
            id(node): AsyncPool(node, settings.fields(node.authority)) for node in settings.nodes
        }

    async def send(self, call: Call[T], began: float) -> T:
        attempts = Attempts(self._settings.nodes, call.repeatable, began + self._settings.deadline)
        fresh = False
        while (attempt := attempts.next(time.monotonic())) is not None:
            node, until = attempt
            pool = self._pools[id(node)]
            request = call.request(node.prefix, pool.fields)
            try:
                return call.answer(await pool.exchange(request, until, fresh))
            except AttemptFailed as error:
                attempts.failed(error, time.monotonic())
                fresh = error.failure is Failure.BROKEN
        raise Unavailable(attempts.reason) from attempts.last

    def close(self) -> None:
        for pool in self._pools.values():
            pool.close()
