"""What a middleware asks for a request, and what becomes of the answer."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Literal

from .errors import ProblemError, TollgateError, bad_key
from .fields import Refusal, bad_request, denial, no_decision
from .keys import sendable
from .request import Request, Response
from .types import Decision

OnFailure = Literal["open", "closed"]
Body = str | bytes | dict[str, Any]
BodyFor = Callable[[Request, Decision], Body]
Key = Callable[[Request], str | int | None]
Cost = Callable[[Request], int]
Skip = Callable[[Request], bool]
Drain = Callable[[Request, Response], int | None]
OnError = Callable[[Exception], object]

# A node that is down fails each request. The log gets one line a second.
LOG_SECONDS = 1.0

_log = logging.getLogger("tollgate")


@dataclass(slots=True, kw_only=True)
class Rules:
    """The options that all middlewares share.

    `key` and `cost` may be functions of the request. Without a key the address of the client
    counts. A request that `skip` accepts is not counted. `drain` returns the units that are known
    after the response. Without a decision requests pass (`on_failure="open"`) or get 503
    (`"closed"`). `body` replaces the problem document of a denial by a text, or by a dictionary as
    JSON. `on_error` gets each failure, also an exception of `drain`. Without it the log does.
    """

    policy: str | None = None
    key: Key | None = None
    cost: int | Cost = 1
    skip: Skip | None = None
    drain: Drain | None = None
    on_failure: OnFailure = "open"
    status: int = 429
    body: Body | BodyFor | None = None
    on_error: OnError | None = None
    _silent_until: float = field(default=0.0, init=False)

    def __post_init__(self) -> None:
        if self.on_failure not in ("open", "closed"):
            raise TollgateError(f"`on_failure` must be open or closed, not {self.on_failure!r}")

    def is_skipped(self, request: Request) -> bool:
        return self.skip is not None and bool(self.skip(request))

    def check(self, request: Request) -> dict[str, Any]:
        """The arguments of the check."""
        return {
            "key": self.key_of(request),
            "policy": self.policy,
            "cost": self.cost(request) if callable(self.cost) else self.cost,
            "traceparent": request.headers.get("traceparent"),
        }

    def key_of(self, request: Request) -> str:
        key = (_text(self.key(request)) if self.key is not None else None) or request.client
        if not key:
            # A unix socket has no address, and neither has a caller that reset its connection.
            raise bad_key("the request has no address; set `key`")
        return sendable(key)

    def refuse(self, request: Request, decision: Decision) -> Refusal:
        body = self.body(request, decision) if callable(self.body) else self.body
        return denial(decision, self.status, body)

    def fail(self, error: TollgateError) -> Refusal | None:
        """None: the request passes."""
        self.report(error)
        if isinstance(error, ProblemError) and error.is_bad_check:
            return bad_request(error.problem.detail)
        return None if self.on_failure == "open" else no_decision()

    def report(self, error: Exception) -> None:
        if self.on_error is not None:
            self.on_error(error)
        elif not isinstance(error, TollgateError):
            _log.error("`drain` failed", exc_info=error)
        elif time.monotonic() >= self._silent_until:
            self._silent_until = time.monotonic() + LOG_SECONDS
            _log.warning("no decision: %s", error)

    def drain_check(self, request: Request, response: Response) -> dict[str, Any] | None:
        """The arguments of the check after the response. None: there is nothing to charge."""
        units = self.drain(request, response) if self.drain is not None else 0
        return {**self.check(request), "cost": units, "over": "drain"} if units else None


def _text(key: str | int | None) -> str | None:
    if key is None or isinstance(key, str):
        return key
    if isinstance(key, bool) or not isinstance(key, int):
        raise TypeError(f"`key` must return a str, an int or None, not {type(key).__name__}")
    return str(int(key))
