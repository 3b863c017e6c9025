"""The calls of the API as bytes, and their answers as types."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Generic, TypeVar
from urllib.parse import quote

from .errors import ProblemError, Unavailable, bad_key, too_large
from .http1 import Answer
from .types import Check, CheckAnswer, Problem, RefundAnswer, TogetherAnswer, Usage, read

# The largest body that a node reads. It closes the connection of a longer call before its end.
MAX_CALL_BYTES = 1024 * 1024

T = TypeVar("T")
_TRACEPARENT = re.compile(r"[0-9a-f]{2}-[0-9a-f]{32}-[0-9a-f]{16}-[0-9a-f]{2}")
# `json.loads` guesses the encoding of bytes first.
_decode = json.JSONDecoder().decode
_encode = json.JSONEncoder(separators=(",", ":"), ensure_ascii=False).encode


@dataclass(slots=True)
class Call(Generic[T]):
    """`repeatable`: a second execution charges nothing more."""

    method: str
    path: str
    body: bytes
    repeatable: bool
    read: Callable[[Any], T]
    traceparent: str | None = None

    def __post_init__(self) -> None:
        if len(self.path) + len(self.body) > MAX_CALL_BYTES:
            raise too_large(MAX_CALL_BYTES)

    def request(self, prefix: str, fields: bytes) -> bytes:
        """The whole HTTP request. `fields` are those that all calls to the node have."""
        line = f"{self.method} {prefix}{self.path} HTTP/1.1\r\n".encode()
        trace = b"traceparent: %b\r\n" % self.traceparent.encode() if self.traceparent else b""
        if not self.body:
            return b"%b%b%b\r\n" % (line, fields, trace)
        kind = b"content-type: application/json\r\ncontent-length: %d\r\n\r\n"
        return line + fields + trace + kind % len(self.body) + self.body

    def answer(self, answer: Answer) -> T:
        """The answer, or raises its problem."""
        members = _members(answer)
        if answer.status != 200:
            raise problem_error(members, answer.status)
        try:
            return self.read(members)
        except (TypeError, KeyError, AttributeError) as error:
            raise Unavailable(f"the answer is none of a node: {error}") from error


def encode_check(check: Check) -> bytes:
    return _utf8(_encode(check))


def is_repeatable(check: Check) -> bool:
    return check.get("id") is not None or check.get("cost") == 0


def check(body: bytes, repeatable: bool, traceparent: str | None) -> Call[CheckAnswer]:
    def answer(members: Any) -> CheckAnswer:
        return read(CheckAnswer, members)

    return Call("POST", "/v1/check", body, repeatable, answer, traceparent)


def check_batch(
    bodies: Sequence[bytes], repeatable: bool, traceparent: str | None = None
) -> Call[list[CheckAnswer | ProblemError]]:
    def results(members: Any) -> list[CheckAnswer | ProblemError]:
        found = [_result(place, item) for place, item in enumerate(members["results"])]
        if len(found) != len(bodies):
            raise TypeError(f"{len(found)} results for {len(bodies)} checks")
        return found

    body = b'{"checks":[%b]}' % b",".join(bodies)
    return Call("POST", "/v1/check/batch", body, repeatable, results, traceparent)


def _result(place: int, item: Any) -> CheckAnswer | ProblemError:
    if "error" not in item:
        return read(CheckAnswer, item)
    error = problem_error(item["error"], 500)
    for fault in error.problem.violations:
        fault.pointer = fault.pointer.removeprefix(f"/checks/{place}")
    return error


def check_all(checks: Sequence[Check]) -> Call[TogetherAnswer]:
    def answer(members: Any) -> TogetherAnswer:
        return read(TogetherAnswer, members)

    body = b'{"checks":[%b]}' % b",".join(map(encode_check, checks))
    return Call("POST", "/v1/check/all", body, False, answer)


def refund(key: str, policy: str | None, cost: int | None, id: str | None) -> Call[RefundAnswer]:
    def answer(members: Any) -> RefundAnswer:
        return read(RefundAnswer, members)

    members = {"key": key, "policy": policy, "cost": cost, "id": id}
    body = _encode({name: value for name, value in members.items() if value is not None})
    return Call("POST", "/v1/refund", _utf8(body), id is not None, answer)


def usage(key: str, policy: str | None, cost: int | None) -> Call[Usage]:
    def answer(members: Any) -> Usage:
        return read(Usage, members)

    query = {"key": key, "policy": policy, "cost": cost}
    pairs = [
        f"{name}={quote(str(value), '')}" for name, value in query.items() if value is not None
    ]
    return Call("GET", f"/v1/usage?{'&'.join(pairs)}", b"", True, answer)


def traceparent(text: str | None) -> str | None:
    """`text` if it is a W3C traceparent. Any other text could add fields to the request."""
    return text if text and _TRACEPARENT.fullmatch(text) else None


def problem_error(members: Any, status: int) -> ProblemError:
    try:
        return ProblemError(read(Problem, members))
    except (TypeError, AttributeError):
        title = "No problem document"
        return ProblemError(Problem("about:blank", title, status, f"the status is {status}"))


def _members(answer: Answer) -> Any:
    try:
        return _decode(answer.body.decode())
    except ValueError:
        if answer.status == 200:
            raise Unavailable("the answer is none of a node: it is not JSON") from None
        return None


def _utf8(text: str) -> bytes:
    try:
        return text.encode()
    except UnicodeEncodeError:
        fault = "must be valid Unicode, without half of a surrogate pair"
        raise bad_key(fault) from None
