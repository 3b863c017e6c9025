"""Keys that a node accepts."""

from __future__ import annotations

from hashlib import sha256

MAX_KEY_BYTES = 1024


def sendable(key: str) -> str:
    """`key`, or its hash if a node rejects it.

    A caller must not choose a key that nobody counts.
    """
    try:
        raw = key.encode()
    except UnicodeEncodeError:
        # Half of a surrogate pair.
        return _hashed(key.encode(errors="surrogatepass"))
    return key if len(raw) <= MAX_KEY_BYTES else _hashed(raw)


def _hashed(key: bytes) -> str:
    return f"sha256:{sha256(key).hexdigest()}"
