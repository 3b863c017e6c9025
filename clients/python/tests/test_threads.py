"""Threads that share calls. The sender is a function that waits for `gate`."""

from __future__ import annotations

import threading
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

import pytest

from tollgate import Unavailable
from tollgate.calls import Call
from tollgate.threads import MAX_ALONE, ThreadCoalescer

from support import wait_until


class Sender:
    def __init__(self) -> None:
        self.gate = threading.Event()
        self.paths: list[str] = []
        self.error: BaseException | None = None

    def send(self, call: Call[Any], began: float) -> Any:
        self.paths.append(call.path)
        self.gate.wait(20)
        if call.path.endswith("batch"):
            if self.error is not None:
                raise self.error
            return ["answer"] * (call.body.count(b"{}"))
        return "answer"


def start(coalescer: ThreadCoalescer, pool: ThreadPoolExecutor, checks: int) -> list[Future[Any]]:
    return [pool.submit(coalescer.check, b"{}", True, None) for _ in range(checks)]


@pytest.fixture
def sender() -> Sender:
    return Sender()


def test_few_checks_go_alone_and_more_share_calls(sender: Sender) -> None:
    coalescer = ThreadCoalescer(sender.send, 20)
    with ThreadPoolExecutor(64) as pool:
        alone = start(coalescer, pool, MAX_ALONE)
        wait_until(lambda: len(sender.paths) == MAX_ALONE, "the first checks go")
        shared = start(coalescer, pool, 40)
        wait_until(lambda: len(sender.paths) > MAX_ALONE, "a batch goes")
        sender.gate.set()
        assert {one.result(20) for one in alone + shared} == {"answer"}
    assert sender.paths[:MAX_ALONE] == ["/v1/check"] * MAX_ALONE
    assert "/v1/check/batch" in sender.paths
    assert len(sender.paths) < MAX_ALONE + 40


def test_thread_that_ends_leaves_no_other_waiting(sender: Sender) -> None:
    coalescer = ThreadCoalescer(sender.send, 20)
    sender.error = SystemExit()
    with ThreadPoolExecutor(64) as pool:
        alone = start(coalescer, pool, MAX_ALONE)
        wait_until(lambda: len(sender.paths) == MAX_ALONE, "the first checks go")
        shared = start(coalescer, pool, 40)
        wait_until(lambda: "/v1/check/batch" in sender.paths, "a batch goes")
        sender.gate.set()
        assert {one.result(20) for one in alone} == {"answer"}
        ends = {type(one.exception(20)) for one in shared}
    assert {SystemExit, Unavailable} <= ends | {Unavailable}
    assert Unavailable in ends
    assert start_one(coalescer) == "answer"


def start_one(coalescer: ThreadCoalescer) -> Any:
    return coalescer.check(b"{}", True, None)


def test_process_after_a_fork_waits_for_no_thread_of_its_parent(sender: Sender) -> None:
    coalescer = ThreadCoalescer(sender.send, 20)
    with ThreadPoolExecutor(MAX_ALONE) as pool:
        start(coalescer, pool, MAX_ALONE)
        wait_until(lambda: len(sender.paths) == MAX_ALONE, "the first checks go")
        coalescer.forget()
        sender.gate.set()
        assert start_one(coalescer) == "answer"
    assert set(sender.paths) == {"/v1/check"}
