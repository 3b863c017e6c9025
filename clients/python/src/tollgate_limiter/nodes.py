"""Which node a call asks, and which one after a failure. All instants are monotonic seconds."""

from __future__ import annotations

import enum
import ssl
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from urllib.parse import urlsplit

from .errors import TollgateError

AVOID_SECONDS = 0.5


class Failure(enum.Enum):
    """How an attempt failed. After `BROKEN` and `SILENT` the node may have executed the call."""

    REFUSED = "refused"
    BROKEN = "broken"
    SILENT = "silent"


class AttemptFailed(Exception):
    """`late` are the seconds of the attempt in which this process did not run."""

    def __init__(self, failure: Failure, cause: object, late: float = 0.0) -> None:
        self.failure = failure
        self.late = late
        super().__init__(f"{failure.value}: {cause}")


@dataclass(eq=False)
class Node:
    """One address, and whether to avoid it."""

    host: str
    port: int
    tls: ssl.SSLContext | None
    authority: str
    prefix: str
    avoid_until: float = 0.0
    answered_at: float = 0.0
    # Whether the client compared its deadline with the timeout of the node.
    compared: bool = False

    @property
    def url(self) -> str:
        return f"{'https' if self.tls else 'http'}://{self.authority}{self.prefix}"

    def claim(self, now: float) -> bool:
        """Whether a call may ask now. While a node fails, one call in `AVOID_SECONDS` may."""
        if now < self.avoid_until:
            return False
        if self.avoid_until:
            self.avoid_until = now + AVOID_SECONDS
        return True

    def avoid(self, now: float) -> None:
        self.avoid_until = now + AVOID_SECONDS

    def answered(self, now: float) -> None:
        self.avoid_until, self.answered_at = 0.0, now


class Attempts:
    """The attempts of one call, in the order of preference."""

    def __init__(self, nodes: Sequence[Node], repeatable: bool, end: float) -> None:
        self._left = list(nodes)
        self._repeatable = repeatable
        self._began = 0.0
        self._end = end
        self._node: Node | None = None
        self.last: AttemptFailed | None = None
        # Whether the next attempt is a second one on its node, and on a new connection.
        self.is_second = False
        # Whether a node may have executed the call.
        self.is_repeated = False

    def next(self, now: float) -> tuple[Node, float] | None:
        """The node to ask, and for how long. None: the call failed."""
        if now >= self._end:
            return None
        if self._node is None and not self._advance(now):
            return None
        assert self._node is not None
        self._began = now
        if not self._repeatable:
            return self._node, self._end - now
        others = sum(now >= node.avoid_until for node in self._left)
        return self._node, (self._end - now) / (1 + others)

    def _advance(self, now: float) -> bool:
        while self._left:
            node = self._left.pop(0)
            if node.claim(now):
                self._node = node
                return True
        return False

    def failed(self, error: AttemptFailed, now: float) -> None:
        node, self.last = self._node, error
        assert node is not None
        self._end += error.late
        if error.failure is not Failure.REFUSED:
            self.is_repeated = True
            if not self._repeatable:
                self._left.clear()
        if error.failure is Failure.BROKEN and not self.is_second:
            self.is_second = True
            if self._repeatable:
                return
        # A node that answers other calls is only late.
        elif error.failure is not Failure.SILENT or node.answered_at < self._began:
            node.avoid(now)
        self._node = None

    @property
    def reason(self) -> str:
        return str(self.last or "every node failed within the last half second")


def nodes(urls: str | Iterable[str], ca_file: str | None) -> list[Node]:
    """Reads `http://host:port` or `https://host:port`, each with an optional path in front."""
    urls = [urls] if isinstance(urls, str) else list(urls)
    if not urls:
        raise TollgateError("`nodes` is empty; it must have at least one URL")
    secure = any(url.startswith("https:") for url in urls)
    context = ssl.create_default_context(cafile=ca_file) if secure else None
    return [_node(url, context) for url in urls]


def _node(url: str, context: ssl.SSLContext | None) -> Node:
    try:
        parts = urlsplit(url)
        port = parts.port
    except ValueError as error:
        raise TollgateError(f"`{url}` is no URL of a node: {error}") from None
    if parts.scheme not in ("http", "https") or not parts.hostname:
        raise TollgateError(f"`{url}` is no URL of a node, such as http://127.0.0.1:7070")
    if parts.username is not None or parts.query or parts.fragment:
        raise TollgateError("the URL of a node has a host, a port and a path; set `token` apart")
    tls = context if parts.scheme == "https" else None
    port = port or (443 if tls else 80)
    return Node(parts.hostname, port, tls, parts.netloc, parts.path.rstrip("/"))
