"""CPU time of a server process per request, in microseconds: hello world behind each limiter.

    python bench/run.py [--requests 4000] [--connections 16] [--rounds 3] [--only flask]

It starts a node, redis-server, and one server process for each row. The load is a process of its
own. The node and Redis are not included. Each figure is the least of the rounds.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE.parent / "tests")]

from support import Node, free_port, wait_until  # noqa: E402

VARIANTS = ["alone", "tollgate", "limits-redis", "extension-redis", "extension-tollgate"]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--requests", type=int, default=4000)
    parser.add_argument("--connections", type=int, default=16)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--only", default="", help="a part of the names of rows")
    arguments = parser.parse_args()
    with Node(HERE / "tollgate.yaml") as node, redis() as redis_url:
        for framework, extension in (("fastapi", "slowapi"), ("flask", "Flask-Limiter")):
            for variant in VARIANTS:
                if arguments.only not in f"{framework} {variant}":
                    continue
                costs = []
                for _ in range(arguments.rounds):
                    with server(framework, variant, node.url, redis_url) as (process, port):
                        load(port, arguments.requests // 4, arguments.connections)
                        before = cpu_seconds(process)
                        load(port, arguments.requests, arguments.connections)
                        costs.append((cpu_seconds(process) - before) / arguments.requests)
                name = variant.replace("extension", extension)
                print(f"{framework:8} {name:24} {min(costs) * 1e6:7.0f} us", flush=True)


@contextlib.contextmanager
def redis() -> Iterator[str]:
    port, program = free_port(), shutil.which("redis-server")
    assert program, "redis-server is missing; run apt-get install redis-server"
    process = subprocess.Popen(
        [program, "--port", str(port), "--save", "", "--bind", "127.0.0.1"],
        stdout=subprocess.DEVNULL,
    )
    try:
        yield f"redis://127.0.0.1:{port}"
    finally:
        process.terminate()
        process.wait()


@contextlib.contextmanager
def server(
    framework: str, variant: str, node: str, redis_url: str
) -> Iterator[tuple[subprocess.Popen[bytes], int]]:
    port = free_port()
    variables = {"VARIANT": variant, "NODE_URL": node, "REDIS_URL": redis_url}
    variables["PYTHONPATH"] = f"{HERE}:{HERE.parent / 'src'}"
    command = [sys.executable, str(HERE / "serve.py"), framework, str(port)]
    process = subprocess.Popen(command, env={**os.environ, **variables})
    try:
        wait_until(lambda: answers(port, process), f"{framework} {variant}")
        yield process, port
    finally:
        process.terminate()
        process.wait()


def answers(port: int, process: subprocess.Popen[bytes]) -> bool:
    assert process.poll() is None, "the server ended"
    try:
        asyncio.run(client(port, 1))
    except OSError:
        return False
    return True


def cpu_seconds(process: subprocess.Popen[bytes]) -> float:
    """User and system time (proc_pid_stat(5)), also of the threads."""
    fields = Path(f"/proc/{process.pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def load(port: int, requests: int, connections: int) -> None:
    async def run() -> None:
        share = requests // connections
        await asyncio.gather(*(client(port, share) for _ in range(connections)))

    asyncio.run(run())


async def client(port: int, requests: int) -> None:
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    for _ in range(requests):
        writer.write(b"GET / HTTP/1.1\r\nhost: 127.0.0.1\r\n\r\n")
        head = await reader.readuntil(b"\r\n\r\n")
        assert head.startswith(b"HTTP/1.1 200"), head
        length = head.lower().partition(b"content-length:")[2].partition(b"\r\n")[0]
        await reader.readexactly(int(length))
    writer.close()


if __name__ == "__main__":
    main()
