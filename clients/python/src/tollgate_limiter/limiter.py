"""What a middleware asks for a request, and what becomes of the answer."""

from __future__ import annotations

import contextlib
import inspect
import uuid
from collections.abc import Awaitable, Callable, Iterable
from dataclasses import dataclass
from hashlib import sha256
from typing import Any, Literal, TypedDict, TypeVar

from .base import BaseClient
from .errors import Denied, ProblemError, TollgateError, bad_key
from .fields import Body, Refusal, bad_request, denial, no_decision
from .hold import BaseHold
from .monitor import log
from .request import Request, Response
from .types import Check, Decision

MAX_KEY_BYTES = 1024
# How long a request may last whose charge `refund` gives back.
REFUND_TTL_MS = 300_000


class Options(TypedDict, total=False):
    """The options that all middlewares share. A function may be asynchronous, except in WSGI.

    - Without a `key` the address counts. A request for which `skip` is true does not count.
    - `hold` holds the cost and a place until the response has ended. The handler may set its cost.
    - `look` denies when nothing is left, but charges nothing. `once` charges once over retries.
    - `drain` returns units to charge after the response, and `refund` whether to give back.
    - Without a decision requests pass (`on_failure="open"`) or get 503 (`"closed"`).
    - `status` and `body` replace those of a denial. A dictionary becomes JSON, and a tuple is a
      content type and a body.
    - `on_error` gets each failure, also of `drain` and `refund`. Without it the log gets the first
      one, and then at most one a second.
    """

    policy: str | Callable[[Request], str | Awaitable[str | None] | None] | None
    key: Callable[[Request], str | int | Awaitable[str | int | None] | None] | None
    cost: int | Callable[[Request], int | Awaitable[int]]
    skip: Callable[[Request], bool | Awaitable[bool]] | None
    plan: str | Callable[[Request], str | Awaitable[str | None] | None] | None
    hold: bool
    look: bool
    once: bool
    drain: Callable[[Request, Response], int | Awaitable[int | None] | None] | None
    refund: Callable[[Request, Response], bool | Awaitable[bool]] | None
    on_failure: Literal["open", "closed"]
    status: int
    body: Body | Callable[[Request, Decision], Body | Awaitable[Body]] | None
    on_error: Callable[[Exception], object] | None


@dataclass(slots=True)
class Verdict:
    """Without a refusal the request passes. Without a check it is not counted."""

    check: Check | None = None
    decision: Decision | None = None
    refusal: Refusal | None = None
    hold: BaseHold | None = None


C = TypeVar("C", bound=BaseClient[Any])


def client_of(kind: type[C], client: C | None, nodes: str | Iterable[str]) -> C:
    """The client of a middleware. A blocking one would stop an event loop."""
    if client is None:
        return kind(nodes)
    if not isinstance(client, kind):
        fault = f"not {type(client).__name__}"
        raise TollgateError(f"`client` must be of {kind.__name__} in this application, {fault}")
    return client


class Limiter:
    def __init__(self, client: BaseClient[Any], options: Options) -> None:
        known = Options.__annotations__
        if unknown := options.keys() - known.keys():
            raise TollgateError(f"no option {', '.join(unknown)}; there are {', '.join(known)}")
        self._on_failure = options.get("on_failure", "open")
        if self._on_failure not in ("open", "closed"):
            raise TollgateError(f"`on_failure` must be open or closed, not {self._on_failure!r}")
        if options.get("look") and options.get("refund"):
            raise TollgateError("`look` charges nothing to give back: remove it, or `refund`")
        self.client = client
        self.finishes = bool(options.get("drain") or options.get("refund"))
        if options.get("hold"):
            if self.finishes or options.get("look"):
                raise TollgateError("`hold` settles the cost: remove `look`, `drain` and `refund`")
            self.finishes = True
        self._options = options

    async def admit(self, request: Request) -> Verdict:
        """Asks before the request."""
        verdict = Verdict()
        skip = self._options.get("skip")
        if skip and await _of(skip, request):
            return verdict
        try:
            verdict.check = await self._check(request)
            trace = request.headers.get("traceparent")
            if self._options.get("hold"):
                hold = self.client.hold_all([verdict.check], trace)
                await _of(hold.open)
                hold._keep()
                verdict.decision, verdict.hold = hold.decision, hold
            else:
                verdict.decision = await self.client._decide(verdict.check, trace)
        except Denied as error:
            verdict.decision = error.decision
        except TollgateError as error:
            if isinstance(error, ProblemError) and error.is_bad_check:
                verdict.refusal = bad_request()
            elif self._on_failure == "closed":
                verdict.refusal = no_decision()
            else:
                self.client.monitor.passed()
            end = f"ends with {verdict.refusal.status}" if verdict.refusal else "passes"
            self.report(f"no decision, so the request {end}", error)
            return verdict
        if not verdict.decision.allowed:
            body = await _of(self._options.get("body"), request, verdict.decision)
            verdict.refusal = denial(verdict.decision, self._options.get("status", 429), body)
        return verdict

    async def _check(self, request: Request) -> Check:
        options = self._options
        key, cost, policy = await self._key(request), options.get("cost", 1), options.get("policy")
        if callable(cost):
            cost = await _of(cost, request)
        if callable(policy):
            policy = await _of(policy, request)
        check: Check = {"key": key, "policy": policy, "cost": cost}
        if plan := options.get("plan"):
            check["plan"] = await _of(plan, request)
        # A cost of 0 never denies.
        if options.get("look") or (options.get("drain") and cost == 0):
            check |= {"look": True, "cost": cost or 1}
        elif options.get("refund"):
            check |= {"once": True, "id": uuid.uuid4().hex, "id_ttl_ms": REFUND_TTL_MS}
        elif options.get("once"):
            check["once"] = True
        return check

    async def _key(self, request: Request) -> str:
        option = self._options.get("key")
        key = await _of(option, request) if option else None
        if isinstance(key, int) and not isinstance(key, bool):
            key = str(int(key))
        if key is not None and not isinstance(key, str):
            raise TypeError(f"`key` must return a str, an int or None, not {type(key).__name__}")
        if not key:
            if not request.client:
                # A unix socket has no address, and neither has a caller that left.
                raise bad_key("the request has no address; set `key`")
            key = request.client
            self._notice_address(request, key)
        return sendable(key)

    def _notice_address(self, request: Request, address: str) -> None:
        if address != request.peer:
            self.client.monitor.warn(
                "address",
                f'the address of a client has a port or a zone ("{request.peer}"), which does not '
                "count: let the server or its proxy send addresses without it",
            )
        for name in ("x-forwarded-for", "forwarded"):
            if address not in request.headers.get(name, address):
                self.client.monitor.warn(
                    "proxy",
                    "requests have X-Forwarded-For or Forwarded, but the server trusts no proxy, "
                    "so all clients behind one count as one: set the trusted proxies of the "
                    "server, or `key`",
                )

    def report(self, what: str, error: Exception) -> None:
        if on_error := self._options.get("on_error"):
            on_error(error)
        elif isinstance(error, TollgateError):
            self.client.monitor.log(what, error)
        else:
            log.error("%s", what, exc_info=error)

    async def finish(self, request: Request, verdict: Verdict, response: Response) -> None:
        """Charges or refunds after the response."""
        check, options = verdict.check, self._options
        if check is None or verdict.refusal is not None:
            return
        call = "settle" if verdict.hold else "drain"
        try:
            if verdict.hold:
                await _of(verdict.hold.settle)
                return
            if units := await _of(options.get("drain"), request, response):
                drain: Check = {"key": check["key"], "policy": check["policy"], "over": "drain"}
                drain |= {"plan": check.get("plan"), "cost": units}
                await self.client._decide(drain, request.headers.get("traceparent"))
            call = "refund"
            is_charged = verdict.decision is not None and verdict.decision.charged
            if is_charged and await _of(options.get("refund"), request, response):
                await self.client._refund(check["key"], check["policy"], id=check["id"])
        except Exception as error:
            self.report(f"the {call} after the response failed", error)


async def _of(option: Any, *arguments: object) -> Any:
    """The option, or the result of its function."""
    if not callable(option):
        return option
    result = option(*arguments)
    # A text is the usual result, and costs no search for `__await__`.
    return result if isinstance(result, str) or not inspect.isawaitable(result) else await result


def sendable(key: str) -> str:
    """`key`, or its hash if a node rejects it. A caller must not choose a key that fails."""
    with contextlib.suppress(UnicodeEncodeError):
        if len(key.encode()) <= MAX_KEY_BYTES:
            return key
    # Half of a surrogate pair is no valid Unicode.
    return f"sha256:{sha256(key.encode(errors='surrogatepass')).hexdigest()}"
