"""Keys that a node accepts."""

from __future__ import annotations

from hashlib import sha256

MAX_KEY_BYTES = 1024


def bounded(key: str) -> str:
    """`key`, or its hash if it is longer than a key may be."""
    # UTF-8 has at most four bytes a character.
    if len(key) * 4 <= MAX_KEY_BYTES:
        return key
    raw = key.encode(errors="surrogatepass")
    return key if len(raw) <= MAX_KEY_BYTES else f"sha256:{sha256(raw).hexdigest()}"
