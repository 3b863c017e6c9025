"""Calls as bytes of HTTP/1.1, and the answers in them.

A library for HTTP would cost a third of the time of a FastAPI application. ADR 61 has the figures.
"""

from __future__ import annotations

from typing import Any

from httptools import HttpParserError, HttpResponseParser

from .calls import Call
from .nodes import AttemptFailed, Failure, Node


def request(node: Node, call: Call[Any], body: bytes, fields: str) -> bytes:
    trace = f"traceparent: {call.traceparent}\r\n" if call.traceparent else ""
    length = f"content-length: {len(body)}\r\n" if body else ""
    line = f"{call.method} {node.prefix}{call.path} HTTP/1.1\r\nhost: {node.authority}\r\n"
    return f"{line}{fields}{trace}{length}\r\n".encode() + body


class Reply:
    """The answer to one call. `answer` is its status and its body, as soon as they are complete."""

    def __init__(self) -> None:
        self.answer: tuple[int, bytes] | None = None
        self.keeps_alive = False
        self._parser, self._body = HttpResponseParser(self), b""

    def feed(self, data: bytes) -> None:
        """Reads what has arrived. No data is the end of the connection."""
        if not data:
            raise AttemptFailed(Failure.BROKEN, "the node closed the connection")
        try:
            self._parser.feed_data(data)
        except HttpParserError as error:
            raise AttemptFailed(Failure.BROKEN, error) from error

    def on_body(self, body: bytes) -> None:
        self._body += body

    def on_message_complete(self) -> None:
        self.keeps_alive = self._parser.should_keep_alive()
        self.answer = self._parser.get_status_code(), self._body
