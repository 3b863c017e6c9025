"""What both clients share: their options, and the request fields and ids that follow."""

from __future__ import annotations

import itertools
import os
import secrets
import weakref
from collections.abc import Iterable
from typing import Any

from . import calls
from .errors import TollgateError
from .nodes import nodes as read_nodes
from .types import Check

DEFAULT_NODE = "http://127.0.0.1:7070"
DEFAULT_DEADLINE = 0.1
# A day. Timers of the system end at some weeks.
MAX_DEADLINE = 86_400.0

_all: weakref.WeakSet[Settings] = weakref.WeakSet()


class Settings:
    """Read once, when a client is made."""

    def __init__(
        self,
        nodes: str | Iterable[str],
        deadline: float,
        token: str | None,
        ca_file: str | None,
        retry: bool,
    ) -> None:
        if not 0 < deadline <= MAX_DEADLINE:
            bounds = f"more than 0 and at most {MAX_DEADLINE:.0f} seconds"
            raise TollgateError(f"`deadline` must be {bounds}, not {deadline}")
        if token is not None and not all("!" <= letter <= "~" for letter in token):
            raise TollgateError("`token` must be visible ASCII characters (0x21 to 0x7e)")
        self.nodes = read_nodes(nodes, ca_file)
        self.deadline = deadline
        self.retry = retry
        self._token = token
        self.renew_ids()
        _all.add(self)

    def renew_ids(self) -> None:
        """Two processes with equal ids would charge once for two checks."""
        self._prefix = secrets.token_hex(8)
        self._numbers = itertools.count()

    def fields(self, authority: str) -> bytes:
        """The request fields that all calls to a node have."""
        token = f"authorization: Bearer {self._token}\r\n" if self._token else ""
        return f"host: {authority}\r\nuser-agent: tollgate-python\r\n{token}".encode()

    def encode(self, check: Check) -> tuple[bytes, bool]:
        """The check as bytes, and whether it is repeatable. It gets an id if that makes it so."""
        repeatable = calls.is_repeatable(check)
        if self.retry and not repeatable:
            check = {**check, "id": f"{self._prefix}-{next(self._numbers)}"}
            repeatable = True
        return calls.encode_check(check), repeatable and self.retry


def _after_fork() -> None:
    for settings in _all:
        settings.renew_ids()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)


def as_check(
    key: str,
    policy: str | None,
    cost: int | None,
    meta: str | None,
    id: str | None,
    quotas: list[str | dict[str, Any]] | None,
    over: str | None,
) -> Check:
    """Without the members that are None."""
    check: Check = {"key": key}
    if policy is not None:
        check["policy"] = policy
    if cost is not None:
        check["cost"] = cost
    if meta is not None:
        check["meta"] = meta
    if id is not None:
        check["id"] = id
    if quotas is not None:
        check["quotas"] = quotas
    if over is not None:
        check["over"] = over
    return check
