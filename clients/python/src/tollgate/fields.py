"""The fields and the body that a decision gives a response."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from json import dumps
from typing import Any

from .types import Decision, QuotaState

IANA = "https://iana.org/assignments/http-problem-types#"
# One below the largest limit: the largest integer of RFC 9651.
MAX_INTEGER = 999_999_999_999_999

Fields = list[tuple[str, str]]


@dataclass(slots=True)
class Refusal:
    """A whole response."""

    status: int
    headers: Fields
    body: bytes


def quota_fields(decision: Decision) -> Fields:
    """`RateLimit-Policy` and `RateLimit`, as the node writes them for a single check."""
    if decision.quota is None:
        return []
    latest = _seconds(decision.retry_after_ms or 0)
    if decision.allowed or decision.retry_after_ms is None:
        latest = MAX_INTEGER
    if not decision.quotas:
        reset = min(_seconds(decision.reset_after_ms or 0), latest)
        return [("ratelimit", f'"{decision.quota}";r={decision.remaining or 0};t={reset}')]

    def policy(quota: QuotaState) -> str:
        limit = min(quota.limit, MAX_INTEGER)
        return f'"{quota.name}";q={limit};w={_seconds(quota.window_ms)}'

    def state(quota: QuotaState) -> str:
        remaining = min(quota.remaining, MAX_INTEGER)
        return f'"{quota.name}";r={remaining};t={min(_seconds(quota.reset_after_ms), latest)}'

    return [
        ("ratelimit-policy", _list(policy, decision.quotas)),
        ("ratelimit", _list(state, decision.quotas)),
    ]


def denial(decision: Decision, status: int, body: str | bytes | dict[str, Any] | None) -> Refusal:
    """`body` None is a problem document (RFC 9457)."""
    headers = quota_fields(decision)
    if decision.retry_after_ms is not None:
        headers.append(("retry-after", str(max(1, _seconds(decision.retry_after_ms)))))
    if body is None:
        headers.append(("content-type", "application/problem+json"))
        return _refusal(status, headers, problem(decision, status))
    if isinstance(body, dict):
        headers.append(("content-type", "application/json"))
        return _refusal(status, headers, dumps(body).encode())
    headers.append(("content-type", "text/plain; charset=utf-8"))
    return _refusal(status, headers, body.encode() if isinstance(body, str) else body)


def problem(decision: Decision, status: int) -> bytes:
    if decision.reason == "deny_listed":
        return _document("urn:tollgate:problem:deny-listed", "The key is on a deny list", status)
    if decision.reason == "store_unavailable":
        return _document(
            IANA + "temporary-reduced-capacity",
            "No decision is possible now",
            status,
            retry_after_ms=decision.retry_after_ms,
        )
    return _document(
        IANA + "quota-exceeded",
        "The request is over a limit",
        status,
        **{"violated-policies": [decision.quota], "retry_after_ms": decision.retry_after_ms},
    )


def no_decision() -> Refusal:
    body = _document(IANA + "temporary-reduced-capacity", "No decision is possible now", 503)
    return _refusal(503, [("retry-after", "1"), ("content-type", "application/problem+json")], body)


def bad_request(detail: str) -> Refusal:
    body = _document("about:blank", "Bad Request", 400, detail=detail)
    return _refusal(400, [("content-type", "application/problem+json")], body)


def _document(type: str, title: str, status: int, **members: object) -> bytes:
    return dumps({"type": type, "title": title, "status": status, **members}).encode()


def _refusal(status: int, headers: Fields, body: bytes) -> Refusal:
    return Refusal(status, [*headers, ("content-length", str(len(body)))], body)


def _list(item: Callable[[QuotaState], str], quotas: Iterable[QuotaState]) -> str:
    return ", ".join(map(item, quotas))


def _seconds(milliseconds: int) -> int:
    return -(-milliseconds // 1000)
