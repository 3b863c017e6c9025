"""What the functions of a middleware get, alike for ASGI and WSGI."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

LOOPBACK = "127.0.0.1"


class Headers(Mapping[str, str]):
    """The fields of a message. The case of a name does not matter. Repeated ones are joined."""

    def __init__(self, fields: Iterable[tuple[str, str]] = ()) -> None:
        self._fields: dict[str, str] = {}
        for name, value in fields:
            name = name.lower()
            known = self._fields.get(name)
            self._fields[name] = value if known is None else f"{known}, {value}"

    def __getitem__(self, name: str) -> str:
        return self._fields[name.lower()]

    def get(self, name: str, default: Any = None) -> Any:
        # The inherited one raises and catches an exception for each absent field.
        return self._fields.get(name.lower(), default)

    def __iter__(self) -> Iterator[str]:
        return iter(self._fields)

    def __len__(self) -> int:
        return len(self._fields)


class Request:
    """A request. `client` is the address as the server knows it, without a port, or None.

    `raw` is the scope of ASGI, the environment of WSGI, or the request of the framework.
    """

    __slots__ = ("client", "headers", "method", "path", "peer", "raw")

    def __init__(
        self, method: str, path: str, fields: Iterable[tuple[str, str]], peer: str | None, raw: Any
    ) -> None:
        self.method = method
        self.path = path
        self.headers = Headers(fields)
        self.peer = peer or None
        self.client = address(peer) if peer else None
        self.raw = raw

    @classmethod
    def of_asgi(cls, scope: Mapping[str, Any], raw: Any = None) -> Request:
        client, fields = scope.get("client"), decoded(scope["headers"])
        peer = client[0] if client else None
        # Starlette's TestClient has no address.
        return cls(
            scope["method"],
            scope["path"],
            fields,
            LOOPBACK if peer == "testclient" else peer,
            raw or scope,
        )

    @classmethod
    def of_wsgi(cls, environ: Mapping[str, Any], raw: Any = None) -> Request:
        path = environ.get("SCRIPT_NAME", "") + environ.get("PATH_INFO", "")
        fields = (
            (name.removeprefix("HTTP_").replace("_", "-"), value)
            for name, value in environ.items()
            if name.startswith("HTTP_") or name in ("CONTENT_TYPE", "CONTENT_LENGTH")
        )
        peer = environ.get("REMOTE_ADDR")
        return cls(environ["REQUEST_METHOD"], path, fields, peer, raw or environ)


class Response:
    """The head of a response, for `drain` and `refund`."""

    __slots__ = ("headers", "status")

    def __init__(self, status: int, fields: Iterable[tuple[str, str]]) -> None:
        self.status = status
        self.headers = Headers(fields)


# The answer of a server for an application that sent none.
NO_RESPONSE = Response(500, ())


def decoded(fields: Iterable[tuple[bytes, bytes]]) -> Iterator[tuple[str, str]]:
    return ((name.decode("latin-1"), value.decode("latin-1")) for name, value in fields)


def address(text: str) -> str:
    """An address without brackets, port and zone. Any other text stays as it is."""
    host, _, port = text.rpartition(":")
    if host.endswith("]") or (port.isdigit() and host.count(".") == 3):
        text = host
    return text.strip("[]").partition("%")[0]
