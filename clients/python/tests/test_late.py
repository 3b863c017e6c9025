"""Callers that are late, and stores that stand still. All clients have their default deadline."""

from __future__ import annotations

import asyncio
import shutil
import signal
import subprocess
import threading
import time
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import fastapi
import httpx
import pytest
import uvloop
from starlette.responses import PlainTextResponse

from tollgate_limiter import AsyncClient, Client, asgi

from apps import FRAMEWORKS, serve_asgi
from support import Node, Silent, free_port, unique, wait_until

CONFIG = Path(__file__).with_name("three.yaml")
BLOCKED_SECONDS = 0.15


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


@pytest.mark.parametrize("loop", [asyncio.new_event_loop, uvloop.new_event_loop])
def test_route_that_blocks_the_loop_opens_no_gate(loop: Any, tmp_path: Path) -> None:
    app = fastapi.FastAPI()

    @app.get("/", response_class=PlainTextResponse)
    async def hello() -> str:
        return "hello"

    @app.get("/blocks", response_class=PlainTextResponse)
    async def blocks() -> str:
        time.sleep(BLOCKED_SECONDS)  # noqa: ASYNC251  That is the mistake.
        return "blocked"

    with node_on_redis(tmp_path) as (node, _):
        app.add_middleware(
            asgi.TollgateMiddleware,
            nodes=node.url,
            key=lambda request: request.headers["x-user"],
            skip=lambda request: request.path == "/blocks",
        )
        with serve_asgi(app, loop) as url, httpx.Client(timeout=60) as http:
            headers = {"x-user": unique()}

            def get(number: int) -> int:
                if number % 8 == 0:
                    return int(http.get(f"{url}/blocks").status_code) + 1
                return http.get(url, headers=headers).status_code

            with ThreadPoolExecutor(64) as pool:
                statuses = Counter(pool.map(get, range(72)))
    assert statuses == {200: 3, 429: 60, 201: 9}


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
    make_app, serve, _ = FRAMEWORKS[framework]
    errors: list[Any] = []
    with node_on_redis(tmp_path) as (node, process):
        app = make_app(
            nodes=node.url,
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
            time.sleep(2.0)
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
        "the deadline of 50 ms is not above the node's timeout of 100 ms: "
        "set `deadline` to at least 0.2 seconds"
    ]


# ---- the fast path ------------------------------------------------------------------------------


def test_lease_pays_for_nine_of_ten_checks(tmp_path: Path) -> None:
    with node_on_redis(tmp_path) as (node, _), Client(node.url, deadline=10) as client:
        key, end = unique(), time.monotonic() + 60
        sources: Counter[str] = Counter()
        while sources.total() < 4000 and time.monotonic() < end:
            sources[client.check(key, "leased").source] += 1
    assert sources["lease"] >= 0.9 * sources.total() and sources.total() >= 1000
