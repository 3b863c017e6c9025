"""Connections of asyncio to one node, kept alive and shared by the tasks of a loop."""

from __future__ import annotations

import asyncio
import time
from typing import cast

from .http1 import Answer, AnswerReader, MalformedAnswer
from .nodes import AttemptFailed, Failure, Node

MAX_IDLE = 64


class AsyncPool:
    """The idle connections of a node, the last used first."""

    def __init__(self, node: Node, fields: bytes) -> None:
        self.node = node
        self.fields = fields
        self._idle: list[Connection] = []

    async def exchange(self, request: bytes, until: float, fresh: bool) -> Answer:
        """Sends `request` and returns the answer, or raises `AttemptFailed`."""
        if fresh:
            self.close()
        connection = self._take() or await _connect(self.node, until)
        answer = await connection.exchange(request, until)
        self.node.answered(time.monotonic())
        if answer.keep_alive and len(self._idle) < MAX_IDLE:
            self._idle.append(connection)
        else:
            connection.close()
        return answer

    def _take(self) -> Connection | None:
        while self._idle:
            connection = self._idle.pop()
            if connection.is_open:
                return connection
        return None

    def close(self) -> None:
        while self._idle:
            self._idle.pop().close()


class Connection(asyncio.Protocol):
    """One connection, for one exchange at a time."""

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._answer: asyncio.Future[Answer] | None = None
        self._reader = AnswerReader()
        self.is_open = True

    async def exchange(self, request: bytes, until: float) -> Answer:
        self._reader = AnswerReader()
        answer: asyncio.Future[Answer] = self._loop.create_future()
        self._answer = answer
        timer = self._loop.call_later(until - time.monotonic(), self._silent)
        try:
            self._transport.write(request)
            return await answer
        except BaseException:
            self._transport.abort()
            self.is_open = False
            raise
        finally:
            timer.cancel()
            self._answer = None

    def close(self) -> None:
        self.is_open = False
        self._transport.close()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        # The transports of uvloop do not inherit from those of asyncio.
        self._transport = cast(asyncio.Transport, transport)

    def data_received(self, data: bytes) -> None:
        if self._answer is None:
            self.close()
            return
        try:
            if self._reader.feed(data):
                self._succeed()
        except MalformedAnswer as error:
            self._fail(Failure.BROKEN, error)

    def connection_lost(self, error: Exception | None) -> None:
        self.is_open = False
        if self._reader.end():
            self._succeed()
        else:
            self._fail(Failure.BROKEN, error or "the node closed the connection")

    def _silent(self) -> None:
        self._fail(Failure.SILENT, "no answer in time")

    def _succeed(self) -> None:
        if self._answer is not None and not self._answer.done():
            assert self._reader.answer is not None
            self._answer.set_result(self._reader.answer)

    def _fail(self, failure: Failure, cause: object) -> None:
        if self._answer is not None and not self._answer.done():
            self._answer.set_exception(AttemptFailed(failure, cause))


async def _connect(node: Node, until: float) -> Connection:
    loop = asyncio.get_running_loop()
    connecting = loop.create_connection(
        Connection,
        node.host,
        node.port,
        ssl=node.tls,
        server_hostname=node.host if node.tls else None,
    )
    try:
        _, connection = await asyncio.wait_for(connecting, until - time.monotonic())
    except (TimeoutError, asyncio.TimeoutError) as error:
        raise AttemptFailed(Failure.REFUSED, f"no connection to {node.authority}") from error
    except OSError as error:
        raise AttemptFailed(Failure.REFUSED, error) from error
    return connection
