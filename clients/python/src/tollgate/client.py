"""The blocking client."""

from __future__ import annotations

import os
import time
import weakref
from collections.abc import Iterable, Sequence
from typing import Any, TypeVar

from . import calls
from .calls import Call
from .errors import ProblemError, Unavailable
from .nodes import AttemptFailed, Attempts, Failure
from .settings import DEFAULT_DEADLINE, DEFAULT_NODE, Settings, as_check
from .sockets import Pool
from .threads import ThreadCoalescer
from .types import Check, CheckAnswer, RefundAnswer, TogetherAnswer, Usage

T = TypeVar("T")
_clients: weakref.WeakSet[Client] = weakref.WeakSet()


class Client:
    """Asks nodes of Tollgate. Threads share one client; it survives a fork.

    `nodes` are URLs in the order of preference. `deadline` is in seconds, for a whole call. With
    `coalesce`, checks of many threads share calls. Calls raise `Unavailable` without an answer, and
    `ProblemError` if a node rejects them.
    """

    def __init__(
        self,
        nodes: str | Iterable[str] = DEFAULT_NODE,
        *,
        deadline: float = DEFAULT_DEADLINE,
        token: str | None = None,
        ca_file: str | None = None,
        retry: bool = True,
        coalesce: bool = True,
    ) -> None:
        self._settings = Settings(nodes, deadline, token, ca_file, retry)
        self._pools = {
            id(node): Pool(node, self._settings.fields(node.authority))
            for node in self._settings.nodes
        }
        self._coalescer = ThreadCoalescer(self._send, deadline) if coalesce else None
        _clients.add(self)

    def check(
        self,
        key: str,
        policy: str | None = None,
        cost: int | None = None,
        *,
        meta: str | None = None,
        id: str | None = None,
        quotas: list[str | dict[str, Any]] | None = None,
        over: str | None = None,
        traceparent: str | None = None,
    ) -> CheckAnswer:
        """May `key` spend `cost` under `policy`, now?"""
        check = as_check(key, policy, cost, meta, id, quotas, over)
        body, repeatable = self._settings.encode(check)
        trace = calls.traceparent(traceparent)
        if self._coalescer is None:
            return self._call(calls.check(body, repeatable, trace))
        return self._coalescer.check(body, repeatable, trace)

    def check_batch(self, checks: Sequence[Check]) -> list[CheckAnswer | ProblemError]:
        """Decides each of 1 to 1000 checks alone. A rejected one is returned as its problem."""
        encoded = [self._settings.encode(check) for check in checks]
        repeatable = all(repeatable for _, repeatable in encoded)
        return self._call(calls.check_batch([body for body, _ in encoded], repeatable))

    def check_all(self, checks: Sequence[Check]) -> TogetherAnswer:
        """Charges all of 1 to 16 checks or none."""
        return self._call(calls.check_all(checks))

    def refund(
        self, key: str, policy: str | None = None, *, cost: int | None = None, id: str | None = None
    ) -> RefundAnswer:
        """Gives the charge of `id` back, or `cost` units."""
        return self._call(calls.refund(key, policy, cost, id))

    def usage(self, key: str, policy: str | None = None, *, cost: int | None = None) -> Usage:
        """The decision for cost 0, or for `cost`, without a charge."""
        return self._call(calls.usage(key, policy, cost))

    def _call(self, call: Call[T]) -> T:
        return self._send(call, time.monotonic())

    def _send(self, call: Call[T], began: float) -> T:
        attempts = Attempts(self._settings.nodes, call.repeatable, began + self._settings.deadline)
        fresh = False
        while (attempt := attempts.next(time.monotonic())) is not None:
            node, until = attempt
            pool = self._pools[id(node)]
            request = call.request(node.prefix, pool.fields)
            try:
                return call.answer(pool.exchange(request, until, fresh, call.repeatable))
            except AttemptFailed as error:
                attempts.failed(error, time.monotonic())
                fresh = error.failure is Failure.BROKEN
        raise Unavailable(attempts.reason) from attempts.last

    def close(self) -> None:
        for pool in self._pools.values():
            pool.close()

    def __enter__(self) -> Client:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def _after_fork() -> None:
    for client in _clients:
        if client._coalescer is not None:
            client._coalescer.forget()
        for pool in client._pools.values():
            pool.forget()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)
