"""The README runs as it is printed. Only the port of the node differs."""

from __future__ import annotations

import os
import re
import subprocess
import venv
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import httpx
import pytest
from django.core.wsgi import get_wsgi_application
from django.test import override_settings
from fastapi import FastAPI
from flask import Flask

from tollgate_limiter import Client
from tollgate_limiter.asgi import TollgateMiddleware

from apps import serve_asgi, serve_wsgi
from support import BINARY, CLIENTS, Node, free_port, unique, wait_until

README = (CLIENTS / "python/README.md").read_text()
BLOCKS: dict[str, list[str]] = {}
for section in re.split(r"^## ", README, flags=re.MULTILINE):
    BLOCKS[section.split("\n")[0]] = re.findall(r"```(?:python|sh)\n(.*?)```", section, re.DOTALL)
INSTALL, SERVE = BLOCKS["# Tollgate for Python"]
POLICIES = re.search(r"```yaml\n(.*?)```", README, re.DOTALL)[1]  # type: ignore[index]


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Node]:
    config = tmp_path_factory.mktemp("readme") / "limits.yaml"
    # A busy machine needs more than the default of 100 ms.
    policies, plans = POLICIES.split("plans:")
    config.write_text(policies.replace("}\n", ", timeout: 5s}\n") + "plans:" + plans)
    with Node(config) as node:
        yield node


def run(section: str, node: Node, **names: Any) -> dict[str, Any]:
    names |= {"__name__": "readme"}
    for block in BLOCKS[section]:
        code = block.replace("127.0.0.1:7070", f"127.0.0.1:{node.port}")
        exec(compile(code, section, "exec"), names)
    return names


def statuses(number: int, send: Any) -> list[int]:
    return [send().status_code for _ in range(number)]


def test_install_line_works_in_an_empty_folder(tmp_path: Path) -> None:
    venv.create(tmp_path / "venv", with_pip=True)
    tools = {**os.environ, "PATH": f"{tmp_path / 'venv/bin'}:{os.environ['PATH']}"}
    tools.pop("PYTHONPATH", None)
    line = INSTALL.replace("path/to/tollgate", str(CLIENTS.parent))
    subprocess.run(line, shell=True, cwd=tmp_path, env=tools, check=True, capture_output=True)
    code = "from tollgate_limiter import AsyncClient, Client; import tollgate_limiter.asgi"
    command = [str(tmp_path / "venv/bin/python"), "-c", code]
    subprocess.run(command, cwd=tmp_path, env=tools, check=True)


def test_node_starts_as_printed(tmp_path: Path) -> None:
    port = free_port()
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin/tollgate").symlink_to(Path(BINARY).resolve())
    (tmp_path / "limits.yaml").write_text(POLICIES)
    path = f"{tmp_path / 'bin'}:{os.environ['PATH']}"
    variables = {**os.environ, "PATH": path, "TOLLGATE_LISTEN": f"127.0.0.1:{port}"}
    process = subprocess.Popen(
        f"exec {SERVE}", shell=True, cwd=tmp_path, env=variables, stderr=subprocess.DEVNULL
    )
    try:
        wait_until(lambda: is_live(port), "the node listens")
    finally:
        process.kill()
        process.wait()


def is_live(port: int) -> bool:
    try:
        return httpx.get(f"http://127.0.0.1:{port}/health/live").status_code == 200
    except httpx.TransportError:
        return False


def test_recipes_for_fastapi_limit(node: Node) -> None:
    async def find_session(token: str | None) -> Any:
        return SimpleNamespace(user_id=token, is_paying="pro" in token) if token else None

    async def answer_of(request: Any) -> AsyncIterator[str]:
        yield "An answer"
        yield " of a model"

    app = run("FastAPI", node, find_session=find_session, answer_of=answer_of)["app"]

    @app.get("/chat")
    async def chat() -> Any:
        from starlette.responses import PlainTextResponse

        return PlainTextResponse("hello", headers={"x-tokens-used": "600"})

    with serve_asgi(app) as url, httpx.Client(base_url=url, timeout=30) as http:
        assert http.get("/").json()["remaining"] < 100
        one, two = ({"authorization": unique()} for _ in range(2))
        assert statuses(6, lambda: http.get("/reports", headers=one)) == [200] * 5 + [429]
        assert http.get("/reports", headers=two).json() == {"remaining": 4}
        assert statuses(3, lambda: http.get("/search", headers=two)) == [200, 200, 429]
        pro = {"authorization": f"pro {unique()}"}
        assert statuses(4, lambda: http.get("/export", headers=pro)) == [200] * 4
        with Client(node.url, deadline=5) as client:
            assert client.check("127.0.0.1", "page", 100).allowed
        page = http.get("/page", headers={"accept": "text/html,*/*;q=0.8"})
        assert (page.status_code, page.headers["content-type"]) == (429, "text/html; charset=utf-8")
        assert re.search(r"try again in \d+ s\.", page.text)
        assert http.get("/page").json()["error"] == "too many requests"
        assert "tollgate_client_passed_total 0\n" in http.get("/metrics").text
        fields = http.get("/export", headers=one)
        assert fields.status_code == 429 and "retry-after" in fields.headers

        def enter(password: str) -> httpx.Response:
            return http.post("/login", headers={"x-password": password})

        for _ in range(8):
            assert enter("right").status_code == 200
            wait_until(lambda: remaining(node, "login", "127.0.0.1") == 3, "the refund")
        assert statuses(4, lambda: enter("wrong")) == [401] * 3 + [429]
        assert enter("right").status_code == 429

        chatter = {"authorization": unique()}
        for left in (400, 0):
            assert http.get("/chat", headers=chatter).status_code == 200
            key = chatter["authorization"]
            wait_until(lambda left=left, key=key: remaining(node, "tokens", key) == left, "a drain")
        assert http.get("/stream", headers=chatter).text == "An answer of a model"
        wait_until(lambda: remaining(node, "chat", key) == 998, "the settle")
        denied = http.get("/chat", headers=chatter)
        assert denied.status_code == 429 and int(denied.headers["retry-after"]) > 60


def test_recipes_pass_requests_while_no_node_answers() -> None:
    async def find_session(token: str | None) -> Any:
        return SimpleNamespace(user_id="user", is_paying=False)

    dead: Any = SimpleNamespace(port=free_port())
    app = run("FastAPI", dead, find_session=find_session, answer_of=None)["app"]
    with serve_asgi(app) as url, httpx.Client(base_url=url, timeout=30) as http:
        for path in ("/", "/reports", "/search", "/export", "/metrics"):
            assert http.get(path).status_code == 200, path
        assert http.post("/login", headers={"x-password": "right"}).status_code == 200
        assert http.get("/stream").status_code == 503
    app = run("Flask", dead)["app"]
    with serve_wsgi(app) as url, httpx.Client(base_url=url, timeout=30) as http:
        assert http.get("/").json() == {"remaining": None}
        assert http.post("/login").status_code == 401


def remaining(node: Node, policy: str, key: str) -> int:
    usage = httpx.get(f"{node.url}/v1/usage", params={"policy": policy, "key": key})
    return int(usage.json()["remaining"])


def test_unit_test_without_a_node_passes_as_printed(node: Node) -> None:
    run("Test your service", node, FastAPI=FastAPI, TollgateMiddleware=TollgateMiddleware)


def test_recipes_for_flask_limit(node: Node) -> None:
    httpx.delete(f"{node.url}/v1/usage", params={"policy": "login", "key": "127.0.0.1"})
    app = run("Flask", node)["app"]
    with serve_wsgi(app) as url, httpx.Client(base_url=url, timeout=30) as http:
        assert http.get("/").json()["remaining"] < 100
        assert statuses(4, lambda: http.post("/login")) == [401] * 3 + [429]


def test_settings_for_django_limit(node: Node) -> None:
    names = run("Django", node)
    with override_settings(MIDDLEWARE=names["MIDDLEWARE"], TOLLGATE=names["TOLLGATE"]):
        app = get_wsgi_application()
    with serve_wsgi(app) as url, httpx.Client(base_url=url, timeout=30) as http:
        user = {"x-user": unique()}
        assert statuses(6, lambda: http.get("/", headers=user)) == [200] * 5 + [429]


def test_storage_for_flask_limiter_counts(node: Node) -> None:
    names = run("Flask-Limiter and slowapi", node)
    app = Flask("readme")
    names["limiter"].init_app(app)


def test_client_prints_when_it_is_denied(node: Node, capsys: pytest.CaptureFixture[str]) -> None:
    for _ in range(6):
        run("Client", node)
    printed = r"(one at a time\n){5}retry after \d+ ms\none at a time\n"
    assert re.fullmatch(printed, capsys.readouterr().out)


def test_job_that_runs_elsewhere_is_busy(node: Node, capsys: pytest.CaptureFixture[str]) -> None:
    with Client(node.url, deadline=5) as client, client.hold("nightly-report", "jobs"):
        run("Client", node)
    assert re.search(r"busy for \d+ ms\n", capsys.readouterr().out)


def test_readme_prints_no_other_blocks() -> None:
    sections = {name for name, blocks in BLOCKS.items() if blocks}
    tested = {"# Tollgate for Python", "FastAPI", "Flask", "Django", "Client"}
    assert sections == tested | {"Flask-Limiter and slowapi", "Test your service"}
