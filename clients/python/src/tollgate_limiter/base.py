"""Both clients: which calls they have, which node a call asks, and what a failure means.

The code is asynchronous, but waits only in the methods that a client adds. Those of the blocking
client never suspend.
"""

from __future__ import annotations

import atexit
import json
import math
import time
import uuid
import weakref
from abc import ABC, abstractmethod
from collections.abc import Callable, Coroutine, Iterable, Sequence
from functools import partial
from typing import Any, Generic, TypeVar

from . import calls, leases
from .calls import Call, Result, Shared
from .denials import Denials, Place, cost_of
from .errors import Denied, ProblemError, TollgateError, Unavailable, copy
from .hold import BaseHold, Timer, has_ended, may_have_happened, repeat_later
from .leases import Lease, Leases
from .monitor import Monitor, Stats
from .nodes import AttemptFailed, Attempts, Failure, Node, nodes as read_nodes
from .types import (
    Check,
    CheckAnswer,
    Decision,
    RefundAnswer,
    RenewAnswer,
    SettleAnswer,
    TogetherAnswer,
    Usage,
)

T = TypeVar("T")
H = TypeVar("H", bound=BaseHold)

DEFAULT_NODE = "http://127.0.0.1:7070"
# Three times the default timeout of a node's store, so that the node answers first.
NODE_SECONDS = 0.3
MAX_DEFAULT_DEADLINE = 1.0
# A day. Timers of the system end at some weeks.
MAX_DEADLINE = 86_400.0
MAX_WAIT = 3600.0
# An id of `once` outlives the last repetition by this.
ID_TTL_MS = 10_000
COMPARE_SECONDS = 5.0


class BaseClient(ABC, Generic[H]):
    """Asks nodes of Tollgate.

    `nodes` are URLs in the order of preference. `deadline` is in seconds, for a whole call. By
    default each node has 0.3 s, and all together at most 1 s. With `retry` a check that lost its
    answer goes out once more. With `coalesce` concurrent checks share calls. For `denial_cache`
    seconds the client repeats a final denial of a node by itself; 0 turns that off. With `lease`
    the client buys units where a policy lets it, and decides checks of such keys by itself.
    `on_decision` gets each decision, also those that need no call.

    Calls raise `Unavailable` without an answer, and `ProblemError` if a node rejects them.
    """

    def __init__(
        self,
        nodes: str | Iterable[str] = DEFAULT_NODE,
        *,
        deadline: float | None = None,
        token: str | None = None,
        ca_file: str | None = None,
        retry: bool = True,
        coalesce: bool = True,
        denial_cache: float = 1.0,
        lease: bool = True,
        on_decision: Callable[[Decision], object] | None = None,
    ) -> None:
        self._nodes = read_nodes(nodes, ca_file)
        if deadline is None:
            deadline = min(NODE_SECONDS * len(self._nodes), MAX_DEFAULT_DEADLINE)
        if not 0 < deadline <= MAX_DEADLINE:
            bounds = f"more than 0 and at most {MAX_DEADLINE:.0f} seconds"
            raise TollgateError(f"`deadline` must be {bounds}, not {deadline}")
        if not 0 <= denial_cache <= MAX_DEADLINE:
            bounds = f"from 0 to {MAX_DEADLINE:.0f} seconds"
            raise TollgateError(f"`denial_cache` must be {bounds}, not {denial_cache}")
        if token is not None and not all("!" <= letter <= "~" for letter in token):
            raise TollgateError("`token` must be visible ASCII characters (0x21 to 0x7e)")
        self._deadline = deadline
        self._retry = retry
        self._coalesce = coalesce
        self._denials = Denials(denial_cache)
        self._leases = Leases()
        if not lease:
            self._leases.close()
        self.monitor = Monitor(on_decision)
        self._fields = "user-agent: tollgate-python\r\ncontent-type: application/json\r\n"
        if token:
            self._fields += f"authorization: Bearer {token}\r\n"
        self._start()
        _clients.add(self)

    _hold_kind: type[H]

    def stats(self) -> Stats:
        """Counts of decisions and failures, for metrics."""
        return self.monitor.stats()

    @abstractmethod
    def _start(self) -> None:
        """Makes what carries the calls."""

    # ---- calls ---------------------------------------------------------------------------------

    async def _check(
        self,
        key: str,
        policy: str | None = None,
        cost: int | None = None,
        *,
        meta: str | None = None,
        id: str | None = None,
        id_ttl_ms: int | None = None,
        repeated: bool | None = None,
        look: bool | None = None,
        plan: str | None = None,
        quotas: list[str | dict[str, Any]] | None = None,
        over: str | None = None,
        once: bool = False,
        traceparent: str | None = None,
    ) -> CheckAnswer:
        """May `key` spend `cost` under `policy`, now? `look` asks without a charge.

        Without an id a repetition after a lost answer may charge twice. With `once` it does not.
        An asynchronous check that is cancelled counts all the same.
        """
        check: Check = {"key": key, "policy": policy, "cost": cost, "meta": meta, "id": id}
        check |= {"plan": plan, "id_ttl_ms": id_ttl_ms, "repeated": repeated, "look": look}
        check |= {"quotas": quotas, "over": over, "once": once}
        return await self._decide(check, traceparent)

    async def _check_batch(self, checks: Sequence[Check]) -> list[CheckAnswer | ProblemError]:
        """Decides each of 1 to 1000 checks alone. A rejected one is returned as its problem."""
        sent, places = time.monotonic(), [self._denials.place(check) for check in checks]
        found: list[Any] = [
            self._decide_here(place, check, sent)
            for place, check in zip(places, checks, strict=True)
        ]
        asked = [number for number, answer in enumerate(found) if answer is None]
        if not asked and checks:
            return self._counted(checks, found)
        share = [Shared.of(self._with_id(checks[number])) for number in asked]
        try:
            answers: list[Any] = await self._send(calls.check_batch(share, self._retry))
        except Unavailable:
            now = time.monotonic()
            stale = ((places[number], checks[number]) for number in asked)
            answers = [self._denials.find(*one, now, stale=True) for one in stale]
            for _ in asked:
                self.monitor.failed()
            if None in answers:
                raise
        for number, answer in zip(asked, answers, strict=True):
            found[number] = answer
            if isinstance(answer, CheckAnswer):
                self._learn(places[number], checks[number], answer, sent)
        return self._counted(checks, found)

    def _counted(self, checks: Sequence[Check], found: list[Any]) -> list[Any]:
        for check, result in zip(checks, found, strict=True):
            if isinstance(result, ProblemError):
                self.monitor.failed()
            elif check.get("over") != "drain":
                self.monitor.decided(result)
        return found

    async def _check_all(self, checks: Sequence[Check]) -> TogetherAnswer:
        """Charges all of 1 to 16 checks or none. It repeats only if each check has an id."""
        answer = await self._call(calls.check_all(checks, self._retry))
        for decision in answer.results:
            self.monitor.decided(decision)
        return answer

    async def _settle(
        self, key: str, policy: str | None = None, *, id: str, cost: int | None = None
    ) -> SettleAnswer:
        """Ends the hold that a check with `id` opened. `cost` replaces its charge."""
        try:
            return await self._call(calls.settle(key, policy, id, cost, self._retry))
        finally:
            self._denials.forget(policy, key)

    async def _renew(self, key: str, policy: str | None = None, *, id: str) -> RenewAnswer:
        """Lets a hold last for the `ttl` of its policy from now on."""
        return await self._call(calls.renew(key, policy, id, self._retry))

    async def _refund(
        self, key: str, policy: str | None = None, *, cost: int | None = None, id: str | None = None
    ) -> RefundAnswer:
        """Gives the charge of `id` back, or `cost` units. Only the first one may repeat."""
        try:
            return await self._call(calls.refund(key, policy, cost, id))
        finally:
            self._denials.forget(policy, key)

    async def _usage(
        self, key: str, policy: str | None = None, *, cost: int | None = None
    ) -> Usage:
        """The decision for cost 0, or for `cost`, without a charge."""
        return await self._call(calls.usage("GET", key, policy, cost))

    async def _reset(self, key: str, policy: str | None = None) -> Usage:
        """Forgets the counts. If the node has tokens, it needs one of an administrator."""
        try:
            return await self._call(calls.usage("DELETE", key, policy))
        finally:
            self._denials.forget(policy, key)

    # ---- waiting in line -----------------------------------------------------------------------

    async def _acquire(
        self,
        key: str,
        policy: str | None = None,
        cost: int | None = None,
        *,
        wait: float,
        meta: str | None = None,
        id: str | None = None,
        plan: str | None = None,
        traceparent: str | None = None,
    ) -> CheckAnswer:
        """Waits in line for at most `wait` seconds, under a token bucket, and returns at the start.

        Raises `Denied` if no start lies within that time. An exception in the wait, such as a
        cancellation, gives the place back. A policy with a `hold` needs an id, which the caller
        settles.
        """
        if not 0 <= wait <= MAX_WAIT:
            raise TollgateError(f"`wait` must be from 0 to {MAX_WAIT:.0f} seconds, not {wait}")
        name: dict[str, Any] = {"key": key, "policy": policy, "id": id or uuid.uuid4().hex}
        check: Check = {"key": key, "policy": policy, "cost": cost, "meta": meta, "plan": plan}
        check |= {"id": name["id"], "once": not id, "wait_ms": round(wait * 1000)}
        refund = partial(self._refund, **name)
        give_back = partial(repeat_later, self, "the refund of a place failed", refund, 0.0)
        return await self._stand(self._take_place(check, traceparent, give_back), give_back)

    async def _take_place(
        self, check: Check, traceparent: str | None, give_back: Callable[[], None]
    ) -> CheckAnswer:
        try:
            answer = await self._decide(check, traceparent)
        except BaseException as error:
            # A node may have given a place, and its answer is lost.
            if may_have_happened(error):
                give_back()
            raise
        if not answer.allowed or has_ended(answer):
            raise Denied(answer)
        if answer.hold and check.get("once"):
            give_back()
            fault = f'the policy "{answer.policy}" has a `hold`, which the caller must settle'
            raise TollgateError(f"{fault}: give `acquire` an id")
        return answer

    @abstractmethod
    async def _stand(
        self, taking: Coroutine[Any, Any, CheckAnswer], give_back: Callable[[], None]
    ) -> CheckAnswer:
        """Takes a place, and sleeps from the answer until the start."""

    # ---- holds ---------------------------------------------------------------------------------

    def hold(
        self,
        key: str,
        policy: str | None = None,
        cost: int | None = None,
        *,
        meta: str | None = None,
        id: str | None = None,
        plan: str | None = None,
        traceparent: str | None = None,
    ) -> H:
        """Holds `cost` and a place for the time of a `with` block, which raises `Denied` if denied.

        By default the id is random. One of the caller has to belong to one holder at a time.
        """
        check: Check = {"key": key, "policy": policy, "cost": cost, "meta": meta, "id": id}
        return self._hold_kind(self, [{**check, "plan": plan}], traceparent)

    def hold_all(self, checks: Sequence[Check], traceparent: str | None = None) -> H:
        """Holds all of 1 to 16 checks or none. Checks of policies without a hold only charge."""
        return self._hold_kind(self, checks, traceparent)

    # ---- checks --------------------------------------------------------------------------------

    async def _decide(self, check: Check, traceparent: str | None = None) -> CheckAnswer:
        place, sent = self._denials.place(check), time.monotonic()
        if known := self._decide_here(place, check, sent):
            return self.monitor.decided(known)
        try:
            result = await self._share(Shared.of(self._with_id(check), traceparent))
            if isinstance(result, TollgateError):
                raise copy(result)
        except TollgateError as error:
            self.monitor.failed()
            if isinstance(error, Unavailable) and (
                known := self._denials.find(place, check, time.monotonic(), stale=True)
            ):
                return self.monitor.decided(known)
            raise
        self._learn(place, check, result, sent)
        return result if check.get("over") == "drain" else self.monitor.decided(result)

    def _decide_here(self, place: Place | None, check: Check, sent: float) -> CheckAnswer | None:
        """The decision if it needs no node."""
        if known := self._denials.find(place, check, sent):
            return known
        leased = leases.place_of(check)
        if leased is None:
            return None
        paid, purchase = self._leases.check(leased, cost_of(check), leases.now())
        if purchase:
            self._lease_later(0.0, partial(self._buy, purchase))
        if self._leases.due:
            self._lease_later(0.0, self._settle_due)
        return paid

    def _learn(self, place: Place | None, check: Check, answer: CheckAnswer, sent: float) -> None:
        self._denials.learn(place, answer, sent, check.get("plan"))
        if leased := leases.place_of(check):
            cost, span = cost_of(check), answer.lease_span_ms
            self._leases.answered(leased, cost, answer.allowed, span, leases.now())
            if self._leases.due:
                self._lease_later(0.0, self._settle_due)

    def _with_id(self, check: Check) -> Check:
        """The id of `once` lives until the last repetition has come."""
        if not check.get("once") or check.get("look"):
            return check
        ttl = min(math.ceil(self._deadline * 1000) + ID_TTL_MS, int(MAX_DEADLINE * 1000))
        id = check.get("id") or uuid.uuid4().hex
        return {**check, "id": id, "id_ttl_ms": check.get("id_ttl_ms") or ttl}

    @abstractmethod
    async def _share(self, one: Shared) -> Result:
        """Decides a check, perhaps in one call with others."""

    async def _decide_together(self, share: Sequence[Shared]) -> list[Result]:
        """One call for all. If a node rejects it for a faulty check, each goes alone."""
        began = time.monotonic()
        if len(share) > 1:
            try:
                return await self._send(calls.check_batch(share, self._retry), began)
            except TollgateError as error:
                if not (isinstance(error, ProblemError) and error.is_bad_check):
                    return [error] * len(share)
        results: list[Result] = []
        for one in share:
            try:
                answer = await self._send(calls.check(one, self._retry), began)
                results.append(answer)
            except TollgateError as error:
                results.append(error)
        return results

    # ---- leases --------------------------------------------------------------------------------

    async def _buy(self, lease: Lease) -> None:
        """Beside the check that needs it, which never waits."""
        try:
            answer = await self._send(calls.lease(lease, self._retry))
        except TollgateError as error:
            self._leases.failed(lease, may_have_happened(error), leases.now())
        except BaseException:
            self._leases.failed(lease, True, leases.now())
            raise
        else:
            self._leases.bought(lease, answer, leases.now())
        await self._watch(lease)

    async def _watch(self, lease: Lease) -> None:
        """Ends the lease in time."""
        self._leases.tick(now := leases.now(), lease)
        await self._settle_due()
        if pause := lease.pause(now):
            lease.timer = self._lease_later(pause, partial(self._watch, lease))

    async def _settle_due(self) -> None:
        """Once. The store counts units that no settle returns until they leave the window."""
        while due := self._leases.take_due(calls.MAX_COALESCED):
            for lease in due:
                if lease.timer:
                    lease.timer.cancel()
            try:
                await self._send(calls.settle_leases(due, self._retry))
            except TollgateError as error:
                self.monitor.failed()
                self.monitor.log("the settle of leases failed", error)
            finally:
                self._leases.settled(due)

    @abstractmethod
    def _lease_later(self, seconds: float, make: Callable[[], Coroutine[Any, Any, None]]) -> Timer:
        """As `_after`, for calls that may be slow."""

    @abstractmethod
    def _run(self, coroutine: Coroutine[Any, Any, None]) -> None:
        """Runs `coroutine` at the end of the process."""

    # ---- nodes ---------------------------------------------------------------------------------

    async def _call(self, call: Call[T]) -> T:
        try:
            return await self._send(call)
        except TollgateError:
            self.monitor.failed()
            raise

    async def _send(self, call: Call[T], began: float | None = None) -> T:
        end = (time.monotonic() if began is None else began) + self._deadline
        attempts = Attempts(self._nodes, call.repeatable, end)
        while (attempt := attempts.next(time.monotonic())) is not None:
            node, seconds = attempt
            body = call.again if attempts.is_repeated else call.body
            try:
                reply = await self._exchange(node, call, body, seconds, attempts.is_second)
            except AttemptFailed as error:
                attempts.failed(error, time.monotonic())
                if error.failure is Failure.SILENT and not node.compared:
                    node.compared = True
                    self._later(self._compare(node, seconds))
                continue
            node.answered(time.monotonic())
            return self._heeding(call.answer, node.url, *reply)
        raise Unavailable(attempts.reason) from attempts.last

    @abstractmethod
    async def _exchange(
        self, node: Node, call: Call[Any], body: bytes, seconds: float, fresh: bool
    ) -> tuple[int, bytes]:
        """The status and the body of the answer, or raises `AttemptFailed`.

        `fresh` asks for a new connection.
        """

    @abstractmethod
    def _after(self, seconds: float, make: Callable[[], Coroutine[Any, Any, None]]) -> Timer:
        """Runs the coroutine that `make` returns after `seconds`, beside the caller."""

    @abstractmethod
    def _later(self, coroutine: Coroutine[Any, Any, None]) -> None:
        """Runs `coroutine` beside the caller."""

    # ---- mistakes ------------------------------------------------------------------------------

    def _heeding(self, read: Callable[[str, int, bytes], T], *reply: Any) -> T:
        try:
            answer = read(*reply)
        except ProblemError as error:
            self.monitor.heed(error)
            raise
        if isinstance(answer, list):
            for result in answer:
                if isinstance(result, ProblemError):
                    self.monitor.heed(result)
        return answer

    async def _compare(self, node: Node, seconds: float) -> None:
        """A deadline below the node's timeout ends before the node's fallback answers."""
        call: Call[Any] = Call("GET", "/health/ready", lambda members: members)
        try:
            _, body = await self._exchange(node, call, b"", COMPARE_SECONDS, True)
            timeout = json.loads(body)["timeout_ms"]
            if timeout >= seconds * 1000:
                deadline, enough = self._deadline * 1000, 2 * timeout * len(self._nodes)
                self.monitor.warn(
                    "deadline",
                    f"the deadline of {deadline:.0f} ms is not above the node's timeout of "
                    f"{timeout} ms: set `deadline` to at least {enough / 1000} seconds",
                )
        except (AttemptFailed, ValueError, TypeError, KeyError):
            node.compared = False


_clients: weakref.WeakSet[BaseClient[Any]] = weakref.WeakSet()


@atexit.register
def _at_exit() -> None:
    for client in list(_clients):
        client._leases.close()
        if client._leases.due:
            client._run(client._settle_due())
