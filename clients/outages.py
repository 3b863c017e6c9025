#!/usr/bin/env python3
"""Plays the other side of a client: each state of outages.json.

    outages.py STATE

It prints one line of JSON: the `url` for the client, and perhaps a `token` and a `ca_file`. For
each line of input it kills its node, or starts it again, and prints an empty line. It ends with
its input. TOLLGATE_BIN names the binary of a node, by default target/debug/tollgate.
"""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import threading
import time
import urllib.request
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

CLIENTS = Path(__file__).resolve().parent
BINARY = os.environ.get("TOLLGATE_BIN", str(CLIENTS.parent / "target/debug/tollgate"))
# May check the policy `other` alone.
TOKEN = "tollgate_09954dc8d612c385ae93cc540921e2258415a9e774d32bb53b1b25b58cbbb212"
HTML = b"<!doctype html><title>Sign in</title>"
ANSWERS = {
    "html": ("text/html", HTML),
    "json": ("application/json", b'{"error": "bad request"}'),
    "problem": (
        "application/problem+json",
        b'{"type": "about:blank", "status": 400, "detail": "no"}',
    ),
}
# Long enough for a busy machine.
START_SECONDS = 20

children: list[subprocess.Popen[bytes]] = []


def listener() -> tuple[socket.socket, str]:
    server = socket.create_server(("127.0.0.1", 0))
    return server, f"http://127.0.0.1:{server.getsockname()[1]}"


def drip() -> str:
    """Answers each call by a byte each 20 ms, without an end."""
    server, url = listener()

    def answer(connection: socket.socket) -> None:
        try:
            connection.recv(65536)
            connection.sendall(b"HTTP/1.1 200 OK\r\ncontent-length: 1000000\r\n\r\n{")
            while True:
                time.sleep(0.02)
                connection.sendall(b" ")
        except OSError:
            connection.close()

    def accept() -> None:
        while True:
            threading.Thread(target=answer, args=server.accept()[:1], daemon=True).start()

    threading.Thread(target=accept, daemon=True).start()
    return url


def web(status: int, kind: str, node: str = "") -> str:
    """Answers each call alike. The `node` answers checks, but for drains."""
    content_type, body = ANSWERS[kind]

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_POST(self) -> None:
            asked = self.rfile.read(int(self.headers.get("content-length", 0)))
            if node and self.path == "/v1/check" and b'"drain"' not in asked:
                self.forward(asked)
            else:
                self.answer(status, content_type, body)

        do_GET = do_POST

        def forward(self, asked: bytes) -> None:
            request = urllib.request.Request(
                node + self.path, asked, {"content-type": "application/json"}
            )
            with urllib.request.urlopen(request, timeout=10) as reply:
                self.answer(reply.status, reply.headers["content-type"], reply.read())

        def answer(self, status: int, content_type: str, body: bytes) -> None:
            self.send_response(status)
            self.send_header("content-type", content_type)
            self.send_header("content-length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    return f"http://127.0.0.1:{server.server_port}"


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def await_port(port: int, child: subprocess.Popen[bytes], what: str) -> bool:
    """Whether the program listens. Else it has ended, since another one has taken its port."""
    end = time.monotonic() + START_SECONDS
    while time.monotonic() < end:
        if child.poll() is not None:
            return False
        try:
            socket.create_connection(("127.0.0.1", port), 1).close()
            return True
        except OSError:
            time.sleep(0.02)
    sys.exit(f"{what} does not listen")


def start(
    command: Callable[[int], list[str]], fixed_port: int = 0, **environment: str
) -> tuple[subprocess.Popen[bytes], int]:
    """Starts a program on a port, or on another one if that is taken meanwhile."""
    for _ in range(10):
        port = fixed_port or free_port()
        child = subprocess.Popen(
            command(port),
            cwd=CLIENTS,
            env=os.environ | environment,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        children.append(child)
        if await_port(port, child, command(port)[0]):
            return child, port
    sys.exit(f"{command(0)[0]} ends at its start")


def node(config: str = "cases.yaml", port: int = 0, **environment: str) -> str:
    def command(port: int) -> list[str]:
        return [BINARY, "serve", "--listen", f"127.0.0.1:{port}", "--config", config]

    _, port = start(command, port, **environment)
    return f"http://127.0.0.1:{port}"


def frozen() -> str:
    def command(port: int) -> list[str]:
        return ["redis-server", "--port", str(port), "--save", "", "--appendonly", "no"]

    redis, port = start(command)
    url = node("outages.yaml", TOLLGATE_STORE=f"redis://127.0.0.1:{port}")
    redis.send_signal(signal.SIGSTOP)
    return url


def play(state: str) -> dict[str, Any]:
    match state.split():
        case ["down"]:
            kept = socket.socket()
            kept.bind(("127.0.0.1", 0))
            return {"url": f"http://127.0.0.1:{kept.getsockname()[1]}", "kept": kept}
        case ["silent"]:
            kept, url = listener()
            return {"url": url, "kept": kept}
        case ["drip"]:
            return {"url": drip()}
        case ["tls"]:
            return {"url": node().replace("http:", "https:"), "ca_file": "testdata/ca.pem"}
        case ["token", "wrong"]:
            return {
                "url": node("cases-secure.yaml").replace("http:", "https:"),
                "token": "wrong",
                "ca_file": "testdata/ca.pem",
            }
        case ["token", "elsewhere"]:
            return {"url": node("outages.yaml"), "token": TOKEN}
        case ["node"]:
            return {"url": node()}
        case ["frozen"]:
            return {"url": frozen(), "token": TOKEN}
        case [status, kind]:
            return {"url": web(int(status), kind)}
        case ["checks", status, kind]:
            return {"url": web(int(status), kind, node())}
    sys.exit(f"unknown state: {state}")


def main() -> None:
    try:
        side = play(sys.argv[1])
        print(json.dumps({name: text for name, text in side.items() if name != "kept"}), flush=True)
        for _ in sys.stdin:
            if children:
                children[0].kill()
                children.pop().wait()
            else:
                node(port=int(side["url"].rpartition(":")[2]))
            print(flush=True)
    finally:
        for child in children:
            child.kill()


main()
