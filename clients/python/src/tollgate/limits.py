"""Storages for the library `limits`, and so for Flask-Limiter and slowapi.

After `import tollgate.limits` they serve `tollgate://127.0.0.1:7070`. Each check brings the quota
of its limit (`inline: true`), so the file of the node lists no limits:

    policies:
      limits: {algorithm: sliding-log, quotas: [1 per 1s], inline: true}
      limits-fixed: {algorithm: fixed-window, anchor: first-hit, quotas: [1 per 1s], inline: true}

`moving-window` counts under the first policy. `fixed-window` counts under the second one.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from contextvars import ContextVar
from dataclasses import dataclass, fields
from typing import Any, NamedTuple, NoReturn
from urllib.parse import parse_qsl, unquote, urlsplit

from limits.aio.storage import MovingWindowSupport as AsyncMovingWindowSupport
from limits.aio.storage import Storage as AsyncStorage
from limits.errors import ConfigurationError
from limits.limits import GRANULARITIES
from limits.storage import MovingWindowSupport, Storage

from .aio import AsyncClient
from .client import Client
from .errors import TollgateError
from .keys import sendable
from .settings import DEFAULT_DEADLINE
from .types import Decision

# Counts of fixed windows have no limit: `limits` counts denied hits too.
UNLIMITED = 10**15
# The statistics of a hit describe that hit, if they are asked for at once.
REMEMBER_SECONDS = 0.1

NO_CLEAR = "Tollgate cannot clear counters of quotas that checks bring; use another namespace"


@dataclass(slots=True)
class _Options:
    nodes: list[str]
    policy: str = "limits"
    fixed_policy: str = "limits-fixed"
    token: str | None = None
    ca_file: str | None = None
    deadline: float = DEFAULT_DEADLINE
    on_failure: str = "raise"

    def client(self, kind: Callable[..., Any]) -> Any:
        try:
            return kind(self.nodes, deadline=self.deadline, token=self.token, ca_file=self.ca_file)
        except TollgateError as error:
            raise ConfigurationError(str(error)) from None
        except OSError as error:
            raise ConfigurationError(f"ca_file {self.ca_file}: {error}") from None


_NAMES = [part.name for part in fields(_Options) if part.name != "nodes"]


def _options(uri: str, options: dict[str, Any]) -> _Options:
    """`tollgate://[:token@]host:port[,host:port][/policy][?option=value]`"""
    parts = urlsplit(uri)
    scheme = "https" if parts.scheme.endswith("https") else "http"
    credentials, _, hosts = parts.netloc.rpartition("@")
    nodes = [f"{scheme}://{host}" for host in hosts.split(",") if host]
    found: dict[str, Any] = {}
    if credentials:
        found["token"] = unquote(credentials.rpartition(":")[2])
    if parts.path.strip("/"):
        found["policy"] = parts.path.strip("/")
    found |= dict(parse_qsl(parts.query)) | options
    for name in found:
        if name not in _NAMES:
            known = f"{', '.join(_NAMES[:-1])} and {_NAMES[-1]}"
            raise ConfigurationError(f"{parts.scheme} has no option {name}; it has {known}")
    read = _Options(nodes, **found)
    try:
        read.deadline = float(read.deadline)
    except (TypeError, ValueError):
        fault = f"deadline must be a number of seconds: {read.deadline}"
        raise ConfigurationError(fault) from None
    if read.on_failure not in ("raise", "open", "closed"):
        raise ConfigurationError(f"on_failure must be raise, open or closed: {read.on_failure}")
    return read


@dataclass(slots=True)
class _Question:
    """A check, its limit, and what it answers if the node does not."""

    policy: str
    key: str
    limit: int
    expiry: int
    cost: int = 0

    def check(self) -> dict[str, Any]:
        quota = f"{self.limit} per {self.expiry}s"
        key = sendable(self.key)
        return {"key": key, "policy": self.policy, "cost": self.cost, "quotas": [quota]}

    def peek(self) -> _Question:
        return _Question(self.policy, self.key, self.limit, self.expiry)


@dataclass(slots=True)
class _Count:
    """What a decision says: whether the hit counts, how many count, and when that ends."""

    allowed: bool
    used: int
    ends_at: float


def _count(question: _Question, decision: Decision) -> _Count:
    wait = decision.reset_after_ms if decision.allowed else decision.retry_after_ms
    return _Count(decision.allowed, _used(question, decision), time.time() + (wait or 0) / 1000)


def _used(question: _Question, decision: Decision) -> int:
    if decision.remaining is None or decision.limit is None:
        return 0
    # By its fallback a node answers with its share of the limit. What remains of it is exact.
    limit = decision.limit if question.limit == UNLIMITED else question.limit
    return limit - decision.remaining


class _Last(NamedTuple):
    """The last decision of this thread or task."""

    storage: int
    question: _Question
    answer: _Count
    at: float


_last: ContextVar[_Last | None] = ContextVar("tollgate_last", default=None)


class _Questions:
    """What both storages share."""

    _options: _Options

    def _moving(self, key: str, limit: int, expiry: int, amount: int = 0) -> _Question:
        return _Question(self._options.policy, key, limit, expiry, amount)

    def _fixed(self, key: str, expiry: int | None = None, amount: int = 0) -> _Question:
        expiry = expiry or _expiry(key)
        return _Question(self._options.fixed_policy, key, UNLIMITED, expiry, amount)

    def _remember(self, question: _Question, count: _Count) -> _Count:
        _last.set(_Last(id(self), question.peek(), count, time.monotonic()))
        return count

    def _remembered(self, question: _Question) -> _Count | None:
        last = _last.get()
        if last is None or (last.storage, last.question) != (id(self), question):
            return None
        return last.answer if time.monotonic() - last.at <= REMEMBER_SECONDS else None

    def _without_node(self, question: _Question, error: TollgateError) -> _Count:
        if self._options.on_failure == "raise":
            raise error
        is_open = self._options.on_failure == "open"
        return _Count(is_open, question.cost if is_open else question.limit, time.time())

    @property
    def base_exceptions(self) -> type[Exception]:
        return TollgateError


def _window(question: _Question, count: _Count) -> tuple[float, int]:
    now = time.time()
    return (count.ends_at - question.expiry if count.used else now), count.used


def _expiry(key: str) -> int:
    """`RateLimitItem.key_for` ends each key with its amount, its multiples and its granularity."""
    _, _, rest = key.partition("/")
    multiples, _, name = rest.rpartition("/")
    multiples = multiples.rpartition("/")[2]
    if name not in GRANULARITIES or not multiples.isdigit():
        raise ValueError(
            f"the key {key!r} is not from `RateLimitItem.key_for`: its window is unknown"
        )
    return GRANULARITIES[name].GRANULARITY.seconds * int(multiples)


class TollgateStorage(_Questions, Storage, MovingWindowSupport):
    """The strategies `moving-window` and `fixed-window` on nodes of Tollgate."""

    STORAGE_SCHEME = ["tollgate", "tollgate+https"]

    def __init__(self, uri: str, wrap_exceptions: bool = False, **options: Any) -> None:
        super().__init__(uri, wrap_exceptions=wrap_exceptions)
        self._options = _options(uri, options)
        self._client: Client = self._options.client(Client)

    def acquire_entry(self, key: str, limit: int, expiry: int, amount: int = 1) -> bool:
        return limit > 0 and self._hit(self._moving(key, limit, expiry, amount)).allowed

    def get_moving_window(self, key: str, limit: int, expiry: int) -> tuple[float, int]:
        if limit <= 0:
            return time.time(), 0
        question = self._moving(key, limit, expiry)
        return _window(question, self._look(question))

    def incr(self, key: str, expiry: int, amount: int = 1) -> int:
        return self._hit(self._fixed(key, expiry, amount)).used

    def get(self, key: str) -> int:
        return self._look(self._fixed(key)).used

    def get_expiry(self, key: str) -> float:
        return self._look(self._fixed(key)).ends_at

    def _look(self, question: _Question) -> _Count:
        return self._remembered(question) or self._hit(question)

    def _hit(self, question: _Question) -> _Count:
        try:
            decision = self._client.check(**question.check())
        except TollgateError as error:
            return self._without_node(question, error)
        return self._remember(question, _count(question, decision))

    def check(self) -> bool:
        try:
            self._client.check(**self._moving("check", 1, 1).check())
        except TollgateError:
            return False
        return True

    def reset(self) -> NoReturn:
        raise NotImplementedError(NO_CLEAR)

    def clear(self, key: str) -> NoReturn:
        raise NotImplementedError(NO_CLEAR)


class AsyncTollgateStorage(_Questions, AsyncStorage, AsyncMovingWindowSupport):
    """The same for the asynchronous strategies."""

    STORAGE_SCHEME = ["async+tollgate", "async+tollgate+https"]

    def __init__(self, uri: str, wrap_exceptions: bool = False, **options: Any) -> None:
        super().__init__(uri, wrap_exceptions=wrap_exceptions)
        self._options = _options(uri, options)
        self._client: AsyncClient = self._options.client(AsyncClient)

    async def acquire_entry(self, key: str, limit: int, expiry: int, amount: int = 1) -> bool:
        return limit > 0 and (await self._hit(self._moving(key, limit, expiry, amount))).allowed

    async def get_moving_window(self, key: str, limit: int, expiry: int) -> tuple[float, int]:
        if limit <= 0:
            return time.time(), 0
        question = self._moving(key, limit, expiry)
        return _window(question, await self._look(question))

    async def incr(self, key: str, expiry: int, amount: int = 1) -> int:
        return (await self._hit(self._fixed(key, expiry, amount))).used

    async def get(self, key: str) -> int:
        return (await self._look(self._fixed(key))).used

    async def get_expiry(self, key: str) -> float:
        return (await self._look(self._fixed(key))).ends_at

    async def _look(self, question: _Question) -> _Count:
        return self._remembered(question) or await self._hit(question)

    async def _hit(self, question: _Question) -> _Count:
        try:
            decision = await self._client.check(**question.check())
        except TollgateError as error:
            return self._without_node(question, error)
        return self._remember(question, _count(question, decision))

    async def check(self) -> bool:
        try:
            await self._client.check(**self._moving("check", 1, 1).check())
        except TollgateError:
            return False
        return True

    async def reset(self) -> NoReturn:
        raise NotImplementedError(NO_CLEAR)

    async def clear(self, key: str) -> NoReturn:
        raise NotImplementedError(NO_CLEAR)
