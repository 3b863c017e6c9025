"""The client for asyncio."""

from __future__ import annotations

import asyncio
import itertools
import threading
import time
from collections import defaultdict
from collections.abc import Callable, Coroutine
from dataclasses import dataclass
from typing import Any, TypeVar

from .base import BaseClient
from .calls import MAX_COALESCED, Call, Decide, Result, Shared
from .hold import AsyncHold
from .nodes import AttemptFailed, Failure, Node
from .types import CheckAnswer
from .wire import Reply, request

T = TypeVar("T")

PARTS = 10
# How long the end of a client waits for drains and refunds.
WAIT_SECONDS = 10.0
# While a call is under way, checks wait for its end, since more small calls would only cost more.
# A silent node does not delay them for longer than this.
LONGEST_WAIT_SECONDS = 0.005


class AsyncClient(BaseClient[AsyncHold]):
    __doc__ = f"""{BaseClient.__doc__}
    Tasks share one client, and event loops too. Checks of one turn of a loop share a call.
    """

    _hold_kind = AsyncHold
    check = BaseClient._check
    check_batch = BaseClient._check_batch
    check_all = BaseClient._check_all
    acquire = BaseClient._acquire
    refund = BaseClient._refund
    settle = BaseClient._settle
    renew = BaseClient._renew
    usage = BaseClient._usage
    reset = BaseClient._reset

    def _start(self) -> None:
        self._lock = threading.Lock()
        self._parts: dict[asyncio.AbstractEventLoop, _LoopPart] = {}

    def _part(self) -> _LoopPart:
        loop = asyncio.get_running_loop()
        part = self._parts.get(loop)
        if part is None:
            with self._lock:
                for other in [other for other in self._parts if other.is_closed()]:
                    del self._parts[other]
                part = self._parts[loop] = _LoopPart(loop, self._fields)
        return part

    async def _share(self, one: Shared) -> Result:
        is_shareable = self._coalesce and not one.is_large
        return await self._part().share(one, is_shareable, self._decide_together)

    async def _stand(
        self, taking: Coroutine[Any, Any, CheckAnswer], give_back: Callable[[], None]
    ) -> CheckAnswer:
        task = self._start_task(taking)
        try:
            answer = await asyncio.shield(task)
            await asyncio.sleep((answer.start_in_ms or 0) / 1000)
        except asyncio.CancelledError:
            # A refund before the check would find nothing.
            task.add_done_callback(lambda _: give_back())
            raise
        return answer

    async def _exchange(
        self, node: Node, call: Call[Any], body: bytes, seconds: float, fresh: bool
    ) -> tuple[int, bytes]:
        return await self._part().exchange(node, call, body, seconds, fresh)

    def _later(self, coroutine: Coroutine[Any, Any, None]) -> None:
        self._part().start(coroutine)

    def _start_task(self, coroutine: Coroutine[Any, Any, T]) -> asyncio.Task[T]:
        return self._part().start(coroutine)

    def _after(
        self, seconds: float, make: Callable[[], Coroutine[Any, Any, None]]
    ) -> asyncio.TimerHandle | asyncio.Task[None]:
        part = self._part()
        if not seconds:
            return part.start(make())
        return part.loop.call_later(seconds, lambda: part.start(make()))

    _lease_later = _after

    def _run(self, coroutine: Coroutine[Any, Any, None]) -> None:
        asyncio.run(coroutine)

    async def _end_leases(self) -> None:
        self._leases.close()
        await self._settle_due()

    async def wait(self) -> None:
        """Waits for what goes on beside the callers in the running loop, such as drains."""
        tasks, end = self._part().tasks, time.monotonic() + WAIT_SECONDS
        while tasks and (left := end - time.monotonic()) > 0:
            await asyncio.wait(tasks, timeout=left)

    async def close(self) -> None:
        """Settles the leases, waits, and closes the connections of the running loop."""
        await self._end_leases()
        await self.wait()
        with self._lock:
            part = self._parts.pop(asyncio.get_running_loop())
        for connection in itertools.chain(*part.idle.values()):
            connection.close()

    async def __aenter__(self) -> AsyncClient:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()


@dataclass(slots=True, eq=False)
class _Waiting:
    one: Shared
    result: asyncio.Future[Result]


class _LoopPart:
    """Connections, tasks and waiting checks belong to one event loop."""

    def __init__(self, loop: asyncio.AbstractEventLoop, fields: str) -> None:
        self.loop = loop
        self.tasks: set[asyncio.Task[Any]] = set()
        self._waiting: list[_Waiting] = []
        self._under_way = 0
        self.idle: defaultdict[Node, list[_Connection]] = defaultdict(list)
        self._fields = fields

    # ---- checks --------------------------------------------------------------------------------

    async def share(self, one: Shared, is_shareable: bool, decide: Decide) -> Result:
        """The check goes on without its caller. Otherwise callers that leave would not count."""
        waiting = _Waiting(one, self.loop.create_future())
        if not is_shareable:
            self.start(self._answer([waiting], decide))
        else:
            if not self._waiting:
                seconds = LONGEST_WAIT_SECONDS if self._under_way else 0.0
                self.loop.call_later(seconds, self._flush, decide)
            self._waiting.append(waiting)
        return await waiting.result

    def _flush(self, decide: Decide) -> None:
        waiting, self._waiting = self._waiting, []
        for start in range(0, len(waiting), MAX_COALESCED):
            self.start(self._send(waiting[start : start + MAX_COALESCED], decide))

    async def _send(self, share: list[_Waiting], decide: Decide) -> None:
        self._under_way += 1
        try:
            await self._answer(share, decide)
        finally:
            self._under_way -= 1
            self._flush(decide)

    async def _answer(self, share: list[_Waiting], decide: Decide) -> None:
        try:
            results = await decide([waiting.one for waiting in share])
        except asyncio.CancelledError:
            for waiting in share:
                waiting.result.cancel()
            raise
        for waiting, result in zip(share, results, strict=True):
            if not waiting.result.done():
                waiting.result.set_result(result)

    def start(self, coroutine: Coroutine[Any, Any, T]) -> asyncio.Task[T]:
        task = self.loop.create_task(coroutine)
        self.tasks.add(task)
        task.add_done_callback(self.tasks.discard)
        return task

    # ---- nodes ---------------------------------------------------------------------------------

    async def exchange(
        self, node: Node, call: Call[Any], body: bytes, seconds: float, fresh: bool
    ) -> tuple[int, bytes]:
        """Ends after `seconds` in which the loop ran.

        The seconds have parts. A part that ends late counts as if it were not. So a loop that
        other tasks block still reads the answer.
        """
        began, part, passed, idle = time.monotonic(), seconds / PARTS, 0, self.idle[node]
        connection: _Connection | None = None
        task: Any = asyncio.current_task()
        timer = self.loop.call_later(part, lambda: tick())

        def tick() -> None:
            nonlocal passed, timer
            passed += 1
            timer = self.loop.call_later(part, tick)
            if passed >= PARTS and not (connection and connection.is_answered()):
                task.cancel()

        try:
            while idle and (fresh or not idle[-1].is_open):
                idle.pop().close()
            connection = idle.pop() if idle else await self._connect(node)
            reply = await connection.exchange(request(node, call, body, self._fields))
        except AttemptFailed as caught:
            error = caught
        except asyncio.CancelledError:
            if passed < PARTS or getattr(task, "uncancel", int)():
                raise
            failure = Failure.SILENT if connection else Failure.REFUSED
            error = AttemptFailed(failure, "no answer in time")
        else:
            if connection.is_open:
                idle.append(connection)
            return reply
        finally:
            timer.cancel()
        error.late = max(0.0, time.monotonic() - began - (passed + 1) * part)
        raise error

    async def _connect(self, node: Node) -> _Connection:
        name = node.host if node.tls else None
        try:
            _, connection = await self.loop.create_connection(
                _Connection, node.host, node.port, ssl=node.tls, server_hostname=name
            )
        except OSError as error:
            raise AttemptFailed(Failure.REFUSED, error) from error
        return connection


class _Connection(asyncio.Protocol):
    """A connection for one call at a time."""

    def __init__(self) -> None:
        self.is_open = True
        self._answered: asyncio.Future[tuple[int, bytes]] | None = None

    async def exchange(self, request: bytes) -> tuple[int, bytes]:
        self._answered = asyncio.get_running_loop().create_future()
        self._reply = Reply()
        self._transport.write(request)
        try:
            return await self._answered
        except (Exception, asyncio.CancelledError):
            self.close()
            raise
        finally:
            self._answered = None

    def is_answered(self) -> bool:
        return self._answered is None or self._answered.done()

    def close(self) -> None:
        self.is_open = False
        self._transport.abort()

    def connection_made(self, transport: Any) -> None:
        self._transport = transport

    def connection_lost(self, error: Exception | None) -> None:
        self.is_open = False
        cause = error or "the node closed the connection"
        self._fail(AttemptFailed(Failure.BROKEN, cause))

    def data_received(self, data: bytes) -> None:
        if self._answered is None:
            self.close()
            return
        try:
            self._reply.feed(data)
        except AttemptFailed as error:
            self._fail(error)
            return
        if self._reply.answer and not self.is_answered():
            self.is_open = self.is_open and self._reply.keeps_alive
            self._answered.set_result(self._reply.answer)

    def _fail(self, error: AttemptFailed) -> None:
        if self._answered is not None and not self.is_answered():
            self._answered.set_exception(error)
