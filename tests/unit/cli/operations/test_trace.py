"""The text of ``martlet trace``."""

import pytest

from martlet.cli.operations.trace import text
from martlet.schema.traces import FoundMessages, MessageStanding, TracedMessage


@pytest.mark.parametrize(
    ("due_ns", "line"),
    [
        (2_000_000_000, "channel mail: due since 00:00:02.000; waits for a consumer, 2 attempts"),
        (4_102_444_800 * 10**9, "channel mail: waits for its time: "),
    ],
)
def test_a_message_whose_time_has_passed_waits_for_a_consumer(due_ns: int, line: str) -> None:
    standing = MessageStanding(
        channel="mail", state="deferred", attempts=2, due_ns=due_ns, is_group=False
    )
    message = TracedMessage(
        id="0" * 16,
        topic="t",
        queue=0,
        offset=0,
        stored_at_ns=1_000_000_000,
        deliver_at_ns=None,
        delayed=None,
        body_bytes=1,
        properties={},
        events=(),
        starts_ns=(),
        channels=(standing,),
        known_since_ns=0,
    )
    answer = FoundMessages(messages=(message,), is_complete=True, are_traced=False, log_since_ns=0)
    assert f"\n{line}" in text(message, answer).decode()
