"""Leases: the client buys units of a key, and decides checks of that key in this process.

`clients/lease-cases.json` tests this state machine in every language. It makes no calls, and gets
the time from outside.
"""

from __future__ import annotations

import os
import threading
import time
import weakref
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

from .denials import cost_of
from .types import Check, CheckAnswer, LeaseAnswer, QuotaState

# The least units to buy.
LEAST = 4
# A lease ends by this part early, since clocks differ.
DRIFT = 256
# The next lease is bought in the last part of the units or of the time.
AHEAD = 8
# After a purchase that failed.
PAUSE = 1_000_000
# A wall clock that runs so far ahead has seen a suspension.
SUSPENSION = 1_000_000
MAX_KEYS = 10_000

# Microseconds of a clock that runs on while the machine is suspended, and of the wall clock.
Instant = tuple[int, int]
Place = tuple[str, str]

# That of macOS with the other name runs on, too.
_CLOCK = getattr(time, "CLOCK_BOOTTIME", getattr(time, "CLOCK_MONOTONIC", None))
_ONLY_A_NODE = ("id", "meta", "plan", "quotas", "look", "over", "wait_ms")


def now() -> Instant:
    own = time.monotonic_ns() if _CLOCK is None else time.clock_gettime_ns(_CLOCK)
    return own // 1000, time.time_ns() // 1000


def place_of(check: Check) -> Place | None:
    """The policy and the key that may pay for `check`. None: only a node may answer it."""
    cost, members = cost_of(check), check.get
    if type(cost) is not int or cost < 1 or not isinstance(check["key"], str):
        return None
    # Most checks have only a key, a policy and a cost.
    others = len(check) - 1 - ("policy" in check) - ("cost" in check)
    for name in _ONLY_A_NODE if others else ():
        value = members(name)
        if value is not None and value is not False:
            return None
    return check.get("policy") or "default", check["key"]


@dataclass(slots=True, eq=False)
class _Key:
    """A key whose answers have a span (us), and its demand by the number of the span."""

    span: int
    number: int = 0
    present: int = 0
    previous: int = 0
    hands: list[Lease] = field(default_factory=list)
    is_buying: bool = False
    # Settles without an answer yet.
    settling: int = 0
    was_cut: bool = False
    pause_until: int = 0

    def demand(self, now: Instant, cost: int) -> int:
        """Adds `cost`, and returns the units of the last span."""
        number, passed = divmod(now[0], self.span)
        if number > self.number:
            self.previous = self.present if number == self.number + 1 else 0
            self.number, self.present = number, 0
        self.present += cost
        return self.present + self.previous * (self.span - passed) // self.span


@dataclass(slots=True, eq=False)
class Lease:
    """A lease, from its purchase to its settle. `lasts` is in us."""

    place: Place
    id: str
    wanted: int
    sent: Instant
    key: _Key
    granted: int = 0
    left: int = 0
    lasts: int = 0
    answer: LeaseAnswer | None = None
    timer: Any = None

    def age(self, now: Instant) -> int:
        own, wall = now[0] - self.sent[0], now[1] - self.sent[1]
        return wall if wall - own > SUSPENSION else own

    def pause(self, now: Instant) -> float | None:
        """Seconds until the next tick. None: the lease has ended."""
        if self not in self.key.hands:
            return None
        age = self.age(now)
        # A timer may be early by a part of a millisecond.
        return ((self.lasts if age * 2 >= self.lasts else self.lasts // 2) - age) / 1e6 + 0.001

    def pay(self, cost: int, now: Instant) -> CheckAnswer:
        self.left -= cost
        left, age, answer = self.left, self.age(now) // 1000, self.answer
        assert answer is not None
        quotas = [
            QuotaState(
                quota.name,
                quota.limit,
                quota.window_ms,
                quota.remaining + left,
                max(0, quota.reset_after_ms - age),
            )
            for quota in answer.quotas
        ]
        return CheckAnswer(
            allowed=True,
            policy=self.place[0],
            key=self.place[1],
            cost=cost,
            charged=cost,
            limit=answer.limit,
            remaining=(answer.remaining or 0) + left,
            retry_after_ms=0,
            reset_after_ms=max(0, (answer.reset_after_ms or 0) - age),
            quota=answer.quota,
            source="lease",
            reason="ok",
            quotas=quotas,
        )


class Leases:
    """The leases of one client. `due` are those to settle, with what was spent."""

    def __init__(self) -> None:
        self.is_closed = False
        self.fork()
        _all.add(self)

    def fork(self) -> None:
        """A child holds nothing, and its ids are its own."""
        self._lock = threading.Lock()
        self._text, self._number = os.urandom(16).hex(), 0
        self._keys: dict[Place, _Key] = {}
        self._full_until = 0
        self.due: list[Lease] = []
        # Purchases and settles without an answer yet.
        self.calls = 0

    def check(
        self, place: Place, cost: int, now: Instant
    ) -> tuple[CheckAnswer | None, Lease | None]:
        """The decision, unless a node has to make it, and the lease to buy."""
        with self._lock:
            key = self._keys.get(place)
            if key is None:
                return None, None
            self._end_old(key, now)
            demand, paid = key.demand(now, 0) + cost, None
            for lease in key.hands:
                if lease.left >= cost:
                    key.present += cost
                    paid = lease.pay(cost, now)
                    if not lease.left:
                        self._end(lease)
                    break
            units = demand - demand % cost
            if units < LEAST or not _may_buy(key, now):
                return paid, None
            key.is_buying = True
            self.calls += 1
            self._number += 1
            return paid, Lease(place, f"{self._text}-{self._number}", units, now, key)

    def answered(
        self, place: Place, cost: int, allowed: bool, span_ms: int | None, now: Instant
    ) -> None:
        """A node has decided."""
        with self._lock:
            key = self._keys.get(place)
            if not span_ms:
                if key is not None:
                    self._end_all(key.hands)
                    del self._keys[place]
                return
            if key is None:
                if self.is_closed or not self._has_room(now):
                    return
                key = self._keys[place] = _Key(span_ms * 1000)
            elif key.span != span_ms * 1000:
                key.span, key.number, key.present, key.previous = span_ms * 1000, 0, 0, 0
            if allowed:
                key.demand(now, cost)

    def bought(self, lease: Lease, answer: LeaseAnswer, now: Instant) -> None:
        with self._lock:
            key = self._bought(lease)
            if not answer.granted:
                key.pause_until = now[0] + (answer.retry_after_ms or 0) * 1000
                return
            key.was_cut = answer.granted < lease.wanted
            lease.answer, lease.granted, lease.left = answer, answer.granted, answer.granted
            within = answer.spend_within_ms * 1000
            lease.lasts = within - -(-within // DRIFT)
            # The key may be forgotten.
            if lease.age(now) >= lease.lasts or self._keys.get(lease.place) is not key:
                self._end(lease)
            else:
                key.hands.append(lease)

    def failed(self, lease: Lease, may_have_happened: bool, now: Instant) -> None:
        with self._lock:
            self._bought(lease).pause_until = now[0] + PAUSE
            if may_have_happened:
                self._end(lease)

    def tick(self, now: Instant, one: Lease | None = None) -> None:
        """Ends `one` lease, or each, if its time is over, or half of it without any use."""
        with self._lock:
            for key in [one.key] if one else self._keys.values():
                self._end_old(key, now)
                self._end_all(
                    lease
                    for lease in key.hands
                    if lease.left == lease.granted and lease.age(now) * 2 >= lease.lasts
                )

    def take_due(self, most: int) -> list[Lease]:
        with self._lock:
            taken, self.due = self.due[:most], self.due[most:]
            return taken

    def settled(self, leases: Iterable[Lease]) -> None:
        """Their settle has an answer, or gets none."""
        with self._lock:
            for lease in leases:
                lease.key.settling -= 1
                self.calls -= 1

    def close(self) -> None:
        """Ends all leases, and buys no more."""
        with self._lock:
            self.is_closed = True
            for key in self._keys.values():
                self._end_all(key.hands)
            self._keys.clear()

    def _bought(self, lease: Lease) -> _Key:
        self.calls -= 1
        lease.key.is_buying = False
        return lease.key

    def _end_old(self, key: _Key, now: Instant) -> None:
        for lease in key.hands:
            if lease.age(now) >= lease.lasts:
                self._end_all(lease for lease in key.hands if lease.age(now) >= lease.lasts)
                return

    def _end_all(self, leases: Iterable[Lease]) -> None:
        for lease in list(leases):
            self._end(lease)

    def _end(self, lease: Lease) -> None:
        if lease in lease.key.hands:
            lease.key.hands.remove(lease)
        # A parent settles what it bought itself.
        if lease.id.startswith(self._text):
            lease.key.settling += 1
            self.calls += 1
            self.due.append(lease)

    def _has_room(self, now: Instant) -> bool:
        """Drops keys without demand, at most once a second."""
        if len(self._keys) >= MAX_KEYS and now[0] >= self._full_until:
            self._full_until = now[0] + PAUSE
            self._keys = {
                place: key
                for place, key in self._keys.items()
                if key.hands or key.is_buying or key.demand(now, 0)
            }
        return len(self._keys) < MAX_KEYS


def _may_buy(key: _Key, now: Instant) -> bool:
    if key.is_buying or now[0] < key.pause_until:
        return False
    if not key.hands:
        return not key.settling or not key.was_cut
    if len(key.hands) > 1 or key.was_cut:
        return False
    lease = key.hands[0]
    is_spent = lease.left * AHEAD <= lease.granted
    return is_spent or lease.age(now) * AHEAD >= lease.lasts * (AHEAD - 1)


_all: weakref.WeakSet[Leases] = weakref.WeakSet()


def _after_fork() -> None:
    for leases in list(_all):
        leases.fork()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)
