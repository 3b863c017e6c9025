"""Real nodes, and listeners that misbehave."""

from __future__ import annotations

import contextlib
import http.client
import json
import os
import socket
import socketserver
import subprocess
import tempfile
import threading
import time
import uuid
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler
from pathlib import Path
from typing import Any, TypeVar

CLIENTS = Path(__file__).resolve().parents[2]
BINARY = os.environ.get("TOLLGATE_BIN", str(CLIENTS.parent / "target/debug/tollgate"))
T = TypeVar("T")


def unique() -> str:
    return uuid.uuid4().hex


def free_port() -> int:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return int(listener.getsockname()[1])


_closed: list[socket.socket] = []


def closed() -> str:
    """The URL of a port that refuses connections, also after the test."""
    _closed.append(socket.socket())
    _closed[-1].bind(("127.0.0.1", 0))
    return f"http://127.0.0.1:{_closed[-1].getsockname()[1]}"


def wait_until(condition: Callable[[], T], what: str, seconds: float = 20.0) -> T:
    end = time.monotonic() + seconds
    while not (found := condition()):
        assert time.monotonic() < end, f"not within {seconds} s: {what}"
        time.sleep(0.01)
    return found


class Node:
    """A process of `tollgate serve`."""

    def __init__(self, config: Path, scheme: str = "http") -> None:
        self.port = free_port()
        self.url = f"{scheme}://127.0.0.1:{self.port}"
        self.process: subprocess.Popen[bytes] | None = None
        self._directory = tempfile.TemporaryDirectory()
        home = Path(self._directory.name)
        (home / "tollgate.yaml").write_text(config.read_text())
        (home / "testdata").symlink_to(CLIENTS / "testdata")

    def start(self) -> None:
        assert Path(BINARY).exists(), f"{BINARY} is missing; run cargo build or set TOLLGATE_BIN"
        command = [BINARY, "serve", "--listen", f"127.0.0.1:{self.port}", "--config"]
        self.process = subprocess.Popen(
            [*command, "tollgate.yaml"],
            cwd=self._directory.name,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        wait_until(self.accepts, f"a node on {self.url}")

    def accepts(self) -> bool:
        assert self.process is not None and self.process.poll() is None, "the node ended"
        try:
            socket.create_connection(("127.0.0.1", self.port), 1).close()
        except OSError:
            return False
        return True

    def kill(self) -> None:
        if self.process is not None:
            self.process.kill()
            self.process.wait()
            self.process = None

    def __enter__(self) -> Node:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.kill()
        self._directory.cleanup()


class Silent:
    """Accepts connections and never answers."""

    def __enter__(self) -> str:
        self._listener = socket.create_server(("127.0.0.1", 0))
        return f"http://127.0.0.1:{self._listener.getsockname()[1]}"

    def __exit__(self, *_: object) -> None:
        self._listener.close()


class Proxy:
    """Forwards calls to a node and records them. It can lose the answers of the first calls."""

    def __init__(self, port: int, lost: int = 0) -> None:
        self.calls: list[tuple[str, dict[str, str]]] = []
        self.bodies: list[Any] = []
        self.connections = 0
        self._open: list[socket.socket] = []
        self._port = port
        self._lost = lost
        self._lock = threading.Lock()

    def __enter__(self) -> Proxy:
        proxy = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"
            disable_nagle_algorithm = True

            def setup(self) -> None:
                super().setup()
                with proxy._lock:
                    proxy.connections += 1
                    proxy._open.append(self.connection)

            def do_POST(self) -> None:
                proxy._forward(self)

            do_GET = do_POST

            def log_message(self, *_: Any) -> None:
                pass

        class Server(socketserver.ThreadingTCPServer):
            daemon_threads = True
            request_queue_size = 128

        self._server = Server(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self._server.server_address[1]}"
        threading.Thread(target=self._server.serve_forever, args=(0.02,), daemon=True).start()
        return self

    def _forward(self, handler: BaseHTTPRequestHandler) -> None:
        body = handler.rfile.read(int(handler.headers.get("content-length", 0)))
        with self._lock:
            self.calls.append((handler.path, {k.lower(): v for k, v in handler.headers.items()}))
            self.bodies.append(json.loads(body or b"null"))
            lose, self._lost = self._lost > 0, self._lost - 1
        node = http.client.HTTPConnection("127.0.0.1", self._port, timeout=10)
        headers = {"content-type": "application/json"} if body else {}
        node.request(handler.command, handler.path, body or None, headers)
        answer = node.getresponse()
        data = answer.read()
        node.close()
        if lose:
            handler.close_connection = True
            return
        handler.send_response(answer.status)
        handler.send_header("content-type", answer.headers["content-type"])
        handler.send_header("content-length", str(len(data)))
        handler.end_headers()
        handler.wfile.write(data)

    def stop(self) -> None:
        """Also ends its connections."""
        self._server.shutdown()
        self._server.server_close()
        for connection in self._open:
            with contextlib.suppress(OSError):
                connection.shutdown(socket.SHUT_RDWR)

    def __exit__(self, *_: object) -> None:
        self.stop()
