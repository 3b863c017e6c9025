"""Threads that share calls. The sender waits for `gate`."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

import pytest

from tollgate_limiter import TollgateError, Unavailable
from tollgate_limiter.blocking import run
from tollgate_limiter.calls import Shared
from tollgate_limiter.threads import ThreadCoalescer

from support import wait_until


class Sender:
    def __init__(self) -> None:
        self.gate = threading.Event()
        self.sizes: list[int] = []
        self.error: BaseException | None = None

    async def decide(self, share: Sequence[Shared]) -> list[Any]:
        self.sizes.append(len(share))
        self.gate.wait(20)
        if len(share) > 1 and self.error is not None:
            raise self.error
        return ["answer"] * len(share)


def check(coalescer: ThreadCoalescer) -> Any:
    result = run(coalescer.check(Shared(b"{}", b"{}")))
    if isinstance(result, TollgateError):
        raise result
    return result


def start(coalescer: ThreadCoalescer, pool: ThreadPoolExecutor, checks: int) -> list[Future[Any]]:
    return [pool.submit(check, coalescer) for _ in range(checks)]


@pytest.fixture
def sender() -> Sender:
    return Sender()


def test_first_check_goes_alone_and_more_share_calls(sender: Sender) -> None:
    coalescer = ThreadCoalescer(sender.decide, 10)
    with ThreadPoolExecutor(64) as pool:
        alone = start(coalescer, pool, 1)
        wait_until(lambda: len(sender.sizes) == 1, "the first check goes")
        shared = start(coalescer, pool, 40)
        wait_until(lambda: len(sender.sizes) > 1, "a batch goes beside the silent call")
        sender.gate.set()
        assert {one.result(20) for one in alone + shared} == {"answer"}
    assert sender.sizes[0] == 1
    assert max(sender.sizes) > 1
    assert sum(sender.sizes) == 41


def test_thread_that_ends_leaves_no_other_waiting(sender: Sender) -> None:
    coalescer = ThreadCoalescer(sender.decide, 10)
    sender.error = SystemExit()
    with ThreadPoolExecutor(64) as pool:
        alone = start(coalescer, pool, 1)
        wait_until(lambda: len(sender.sizes) == 1, "the first check goes")
        shared = start(coalescer, pool, 40)
        wait_until(lambda: max(sender.sizes) > 1, "a batch goes")
        sender.gate.set()
        assert {one.result(20) for one in alone} == {"answer"}
        ends = {type(one.exception(20)) for one in shared}
    assert ends >= {SystemExit, Unavailable}
    assert check(coalescer) == "answer"
