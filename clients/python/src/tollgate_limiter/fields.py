"""The fields and the body that a decision gives a response."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from json import dumps
from typing import Any

from .types import Decision

IANA = "https://iana.org/assignments/http-problem-types#"
REDUCED_CAPACITY = "Request cannot be satisfied due to temporary server capacity constraints"
# One below the largest limit: the largest integer of RFC 9651.
MAX_INTEGER = 999_999_999_999_999

Fields = list[tuple[str, str]]


@dataclass(slots=True)
class Refusal:
    """A whole response."""

    status: int
    headers: Fields
    body: bytes


def quota_fields(decision: Decision, headers: Iterable[tuple[str, str]] = ()) -> Fields:
    """`RateLimit-Policy` and `RateLimit`, as the node writes them for a single check.

    `headers` are those that the response has. A name of a quota in them gets its policy in front.
    """
    if decision.quota is None:
        return []
    latest = _seconds(decision.retry_after_ms or 0)
    if decision.allowed or decision.retry_after_ms is None:
        latest = MAX_INTEGER

    present = [value for field, value in headers if field.lower().startswith("ratelimit")]

    def named(name: str) -> str:
        is_taken = present and any(f'"{name}";' in value for value in present)
        return f'"{decision.policy}/{name}"' if is_taken else f'"{name}"'

    if not decision.quotas:
        reset = min(_seconds(decision.reset_after_ms or 0), latest)
        left = min(decision.remaining or 0, MAX_INTEGER)
        return [("ratelimit", f"{named(decision.quota)};r={left};t={reset}")]
    policies, states = [], []
    for q in decision.quotas:
        name, reset = named(q.name), min(_seconds(q.reset_after_ms), latest)
        policies.append(f"{name};q={min(q.limit, MAX_INTEGER)};w={_seconds(q.window_ms)}")
        states.append(f"{name};r={min(q.remaining, MAX_INTEGER)};t={reset}")
    return [("ratelimit-policy", ", ".join(policies)), ("ratelimit", ", ".join(states))]


Body = str | bytes | dict[str, Any] | tuple[str, str | bytes]


def denial(decision: Decision, status: int, body: Body | None) -> Refusal:
    """`body` None is a problem document (RFC 9457)."""
    headers = quota_fields(decision)
    if decision.retry_after_ms is not None:
        headers.append(("retry-after", str(max(1, _seconds(decision.retry_after_ms)))))
    if body is None:
        return _problem(status, headers, **_members(decision))
    kind = "text/plain; charset=utf-8"
    if isinstance(body, dict):
        kind, body = "application/json", dumps(body)
    elif isinstance(body, tuple):
        kind, body = body
    return _refusal(status, headers, kind, body.encode() if isinstance(body, str) else body)


def _members(decision: Decision) -> dict[str, Any]:
    retry = decision.retry_after_ms
    if decision.reason == "deny_listed":
        return {"type": "urn:tollgate:problem:deny-listed", "title": "Denied by a list"}
    if decision.reason == "store_unavailable":
        kind = IANA + "temporary-reduced-capacity"
        return {"type": kind, "title": REDUCED_CAPACITY, "retry_after_ms": retry}
    return {
        "type": IANA + "quota-exceeded",
        "title": "Request cannot be satisfied as assigned quota has been exceeded",
        "violated-policies": [decision.quota] if decision.quota else [],
        "retry_after_ms": retry,
    }


def no_decision() -> Refusal:
    kind, retry = IANA + "temporary-reduced-capacity", ("retry-after", "1")
    return _problem(503, [retry], type=kind, title=REDUCED_CAPACITY, retry_after_ms=1000)


def bad_request() -> Refusal:
    kind = "urn:tollgate:problem:invalid-request"
    return _problem(400, [], type=kind, title="The rate limiter cannot count this request")


def _problem(status: int, headers: Fields, **members: Any) -> Refusal:
    document = dumps({**members, "status": status}).encode()
    return _refusal(status, headers, "application/problem+json", document)


def _refusal(status: int, headers: Fields, kind: str, body: bytes) -> Refusal:
    more = [("content-type", kind), ("content-length", str(len(body)))]
    return Refusal(status, [*headers, *more], body)


def _seconds(milliseconds: int) -> int:
    return -(-milliseconds // 1000)
