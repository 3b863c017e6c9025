"""Blocking connections to one node, kept alive and shared by threads."""

from __future__ import annotations

import select
import socket
import ssl
import time
from collections import deque

from .http1 import Answer, AnswerReader, MalformedAnswer
from .nodes import AttemptFailed, Failure, Node

MAX_IDLE = 64
READ_BYTES = 64 * 1024


class Pool:
    """The idle connections of a node, the last used first."""

    def __init__(self, node: Node, fields: bytes) -> None:
        self.node = node
        self.fields = fields
        self._idle: deque[socket.socket] = deque()

    def exchange(self, request: bytes, until: float, fresh: bool, repeatable: bool) -> Answer:
        """Sends `request` and returns the answer, or raises `AttemptFailed`."""
        if fresh:
            self.close()
        connection = self._take(repeatable) or _connect(self.node, until)
        try:
            answer = _exchange(connection, request, until)
        except BaseException:
            connection.close()
            raise
        self.node.answered(time.monotonic())
        if answer.keep_alive and len(self._idle) < MAX_IDLE:
            self._idle.append(connection)
        else:
            connection.close()
        return answer

    def _take(self, repeatable: bool) -> socket.socket | None:
        while True:
            try:
                connection = self._idle.pop()
            except IndexError:
                return None
            # An idle connection is readable if the node closed it. A repeatable call may try.
            if repeatable or not _is_readable(connection):
                return connection
            connection.close()

    def close(self) -> None:
        while self._idle:
            try:
                self._idle.pop().close()
            except IndexError:
                return

    def __del__(self) -> None:
        self.close()

    def forget(self) -> None:
        """After a fork the connections belong to the parent."""
        self._idle = deque()


def _connect(node: Node, until: float) -> socket.socket:
    try:
        connection = _open(node, until)
    except OSError as error:
        raise AttemptFailed(Failure.REFUSED, error) from error
    try:
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        if node.tls is None:
            return connection
        connection.settimeout(_left(until))
        return node.tls.wrap_socket(connection, server_hostname=node.host)
    except OSError as error:
        connection.close()
        raise AttemptFailed(Failure.REFUSED, error) from error


def _open(node: Node, until: float) -> socket.socket:
    """Tries each address of the name; `socket.create_connection` would begin a new timeout."""
    refusal: OSError = ConnectionError(f"{node.host} has no address")
    for family, kind, protocol, _, address in socket.getaddrinfo(
        node.host, node.port, type=socket.SOCK_STREAM
    ):
        connection = socket.socket(family, kind, protocol)
        try:
            connection.settimeout(_left(until))
            connection.connect(address)
            return connection
        except OSError as error:
            connection.close()
            refusal = error
    raise refusal


def _exchange(connection: socket.socket, request: bytes, until: float) -> Answer:
    reader = AnswerReader()
    try:
        connection.settimeout(_left(until))
        connection.sendall(request)
        while True:
            data = connection.recv(READ_BYTES)
            if reader.feed(data) if data else reader.end():
                break
            if not data:
                raise AttemptFailed(Failure.BROKEN, "the node closed the connection")
            connection.settimeout(_left(until))
    except TimeoutError as error:
        raise AttemptFailed(Failure.SILENT, "no answer in time") from error
    except (OSError, MalformedAnswer) as error:
        raise AttemptFailed(Failure.BROKEN, error) from error
    assert reader.answer is not None
    return reader.answer


def _left(until: float) -> float:
    left = until - time.monotonic()
    if left <= 0:
        raise TimeoutError
    return left


def _is_readable(connection: socket.socket) -> bool:
    if isinstance(connection, ssl.SSLSocket) and connection.pending():
        return True
    if not hasattr(select, "poll"):
        return bool(select.select([connection], [], [], 0)[0])
    poll = select.poll()
    poll.register(connection, select.POLLIN)
    return bool(poll.poll(0))
