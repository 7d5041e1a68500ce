"""Channels that pass over a part of their topic."""

from __future__ import annotations

import pytest
from tests.unit.broker.core import Client, Core

from martlet.broker.channel.channel import Channel

END = 100


def stored(start: int, *voids: tuple[int, int]) -> tuple[Core, Channel]:
    """A topic of a hundred messages, with a channel that sees some of them."""
    core = Core()
    for first in range(0, END, 5):
        core.publish("t", *(b"%d" % n for n in range(first, first + 5)))
    return core, core.broker.topic("t").channel("c", start, voids)


def bodies(*stretches: tuple[int, int]) -> list[bytes]:
    return [b"%d" % n for first, end in stretches for n in range(first, end)]


@pytest.mark.parametrize(
    ("start", "voids", "seen"),
    [
        (0, [(10, 20)], [(0, 10), (20, END)]),
        (5, [(5, 10), (10, 15), (50, END)], [(15, 50)]),
        (20, [(40, 60), (65, 95)], [(20, 40), (60, 65), (95, END)]),
        (0, [(0, END)], []),
    ],
)
def test_a_channel_skips_its_voids_and_gets_later_messages(
    start: int, voids: list[tuple[int, int]], seen: list[tuple[int, int]]
) -> None:
    core, channel = stored(start, *voids)
    expected = bodies(*seen)
    assert channel.depth == len(expected)
    client = Client(channel, 10**9)
    for ready in range(0, END + 9, 9):
        client.ready(ready)
        assert channel.depth == max(0, len(expected) - ready)
    assert client.bodies == expected
    core.publish("t", b"one more")
    client.ready(len(expected) + 1)
    assert client.bodies == [*expected, b"one more"]
    client.finish()
    assert channel.depth == 0


@pytest.mark.parametrize("clean", [True, False])
@pytest.mark.parametrize("taken", [0, 5, 10, 15])
def test_voids_outlive_a_restart(clean: bool, taken: int) -> None:
    core, channel = stored(0, (10, 30), (40, END))
    client = Client(channel, 10**9).ready(taken)
    client.finish(*range(taken))
    core.broker.write_journal()
    core.stop() if clean else core.kill()
    channel = core.channel("t")
    assert channel.depth == 20 - taken
    core.publish("t", b"new")
    again = Client(channel, 10**9).ready(1000)
    assert sorted(again.bodies) == sorted([*bodies((0, 10), (30, 40))[taken:], b"new"])


def test_a_paused_topic_ends_where_it_was_paused_for_a_channel_with_voids() -> None:
    core, channel = stored(0, (10, END))
    core.broker.topic("t").set_paused(True)
    core.publish("t", b"kept back")
    client = Client(channel, 10**9).ready(1000)
    assert client.bodies == bodies((0, 10))
    core.broker.topic("t").set_paused(False)
    assert client.bodies == [*bodies((0, 10)), b"kept back"]


def test_a_lone_message_is_delivered_behind_a_void_that_no_consumer_has_passed() -> None:
    core, channel = stored(0, (10, END))
    client = Client(channel, 10**9).ready(1000)
    client.finish()
    core.broker.append(core.broker.topic("t"), b"alone")
    assert client.bodies == [*bodies((0, 10)), b"alone"]


def test_other_channels_of_the_topic_see_everything() -> None:
    core, _ = stored(0, (10, END))
    other = core.broker.topic("t").channel("other", 0)
    assert Client(other, 10**9).ready(1000).bodies == bodies((0, END))


def test_messages_below_the_cursor_are_delivered_again_with_their_attempts() -> None:
    core, channel = stored(50, (60, END))
    channel.deliver_again({3: 4, 7: 0})
    core.kill(journaled=True)
    client = core.client("t").ready(1000)
    assert {(m.body, m.attempts) for m in client.got if int(m.body) < 50} == {(b"3", 5), (b"7", 1)}
    assert sorted(client.bodies) == sorted([b"3", b"7", *bodies((50, 60))])
