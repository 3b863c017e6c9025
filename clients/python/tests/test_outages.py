"""`clients/outages.json`: what passes, is logged and is counted while no node decides."""

from __future__ import annotations

import contextlib
import json
import logging
import re
import subprocess
import sys
import time
from collections.abc import Iterator
from typing import Any

import httpx
import pytest

from tollgate_limiter import AsyncClient, Client

from apps import FRAMEWORKS
from support import BINARY, CLIENTS, wait_until
from test_cases import make_client, middleware_options

OUTAGES = json.loads((CLIENTS / "outages.json").read_text())
# Longer than the pause between two lines.
QUIET_SECONDS = 1.1


class OtherSide:
    """The program that plays a state."""

    def __init__(self, state: str) -> None:
        self._process = subprocess.Popen(
            [sys.executable, str(CLIENTS / "outages.py"), state],
            env={"TOLLGATE_BIN": BINARY, "PATH": "/usr/local/bin:/usr/bin:/bin"},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        assert self._process.stdout and self._process.stdin
        self._read, self._write = self._process.stdout.readline, self._process.stdin
        self.options = json.loads(self._read())
        self.url = self.options.pop("url")

    def toggle(self) -> None:
        self._write.write("\n")
        self._write.flush()
        self._read()

    def __enter__(self) -> OtherSide:
        return self

    def __exit__(self, *_: object) -> None:
        self._write.close()
        self._process.wait(20)


@pytest.mark.parametrize("framework", ["starlette", "flask"])
@pytest.mark.parametrize("row", OUTAGES, ids=lambda row: row["name"])
def test_failures_are_logged_and_counted(
    row: dict[str, Any], framework: str, caplog: pytest.LogCaptureFixture
) -> None:
    with OtherSide(row["state"]) as other:
        for on_failure in ("open", "closed"):
            caplog.clear()
            observe(row, framework, on_failure, other, caplog)


@contextlib.contextmanager
def application(
    row: dict[str, Any], framework: str, on_failure: str, other: OtherSide
) -> Iterator[tuple[str, Client | AsyncClient]]:
    make_app, serve, kind = FRAMEWORKS[framework]
    case = {"options": {**row.get("options", {}), **other.options}}
    client = make_client(kind, [other.url], case)
    app = make_app(client=client, on_failure=on_failure, **middleware_options(case))
    with serve(app) as url:
        yield url, client


def observe(
    row: dict[str, Any],
    framework: str,
    on_failure: str,
    other: OtherSide,
    caplog: pytest.LogCaptureFixture,
) -> None:
    requests, decides = row.get("requests", 3), row.get("decides")
    failures, returns = row.get("failures", requests), "returns" in row
    is_open = on_failure == "open"

    def lines() -> list[str]:
        return [
            record.message
            for record in caplog.records
            if record.name == "tollgate_limiter" and record.levelno == logging.WARNING
        ]

    with application(row, framework, on_failure, other) as (url, client), httpx.Client() as http:
        if returns:
            assert http.get(url).status_code == 200
            other.toggle()
        for _ in range(requests):
            began = time.monotonic()
            status = http.get(url, headers={"x-used": "1"}).status_code
            assert (time.monotonic() - began) * 1000 < row.get("within_ms", 20_000)
            assert status == (200 if decides or is_open else 503)
        wait_until(lambda: client.stats().failures >= failures, "the failures")
        stats = client.stats()
        if decides:
            counts, sources = (0, requests, 0), {decides: requests}
            assert stats.sources == sources
        else:
            counts = (requests if is_open else 0, int(returns), 0)
        assert (stats.passed, stats.allowed, stats.denied) == counts
        if failures:
            wait_until(lambda: any(row["cause"] in line for line in lines()), "the line")
        warnings = [line for line in lines() if "warned" in row and row["warned"] in line]
        assert len(warnings) == ("warned" in row)
        failed = [line for line in lines() if line not in warnings]
        end = "passes" if is_open else "ends with 503"
        what = row.get("what", f"no decision, so the request {end}")
        assert bool(failed) == bool(failures), failed
        for line in failed:
            assert line.startswith((f"{what}: ", "the settle of a hold failed: ")), line
            assert row["cause"] in line
        if returns:
            other.toggle()
            wait_until(lambda: "ratelimit" in http.get(url).headers, "a decision")
            time.sleep(QUIET_SECONDS)
            http.get(url)
            line = r"decisions are back after \d+ failures in \d+\.\d s"
            assert re.fullmatch(line, lines()[-1])
