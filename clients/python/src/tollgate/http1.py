"""HTTP/1.1 as far as calls of a node need it: no input or output, only bytes.

A general client costs a multiple of a whole check. The README has the figures.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

MAX_HEAD_BYTES = 64 * 1024
MAX_BODY_BYTES = 16 * 1024 * 1024

_LENGTH = re.compile(rb"\r\ncontent-length:[ \t]*([^\r]*?)[ \t]*(?:\r|$)", re.IGNORECASE)
_CHUNKED = re.compile(rb"\r\ntransfer-encoding:[ \t]*chunked", re.IGNORECASE)
_CLOSE = re.compile(rb"\r\nconnection:[ \t]*close", re.IGNORECASE)


class MalformedAnswer(Exception):
    """The bytes are no HTTP/1.1 response of a node."""


@dataclass(slots=True)
class Answer:
    status: int
    body: bytes
    keep_alive: bool


class AnswerReader:
    """Parses one response as it arrives."""

    __slots__ = ("_body_at", "_buffer", "_chunked", "_keep_alive", "_length", "_status", "answer")

    def __init__(self) -> None:
        self.answer: Answer | None = None
        self._buffer = b""
        self._body_at = 0
        self._status = 0
        self._keep_alive = True
        self._chunked = False
        self._length: int | None = None

    def feed(self, data: bytes) -> bool:
        """True once `answer` is complete."""
        self._buffer = self._buffer + data if self._buffer else data
        if not self._body_at and not self._read_head():
            return False
        if self._chunked:
            return self._read_chunks()
        if self._length is None:
            _bound(len(self._buffer) - self._body_at, MAX_BODY_BYTES)
            return False
        if len(self._buffer) - self._body_at < self._length:
            return False
        return self._complete(self._buffer[self._body_at : self._body_at + self._length])

    def end(self) -> bool:
        """The node closed the connection. True if that completes `answer`."""
        if not self._body_at or self._chunked or self._length is not None:
            return False
        self._keep_alive = False
        return self._complete(self._buffer[self._body_at :])

    def _complete(self, body: bytes) -> bool:
        self.answer = Answer(self._status, body, self._keep_alive)
        return True

    def _read_head(self) -> bool:
        end = self._buffer.find(b"\r\n\r\n")
        _bound(len(self._buffer) if end < 0 else end, MAX_HEAD_BYTES)
        if end < 0:
            return False
        self._read_status(self._buffer[: self._buffer.index(b"\r\n")])
        self._read_fields(end)
        if self._status < 200:
            self._buffer = self._buffer[end + 4 :]
            return self._read_head()
        self._body_at = end + 4
        return True

    def _read_status(self, line: bytes) -> None:
        version, _, rest = line.partition(b" ")
        if not version.startswith(b"HTTP/1.") or not rest[:3].isdigit():
            raise MalformedAnswer(f"the answer begins with {line[:40]!r}, not with HTTP/1.1")
        self._status = int(rest[:3])
        self._keep_alive = version == b"HTTP/1.1"

    def _read_fields(self, end: int) -> None:
        self._length = None
        if length := _LENGTH.search(self._buffer, 0, end):
            if not length[1].isdigit():
                raise MalformedAnswer(f"content-length is {length[1][:20]!r}, not a number")
            self._length = int(length[1])
            _bound(self._length, MAX_BODY_BYTES)
        self._chunked = _CHUNKED.search(self._buffer, 0, end) is not None
        if _CLOSE.search(self._buffer, 0, end):
            self._keep_alive = False

    def _read_chunks(self) -> bool:
        _bound(len(self._buffer) - self._body_at, MAX_BODY_BYTES)
        parts: list[bytes] = []
        at = self._body_at
        while (end := self._buffer.find(b"\r\n", at)) >= 0:
            size = _chunk_size(self._buffer[at:end])
            at = end + 2
            if size == 0:
                return self._buffer.find(b"\r\n", at) >= 0 and self._complete(b"".join(parts))
            if len(self._buffer) < at + size + 2:
                return False
            parts.append(self._buffer[at : at + size])
            at += size + 2
        return False


def _chunk_size(line: bytes) -> int:
    try:
        return int(line.partition(b";")[0], 16)
    except ValueError:
        raise MalformedAnswer(f"a chunk begins with {line[:20]!r}, not with its size") from None


def _bound(size: int, most: int) -> None:
    if size > most:
        raise MalformedAnswer(f"the answer has {size} bytes, more than {most}")
