"""Places in line: who leaves early gives its place back."""

from __future__ import annotations

import asyncio
import math
import signal
import subprocess
import sys
import threading
import time
from typing import Any

import httpx
import pytest

from tollgate_limiter import AsyncClient, Client, TollgateError

from support import Node, Proxy, unique, wait_until

# The policy `bucket` gives a unit in this time.
UNIT_MS = 360_000


def retry_after(node: Node, key: str) -> int:
    of: dict[str, Any] = {"policy": "bucket", "key": key, "cost": 1}
    return int(httpx.get(f"{node.url}/v1/usage", params=of).json()["retry_after_ms"])


def wait_for_line(node: Node, key: str, *, is_empty: bool) -> None:
    wait_until(lambda: (retry_after(node, key) <= UNIT_MS) == is_empty, f"empty: {is_empty}")


async def leave_early(url: str, key: str, seconds: float, node: Node) -> None:
    """The client closes at once after its caller has left."""
    async with AsyncClient(url, deadline=5) as client:
        await client.check(key, "bucket", 25)
        task = asyncio.create_task(client.acquire(key, "bucket", wait=3600))
        await asyncio.sleep(0)
        if seconds:
            await asyncio.to_thread(wait_for_line, node, key, is_empty=False)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task


def test_cancelled_task_gives_its_place_back(node: Node) -> None:
    key = unique()
    asyncio.run(leave_early(node.url, key, 1, node))
    wait_for_line(node, key, is_empty=True)


def test_task_that_is_cancelled_before_the_answer_gives_its_place_back(node: Node) -> None:
    key = unique()
    with Proxy(node.port) as proxy:
        asyncio.run(leave_early(proxy.url, key, 0, node))
        assert [path for path, _ in proxy.calls] == ["/v1/check", "/v1/check", "/v1/refund"]
    wait_for_line(node, key, is_empty=True)


def test_interrupted_thread_gives_its_place_back(node: Node) -> None:
    key = unique()
    program = f"""
import time
from tollgate_limiter import Client
client = Client({node.url!r}, deadline=5)
client.check({key!r}, "bucket", 25)
try:
    client.acquire({key!r}, "bucket", wait=3600)
except KeyboardInterrupt:
    time.sleep(60)
"""
    with subprocess.Popen([sys.executable, "-c", program], env={"PYTHONPATH": "src"}) as process:
        wait_for_line(node, key, is_empty=False)
        process.send_signal(signal.SIGINT)
        wait_for_line(node, key, is_empty=True)
        process.kill()


def test_threads_and_tasks_start_no_faster_than_the_rate(node: Node) -> None:
    key, starts = unique(), list[float]()

    def work(client: Client) -> None:
        client.acquire(key, "partner", wait=60)
        starts.append(time.monotonic())

    async def tasks() -> None:
        async with AsyncClient(node.url, deadline=5) as client:
            for answer in asyncio.as_completed(
                [client.acquire(key, "partner", wait=60) for _ in range(30)]
            ):
                await answer
                starts.append(time.monotonic())

    with Client(node.url, deadline=5) as client:
        threads = [threading.Thread(target=work, args=(client,)) for _ in range(30)]
        began = time.monotonic()
        for thread in threads:
            thread.start()
        asyncio.run(tasks())
        for thread in threads:
            thread.join()
    # 50 a second, after a burst of 10.
    assert len(starts) == 60 and max(starts) - began >= 0.98


def test_hold_without_an_id_of_the_caller_is_given_back(node: Node) -> None:
    of = {"policy": "calls", "key": unique()}
    wants = pytest.raises(TollgateError, match="give `acquire` an id")
    with Client(node.url, deadline=5) as client, wants:
        client.acquire(**of, wait=3600)

    def is_free() -> bool:
        usage = httpx.get(f"{node.url}/v1/usage", params=of).json()
        return bool(usage["in_flight"] == 0 and usage["remaining"] == 25)

    wait_until(is_free, "the place")


@pytest.mark.parametrize("wait", [math.inf, math.nan, -1, 3600.1])
def test_wait_outside_of_its_bounds_is_rejected(node: Node, wait: float) -> None:
    wants = pytest.raises(TollgateError, match="`wait` must be from 0 to 3600 seconds")
    with Client(node.url) as client, wants:
        client.acquire(unique(), "bucket", wait=wait)
