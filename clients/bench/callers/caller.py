"""Checks one key at a steady rate, like clients/go/bench/caller.

python caller.py NODES POLICY KEY RATE SECONDS
"""

from __future__ import annotations

import asyncio
import sys
import time

from tollgate_limiter import AsyncClient

NODES, POLICY, KEY = sys.argv[1].split(","), *sys.argv[2:4]
RATE, SECONDS = map(int, sys.argv[4:])
WORKERS = 8


async def work(client: AsyncClient, worker: int, began: float, lines: list[str]) -> None:
    for i in range(worker, RATE * SECONDS, WORKERS):
        await asyncio.sleep(max(began + i / RATE - time.monotonic(), 0))
        begin = time.time_ns() // 1000
        answer = await client.check(KEY, policy=POLICY)
        end = time.time_ns() // 1000
        lines.append(f"{begin} {end} {str(answer.allowed).lower()} {answer.source}")
        if time.monotonic() - began > SECONDS:
            return


async def main() -> None:
    lines: list[str] = []
    async with AsyncClient(NODES, deadline=10.0) as client:
        print("ready", flush=True)
        sys.stdin.readline()
        began = time.monotonic()
        await asyncio.gather(*(work(client, worker, began, lines) for worker in range(WORKERS)))
    print("\n".join(lines))


asyncio.run(main())
