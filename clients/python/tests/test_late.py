"""Callers that are late, and stores that stand still. All clients have their default deadline."""

from __future__ import annotations

import asyncio
import shutil
import signal
import subprocess
import threading
import time
from collections import Counter, defaultdict
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest
import redis as redis_py
import uvloop

from tollgate_limiter import AsyncClient, Client

from apps import FRAMEWORKS
from support import Node, Silent, free_port, unique, wait_until

CONFIG = Path(__file__).with_name("three.yaml")
BLOCKED_SECONDS = 0.15
FROZEN_SECONDS = 10.0


@contextmanager
def redis() -> Iterator[tuple[subprocess.Popen[bytes], int]]:
    port, program = free_port(), shutil.which("redis-server")
    assert program, "redis-server is missing; run apt-get install redis-server"
    command = [program, "--port", str(port), "--save", "", "--bind", "127.0.0.1"]
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL)
    try:
        yield process, port
    finally:
        process.kill()
        process.wait()


@contextmanager
def node_on_redis(directory: Path) -> Iterator[tuple[Node, subprocess.Popen[bytes]]]:
    with redis() as (process, port):
        config = directory / "three.yaml"
        config.write_text(CONFIG.read_text().replace("REDIS_PORT", str(port)))
        with Node(config) as node:
            wait_until(lambda: is_ready(node), "the node reaches its store")
            yield node, process


def is_ready(node: Node) -> bool:
    return bool(httpx.get(f"{node.url}/health/ready").json()["status"] == "ok")


# ---- a late caller ------------------------------------------------------------------------------


@pytest.mark.parametrize("framework", ["fastapi", "flask", "django", "django middleware on asgi"])
def test_route_that_blocks_opens_no_gate_at_512_connections(framework: str, tmp_path: Path) -> None:
    make_app, serve, _ = FRAMEWORKS[framework]

    def blocks(request: Any) -> bool:
        if request.path != "/blocks":
            return False
        end = time.monotonic() + BLOCKED_SECONDS
        while time.monotonic() < end:
            pass
        return True

    with node_on_redis(tmp_path) as (node, _):
        app = make_app(
            nodes=node.url,
            policy="patient",
            key=lambda request: request.headers["x-user"],
            skip=blocks,
        )
        with serve(app) as url:
            paths = ["/blocks" if number % 64 == 0 else "/" for number in range(520)]
            statuses = asyncio.run(get_at_once(url, paths, unique()))
    assert statuses["/"] == {200: 3, 429: 508}
    assert statuses["/blocks"].total() == 9


async def get_at_once(url: str, paths: list[str], user: str) -> dict[str, Counter[int]]:
    port, statuses = int(url.rpartition(":")[2]), defaultdict[str, Counter[int]](Counter)

    async def get(path: str) -> None:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        head = f"GET {path} HTTP/1.1\r\nhost: a\r\nx-user: {user}\r\nconnection: close\r\n\r\n"
        writer.write(head.encode())
        answer = await reader.read()
        statuses[path][int(answer.split(b" ", 2)[1])] += 1
        writer.close()

    await asyncio.gather(*map(get, paths))
    return statuses


def test_loop_that_stands_still_for_longer_than_the_deadline_reads_the_answer(node: Node) -> None:
    async def run() -> None:
        async with AsyncClient(node.url, deadline=0.1) as client:
            await client.usage(unique())
            check = asyncio.create_task(client.check(unique(), "ten"))
            await asyncio.sleep(0)
            for _ in range(4):
                time.sleep(0.3)  # noqa: ASYNC251
                await asyncio.sleep(0)
            assert (await check).allowed

    for loop in (asyncio.new_event_loop(), uvloop.new_event_loop()):
        loop.run_until_complete(run())
        loop.close()


def test_silent_node_costs_an_idle_loop_no_more_than_the_deadline() -> None:
    async def run() -> None:
        with Silent() as url:
            async with AsyncClient(url, deadline=0.2) as client:
                began = time.monotonic()
                with pytest.raises(Exception, match="no answer in time"):
                    await client.check(unique())
                assert time.monotonic() - began < 2

    asyncio.run(run())


# ---- a store that stands still ------------------------------------------------------------------


@pytest.mark.parametrize("policy", ["default", "alone"])
@pytest.mark.parametrize("framework", FRAMEWORKS)
def test_frozen_redis_lets_no_request_pass_without_a_decision(
    framework: str, policy: str, tmp_path: Path
) -> None:
    make_app, serve, kind = FRAMEWORKS[framework]
    errors: list[Any] = []
    with node_on_redis(tmp_path) as (node, process):
        app = make_app(
            # A busy machine must not turn decisions into failures.
            client=kind(node.url, deadline=5),
            policy=policy,
            key=lambda request: request.headers["x-user"],
            on_error=errors.append,
        )
        users = [unique() for _ in range(3)]
        ended = threading.Event()

        def load(number: int) -> None:
            with httpx.Client(timeout=60) as http:
                while not ended.is_set():
                    user = users[number] if number < 3 else unique()
                    answer = http.get(url, headers={"x-user": user})
                    seen[answer.status_code, "ratelimit" in answer.headers] += 1
                    time.sleep(0.01)

        seen: Counter[tuple[int, bool]] = Counter()
        with serve(app) as url, ThreadPoolExecutor(16) as pool:
            loads = [pool.submit(load, number) for number in range(4)]
            wait_until(lambda: {(200, True), (429, True)} <= seen.keys(), "decisions of the store")
            process.send_signal(signal.SIGSTOP)
            time.sleep(FROZEN_SECONDS)
            process.send_signal(signal.SIGCONT)
            ended.set()
            for one in loads:
                one.result(60)
    assert errors == []
    assert (200, False) not in seen


@pytest.mark.parametrize("kind", [Client, AsyncClient])
def test_deadline_below_the_timeout_of_the_node_warns_once(
    kind: type, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async def run() -> None:
        client = kind(node.url, deadline=0.05)

        async def fails() -> None:
            try:
                answer = client.check(unique())
                await answer if kind is AsyncClient else answer
            except Exception as error:
                assert "silent" in str(error) or "half second" in str(error)

        end = time.monotonic() + 20
        while not caplog.records and time.monotonic() < end:
            await fails()
            await asyncio.sleep(0.05)
        for _ in range(3):
            await asyncio.sleep(0.6)
            await fails()
        if kind is AsyncClient:
            await client.close()

    with node_on_redis(tmp_path) as (node, process):
        process.send_signal(signal.SIGSTOP)
        asyncio.run(run())
    assert [record.message for record in caplog.records] == [
        "the deadline of 50 ms is not above the node's timeout of 5000 ms: "
        "set `deadline` to at least 10.0 seconds"
    ]


# ---- the fast path ------------------------------------------------------------------------------


def test_lease_pays_for_nine_of_ten_checks(tmp_path: Path) -> None:
    with node_on_redis(tmp_path) as (node, _), Client(node.url, deadline=10) as client:
        key, end = unique(), time.monotonic() + 60
        sources: Counter[str] = Counter()
        while sources.total() < 4000 and time.monotonic() < end:
            sources[client.check(key, "leased").source] += 1
    assert sources["lease"] >= 0.9 * sources.total() and sources.total() >= 1000


def test_100_000_checks_of_100_keys_keep_at_most_8_bytes_each_in_redis(tmp_path: Path) -> None:
    with node_on_redis(tmp_path) as (node, _), Client(node.url, deadline=60) as client:
        store = redis_py.Redis(port=node_store(tmp_path))
        begin, run = store.info("memory")["used_memory"], unique()  # type: ignore[index]
        for _ in range(100):
            checks: Any = [{"key": f"{run}-{n % 100}", "policy": "day"} for n in range(1000)]
            answers = client.check_batch(checks)
            assert {answer.source for answer in answers} == {"store"}  # type: ignore[union-attr]
        used = store.info("memory")["used_memory"] - begin  # type: ignore[index]
    assert used / 100_000 <= 8


def node_store(directory: Path) -> int:
    text = (directory / "three.yaml").read_text()
    return int(text.partition("redis://127.0.0.1:")[2].partition('"')[0])
