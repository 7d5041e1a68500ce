"""The text of ``martlet trace``."""

from typing import Any

import pytest

from martlet.cli.admin.trace import text


@pytest.mark.parametrize(
    ("due_ns", "line"),
    [
        (2_000_000_000, "channel mail: due since 00:00:02.000; waits for a consumer, 2 attempts"),
        (4_102_444_800 * 10**9, "channel mail: waits for its time: "),
    ],
)
def test_a_message_whose_time_has_passed_waits_for_a_consumer(due_ns: int, line: str) -> None:
    standing = {
        "channel": "mail",
        "state": "deferred",
        "is_group": False,
        "due_ns": due_ns,
        "attempts": 2,
    }
    message: dict[str, Any] = {
        "id": "0" * 16,
        "topic": "t",
        "queue": 0,
        "offset": 0,
        "body_bytes": 1,
        "properties": {},
        "stored_at_ns": 1_000_000_000,
        "deliver_at_ns": 0,
        "channels": [standing],
        "events": [],
        "starts_ns": [],
    }
    assert f"\n{line}" in text(message, {"traced": False}).decode()
