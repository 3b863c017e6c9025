from __future__ import annotations

import pytest

from tollgate.http1 import MAX_BODY_BYTES, MAX_HEAD_BYTES, Answer, AnswerReader, MalformedAnswer

ANSWERS = {
    "length": (b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nhello", Answer(200, b"hello", True)),
    "empty": (b"HTTP/1.1 503 \r\ncontent-length:0\r\n\r\n", Answer(503, b"", True)),
    "chunks": (
        b"HTTP/1.1 404 No\r\nTransfer-Encoding: chunked\r\n\r\n"
        b"3\r\nhel\r\n2;a=b\r\nlo\r\n0\r\n\r\n",
        Answer(404, b"hello", True),
    ),
    "close": (
        b"HTTP/1.1 200 OK\r\nconnection: Close\r\ncontent-length: 1\r\n\r\nx",
        Answer(200, b"x", False),
    ),
    "http/1.0": (b"HTTP/1.0 200 OK\r\ncontent-length: 1\r\n\r\nx", Answer(200, b"x", False)),
    "continue": (
        b"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 200 OK\r\ncontent-length: 1\r\n\r\nx",
        Answer(200, b"x", True),
    ),
}


@pytest.mark.parametrize("name", ANSWERS)
@pytest.mark.parametrize("size", [1, 2, 7, 1000])
def test_answer_is_read_in_pieces_of_any_size(name: str, size: int) -> None:
    data, expected = ANSWERS[name]
    reader = AnswerReader()
    pieces = [data[at : at + size] for at in range(0, len(data), size)]
    assert [reader.feed(piece) for piece in pieces] == [False] * (len(pieces) - 1) + [True]
    assert reader.answer == expected


def test_answer_without_length_ends_with_the_connection() -> None:
    reader = AnswerReader()
    assert not reader.feed(b"HTTP/1.1 200 OK\r\n\r\nhel")
    assert not reader.feed(b"lo")
    assert reader.end()
    assert reader.answer == Answer(200, b"hello", False)


@pytest.mark.parametrize("name", ["length", "chunks"])
def test_truncated_answer_is_incomplete(name: str) -> None:
    reader = AnswerReader()
    assert not reader.feed(ANSWERS[name][0][:-1])
    assert not reader.end()
    assert not AnswerReader().end()


@pytest.mark.parametrize(
    "data",
    [
        b"SSH-2.0-OpenSSH\r\n\r\n",
        b"HTTP/1.1 OK\r\n\r\n",
        b"HTTP/1.1 200 OK\r\ncontent-length: -1\r\n\r\n",
        b"HTTP/1.1 200 OK\r\ncontent-length: %d\r\n\r\n" % (MAX_BODY_BYTES + 1),
        b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\nxyz\r\n",
        b"HTTP/1.1 200 OK\r\na: " + b"a" * MAX_HEAD_BYTES,
    ],
)
def test_malformed_answer_is_rejected(data: bytes) -> None:
    with pytest.raises(MalformedAnswer):
        AnswerReader().feed(data)
