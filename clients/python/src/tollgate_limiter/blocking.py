"""The blocking client, on sockets."""

from __future__ import annotations

import contextlib
import functools
import os
import selectors
import socket
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
from .wire import Reply, request

P = ParamSpec("P")
T = TypeVar("T")

MAX_IDLE = 64
_Idle = deque[socket.socket]


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
        end, idle = time.monotonic() + seconds, self._idle[node]
        if fresh:
            _close(idle)
        connection = _take(idle) or _connect(node, end)
        # A thread that came late still waits for the answer.
        end, reply = max(end, time.monotonic() + seconds / 2), Reply()
        try:
            connection.settimeout(max(end - time.monotonic(), 0.001))
            connection.sendall(request(node, call, body, self._fields))
            while reply.answer is None:
                reply.feed(_receive(connection, end))
        except BaseException as error:
            connection.close()
            if isinstance(error, TimeoutError):
                raise AttemptFailed(Failure.SILENT, "no answer in time") from error
            if isinstance(error, OSError):
                raise AttemptFailed(Failure.BROKEN, error) from error
            raise
        if reply.keeps_alive:
            idle.append(connection)
        else:
            connection.close()
        return reply.answer

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


def _connect(node: Node, end: float) -> socket.socket:
    left = max(end - time.monotonic(), 0.001)
    try:
        connection = socket.create_connection((node.host, node.port), left)
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        if node.tls:
            connection = node.tls.wrap_socket(
                connection, server_hostname=node.host, do_handshake_on_connect=False
            )
            _shake_hands(connection, end)
    except OSError as error:
        raise AttemptFailed(Failure.REFUSED, error) from error
    return connection


def _shake_hands(connection: ssl.SSLSocket, end: float) -> None:
    """A timeout of the socket would begin anew with each part of the handshake."""
    connection.settimeout(0)
    with selectors.DefaultSelector() as selector:
        selector.register(connection, selectors.EVENT_READ)
        while True:
            try:
                connection.do_handshake()
                return
            except ssl.SSLWantReadError:
                if not selector.select(max(end - time.monotonic(), 0)):
                    connection.close()
                    raise TimeoutError("the handshake of TLS did not end in time") from None
            except OSError:
                connection.close()
                raise


def _receive(connection: socket.socket, end: float) -> bytes:
    """What arrives until `end`, or has arrived when this thread comes late."""
    left = end - time.monotonic()
    if left > 0:
        connection.settimeout(left)
        with contextlib.suppress(TimeoutError):
            return connection.recv(65536)
    connection.settimeout(0)
    try:
        return connection.recv(65536)
    except (BlockingIOError, ssl.SSLWantReadError):
        raise TimeoutError from None


def _take(idle: _Idle) -> socket.socket | None:
    """The idle connection that was used last, and that the node has not closed."""
    with contextlib.suppress(IndexError):
        while True:
            connection = idle.pop()
            try:
                connection.settimeout(0)
                connection.recv(1)
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
