"""Holds from their opening to their end, for asyncio and for threads.

As in `base`, the code is asynchronous. That of a blocking hold never suspends.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
import uuid
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, Protocol

from .errors import Denied, HoldEnded, ProblemError, TollgateError, no_hold
from .later import run
from .types import Check, Decision, SettleAnswer

if TYPE_CHECKING:
    from .aio import AsyncClient
    from .base import BaseClient
    from .blocking import Client

# The shortest time between two attempts to renew.
SHORTEST_RENEWAL = 0.05
# How long, and how often, a call without an answer is repeated.
REPEAT_SECONDS = 60.0
FIRST_PAUSE = 0.1
LONGEST_PAUSE = 5.0
SETTLE_FAILED = "the settle of a hold failed"


class Timer(Protocol):
    def cancel(self) -> object: ...


@dataclass(slots=True, eq=False)
class _Held:
    """One id that is open at the nodes. Without `until` a node made no hold."""

    name: dict[str, Any]
    until: float | None = None
    timer: Timer | None = None


class BaseHold:
    """Units and places that are held until the end of a `with` block.

    The hold renews itself, and settles on every way out of the block. `cost` is the true cost, and
    replaces the charge of each check. While it is None, the charge stays. `decisions` has the
    decision of each check.
    """

    def __init__(
        self, client: BaseClient[Any], checks: Sequence[Check], traceparent: str | None
    ) -> None:
        self.cost: int | None = None
        self.decisions: list[Decision] = []
        self._client = client
        self._checks: list[Check] = [
            {**check, "id": check.get("id") or uuid.uuid4().hex} for check in checks
        ]
        self._traceparent = traceparent
        self._held: list[_Held] = []
        self._end: str | None = None

    @property
    def decision(self) -> Decision:
        """The decision of the first check."""
        return self.decisions[0]

    @property
    def ended(self) -> str | None:
        """Why the hold has ended, such as `expired` or `settled`. None while it is open."""
        now = time.monotonic()
        is_late = any(held.until is not None and now >= held.until for held in self._held)
        return self._end or ("expired" if is_late else None)

    def open(self) -> Any:
        raise NotImplementedError

    def settle(self, cost: int | None = None) -> Any:
        raise NotImplementedError

    async def _open(self) -> None:
        sent = time.monotonic()
        try:
            if len(self._checks) == 1:
                answer = await self._client._decide(self._checks[0], self._traceparent)
                self.decisions = [answer]
            else:
                self.decisions = (await self._client._check_all(self._checks)).results
        except BaseException as error:
            # A node may have opened the hold, and its answer is lost.
            if may_have_happened(error):
                self._give_back(self._checks)
            raise
        ended = next(filter(has_ended, self.decisions), None)
        if ended or not all(one.allowed for one in self.decisions):
            pairs = zip(self._checks, self.decisions, strict=True)
            self._give_back([check for check, one in pairs if ended and not one.replayed])
            raise Denied(ended or max(self.decisions, key=_wait))
        for check, one in zip(self._checks, self.decisions, strict=True):
            # Without a hold, the policy has none and the charge is final, or no store has decided.
            if one.hold or one.source != "store" or one.reason != "ok":
                # The node counts from a later instant than `sent`, so it is open until then.
                until = sent + one.hold.expires_in_ms / 1000 if one.hold else None
                self._held.append(_Held(_name(check), until))
        if not self._held:
            fault = no_hold(self.decision.policy)
            self._client.monitor.heed(fault)
            raise fault

    def _keep(self) -> None:
        """Renews from now on. Nobody may ever settle a hold that is only open."""
        for held in self._held:
            if held.timer is None:
                self._renew_later(held)

    def _renew_later(self, held: _Held) -> None:
        """After a third of the time that is left. So a failure is followed by more attempts."""
        if held.until is not None and (left := held.until - time.monotonic()) > 0:
            pause = max(left / 3, SHORTEST_RENEWAL)
            held.timer = self._client._after(pause, lambda: self._renew(held))

    async def _renew(self, held: _Held) -> None:
        sent = time.monotonic()
        try:
            answer = await self._client._renew(**held.name)
        except TollgateError:
            answer = None
        if self.ended is not None:
            return
        if answer and not answer.renewed:
            self._lose(answer.reason or "expired")
            return
        if answer:
            held.until = sent + answer.expires_in_ms / 1000
        self._renew_later(held)

    def _lose(self, reason: str) -> None:
        self._end = self._end or reason

    async def _settle(self, cost: int | None) -> list[SettleAnswer]:
        self._end = "settled"
        answers: list[SettleAnswer] = []
        failure: TollgateError | None = None
        for held in self._held:
            if held.timer:
                held.timer.cancel()
            try:
                answers.append(await self._client._settle(**held.name, cost=cost))
            except TollgateError as error:
                failure = error
                if may_have_happened(error):
                    call = partial(self._client._settle, **held.name, cost=cost)
                    repeat_later(self._client, SETTLE_FAILED, call, FIRST_PAUSE)
        if failure:
            raise failure
        return answers

    def _give_back(self, checks: Sequence[Check]) -> None:
        """Settles what no work began under."""
        for check in checks:
            call = partial(self._client._settle, **_name(check), cost=0)
            repeat_later(self._client, SETTLE_FAILED, call, 0.0)


class AsyncHold(BaseHold):
    __doc__ = f"""{BaseHold.__doc__}
    If the hold ends before the block, it cancels the task of the block, which then raises
    `HoldEnded`.
    """

    _client: AsyncClient

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        self._settling: asyncio.Task[list[SettleAnswer]] | None = None
        self._task: asyncio.Task[Any] | None = None
        self._cancelling = 0
        self._has_cancelled = False
        self._expiries: dict[_Held, asyncio.TimerHandle] = {}

    async def open(self) -> AsyncHold:
        """Opens the hold before its block, which would open it itself.

        Only the block renews and settles it. Without a block it lasts for the `ttl` of its policy.
        """
        opening = self._client._start_task(self._open())
        try:
            await asyncio.shield(opening)
        except asyncio.CancelledError:
            self._client._later(self._abandon(opening))
            raise
        return self

    async def _abandon(self, opening: asyncio.Task[None]) -> None:
        with contextlib.suppress(TollgateError):
            await opening
            await self._settle(0)

    async def settle(self, cost: int | None = None) -> list[SettleAnswer]:
        """Ends the hold, once. `cost` is that of the hold by default.

        There is an answer for each check under a policy with a hold. A settle that gets none raises
        `Unavailable`, and goes on in the background for a minute.
        """
        if self._settling is None:
            for expiry in self._expiries.values():
                expiry.cancel()
            cost = self.cost if cost is None else cost
            self._settling = self._client._start_task(self._settle(cost))
        return await asyncio.shield(self._settling)

    def _renew_later(self, held: _Held) -> None:
        super()._renew_later(held)
        if held.until is not None:
            if known := self._expiries.get(held):
                known.cancel()
            left = held.until - time.monotonic()
            loop = asyncio.get_running_loop()
            self._expiries[held] = loop.call_later(left, self._lose, "expired")

    def _lose(self, reason: str) -> None:
        if self._end is None and self._task:
            self._has_cancelled = self._task.cancel()
        super()._lose(reason)

    async def __aenter__(self) -> AsyncHold:
        if not self.decisions:
            await self.open()
        self._task = asyncio.current_task()
        self._cancelling = getattr(self._task, "cancelling", int)()
        self._keep()
        return self

    async def __aexit__(self, kind: Any, error: BaseException | None, _: Any) -> None:
        task, self._task, reason = self._task, None, self._end
        try:
            await self.settle()
        except TollgateError as failure:
            self._client.monitor.log(SETTLE_FAILED, failure)
        if self._has_cancelled:
            # As in asyncio.timeout: a cancellation by somebody else stays one.
            is_own = getattr(task, "uncancel", int)() <= self._cancelling
            if is_own and kind is asyncio.CancelledError:
                raise HoldEnded(str(reason)) from error


class Hold(BaseHold):
    __doc__ = f"""{BaseHold.__doc__}
    Threads cannot be cancelled. Long work calls `raise_if_ended` now and then.
    """

    _client: Client

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        self._has_settled = False
        self._answers: list[SettleAnswer] = []

    def open(self) -> Hold:
        """Opens the hold before its block, which would open it itself.

        Only the block renews and settles it. Without a block it lasts for the `ttl` of its policy.
        """
        run(self._open())
        return self

    def settle(self, cost: int | None = None) -> list[SettleAnswer]:
        """Ends the hold, once. `cost` is that of the hold by default.

        There is an answer for each check under a policy with a hold. A settle that gets none raises
        `Unavailable`, and goes on in the background for a minute.
        """
        # `_end` also tells that somebody else has settled one of the checks.
        if not self._has_settled:
            self._has_settled = True
            cost = self.cost if cost is None else cost
            self._answers = run(self._settle(cost))
        return self._answers

    def raise_if_ended(self) -> None:
        """Raises `HoldEnded` if the work no longer has its place."""
        if reason := self.ended:
            raise HoldEnded(reason)

    def __enter__(self) -> Hold:
        if not self.decisions:
            self.open()
        self._keep()
        return self

    def __exit__(self, *_: object) -> None:
        try:
            self.settle()
        except TollgateError as failure:
            self._client.monitor.log(SETTLE_FAILED, failure)


def _name(check: Check) -> dict[str, Any]:
    return {"key": check["key"], "policy": check.get("policy"), "id": check["id"]}


def has_ended(decision: Decision) -> bool:
    """Whether the hold of a repeated id has ended, so that no work may begin."""
    return bool(decision.hold and decision.hold.ended)


def _wait(decision: Decision) -> float:
    wait = decision.retry_after_ms
    return -1 if decision.allowed else float("inf") if wait is None else wait


def may_have_happened(error: BaseException) -> bool:
    return not (isinstance(error, ProblemError) and error.problem.status < 500)


def repeat_later(
    client: BaseClient[Any],
    failed: str,
    call: Callable[[], Awaitable[object]],
    pause: float,
    until: float | None = None,
) -> None:
    """Makes a call until a node answers it, for a minute."""
    end = until or time.monotonic() + REPEAT_SECONDS

    async def attempt() -> None:
        try:
            await call()
        except TollgateError as error:
            client.monitor.log(failed, error)
            if may_have_happened(error) and time.monotonic() < end:
                next_pause = min(2 * pause or FIRST_PAUSE, LONGEST_PAUSE)
                repeat_later(client, failed, call, next_pause, end)

    client._after(pause, attempt)
