"""What a middleware does with a request: decisions for handlers, addresses, mistakes, outcomes."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Iterator
from typing import Any

import fastapi
import flask
import httpx
import pytest
from django.core.asgi import get_asgi_application
from django.core.wsgi import get_wsgi_application
from django.http import JsonResponse
from django.test import override_settings
from django.urls import path

from tollgate_limiter import AsyncClient, Client, TollgateError, asgi, wsgi
from tollgate_limiter.fastapi import RateLimit
from tollgate_limiter.flask import rate_limit
from tollgate_limiter.limiter import Limiter
from tollgate_limiter.request import Request, address

from apps import FRAMEWORKS, serve_asgi, serve_wsgi
from support import Node, unique, wait_until

urlpatterns = [
    path("", lambda request: JsonResponse(shown(request.tollgate)), name="decision"),
]


def shown(decision: Any) -> dict[str, Any]:
    return {"policy": decision.policy, "remaining": decision.remaining}


def user(request: Any) -> Any:
    return request.headers["x-user"]


async def async_user(request: Any) -> Any:
    await asyncio.sleep(0)
    return request.headers["x-user"]


# ---- the decision in handlers -------------------------------------------------------------------


def asgi_scope(**options: Any) -> Any:
    async def app(scope: Any, receive: Any, send: Any) -> None:
        found = shown(scope["tollgate"])
        assert scope["state"]["tollgate"] is scope["tollgate"]
        await fastapi.responses.JSONResponse(found)(scope, receive, send)

    return asgi.TollgateMiddleware(app, **options)


def fastapi_state(**options: Any) -> Any:
    app = fastapi.FastAPI()
    app.add_middleware(asgi.TollgateMiddleware, **options)

    @app.get("/")
    async def hello(request: fastapi.Request) -> dict[str, Any]:
        return shown(request.state.tollgate)

    return app


def fastapi_depends(**options: Any) -> Any:
    app, limit = fastapi.FastAPI(), RateLimit(**options)

    @app.get("/")
    async def hello(decision: Any = fastapi.Depends(limit)) -> dict[str, Any]:  # noqa: B008
        return shown(decision)

    return app


def flask_environ(**options: Any) -> Any:
    app = flask.Flask(__name__)
    app.get("/")(lambda: shown(flask.request.environ["tollgate"]))
    app.wsgi_app = wsgi.TollgateMiddleware(app.wsgi_app, **options)  # type: ignore[method-assign]
    return app


def flask_g(**options: Any) -> Any:
    app = flask.Flask(__name__)
    app.get("/")(rate_limit(**options)(lambda: shown(flask.g.tollgate)))
    return app


def django(make: Callable[[], Any]) -> Any:
    def app(**options: Any) -> Any:
        middleware = ["tollgate_limiter.django.TollgateMiddleware"]
        with override_settings(ROOT_URLCONF=__name__, MIDDLEWARE=middleware, TOLLGATE=options):
            return make()

    return app


DECISIONS = {
    "asgi": (asgi_scope, serve_asgi, AsyncClient),
    "fastapi state": (fastapi_state, serve_asgi, AsyncClient),
    "fastapi depends": (fastapi_depends, serve_asgi, AsyncClient),
    "flask environ": (flask_environ, serve_wsgi, Client),
    "flask g": (flask_g, serve_wsgi, Client),
    "django wsgi": (django(get_wsgi_application), serve_wsgi, Client),
    "django asgi": (django(get_asgi_application), serve_asgi, AsyncClient),
}


@contextlib.contextmanager
def served(kind: str, node: Node, **options: Any) -> Iterator[Callable[..., httpx.Response]]:
    make, serve, client = DECISIONS[kind]
    with override_settings(ROOT_URLCONF=__name__):
        app = make(client=client(node.url, deadline=10), **options)
        with serve(app) as url, httpx.Client(timeout=30) as http:
            yield lambda **headers: http.get(url, headers=headers)


@pytest.mark.parametrize("kind", DECISIONS)
def test_handler_sees_the_decision(kind: str, node: Node) -> None:
    with served(kind, node, policy="ten", key=user) as get:
        answer = get(**{"x-user": unique()})
    assert answer.json() == {"policy": "ten", "remaining": 9}


@pytest.mark.parametrize("kind", [k for k, (_, _, c) in DECISIONS.items() if c is AsyncClient])
def test_functions_may_be_asynchronous(kind: str, node: Node) -> None:
    async def policy(request: Any) -> str:
        return "ten"

    async def never(request: Any) -> bool:
        return False

    async def two(request: Any) -> int:
        return 2

    options = {"key": async_user, "policy": policy, "skip": never, "cost": two}
    with served(kind, node, **options) as get:
        assert get(**{"x-user": unique()}).json() == {"policy": "ten", "remaining": 8}


def test_asynchronous_key_of_a_blocking_middleware_is_a_type_error(node: Node) -> None:
    app = wsgi.TollgateMiddleware(lambda *_: [b""], nodes=node.url, key=async_user)
    with pytest.raises(TypeError, match="use one that blocks, or ASGI"):
        app({"REQUEST_METHOD": "GET", "HTTP_X_USER": "a", "REMOTE_ADDR": "127.0.0.1"}, print)


# ---- several limits, and outcomes ---------------------------------------------------------------


def test_equal_names_of_quotas_get_their_policy_in_front(node: Node) -> None:
    app, client = fastapi.FastAPI(), AsyncClient(node.url, deadline=10)

    @app.get(
        "/",
        dependencies=[
            fastapi.Depends(RateLimit(client=client, policy="ten", key=user)),
            fastapi.Depends(RateLimit(client=client, policy="thousand", key=user)),
        ],
    )
    async def hello() -> str:
        return "hello"

    app.add_middleware(asgi.TollgateMiddleware, client=client, policy="log", key=user)
    with serve_asgi(app) as url:
        headers = httpx.get(url, headers={"x-user": unique()}).headers
    names = [item.split(";")[0] for item in headers["ratelimit"].split(", ")]
    assert names == ['"1h"', '"thousand/1h"', '"log/1h"']
    assert '"thousand/1h";q=1000;w=3600' in headers["ratelimit-policy"]


OUTCOMES = ["asgi", "flask environ", "flask g", "django wsgi", "django asgi"]


@pytest.mark.parametrize("kind", OUTCOMES)
def test_refund_gives_the_charge_of_a_good_outcome_back(kind: str, node: Node) -> None:
    key = unique()

    def refund(request: Any, response: Any) -> bool:
        return response.status == 200 and "x-right" in request.headers

    options = {"policy": "ten", "key": lambda _: key, "refund": refund}
    with served(kind, node, **options) as get, Client(node.url, deadline=10) as client:
        assert get().status_code == 200
        for _ in range(3):
            assert get(**{"x-right": "1"}).json()["remaining"] == 8
            wait_until(lambda: client.usage(key, "ten").remaining == 9, "the refund")


@pytest.mark.parametrize("kind", OUTCOMES)
def test_cost_of_0_with_a_drain_denies_when_nothing_is_left(kind: str, node: Node) -> None:
    key = unique()
    options = {"policy": "ten", "key": lambda _: key, "cost": 0, "drain": lambda *_: 6}
    with served(kind, node, **options) as get, Client(node.url, deadline=10) as client:
        assert get().status_code == 200
        wait_until(lambda: client.usage(key, "ten").remaining == 4, "the first drain")
        assert get().status_code == 200
        wait_until(lambda: client.usage(key, "ten").remaining == 0, "the second drain")
        denied = get()
        assert denied.status_code == 429 and "retry-after" in denied.headers


def test_end_of_the_server_waits_for_charges(node: Node) -> None:
    key, client = unique(), AsyncClient(node.url, deadline=10)

    async def slow_units(request: Any, response: Any) -> int:
        await asyncio.sleep(0.3)
        return 4

    app = fastapi.FastAPI()
    app.get("/")(lambda: "hello")
    app.add_middleware(
        asgi.TollgateMiddleware, client=client, policy="ten", key=lambda _: key, drain=slow_units
    )
    with serve_asgi(app) as url:
        assert httpx.get(url).status_code == 200
    with Client(node.url, deadline=10) as reader:
        assert reader.usage(key, "ten").remaining == 5


def test_options_that_contradict_or_do_not_exist_are_rejected() -> None:
    with pytest.raises(TollgateError, match="no option polcy; there are policy, key"):
        RateLimit(polcy="x")  # type: ignore[call-arg]
    with pytest.raises(TollgateError, match="remove it, or `refund`"):
        Limiter(Client(), {"look": True, "refund": lambda *_: True})
    with pytest.raises(TollgateError, match="does not see the response"):
        RateLimit(drain=lambda *_: 1)
    with pytest.raises(TollgateError, match="must be open or closed"):
        Limiter(Client(), {"on_failure": "maybe"})  # type: ignore[typeddict-item]


# ---- addresses ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("203.0.113.7", "203.0.113.7"),
        ("203.0.113.7:51234", "203.0.113.7"),
        ("2001:db8::1", "2001:db8::1"),
        ("fe80::1%eth0", "fe80::1"),
        ("[2001:db8::1]:443", "2001:db8::1"),
        ("[fe80::1%25eth0]:443", "fe80::1"),
        ("[::1]", "::1"),
        ("::ffff:203.0.113.7", "::ffff:203.0.113.7"),
        ("testclient", "testclient"),
    ],
)
def test_ports_and_zones_are_no_part_of_an_address(text: str, expected: str) -> None:
    assert address(text) == expected


@pytest.mark.parametrize("peer", ["fe80::1%eth0", "203.0.113.7:51234", "[2001:db8::1]:443"])
def test_address_with_a_port_or_a_zone_counts_as_the_address(
    peer: str, node: Node, caplog: pytest.LogCaptureFixture
) -> None:
    """The policy needs addresses. Without its port or zone the node does not answer 422."""
    with Client(node.url, deadline=10) as client:
        client.reset(address(peer), "address")
        app = wsgi.TollgateMiddleware(echo, client=client, policy="address")
        environ = {"REQUEST_METHOD": "GET", "PATH_INFO": "/", "REMOTE_ADDR": peer}
        for _ in range(2):
            assert b"".join(app(dict(environ), start)) == b"hello"
        assert client.usage(address(peer), "address").remaining == 0
    assert [f'("{peer}")' in record.message for record in caplog.records] == [True]


def start(status: str, headers: Any) -> None:
    assert status.startswith("200")


def echo(environ: Any, start: Any) -> list[bytes]:
    start("200 OK", [])
    return [b"hello"]


# ---- mistakes -----------------------------------------------------------------------------------


@pytest.mark.parametrize("framework", FRAMEWORKS)
def test_unknown_policy_warns_once_and_reaches_on_error(
    framework: str, node: Node, caplog: pytest.LogCaptureFixture
) -> None:
    make_app, serve, kind = FRAMEWORKS[framework]
    errors: list[Any] = []
    client = kind(node.url, deadline=10)
    app = make_app(client=client, policy="tenn", on_error=errors.append)
    with serve(app) as url, httpx.Client(timeout=30) as http:
        assert [http.get(url).status_code for _ in range(3)] == [200, 200, 200]
    assert [error.problem.status for error in errors] == [404, 404, 404]
    (message,) = [r.message for r in caplog.records if r.name == "tollgate_limiter"]
    assert "tenn" in message and "thousand" in message and "set `policy`" in message


def test_refused_token_warns_once(secure_node: Node, caplog: pytest.LogCaptureFixture) -> None:
    from support import CLIENTS

    ca_file = str(CLIENTS / "testdata/ca.pem")
    with Client(secure_node.url, deadline=10, ca_file=ca_file, token="wrong") as client:
        for _ in range(2):
            with pytest.raises(TollgateError):
                client.check(unique())
    assert [record.message for record in caplog.records] == [
        "the node refused the token (401 the token is not known): "
        "set `token` to one that may make this call"
    ]


@pytest.mark.parametrize("name", ["x-forwarded-for", "forwarded"])
def test_proxy_that_the_server_does_not_trust_warns_once(
    name: str, node: Node, caplog: pytest.LogCaptureFixture
) -> None:
    value = "for=203.0.113.9" if name == "forwarded" else "203.0.113.9"
    with Client(node.url, deadline=10) as client:
        limiter = Limiter(client, {"policy": "thousand"})
        for _ in range(2):
            request = Request("GET", "/", [(name, value)], "10.0.0.1", None)
            assert asyncio.run(limiter.admit(request)).decision is not None
    (record,) = caplog.records
    assert "set the trusted proxies of the server, or `key`" in record.message


@pytest.mark.parametrize(
    ("options", "fields"),
    [
        ({}, [("x-forwarded-for", "203.0.113.9, 10.0.0.1")]),
        ({"key": lambda _: "own"}, [("x-forwarded-for", "203.0.113.9")]),
        ({}, []),
    ],
    ids=["trusted", "own key", "no proxy"],
)
def test_request_without_that_mistake_warns_not(
    options: Any, fields: Any, node: Node, caplog: pytest.LogCaptureFixture
) -> None:
    with Client(node.url, deadline=10) as client:
        limiter = Limiter(client, {"policy": "thousand", **options})
        asyncio.run(limiter.admit(Request("GET", "/", fields, "10.0.0.1", None)))
    assert caplog.records == []
