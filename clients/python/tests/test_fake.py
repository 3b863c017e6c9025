"""Unit tests of an application, without a node."""

from __future__ import annotations

import asyncio
from typing import Any

import fastapi
import flask
import pytest
from fastapi.testclient import TestClient

from tollgate_limiter import Denied, FakeAsyncClient, FakeClient, TollgateError, Unavailable
from tollgate_limiter.asgi import TollgateMiddleware
from tollgate_limiter.fastapi import RateLimit
from tollgate_limiter.flask import rate_limit

from support import Node


def test_fake_answers_by_a_list_and_the_last_decision_goes_on() -> None:
    client = FakeClient({"remaining": 1}, {"allowed": False})
    assert client.check("a").remaining == 1
    assert [client.check("a", "p").allowed for _ in range(3)] == [False] * 3
    assert client.checks[1] == {"key": "a", "policy": "p"}
    assert (client.stats().allowed, client.stats().denied) == (1, 3)


def test_fake_has_every_call() -> None:
    client = FakeClient()
    assert client.check_all([{"key": "a"}, {"key": "b"}]).allowed
    (result,) = client.check_batch([{"key": "a"}])
    assert result.allowed  # type: ignore[union-attr]
    with client.hold("a") as hold:
        hold.cost = 2
    assert client.acquire("a", wait=0).allowed
    assert client.refund("a", cost=1).refunded == 0
    assert client.usage("a").remaining == 99
    client.close()
    with pytest.raises(Denied), FakeClient({"allowed": False}).hold("a"):
        pass
    with pytest.raises(Unavailable, match="away"):
        FakeClient(Exception("away")).check("a")


def test_fake_limits_an_asynchronous_caller() -> None:
    async def ask() -> Any:
        async with FakeAsyncClient({"allowed": False}) as client:
            return await client.check("a")

    assert not asyncio.run(ask()).allowed


def application(client: Any) -> fastapi.FastAPI:
    app = fastapi.FastAPI()
    app.add_middleware(TollgateMiddleware, client=client, policy="address")

    @app.get("/")
    def hello() -> str:
        return "hello"

    return app


def test_fake_limits_a_middleware_of_fastapi_and_a_view_of_flask() -> None:
    denied = {"allowed": False, "retry_after_ms": 30_000}
    http = TestClient(application(FakeAsyncClient({}, denied, Exception("away"))))
    answers = [http.get("/") for _ in range(3)]
    assert [answer.status_code for answer in answers] == [200, 429, 200]
    assert answers[1].headers["retry-after"] == "30"
    app = flask.Flask("fake")

    @app.get("/")
    @rate_limit(client=FakeClient(denied))
    def hello() -> str:
        return "hello"

    assert app.test_client().get("/").status_code == 429


def test_test_client_of_starlette_has_an_address(node: Node) -> None:
    from tollgate_limiter import AsyncClient

    app = application(AsyncClient(node.url, deadline=5.0))
    with TestClient(app) as http:
        # Other tests have the same address, so its limit may be spent.
        assert "ratelimit-policy" in http.get("/").headers


def test_client_that_does_not_fit_the_application_is_an_error() -> None:
    blocking: Any = FakeClient()
    asynchronous: Any = FakeAsyncClient()
    with pytest.raises(TollgateError, match=r"must be of AsyncClient .* not FakeClient"):
        TollgateMiddleware(None, client=blocking)  # type: ignore[arg-type]
    with pytest.raises(TollgateError, match="must be of AsyncClient"):
        RateLimit(client=blocking)
    with pytest.raises(TollgateError, match=r"must be of Client .* not FakeAsyncClient"):
        rate_limit(client=asynchronous)
