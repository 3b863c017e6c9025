from __future__ import annotations

from collections.abc import Iterator

import pytest

from support import CLIENTS, Node


@pytest.fixture(scope="session")
def node() -> Iterator[Node]:
    with Node(CLIENTS / "cases.yaml") as node:
        yield node


@pytest.fixture(scope="session")
def secure_node() -> Iterator[Node]:
    with Node(CLIENTS / "cases-secure.yaml", scheme="https") as node:
        yield node
