"""The calls of the API as bytes, and their answers as types."""

from __future__ import annotations

import contextlib
import json
import re
from collections.abc import Awaitable, Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import partial
from operator import itemgetter
from typing import Any, Generic, TypeVar
from urllib.parse import quote, urlencode

from .errors import ProblemError, TollgateError, Unavailable, bad_key, too_large
from .leases import Lease
from .types import (
    Check,
    CheckAnswer,
    LeaseAnswer,
    Problem,
    RefundAnswer,
    RenewAnswer,
    SettleAnswer,
    TogetherAnswer,
    Usage,
    read,
)

# The largest body that a node reads. It closes the connection of a longer call before its end.
MAX_CALL_BYTES = 1024 * 1024
MAX_COALESCED = 100
# The types of all problems of a node begin so.
PROBLEMS = "urn:tollgate:problem:"
# A longer check has a fault, and a node may reject a call for the sum of its bytes.
MAX_SHARED_BYTES = 8 * 1024

T = TypeVar("T")
Result = CheckAnswer | TollgateError

_TRACEPARENT = re.compile(r"[0-9a-f]{2}-[0-9a-f]{32}-[0-9a-f]{16}-[0-9a-f]{2}")
# `json.loads` guesses the encoding of bytes first.
_decode = json.JSONDecoder().decode
_encode = json.JSONEncoder(separators=(",", ":"), ensure_ascii=False).encode


Decide = Callable[[Sequence["Shared"]], Awaitable[list[Result]]]


@dataclass(slots=True)
class Call(Generic[T]):
    """`repeatable`: it may go to a node that has perhaps executed it. `again` is its body then."""

    method: str
    path: str
    read: Callable[[Any], T]
    body: bytes = b""
    again: bytes = b""
    repeatable: bool = True
    traceparent: str | None = None

    def __post_init__(self) -> None:
        if len(self.path) + len(self.body) > MAX_CALL_BYTES:
            raise too_large(MAX_CALL_BYTES)

    def answer(self, node: str, status: int, body: bytes) -> T:
        """The answer of a node, or raises its problem."""
        with contextlib.suppress(ValueError, TypeError, KeyError, AttributeError):
            members = _decode(body.decode())
            if status == 200:
                return self.read(members)
            if members["type"].startswith(PROBLEMS):
                raise problem_error(members)
        fault = f"it answered {status} without a decision"
        raise Unavailable(f"{node} is no node of Tollgate: {fault}")


@dataclass(slots=True)
class Shared:
    """One check as bytes, which may share a call. `again` are those of a repetition."""

    body: bytes
    again: bytes
    traceparent: str | None = None

    @classmethod
    def of(cls, check: Check, traceparent: str | None = None) -> Shared:
        members = {name: value for name, value in check.items() if value is not None}
        is_marked = members.pop("once", False) and "id" in members and "repeated" not in members
        body = again = _utf8(_encode(members))
        if is_marked:
            again = body[:-1] + b',"repeated":true}'
        # Any other text could add fields to the request.
        is_trace = traceparent and _TRACEPARENT.fullmatch(traceparent)
        return cls(body, again, traceparent if is_trace else None)

    @property
    def is_large(self) -> bool:
        return len(self.body) > MAX_SHARED_BYTES


def check(one: Shared, repeatable: bool) -> Call[CheckAnswer]:
    return Call(
        "POST",
        "/v1/check",
        partial(read, CheckAnswer),
        one.body,
        one.again,
        repeatable,
        one.traceparent,
    )


def check_batch(share: Sequence[Shared], repeatable: bool) -> Call[list[Result]]:
    """One call of them all, with the first traceparent."""

    def results(members: Any) -> list[Result]:
        found = [_result(place, item) for place, item in enumerate(members["results"])]
        if len(found) != len(share):
            raise TypeError(f"{len(found)} results for {len(share)} checks")
        return found

    body, again = _list(one.body for one in share), _list(one.again for one in share)
    trace = next((one.traceparent for one in share if one.traceparent), None)
    return Call("POST", "/v1/check/batch", results, body, again, repeatable, trace)


def _result(place: int, item: Any) -> Result:
    if "error" not in item:
        return read(CheckAnswer, item)
    error = problem_error(item["error"])
    for fault in error.problem.violations:
        fault.pointer = fault.pointer.removeprefix(f"/checks/{place}")
    return error


def check_all(checks: Sequence[Check], repeatable: bool) -> Call[TogetherAnswer]:
    """Without an id in each check, a second call might charge twice."""
    body = _list(Shared.of(check).body for check in checks)
    repeatable = repeatable and all(check.get("id") for check in checks)
    return Call("POST", "/v1/check/all", partial(read, TogetherAnswer), body, body, repeatable)


def refund(key: str, policy: str | None, cost: int | None, id: str | None) -> Call[RefundAnswer]:
    members = {"key": key, "policy": policy, "cost": cost, "id": id}
    return _post("/v1/refund", RefundAnswer, members, id is not None)


def settle(
    key: str, policy: str | None, id: str, cost: int | None, repeatable: bool
) -> Call[SettleAnswer]:
    members = {"key": key, "policy": policy, "id": id, "cost": cost}
    return _post("/v1/settle", SettleAnswer, members, repeatable)


def lease(bought: Lease, repeatable: bool) -> Call[LeaseAnswer]:
    return _post("/v1/lease", LeaseAnswer, _name(bought) | {"want": bought.wanted}, repeatable)


def settle_leases(ended: Sequence[Lease], repeatable: bool) -> Call[list[Any]]:
    each = [_name(lease) | {"cost": lease.granted - lease.left} for lease in ended]
    body = _utf8(_encode({"settlements": each}))
    return Call("POST", "/v1/settle", itemgetter("results"), body, body, repeatable)


def _name(lease: Lease) -> dict[str, Any]:
    return {"policy": lease.place[0], "key": lease.place[1], "id": lease.id}


def renew(key: str, policy: str | None, id: str, repeatable: bool) -> Call[RenewAnswer]:
    return _post("/v1/renew", RenewAnswer, {"key": key, "policy": policy, "id": id}, repeatable)


def _post(path: str, kind: type[T], members: dict[str, Any], repeatable: bool) -> Call[T]:
    body = _utf8(_encode({name: value for name, value in members.items() if value is not None}))
    return Call("POST", path, partial(read, kind), body, body, repeatable)


def usage(method: str, key: str, policy: str | None, cost: int | None = None) -> Call[Usage]:
    query = {"key": key, "policy": policy, "cost": cost}
    known = {name: value for name, value in query.items() if value is not None}
    path = f"/v1/usage?{urlencode(known, quote_via=quote)}"
    return Call(method, path, partial(read, Usage))


def problem_error(members: Any) -> ProblemError:
    return ProblemError(read(Problem, members))


def _list(bodies: Iterable[bytes]) -> bytes:
    return b'{"checks":[%b]}' % b",".join(bodies)


def _utf8(text: str) -> bytes:
    try:
        return text.encode()
    except UnicodeEncodeError:
        fault = "must be valid Unicode, without half of a surrogate pair"
        raise bad_key(fault) from None
