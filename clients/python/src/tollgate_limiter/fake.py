"""Clients for unit tests, which answer from a list of decisions, without a node."""

from __future__ import annotations

import json
from typing import Any

from .aio import AsyncClient
from .blocking import Client
from .calls import Call
from .errors import Unavailable
from .nodes import Node

ALLOWED: dict[str, Any] = {
    "allowed": True,
    "policy": "default",
    "key": "",
    "cost": 1,
    "charged": 1,
    "limit": 100,
    "remaining": 99,
    "retry_after_ms": 0,
    "reset_after_ms": 60_000,
    "quota": "1m",
    "source": "store",
    "reason": "ok",
}
DENIED: dict[str, Any] = {
    **ALLOWED,
    "allowed": False,
    "charged": 0,
    "remaining": 0,
    "retry_after_ms": 60_000,
    "reason": "over_limit",
}
HOLD = {"expires_in_ms": 60_000}


class _Answers:
    """Each check gets the next decision, and the last one again and again."""

    # The checks that arrived.
    checks: list[dict[str, Any]]
    _left: list[dict[str, Any] | Exception]

    async def _exchange(
        self, node: Node, call: Call[Any], body: bytes, seconds: float, fresh: bool
    ) -> tuple[int, bytes]:
        return 200, json.dumps(self._answer(call.path, json.loads(body or b"{}"))).encode()

    def _answer(self, path: str, asked: dict[str, Any]) -> dict[str, Any]:
        if path == "/v1/check":
            return self._next(asked)
        results = [self._next(check) for check in asked.get("checks", [])]
        if path == "/v1/check/batch":
            return {"results": results}
        denied = [place for place, one in enumerate(results) if not one["allowed"]]
        retry = DENIED["retry_after_ms"] if denied else 0
        together = {"denied_by": denied, "retry_after_ms": retry, "results": results}
        others = {"settled": True, "renewed": True, "refunded": 0, **HOLD}
        return {**ALLOWED, **others, **together, "allowed": not denied}

    def _next(self, check: dict[str, Any]) -> dict[str, Any]:
        self.checks.append(check)
        members = self._left.pop(0) if len(self._left) > 1 else self._left[0]
        if isinstance(members, Exception):
            raise members if isinstance(members, Unavailable) else Unavailable(str(members))
        decision = ALLOWED if members.get("allowed", True) else DENIED
        cost = check.get("cost", 1)
        mine = {"policy": check.get("policy", "default"), "key": check["key"], "cost": cost}
        if decision is ALLOWED:
            mine["charged"] = 0 if check.get("look") else cost
            if "id" in check and "wait_ms" not in check:
                mine["hold"] = HOLD
        return {**decision, **mine, **members}


class FakeClient(_Answers, Client):
    """A `Client` for unit tests: `FakeClient({"allowed": False})`.

    Each check gets the next of `decisions`, and the last one again and again: members of a
    decision, or an exception for a check without one. By default all checks are allowed. Policies
    always have a hold. The checks that arrived are in `checks`.
    """

    def __init__(self, *decisions: dict[str, Any] | Exception) -> None:
        self.checks, self._left = [], list(decisions) or [{}]
        super().__init__(coalesce=False, lease=False, denial_cache=0)


class FakeAsyncClient(_Answers, AsyncClient):
    """As `FakeClient`, for code that has an `AsyncClient`."""

    def __init__(self, *decisions: dict[str, Any] | Exception) -> None:
        self.checks, self._left = [], list(decisions) or [{}]
        super().__init__(coalesce=False, lease=False, denial_cache=0)
