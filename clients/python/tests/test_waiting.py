"""The worker of docs/waiting.md runs as it is printed, before a partner with a limit."""

from __future__ import annotations

import asyncio
import re
import time
from pathlib import Path
from typing import Any

import fastapi
import pytest
from fastapi.responses import JSONResponse

from apps import serve_asgi
from support import CLIENTS, Node

PAGE = (CLIENTS.parent / "docs/waiting.md").read_text()
# On a busy machine a start is as late as that.
LATE = 0.3


def block(language: str) -> str:
    found = re.search(rf"```{language}\n(.*?)```", PAGE, re.DOTALL)
    assert found
    return found[1]


def test_workers_stay_below_the_limit_and_obey_a_429(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls: list[float] = []
    app = fastapi.FastAPI()

    @app.post("/orders")
    async def order() -> JSONResponse:
        calls.append(time.monotonic())
        is_refused = len(calls) == 8
        return JSONResponse({}, 429 if is_refused else 200, {"retry-after": "2"})

    # A busy machine needs more than the default of 100 ms.
    policies = tmp_path / "policies.yaml"
    policies.write_text(block("yaml") + "    timeout: 5s\n")
    with Node(policies) as node, serve_asgi(app) as url:
        monkeypatch.setenv("TOLLGATE_NODES", node.url)
        monkeypatch.setenv("PARTNER_URL", url)
        names: dict[str, Any] = {"__name__": "worker"}
        exec(compile(block("python"), "worker.py", "exec"), names)

        async def work() -> list[Any]:
            return await asyncio.gather(*(names["send"]({"number": one}) for one in range(30)))

        responses = asyncio.run(work())
    assert [response.status_code for response in responses] == [200] * 30
    assert len(calls) == 31
    for first, begin in enumerate(calls):
        for more, end in enumerate(calls[first:]):
            assert more <= 10 * (end - begin + LATE), f"{more + 1} calls in {end - begin} s"
    refused_at = calls[7]
    during = [at for at in calls if refused_at + LATE < at < refused_at + 1.9]
    assert not during, [at - refused_at for at in during]
