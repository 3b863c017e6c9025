"""The package is typed, formatted, and described as it is."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import httpx
import pytest

from apps import serve_asgi, serve_wsgi
from support import Node

PACKAGE = Path(__file__).resolve().parents[1]
EXAMPLES = PACKAGE / "examples"


@pytest.mark.parametrize(
    "command",
    [
        ["mypy", "--no-error-summary"],
        ["ruff", "check", "."],
        ["ruff", "format", "--check", "."],
    ],
    ids=" ".join,
)
def test_tool_finds_nothing(command: list[str]) -> None:
    done = subprocess.run(
        [sys.executable, "-m", *command], cwd=PACKAGE, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.parametrize("name", ["fastapi_app", "flask_app", "flask_limiter_app", "slowapi_app"])
def test_example_limits_its_requests(name: str) -> None:
    """The examples ask the default node."""
    with Node(EXAMPLES / "tollgate.yaml") as node:
        app = load(name, node)
        serve = serve_wsgi if name.startswith("flask") else serve_asgi
        with serve(app) as url, httpx.Client(timeout=30) as http:
            for _ in range(1000):
                response = http.get(url, headers={"x-token": "a"})
                if response.status_code != 200:
                    break
        assert response.status_code == (403 if name == "flask_app" else 429)
        assert "retry-after" in response.headers


def load(name: str, node: Node) -> Any:
    source = (EXAMPLES / f"{name}.py").read_text()
    source = source.replace("127.0.0.1:7070", f"127.0.0.1:{node.port}")
    source = source.replace("(TollgateMiddleware, ", f"(TollgateMiddleware, nodes='{node.url}', ")
    source = re.sub(r"(wsgi_app,)\n", rf"\1 nodes='{node.url}',\n", source)
    variables: dict[str, Any] = {"__name__": name}
    exec(compile(source, name, "exec"), variables)
    return variables["app"]
