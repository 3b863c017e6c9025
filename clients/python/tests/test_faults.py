"""A node fails under the load of each middleware, and returns."""

from __future__ import annotations

import signal
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from apps import FRAMEWORKS
from support import Node, wait_until

CONFIG = Path(__file__).with_name("tollgate.yaml")
# Of a machine that does other work. The deadline is 100 ms.
LONGEST_SECONDS = 2.0


@pytest.fixture
def own_node() -> Iterator[Node]:
    with Node(CONFIG) as node:
        yield node


@pytest.mark.parametrize("on_failure", ["open", "closed"])
@pytest.mark.parametrize("framework", FRAMEWORKS)
def test_node_killed_or_frozen_under_load_delays_no_request(
    framework: str, on_failure: str, own_node: Node
) -> None:
    make_app, serve, _ = FRAMEWORKS[framework]
    errors: list[Any] = []
    app = make_app(nodes=own_node.url, on_failure=on_failure, on_error=errors.append)
    status = {"open": 200, "closed": 503}[on_failure]
    with serve(app) as url, Load(url) as load:
        wait_until(lambda: load.last == (200, True), "a decision")

        own_node.kill()
        wait_until(lambda: load.last == (status, False), "requests without a decision")
        own_node.start()
        began = time.monotonic()
        wait_until(lambda: load.last == (200, True), "a decision after the node's return")
        assert time.monotonic() - began < 1 + LONGEST_SECONDS

        assert own_node.process is not None
        own_node.process.send_signal(signal.SIGSTOP)
        wait_until(lambda: load.last == (status, False), "requests without a decision")
        own_node.process.send_signal(signal.SIGCONT)
        began = time.monotonic()
        wait_until(lambda: load.last == (200, True), "a decision after the node's return")
        assert time.monotonic() - began < 1 + LONGEST_SECONDS
    assert load.longest < LONGEST_SECONDS
    assert load.seen <= {(200, True), (status, False)}
    assert errors


class Load:
    """Threads that send requests until the end."""

    def __init__(self, url: str, threads: int = 6) -> None:
        self.last: tuple[int, bool] | None = None
        self.seen: set[tuple[int, bool]] = set()
        self.longest = 0.0
        self._url = url
        self._ended = threading.Event()
        self._threads = [threading.Thread(target=self._run) for _ in range(threads)]

    def _run(self) -> None:
        with httpx.Client(timeout=30) as http:
            while not self._ended.is_set():
                began = time.monotonic()
                response = http.get(self._url)
                self.longest = max(self.longest, time.monotonic() - began)
                self.last = (response.status_code, "ratelimit" in response.headers)
                self.seen.add(self.last)
                time.sleep(0.005)

    def __enter__(self) -> Load:
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ended.set()
        for thread in self._threads:
            thread.join()
