"""What the API carries, under the names of its OpenAPI document.

Requests are typed dictionaries. Answers are dataclasses that ignore unknown members, since a newer
node may add some.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from functools import cache
from typing import Any, TypedDict, TypeVar


class _Keyed(TypedDict):
    key: str


class Check(_Keyed, total=False):
    """One question: may `key` spend `cost` under `policy`, now?

    `once` is no member of the API. The client replaces it by an id that serves repetitions only.
    """

    policy: str | None
    plan: str | None
    cost: int | None
    meta: str | None
    id: str | None
    id_ttl_ms: int | None
    repeated: bool | None
    look: bool | None
    wait_ms: int | None
    quotas: list[str | dict[str, Any]] | None
    over: str | None
    once: bool


@dataclass(slots=True)
class QuotaState:
    """One quota of a decision."""

    name: str
    limit: int
    window_ms: int
    remaining: int
    reset_after_ms: int
    charged: int | None = None


@dataclass(slots=True)
class Fallback:
    """Why the node decided without its store."""

    mode: str
    cause: str


@dataclass(slots=True)
class HoldState:
    """The hold of an id. `ended` says how that of a repeated id ended."""

    expires_in_ms: int
    in_flight: int | None = None
    in_flight_limit: int | None = None
    ended: str | None = None


@dataclass(slots=True)
class Decision:
    """`limit`, `remaining`, `reset_after_ms` and `quota` describe the binding quota.

    `retry_after_ms` is 0 if allowed, and None if the cost can never fit. `charged` and `owed` are
    units. `owed` is set for `over="drain"`, and `start_in_ms` for a check that waits. A client may
    buy units of the key for `lease_span_ms`.
    """

    allowed: bool
    policy: str
    key: str
    cost: int
    charged: int
    limit: int | None
    remaining: int | None
    retry_after_ms: int | None
    reset_after_ms: int | None
    quota: str | None
    source: str
    reason: str
    quotas: list[QuotaState] = field(default_factory=list)
    fallback: Fallback | None = None
    replayed: bool = False
    owed: int | None = None
    start_in_ms: int | None = None
    hold: HoldState | None = None
    lease_span_ms: int | None = None


@dataclass(slots=True)
class CheckAnswer(Decision):
    """A decision. `refunded` is true if the charge of its id was given back."""

    refunded: bool = False


@dataclass(slots=True)
class RefundAnswer(Decision):
    """The decision for cost 0, and the most units that any quota got back."""

    refunded: int = field(kw_only=True)


@dataclass(slots=True)
class SettleAnswer:
    """The end of a hold, and the counts after it. `reason` says why it is not settled."""

    settled: bool
    limit: int | None
    remaining: int | None
    retry_after_ms: int | None
    reset_after_ms: int | None
    quota: str | None
    source: str
    quotas: list[QuotaState] = field(default_factory=list)
    charged: int = 0
    refunded: int = 0
    owed: int = 0
    replayed: bool = False
    reason: str | None = None


@dataclass(slots=True)
class RenewAnswer:
    """Whether the hold is open, and for how long. `reason` says why it is not."""

    renewed: bool
    expires_in_ms: int
    reason: str | None = None


@dataclass(slots=True)
class LeaseAnswer:
    """Units that the client may spend by itself, and the counts after their sale."""

    granted: int
    spend_within_ms: int
    replayed: bool
    limit: int | None
    remaining: int | None
    retry_after_ms: int | None
    reset_after_ms: int | None
    quota: str | None
    source: str
    quotas: list[QuotaState] = field(default_factory=list)


@dataclass(slots=True)
class UsageHold:
    """One open hold."""

    id: str
    age_ms: int
    cost: int
    expires_in_ms: int
    meta: str | None


@dataclass(slots=True)
class UsageEntry:
    """One charge in a sliding log."""

    age_ms: int
    cost: int
    meta: str | None


@dataclass(slots=True)
class TopMeta:
    """One cause in a sliding log, with the sum of its charges."""

    meta: str
    cost: int
    count: int


@dataclass(slots=True)
class Tick:
    """One counter of a sliding counter."""

    at: int
    count: int


@dataclass(slots=True)
class Usage(Decision):
    """The decision for cost 0, and what the algorithm knows of its charges."""

    entries: list[UsageEntry] | None = None
    top_metas: list[TopMeta] | None = None
    ticks: list[Tick] | None = None
    holds: list[UsageHold] | None = None
    in_flight: int | None = None
    in_flight_limit: int | None = None


@dataclass(slots=True)
class TogetherAnswer:
    """The verdict over several checks. `denied_by` has the places of the denied ones, from 0."""

    allowed: bool
    denied_by: list[int]
    retry_after_ms: int | None
    results: list[Decision]


@dataclass(slots=True)
class Violation:
    """A fault: of a request with its `pointer`, or of a configuration with its place."""

    detail: str
    pointer: str = ""
    file: str | None = None
    line: int | None = None
    column: int | None = None


@dataclass(slots=True)
class Problem:
    """A problem document (RFC 9457)."""

    type: str
    title: str
    status: int
    detail: str
    violations: list[Violation] = field(default_factory=list)
    omitted_violations: int | None = None
    known: list[str] = field(default_factory=list)


T = TypeVar("T")
_NESTED: dict[str, Any] = {
    "quotas": QuotaState,
    "fallback": Fallback,
    "hold": HoldState,
    "holds": UsageHold,
    "entries": UsageEntry,
    "top_metas": TopMeta,
    "ticks": Tick,
    "results": Decision,
    "violations": Violation,
}


def read(kind: type[T], members: Mapping[str, Any]) -> T:
    """Builds `kind` from JSON. A required member that is missing is a `TypeError`."""
    names, nested = _plan(kind)  # type: ignore[arg-type]
    known = {name: value for name, value in members.items() if name in names}
    for name in nested:
        if value := known.get(name):
            part = _NESTED[name]
            is_list = isinstance(value, list)
            known[name] = [read(part, one) for one in value] if is_list else read(part, value)
    return kind(**known)


@cache
def _plan(kind: Any) -> tuple[set[str], list[str]]:
    names = {part.name for part in fields(kind)}
    return names, [name for name in _NESTED if name in names]
