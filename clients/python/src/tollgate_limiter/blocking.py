"""The blocking client, on `http.client`."""

from __future__ import annotations

import contextlib
import functools
import http.client
import os
import ssl
import threading
import time
import weakref
from collections import deque
from collections.abc import Callable, Coroutine
from typing import Any, Concatenate, ParamSpec, TypeVar

from .base import BaseClient
from .calls import Call, Result, Shared
from .hold import Hold
from .later import Call as LaterCall, Later, run as run
from .nodes import AttemptFailed, Failure, Node
from .threads import ThreadCoalescer
from .types import CheckAnswer

P = ParamSpec("P")
T = TypeVar("T")

MAX_IDLE = 64
_Idle = deque[http.client.HTTPConnection]


def _blocking(
    method: Callable[Concatenate[BaseClient[Any], P], Coroutine[Any, Any, T]],
) -> Callable[Concatenate[BaseClient[Any], P], T]:
    def call(self: BaseClient[Any], /, *args: P.args, **kwargs: P.kwargs) -> T:
        return run(method(self, *args, **kwargs))

    functools.update_wrapper(call, method)
    return call


class Client(BaseClient[Hold]):
    __doc__ = f"""{BaseClient.__doc__}
    Threads share one client. After a fork each process gets connections of its own.
    """

    _hold_kind = Hold
    check = _blocking(BaseClient._check)
    check_batch = _blocking(BaseClient._check_batch)
    check_all = _blocking(BaseClient._check_all)
    acquire = _blocking(BaseClient._acquire)
    refund = _blocking(BaseClient._refund)
    settle = _blocking(BaseClient._settle)
    renew = _blocking(BaseClient._renew)
    usage = _blocking(BaseClient._usage)
    reset = _blocking(BaseClient._reset)

    def _start(self) -> None:
        """Also after a fork: the connections and the other threads belong to the parent."""
        self._idle = {node: _Idle(maxlen=MAX_IDLE) for node in self._nodes}
        self._threads = ThreadCoalescer(self._decide_together, self._deadline)
        self._calls_later = Later()
        # A silent node must not delay the renewal of a hold.
        self._leases_later = Later()
        _clients.add(self)

    async def _share(self, one: Shared) -> Result:
        if self._coalesce and not one.is_large:
            return await self._threads.check(one)
        return (await self._decide_together([one]))[0]

    async def _stand(
        self, taking: Coroutine[Any, Any, CheckAnswer], give_back: Callable[[], None]
    ) -> CheckAnswer:
        answer = await taking
        try:
            time.sleep((answer.start_in_ms or 0) / 1000)  # noqa: ASYNC251
        except BaseException:
            give_back()
            raise
        return answer

    async def _exchange(
        self, node: Node, call: Call[Any], body: bytes, seconds: float, fresh: bool
    ) -> tuple[int, bytes]:
        until, idle = time.monotonic() + seconds, self._idle[node]
        if fresh:
            _close(idle)
        connection = _take(idle) or _connect(node, seconds)
        fields = self._fields | ({"traceparent": call.traceparent} if call.traceparent else {})
        try:
            # A thread that came late still waits for the answer.
            connection.sock.settimeout(max(until - time.monotonic(), seconds / 2))
            connection.request(call.method, node.prefix + call.path, body, fields)
            response = connection.getresponse()
            reply = response.status, response.read()
        except BaseException as error:
            connection.close()
            if isinstance(error, TimeoutError):
                raise AttemptFailed(Failure.SILENT, "no answer in time") from error
            if isinstance(error, OSError | http.client.HTTPException):
                raise AttemptFailed(Failure.BROKEN, error) from error
            raise
        if connection.sock is not None:
            idle.append(connection)
        return reply

    def _later(self, coroutine: Coroutine[Any, Any, None]) -> None:
        threading.Thread(target=run, args=(coroutine,), daemon=True).start()

    def _after(self, seconds: float, make: Callable[[], Coroutine[Any, Any, None]]) -> LaterCall:
        return self._calls_later.after(seconds, lambda: run(make()))

    def _lease_later(
        self, seconds: float, make: Callable[[], Coroutine[Any, Any, None]]
    ) -> LaterCall:
        return self._leases_later.after(seconds, lambda: run(make()))

    _run = staticmethod(run)

    def close(self) -> None:
        """Settles the leases, and closes the connections."""
        self._leases.close()
        run(self._settle_due())
        if self._leases.calls:
            done = threading.Event()
            self._leases_later.after(0.0, done.set)
            done.wait(self._deadline)
        for idle in self._idle.values():
            _close(idle)

    def __enter__(self) -> Client:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def _connect(node: Node, seconds: float) -> http.client.HTTPConnection:
    connection = http.client.HTTPConnection(node.host, node.port, seconds)
    if node.tls:
        connection = http.client.HTTPSConnection(
            node.host, node.port, timeout=seconds, context=node.tls
        )
    try:
        connection.connect()
    except OSError as error:
        connection.close()
        raise AttemptFailed(Failure.REFUSED, error) from error
    return connection


def _take(idle: _Idle) -> http.client.HTTPConnection | None:
    """The idle connection that was used last, and that the node has not closed."""
    with contextlib.suppress(IndexError):
        while True:
            connection = idle.pop()
            try:
                connection.sock.settimeout(0)
                connection.sock.recv(1)
            except (BlockingIOError, ssl.SSLWantReadError):
                return connection
            except OSError:
                pass
            connection.close()
    return None


def _close(idle: _Idle) -> None:
    with contextlib.suppress(IndexError):
        while True:
            idle.pop().close()


_clients: weakref.WeakSet[Client] = weakref.WeakSet()


def _after_fork() -> None:
    for client in list(_clients):
        client._start()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)
