from __future__ import annotations

import logging
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


@pytest.fixture(autouse=True)
def without_settles_of_other_tests(
    request: pytest.FixtureRequest, caplog: pytest.LogCaptureFixture
) -> Iterator[None]:
    """Clients of other tests may still try to settle at nodes that are gone, and log that."""

    def is_own(record: logging.LogRecord) -> bool:
        return not record.getMessage().startswith(("the settle of a hold", "the settle of leases"))

    if request.module.__name__ != "test_outages":
        caplog.handler.addFilter(is_own)
    yield
    caplog.handler.removeFilter(is_own)
