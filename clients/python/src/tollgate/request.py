"""What the functions of a middleware get, alike for ASGI and WSGI."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any


class AsgiHeaders(Mapping[str, str]):
    """The fields of an ASGI message by their lower-case names. Repeated ones are joined."""

    def __init__(self, fields: Iterable[tuple[bytes, bytes]]) -> None:
        self._fields = fields

    def __getitem__(self, name: str) -> str:
        wanted = name.lower().encode("latin-1")
        values = [value for field, value in self._fields if field.lower() == wanted]
        if not values:
            raise KeyError(name)
        return b", ".join(values).decode("latin-1")

    def __iter__(self) -> Iterator[str]:
        return iter(dict.fromkeys(field.decode("latin-1").lower() for field, _ in self._fields))

    def __len__(self) -> int:
        return sum(1 for _ in self)


class WsgiHeaders(Mapping[str, str]):
    """The fields of a WSGI environment."""

    def __init__(self, environ: Mapping[str, Any]) -> None:
        self._environ = environ

    def __getitem__(self, name: str) -> str:
        variable = name.upper().replace("-", "_")
        if variable not in ("CONTENT_TYPE", "CONTENT_LENGTH"):
            variable = f"HTTP_{variable}"
        value = self._environ.get(variable)
        if value is None:
            raise KeyError(name)
        return str(value)

    def __iter__(self) -> Iterator[str]:
        for name in self._environ:
            if name.startswith("HTTP_"):
                yield name[5:].lower().replace("_", "-")
            elif name in ("CONTENT_TYPE", "CONTENT_LENGTH"):
                yield name.lower().replace("_", "-")

    def __len__(self) -> int:
        return sum(1 for _ in self)


class Request:
    """A request. `client` is the address as the server knows it, or None.

    `raw` is the scope of ASGI or the environment of WSGI.
    """

    __slots__ = ("client", "headers", "method", "path", "raw")

    def __init__(
        self,
        method: str,
        path: str,
        headers: Mapping[str, str],
        client: str | None,
        raw: Mapping[str, Any],
    ) -> None:
        self.method = method
        self.path = path
        self.headers = headers
        self.client = client
        self.raw = raw

    @classmethod
    def of_asgi(cls, scope: Mapping[str, Any]) -> Request:
        client = scope.get("client")
        headers = AsgiHeaders(scope["headers"])
        return cls(scope["method"], scope["path"], headers, client[0] if client else None, scope)

    @classmethod
    def of_wsgi(cls, environ: Mapping[str, Any]) -> Request:
        path = environ.get("SCRIPT_NAME", "") + environ.get("PATH_INFO", "")
        client = environ.get("REMOTE_ADDR") or None
        return cls(environ["REQUEST_METHOD"], path, WsgiHeaders(environ), client, environ)


class Response:
    """The head of a response, for `drain`."""

    __slots__ = ("headers", "status")

    def __init__(self, status: int, headers: Mapping[str, str]) -> None:
        self.status = status
        self.headers = headers


# The answer of a server for an application that sent none.
NO_RESPONSE = Response(500, {})
