"""The results of messages stored together, from that of the first."""

from __future__ import annotations

import pytest

from martlet.client import SendResult
from martlet.names import PutStatus

BROKER = "127.0.0.1:4150"


@pytest.mark.parametrize(
    ("offset", "message_id", "expected"),
    [
        (7, b"00000000000000ff", [(7, b"00000000000000ff"), (9, b"0000000000000101")]),
        (7, b"ffffffffffffffff", [(7, b"ffffffffffffffff"), (9, b"0000000000000001")]),
        (None, b"0000000000000001", [(None, b"0000000000000001"), (None, b"0000000000000003")]),
        (None, None, [(None, None), (None, None)]),
    ],
)
def test_each_message_has_its_own_offset_and_id(
    offset: int | None,
    message_id: bytes | None,
    expected: list[tuple[int | None, bytes | None]],
) -> None:
    first = SendResult(PutStatus.OK, 3, offset, message_id, BROKER, is_duplicate=True)
    results = list(first.all_behind(iter((0, 2))))
    assert results == [SendResult(PutStatus.OK, 3, *pair, BROKER, True) for pair in expected]
    assert all(type(result) is SendResult for result in results)
    assert first.behind(2) == results[1]
