"""Callers that try to pass uncounted."""

from __future__ import annotations

import asyncio
import contextlib
import time
from typing import Any

import httpx
import pytest

from tollgate_limiter import AsyncClient, Client, asgi, wsgi
from tollgate_limiter.limiter import sendable

from apps import FRAMEWORKS
from support import Node, unique


@pytest.mark.parametrize("coalesce", [True, False])
def test_caller_that_leaves_counts_all_the_same(coalesce: bool, node: Node) -> None:
    key = unique()

    async def run() -> None:
        async with AsyncClient(node.url, deadline=10, coalesce=coalesce) as client:
            limited = asgi.TollgateMiddleware(
                refuse_to_run, client=client, policy="ten", key=lambda _: key
            )
            for _ in range(3):
                request = asyncio.create_task(limited(scope("127.0.0.1"), receive, send))
                await asyncio.sleep(0)
                request.cancel()
                with contextlib.suppress(asyncio.CancelledError):
                    await request
            await until_remaining(7, client, key)

    asyncio.run(run())


async def until_remaining(expected: int, client: AsyncClient, key: str) -> None:
    end = time.monotonic() + 20
    while (found := (await client.usage(key, "ten")).remaining) != expected:
        assert time.monotonic() < end, f"{found} remain, not {expected}"
        await asyncio.sleep(0.01)


def test_request_without_an_address_does_not_pass_uncounted(node: Node) -> None:
    """A caller has none for some servers if it resets its connection at once."""
    sent: list[Any] = []

    async def run() -> None:
        async with AsyncClient(node.url, deadline=10) as client:
            limited = asgi.TollgateMiddleware(refuse_to_run, client=client)

            async def record(message: Any) -> None:
                sent.append(message)

            await limited(scope(None), receive, record)

    asyncio.run(run())
    assert sent[0]["status"] == 400

    with Client(node.url, deadline=10) as client:
        statuses: list[str] = []
        limited = wsgi.TollgateMiddleware(refuse_to_run, client=client)
        environ = {"REQUEST_METHOD": "GET", "PATH_INFO": "/", "REMOTE_ADDR": ""}
        body = limited(environ, lambda status, headers: statuses.append(status))
        assert b"cannot count this request" in b"".join(body)
    assert statuses == ["400 Bad Request"]


@pytest.mark.parametrize("framework", FRAMEWORKS)
def test_keys_that_cannot_be_sent_count_each_for_itself(framework: str, node: Node) -> None:
    make_app, serve, kind = FRAMEWORKS[framework]
    text = unique()

    def key(request: Any) -> str:
        return text + {"high": "\ud800", "low": "\udfff"}[request.headers["x-half"]]

    app = make_app(client=kind(node.url, deadline=10), key=key)
    with serve(app) as url, httpx.Client(timeout=30) as http:
        halves = ["high", "high", "high", "low"]
        statuses = [http.get(url, headers={"x-half": half}).status_code for half in halves]
    assert statuses == [200, 200, 429, 200]


def test_hash_replaces_only_keys_that_a_node_rejects() -> None:
    for key in ("user-7", "k" * 1024, "ü" * 512, "😀" * 256):
        assert sendable(key) == key
    rejected = ["k" * 1025, "ü" * 513, "\ud800", "\udfff", "\ud800" * 1000]
    hashes = {sendable(key) for key in rejected}
    assert len(hashes) == len(rejected)
    assert all(len(text) == 71 and text.startswith("sha256:") for text in hashes)


def scope(address: str | None) -> dict[str, Any]:
    client = None if address is None else (address, 1)
    return {"type": "http", "method": "GET", "path": "/", "headers": [], "client": client}


def refuse_to_run(*_: Any) -> Any:
    raise AssertionError("the request passed")


async def receive() -> Any:
    return {"type": "http.disconnect"}


async def send(message: Any) -> None:
    pass
