"""Functions of a middleware's user: their results, their failures, and those of the handler."""

from __future__ import annotations

import asyncio
import enum
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import pytest

from tollgate_limiter import AsyncClient, Client, ProblemError, asgi, wsgi

from support import Node, unique

KINDS = ["asgi", "wsgi", "wsgi, streaming"]


class Level(enum.IntEnum):
    HIGH = 7


@dataclass
class Run:
    """One request through a middleware, as a server sends it."""

    begins: bool = True
    raises: bool = False
    statuses: list[int] = field(default_factory=list)
    errors: list[Any] = field(default_factory=list)
    reached: bool = False
    raised: Exception | None = None

    def __call__(self, kind: str, node: Node, **options: Any) -> Run:
        options = {"on_error": self.errors.append, **options}
        try:
            if kind == "asgi":
                asyncio.run(self._asgi(AsyncClient(node.url, deadline=10), options))
            else:
                app = self._app if kind == "wsgi" else self._stream
                self._wsgi(
                    wsgi.TollgateMiddleware(app, client=Client(node.url, deadline=10), **options)
                )
        except Exception as error:
            self.raised = error
        return self

    async def _asgi(self, client: AsyncClient, options: dict[str, Any]) -> None:
        async def app(scope: Any, receive: Any, send: Any) -> None:
            self.reached = True
            if self.begins:
                await send({"type": "http.response.start", "status": 200})
            self._end()

        async def send(message: Any) -> None:
            if message["type"] == "http.response.start":
                self.statuses.append(message["status"])

        limited = asgi.TollgateMiddleware(app, client=client, **options)
        scope = {"type": "http", "method": "GET", "path": "/", "headers": []}
        try:
            await limited({**scope, "client": ("127.0.0.1", 1)}, None, send)  # type: ignore[arg-type]
        finally:
            await client.wait()

    def _wsgi(self, limited: wsgi.TollgateMiddleware) -> None:
        def start(status: str, headers: Any) -> None:
            self.statuses.append(int(status[:3]))

        environ = {"REQUEST_METHOD": "GET", "PATH_INFO": "/", "REMOTE_ADDR": "127.0.0.1"}
        body = limited(environ, start)
        try:
            b"".join(body)
        finally:
            if hasattr(body, "close"):
                body.close()

    def _app(self, environ: Any, start: Any) -> list[bytes]:
        return list(self._stream(environ, start))

    def _stream(self, environ: Any, start: Any) -> Iterator[bytes]:
        self.reached = True
        if self.begins:
            start("200 OK", [])
            yield b"hello"
        self._end()

    def _end(self) -> None:
        if self.raises:
            raise EOFError("the handler failed")


def divide_by_zero(*_: Any) -> Any:
    raise ZeroDivisionError("test")


# ---- checks -----------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("number", [0, 42, -(10**30), Level.HIGH])
def test_integer_key_counts_as_its_decimal_text(kind: str, number: int, node: Node) -> None:
    with Client(node.url, deadline=10) as client:
        before = client.usage(str(int(number)), "thousand").remaining
        run = Run()(kind, node, policy="thousand", key=lambda _: number)
        after = client.usage(str(int(number)), "thousand").remaining
    assert (run.raised, run.statuses) == (None, [200])
    assert before is not None and after == before - 1


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("key", [b"user", 1.5, True, False, ["user"]])
def test_key_of_another_type_is_a_type_error(kind: str, key: Any, node: Node) -> None:
    run = Run()(kind, node, key=lambda _: key)
    assert isinstance(run.raised, TypeError) and not run.reached
    assert "`key` must return a str, an int or None, not " in str(run.raised)


@pytest.mark.parametrize("kind", KINDS)
def test_bad_check_reaches_on_error(kind: str, node: Node) -> None:
    run = Run()(kind, node, cost=-1)
    assert run.statuses == [400] and not run.reached
    assert [error.problem.status for error in run.errors] == [422]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("size", [100 << 10, 32 << 20])
def test_check_that_is_too_large_does_not_pass_uncounted(kind: str, size: int, node: Node) -> None:
    """The node answers 413 to the first size. The client does not send the second one."""
    run = Run()(kind, node, policy="p" * size)
    assert run.statuses == [400] and not run.reached
    assert [error.problem.status for error in run.errors] == [413]


# ---- drains -----------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(
    ("drain", "failure"),
    [
        (divide_by_zero, ZeroDivisionError),
        (lambda *_: object(), TypeError),
        (lambda *_: -1, ProblemError),
    ],
    ids=["raises", "wrong type", "negative"],
)
def test_failure_of_a_drain_reaches_on_error(
    kind: str, drain: Any, failure: type, node: Node
) -> None:
    run = Run()(kind, node, policy="thousand", drain=drain)
    assert (run.raised, run.statuses) == (None, [200])
    assert [type(error) for error in run.errors] == [failure]


@pytest.mark.parametrize("kind", KINDS)
def test_log_gets_each_exception_of_a_drain(
    kind: str, node: Node, caplog: pytest.LogCaptureFixture
) -> None:
    for _ in range(2):
        run = Run()(kind, node, policy="thousand", drain=divide_by_zero, on_error=None)
        assert (run.raised, run.statuses) == (None, [200])
    assert [record.name for record in caplog.records] == ["tollgate_limiter"] * 2
    assert "ZeroDivisionError: test" in caplog.text


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("begins", [True, False])
def test_request_whose_handler_raises_drains(kind: str, begins: bool, node: Node) -> None:
    key, seen = unique(), []

    def drain(request: Any, response: Any) -> int:
        seen.append((response.status, len(response.headers)))
        return 4

    run = Run(begins, raises=True)(kind, node, policy="ten", key=lambda _: key, drain=drain)
    assert isinstance(run.raised, EOFError)
    is_sent = begins and kind != "wsgi"
    assert (seen, run.errors) == ([(200 if is_sent else 500, 0)], [])
    with Client(node.url, deadline=10) as client:
        assert client.usage(key, "ten").remaining == 5


@pytest.mark.parametrize("kind", KINDS)
def test_failure_of_a_drain_hides_no_failure_of_the_handler(kind: str, node: Node) -> None:
    run = Run(raises=True)(kind, node, policy="thousand", drain=divide_by_zero)
    assert isinstance(run.raised, EOFError)
    assert [type(error) for error in run.errors] == [ZeroDivisionError]
