"""A client that openapi-python-client generates from the node's `/openapi.json`."""

from __future__ import annotations

import importlib
import subprocess
import sys
from pathlib import Path

import httpx
import pytest

from support import Node, unique


def test_generated_client_makes_a_check(
    node: Node, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    document = tmp_path / "openapi.json"
    document.write_bytes(httpx.get(f"{node.url}/openapi.json").content)
    generate = ["generate", "--meta", "none", "--path", str(document)]
    command = [sys.executable, "-m", "openapi_python_client", *generate]
    subprocess.run([*command, "--output-path", str(tmp_path / "generated")], check=True)
    monkeypatch.syspath_prepend(tmp_path)
    generated, check = (
        importlib.import_module(f"generated.{name}") for name in ("client", "models")
    )
    call = importlib.import_module("generated.api.checks.check")
    with generated.Client(base_url=node.url) as client:
        body = check.Check(key=unique(), policy="ten", cost=3)
        answer = call.sync(client=client, body=body)
    assert (answer.allowed, answer.remaining, answer.source) == (True, 7, "store")
