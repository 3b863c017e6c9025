"""Holds: their renewal, each way out of their work, and responses that hold a place."""

from __future__ import annotations

import asyncio
import contextlib
import signal
import subprocess
import sys
import threading
import time
from collections.abc import AsyncIterator, Iterator
from typing import Any

import fastapi
import flask
import httpx
import pytest
from django.core.asgi import get_asgi_application
from django.core.wsgi import get_wsgi_application
from django.http import StreamingHttpResponse
from django.test import override_settings
from django.urls import path
from starlette.responses import StreamingResponse

from tollgate_limiter import (
    AsyncClient,
    Check,
    Client,
    Denied,
    HoldEnded,
    ProblemError,
    TollgateError,
    Unavailable,
)
from tollgate_limiter.asgi import TollgateMiddleware
from tollgate_limiter.fastapi import RateLimit
from tollgate_limiter.flask import rate_limit
from tollgate_limiter.later import Later
from tollgate_limiter.wsgi import TollgateMiddleware as WsgiMiddleware

from apps import django_middleware, serve_asgi, serve_wsgi
from support import Node, unique, wait_until


def usage_of(node: Node, policy: str, key: str) -> Any:
    return httpx.get(f"{node.url}/v1/usage", params={"policy": policy, "key": key}).json()


def in_flight(node: Node, policy: str, key: str) -> int:
    return int(usage_of(node, policy, key)["in_flight"])


def wait_for(node: Node, policy: str, key: str, **wanted: int) -> None:
    wait_until(lambda: wanted.items() <= usage_of(node, policy, key).items(), str(wanted))


def wait_for_place(node: Node, policy: str, key: str) -> None:
    wait_for(node, policy, key, in_flight=0)


# ---- asyncio ----------------------------------------------------------------------------------


async def work(client: AsyncClient, key: str, policy: str = "places") -> str:
    async with client.hold(key, policy):
        await asyncio.sleep(600)
    return "done"


def test_cancelled_task_settles_its_hold(node: Node) -> None:
    async def run() -> None:
        key = unique()
        async with AsyncClient(node.url, deadline=5) as client:
            task = asyncio.create_task(work(client, key))
            await asyncio.to_thread(wait_for, node, "places", key, in_flight=1)
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
            assert (await client.usage(key, "places")).in_flight == 0

    asyncio.run(run())


def test_task_that_is_cancelled_while_its_hold_opens_gives_it_back(node: Node) -> None:
    async def run() -> None:
        key = unique()
        async with AsyncClient(node.url, deadline=5) as client:
            for _ in range(20):
                task = asyncio.create_task(work(client, key, "tokens"))
                await asyncio.sleep(0)
                task.cancel()
                with pytest.raises(asyncio.CancelledError):
                    await task
            await client.wait()
            usage = await client.usage(key, "tokens")
            assert (usage.in_flight, usage.remaining) == (0, 1000)

    asyncio.run(run())


def test_work_of_a_task_ends_when_the_node_is_silent_for_the_ttl(node: Node) -> None:
    async def run() -> None:
        key = unique()
        async with AsyncClient(node.url, deadline=2) as client:
            began = time.monotonic()
            with pytest.raises(HoldEnded, match="expired"):
                async with client.hold(key, "brief", 4) as hold:
                    assert node.process
                    node.process.send_signal(signal.SIGSTOP)
                    hold.cost = 1
                    await asyncio.sleep(600)
            assert 0.95 < time.monotonic() - began < 20
            node.process.send_signal(signal.SIGCONT)
            # The settle without an answer goes on.
            await asyncio.to_thread(wait_for, node, "brief", key, in_flight=0, remaining=9)

    try:
        asyncio.run(run())
    finally:
        assert node.process
        node.process.send_signal(signal.SIGCONT)


def test_work_of_a_task_ends_when_somebody_else_ends_its_hold(node: Node) -> None:
    async def run() -> None:
        key = unique()
        async with AsyncClient(node.url, deadline=5) as client:
            with pytest.raises(HoldEnded, match="settled"):
                async with client.hold(key, "steady", id=key) as hold:
                    await client.settle(key, "steady", id=key)
                    await asyncio.sleep(600)
            assert hold.ended == "settled"

    asyncio.run(run())


def test_cancellation_by_somebody_else_stays_one(node: Node) -> None:
    async def run() -> None:
        key = unique()
        async with AsyncClient(node.url, deadline=5) as client:
            with pytest.raises(asyncio.TimeoutError):
                await asyncio.wait_for(work(client, key), 0.3)
            assert (await client.usage(key, "places")).in_flight == 0

    asyncio.run(run())


def test_no_more_tasks_work_at_once_than_the_policy_lets(node: Node) -> None:
    running = 0

    async def until_done(client: AsyncClient, key: str) -> None:
        nonlocal running
        while True:
            try:
                async with client.hold(key, "tokens"):
                    running += 1
                    assert running <= 2
                    await asyncio.sleep(0.002)
                    running -= 1
                    return
            except Denied:
                await asyncio.sleep(0.002)

    async def run() -> None:
        key = unique()
        async with AsyncClient(node.url, deadline=5) as client:
            await asyncio.gather(*(until_done(client, key) for _ in range(64)))
            usage = await client.usage(key, "tokens")
            assert (usage.remaining, usage.in_flight) == (936, 0)

    asyncio.run(run())


# ---- threads ----------------------------------------------------------------------------------


def test_thread_sees_that_its_hold_has_ended(node: Node) -> None:
    key = unique()
    with Client(node.url, deadline=5) as client, client.hold(key, "steady", id=key) as hold:
        hold.raise_if_ended()
        client.settle(key, "steady", id=key)
        wait_until(lambda: hold.ended, "the renewal")
        with pytest.raises(HoldEnded, match="settled"):
            hold.raise_if_ended()


def test_thread_settles_what_somebody_else_has_not(node: Node) -> None:
    one, other = unique(), unique()
    checks: list[Check] = [{"key": key, "policy": "steady", "id": key} for key in (one, other)]
    with Client(node.url, deadline=5) as client:
        with client.hold_all(checks) as hold:
            client.settle(one, "steady", id=one)
            assert wait_until(lambda: hold.ended, "the renewal") == "settled"
            assert in_flight(node, "steady", other) == 1
        assert in_flight(node, "steady", other) == 0
        assert [answer.replayed for answer in hold.settle()] == [True, False]


def test_thread_sees_that_its_hold_expired(node: Node) -> None:
    key = unique()
    assert node.process
    with Client(node.url, deadline=2) as client, client.hold(key, "brief") as hold:
        node.process.send_signal(signal.SIGSTOP)
        try:
            assert wait_until(lambda: hold.ended, "the expiry") == "expired"
            with pytest.raises(Unavailable):
                hold.settle()
        finally:
            node.process.send_signal(signal.SIGCONT)
    wait_for_place(node, "brief", key)


def test_one_thread_renews_the_holds_of_a_client(node: Node) -> None:
    with Client(node.url, deadline=5) as client, contextlib.ExitStack() as stack:
        before = threading.active_count()
        keys = [unique() for _ in range(20)]
        for key in keys:
            stack.enter_context(client.hold(key, "steady"))
        time.sleep(4)
        assert [in_flight(node, "steady", key) for key in keys] == [1] * 20
        assert threading.active_count() <= before + 1


def test_cancelled_calls_do_not_keep_memory() -> None:
    later = Later()
    for _ in range(10_000):
        later.after(600, lambda: None).cancel()
    assert len(later._calls) < 3000


def test_hold_is_settled_once_by_its_first_cost(node: Node) -> None:
    with Client(node.url, deadline=5) as client:
        hold = client.hold(unique(), "tokens", 900).open()
        [first] = hold.settle(100)
        assert (first.charged, first.replayed) == (100, False)
        assert hold.settle(200) == [first]


def test_killed_process_frees_its_place_after_the_ttl(node: Node) -> None:
    key = unique()
    program = f"""
import time
from tollgate_limiter import Client
with Client({node.url!r}, deadline=5).hold({key!r}, "brief"):
    print("open", flush=True)
    time.sleep(600)
"""
    command = [sys.executable, "-c", program]
    with subprocess.Popen(command, stdout=subprocess.PIPE, env={"PYTHONPATH": "src"}) as process:
        assert process.stdout and process.stdout.readline() == b"open\n"
        process.kill()
    wait_for_place(node, "brief", key)


# ---- responses --------------------------------------------------------------------------------


class FromTheModel(Exception):
    pass


def parts(hold: Any, fails: bool = False) -> Iterator[bytes]:
    while True:
        hold.cost = (hold.cost or 0) + 1
        yield b"a part\n"
        if fails:
            raise FromTheModel
        time.sleep(0.01)


async def async_parts(hold: Any, fails: bool = False) -> AsyncIterator[bytes]:
    while True:
        hold.cost = (hold.cost or 0) + 1
        yield b"a part\n"
        if fails:
            raise FromTheModel
        await asyncio.sleep(0.01)


def fastapi_stream(**options: Any) -> Any:
    app = fastapi.FastAPI()
    app.add_middleware(TollgateMiddleware, **options)

    @app.get("/{path:path}")
    async def stream(request: fastapi.Request, path: str) -> StreamingResponse:
        if path == "throws":
            raise FromTheModel
        return StreamingResponse(async_parts(request.state.tollgate_hold, path == "fails"))

    return app


def flask_stream(limit: Any, hold_of: Any) -> flask.Flask:
    app = flask.Flask(__name__)

    @app.get("/", defaults={"path": ""})
    @app.get("/<path>")
    @limit
    def stream(path: str) -> flask.Response:
        if path == "throws":
            raise FromTheModel
        return flask.Response(parts(hold_of(), path == "fails"))

    return app


def flask_view_stream(**options: Any) -> Any:
    return flask_stream(rate_limit(**options), lambda: flask.g.tollgate_hold)


def flask_app_stream(**options: Any) -> Any:
    app = flask_stream(lambda view: view, lambda: flask.request.environ["tollgate_hold"])
    app.wsgi_app = WsgiMiddleware(app.wsgi_app, **options)  # type: ignore[method-assign]
    return app


def django_view(request: Any, path: str = "") -> StreamingHttpResponse:
    if path == "throws":
        raise FromTheModel
    return StreamingHttpResponse(parts(request.tollgate_hold, path == "fails"))


async def django_async_view(request: Any, path: str = "") -> StreamingHttpResponse:
    if path == "throws":
        raise FromTheModel
    return StreamingHttpResponse(async_parts(request.tollgate_hold, path == "fails"))


def django_wsgi_stream(**options: Any) -> Any:
    return django_middleware(get_wsgi_application, **options)


def django_asgi_stream(**options: Any) -> Any:
    return django_middleware(get_asgi_application, **options)


STREAMS: dict[str, tuple[Any, Any, Any, Any]] = {
    "fastapi": (fastapi_stream, serve_asgi, AsyncClient, None),
    "flask": (flask_app_stream, serve_wsgi, Client, None),
    "flask view": (flask_view_stream, serve_wsgi, Client, None),
    "django": (django_wsgi_stream, serve_wsgi, Client, django_view),
    "django on asgi": (django_asgi_stream, serve_asgi, AsyncClient, django_async_view),
}


@contextlib.contextmanager
def served(framework: str, node: Node, key: str) -> Iterator[str]:
    make, serve, kind, view = STREAMS[framework]
    client = kind(node.url, deadline=5)
    app = make(client=client, policy="tokens", key=lambda _: key, cost=900, hold=True)
    patterns = (path("", view), path("<path>", view)) if view else ()
    with override_settings(ROOT_URLCONF=patterns), serve(app) as url:
        yield url


@pytest.mark.parametrize("framework", STREAMS)
def test_stream_holds_its_place_until_its_caller_leaves(framework: str, node: Node) -> None:
    key = unique()
    with served(framework, node, key) as url:
        with httpx.stream("GET", url, timeout=30) as response:
            assert response.status_code == 200
            stream = response.iter_raw()
            assert next(stream) == b"a part\n"
            assert in_flight(node, "tokens", key) == 1
            assert httpx.get(url).status_code == 429
        wait_for_place(node, "tokens", key)
        # It costs what was streamed.
        assert 900 < usage_of(node, "tokens", key)["remaining"] < 1000


@pytest.mark.parametrize("framework", STREAMS)
def test_stream_and_handler_that_fail_free_their_place(framework: str, node: Node) -> None:
    key = unique()
    with served(framework, node, key) as url:
        with contextlib.suppress(httpx.HTTPError):
            httpx.get(f"{url}/fails", timeout=30)
        wait_for_place(node, "tokens", key)
        assert httpx.get(f"{url}/throws", timeout=30).status_code in (429, 500)
        wait_for_place(node, "tokens", key)


def test_expired_hold_ends_the_stream_of_its_response(node: Node) -> None:
    key = unique()
    client = AsyncClient(node.url, deadline=2)
    app = fastapi_stream(client=client, policy="brief", key=lambda _: key, hold=True)
    assert node.process
    with serve_asgi(app) as url:
        try:
            with pytest.raises(httpx.HTTPError), httpx.stream("GET", url, timeout=10) as response:
                node.process.send_signal(signal.SIGSTOP)
                for _ in response.iter_raw():
                    pass
        finally:
            node.process.send_signal(signal.SIGCONT)
        wait_for_place(node, "brief", key)


def test_hold_excludes_options_that_charge_otherwise() -> None:
    app: Any = None
    others: list[Any] = [{"look": True}, {"drain": lambda *_: 1}, {"refund": lambda *_: True}]
    for other in others:
        with pytest.raises(TollgateError, match="`hold` settles the cost"):
            TollgateMiddleware(app, hold=True, **other)
    with pytest.raises(TollgateError, match="a dependency does not see the response"):
        RateLimit(hold=True)


def test_policy_without_a_hold_is_logged_once(node: Node, caplog: pytest.LogCaptureFixture) -> None:
    with Client(node.url, deadline=5) as client:
        for _ in range(2):
            with pytest.raises(ProblemError, match="no-hold"), client.hold(unique(), "ten"):
                pass
    [record] = caplog.records
    assert record.message.endswith(
        "add `hold: {ttl: 60s}` to it, and give the check a cost above 0"
    )


def test_denied_hold_has_its_decision(node: Node) -> None:
    key = unique()
    with Client(node.url, deadline=5) as client, client.hold(key, "places"):
        with pytest.raises(Denied) as denied, client.hold(key, "places"):
            pass
        assert denied.value.decision.reason == "in_flight"
        assert denied.value.decision.retry_after_ms
