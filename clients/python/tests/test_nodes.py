"""Which node a call asks. Time is a number here."""

from __future__ import annotations

import pytest

from tollgate_limiter import TollgateError
from tollgate_limiter.nodes import AVOID_SECONDS, AttemptFailed, Attempts, Failure, Node, nodes

REFUSED, BROKEN, SILENT = (AttemptFailed(failure, "test") for failure in Failure)


def two() -> list[Node]:
    return nodes(["http://one:1", "http://two:2"], None)


def asked(attempts: Attempts, now: float) -> str | None:
    attempt = attempts.next(now)
    return attempt[0].host if attempt else None


def test_refused_call_goes_to_the_next_node_and_later_ones_avoid_the_first() -> None:
    known = two()
    attempts = Attempts(known, False, 101.0)
    assert asked(attempts, 100.0) == "one"
    attempts.failed(REFUSED, 100.0)
    assert asked(attempts, 100.0) == "two"
    assert asked(Attempts(known, False, 101.0), 100.1) == "two"


def test_each_node_gets_an_equal_share_of_the_deadline() -> None:
    known = two()
    attempts = Attempts(known, True, 101.0)
    assert attempts.next(100.0) == (known[0], 0.5)
    attempts.failed(SILENT, 100.5)
    assert attempts.next(100.5) == (known[1], 0.5)


def test_call_that_must_not_repeat_waits_for_its_whole_deadline() -> None:
    known = two()
    assert Attempts(known, False, 101.0).next(100.0) == (known[0], 1.0)


def test_broken_call_repeats_once_on_its_node_and_then_moves_on() -> None:
    attempts = Attempts(two(), True, 101.0)
    asked_nodes = []
    while (node := asked(attempts, 100.0)) is not None:
        asked_nodes.append(node)
        attempts.failed(BROKEN, 100.0)
    assert asked_nodes == ["one", "one", "two"]


@pytest.mark.parametrize("failure", [BROKEN, SILENT])
def test_call_that_must_not_repeat_ends_with_an_unknown_fate(failure: AttemptFailed) -> None:
    attempts = Attempts(two(), False, 101.0)
    assert asked(attempts, 100.0) == "one"
    attempts.failed(failure, 100.0)
    assert asked(attempts, 100.0) is None


def test_lone_failed_node_fails_calls_at_once_but_for_one_in_half_a_second() -> None:
    known = two()[:1]
    attempts = Attempts(known, True, 101.0)
    assert asked(attempts, 100.0) == "one"
    attempts.failed(SILENT, 100.1)
    assert asked(Attempts(known, True, 101.0), 100.2) is None
    later = 100.1 + AVOID_SECONDS
    assert asked(Attempts(known, True, 102.0), later) == "one"
    assert asked(Attempts(known, True, 102.0), later + 0.01) is None


def test_answer_ends_the_avoidance() -> None:
    known = two()
    known[0].avoid(100.0)
    known[0].answered(100.1)
    assert asked(Attempts(known, True, 101.0), 100.2) == "one"


def test_late_node_that_answers_other_calls_is_not_avoided() -> None:
    known = two()
    attempts = Attempts(known, True, 101.0)
    assert asked(attempts, 100.0) == "one"
    known[0].answered(100.3)
    attempts.failed(SILENT, 100.5)
    assert asked(Attempts(known, True, 101.0), 100.6) == "one"


def test_seconds_in_which_the_process_was_late_do_not_count() -> None:
    attempts = Attempts(two()[:1], True, 101.0)
    assert asked(attempts, 100.0) == "one"
    attempts.failed(AttemptFailed(Failure.BROKEN, "test", late=2.0), 102.0)
    assert asked(attempts, 102.0) == "one"


def test_only_a_node_that_may_have_executed_the_call_makes_the_next_attempt_a_repetition() -> None:
    for failure, is_repeated in ((REFUSED, False), (BROKEN, True), (SILENT, True)):
        attempts = Attempts(two(), True, 101.0)
        asked(attempts, 100.0)
        attempts.failed(failure, 100.1)
        assert attempts.is_repeated == is_repeated


def test_no_attempt_begins_after_the_deadline() -> None:
    assert asked(Attempts(two(), True, 101.0), 101.0) is None


@pytest.mark.parametrize(
    "url",
    ["localhost:7070", "redis://one", "http://", "http://one:x", "http://:t@one", "http://one?a=b"],
)
def test_wrong_url_is_rejected(url: str) -> None:
    with pytest.raises(TollgateError):
        nodes(url, None)
    with pytest.raises(TollgateError):
        nodes([], None)


def test_url_may_have_a_path_and_an_ipv6_address() -> None:
    node = nodes("http://[::1]:7070/limits/", None)[0]
    assert (node.host, node.port) == ("::1", 7070)
    assert (node.authority, node.prefix) == ("[::1]:7070", "/limits")
