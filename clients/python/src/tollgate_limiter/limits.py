"""Storages for the library `limits`, and so for Flask-Limiter and slowapi.

After `import tollgate_limiter.limits` they serve `tollgate://127.0.0.1:7070`. Checks bring their
quotas to two policies with `inline: true`: `limits` counts `moving-window`, and `limits-fixed`
counts `fixed-window`.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from contextvars import ContextVar
from dataclasses import dataclass, fields
from typing import Any, NamedTuple, NoReturn
from urllib.parse import parse_qsl, unquote, urlsplit

from limits.aio.storage import (
    MovingWindowSupport as AsyncMovingWindowSupport,
    Storage as AsyncStorage,
)
from limits.errors import ConfigurationError
from limits.limits import GRANULARITIES
from limits.storage import MovingWindowSupport, Storage

from .aio import AsyncClient
from .base import BaseClient
from .blocking import Client, run
from .errors import TollgateError
from .limiter import sendable
from .types import Check, Decision

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
    deadline: float | None = None
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
        read.deadline = None if read.deadline is None else float(read.deadline)
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

    def check(self) -> Check:
        quota = f"{self.limit} per {self.expiry}s"
        key = sendable(self.key)
        return {"key": key, "policy": self.policy, "cost": self.cost, "quotas": [quota]}

    def peek(self) -> _Question:
        return _Question(self.policy, self.key, self.limit, self.expiry)


class _Count(NamedTuple):
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


# The last decision of this thread or task: its storage, its instant, and the count.
_last: ContextVar[tuple[int, _Question, float, _Count] | None]
_last = ContextVar("tollgate_last", default=None)


class _Counts:
    """The counts of a storage on nodes. With a blocking client its methods never suspend."""

    def __init__(self, kind: type[BaseClient[Any]], uri: str, options: dict[str, Any]) -> None:
        self._options = _options(uri, options)
        self._client: BaseClient[Any] = self._options.client(kind)

    async def acquire_entry(self, key: str, limit: int, expiry: int, amount: int = 1) -> bool:
        return limit > 0 and (await self._hit(self._moving(key, limit, expiry, amount))).allowed

    async def get_moving_window(self, key: str, limit: int, expiry: int) -> tuple[float, int]:
        if limit <= 0:
            return time.time(), 0
        question = self._moving(key, limit, expiry)
        count = await self._look(question)
        return (count.ends_at - expiry if count.used else time.time()), count.used

    async def incr(self, key: str, expiry: int, amount: int = 1) -> int:
        return (await self._hit(self._fixed(key, expiry, amount))).used

    async def get(self, key: str) -> int:
        return (await self._look(self._fixed(key))).used

    async def get_expiry(self, key: str) -> float:
        return (await self._look(self._fixed(key))).ends_at

    async def check(self) -> bool:
        try:
            await self._client._decide(self._moving("check", 1, 1).check())
        except TollgateError:
            return False
        return True

    def _moving(self, key: str, limit: int, expiry: int, amount: int = 0) -> _Question:
        return _Question(self._options.policy, key, limit, expiry, amount)

    def _fixed(self, key: str, expiry: int | None = None, amount: int = 0) -> _Question:
        expiry = expiry or _expiry(key)
        return _Question(self._options.fixed_policy, key, UNLIMITED, expiry, amount)

    async def _look(self, question: _Question) -> _Count:
        if last := _last.get():
            storage, asked, at, count = last
            is_new = time.monotonic() - at <= REMEMBER_SECONDS
            if is_new and (storage, asked) == (id(self), question):
                return count
        return await self._hit(question)

    async def _hit(self, question: _Question) -> _Count:
        try:
            decision = await self._client._decide(question.check())
        except TollgateError as error:
            return self._without_node(question, error)
        count = _count(question, decision)
        _last.set((id(self), question.peek(), time.monotonic(), count))
        return count

    def _without_node(self, question: _Question, error: TollgateError) -> _Count:
        if self._options.on_failure == "raise":
            raise error
        is_open = self._options.on_failure == "open"
        return _Count(is_open, question.cost if is_open else question.limit, time.time())


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


class _NoClear:
    base_exceptions = TollgateError

    def reset(self) -> NoReturn:
        raise NotImplementedError(NO_CLEAR)

    def clear(self, key: str) -> NoReturn:
        raise NotImplementedError(NO_CLEAR)


class TollgateStorage(_NoClear, Storage, MovingWindowSupport):
    """The strategies `moving-window` and `fixed-window` on nodes of Tollgate."""

    STORAGE_SCHEME = ["tollgate", "tollgate+https"]

    def __init__(self, uri: str, wrap_exceptions: bool = False, **options: Any) -> None:
        super().__init__(uri, wrap_exceptions=wrap_exceptions)
        self._counts = _Counts(Client, uri, options)

    def acquire_entry(self, key: str, limit: int, expiry: int, amount: int = 1) -> bool:
        return run(self._counts.acquire_entry(key, limit, expiry, amount))

    def get_moving_window(self, key: str, limit: int, expiry: int) -> tuple[float, int]:
        return run(self._counts.get_moving_window(key, limit, expiry))

    def incr(self, key: str, expiry: int, amount: int = 1) -> int:
        return run(self._counts.incr(key, expiry, amount))

    def get(self, key: str) -> int:
        return run(self._counts.get(key))

    def get_expiry(self, key: str) -> float:
        return run(self._counts.get_expiry(key))

    def check(self) -> bool:
        return run(self._counts.check())


class AsyncTollgateStorage(_NoClear, _Counts, AsyncStorage, AsyncMovingWindowSupport):
    """The same for the asynchronous strategies."""

    STORAGE_SCHEME = ["async+tollgate", "async+tollgate+https"]

    def __init__(self, uri: str, wrap_exceptions: bool = False, **options: Any) -> None:
        AsyncStorage.__init__(self, uri, wrap_exceptions=wrap_exceptions)
        _Counts.__init__(self, AsyncClient, uri, options)
