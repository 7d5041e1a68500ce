"""Dead letters brought back, or thrown away."""

from __future__ import annotations

import pytest
from tests.unit.broker.core import SECOND_NS, Client, Core

from martlet.broker.channel.channel import Channel
from martlet.broker.dead_letters.dead_letter import CHANNEL
from martlet.broker.dead_letters.redrive import (
    DeadLetter,
    DeadLetterSelection,
    letters,
    origin_of,
    purge,
    redrive,
)
from martlet.broker.errors import NotFound, WritesRefused
from martlet.broker.queue.peek import PeekState
from martlet.properties.model import Properties


def dead(core: Core, *bodies: bytes, timeout_ns: int = 60 * SECOND_NS) -> Client:
    """Have messages become dead letters; the consumer that rejected them."""
    core.configure(max_attempts=1)
    client = core.client("t", timeout_ns=timeout_ns).ready(100)
    for body in bodies:
        core.send("t", Properties(tag=body.decode()), body)
    for number in range(len(bodies)):
        client.channel.requeue(client.consumer, client.offset(number), 0, f"error {number}")
    core.broker.run()
    client.got.clear()
    return client


def keeper(core: Core) -> Channel:
    return core.broker.topic("t.c.dead").channels[CHANNEL]


def all_letters(core: Core) -> list[DeadLetter]:
    listed, following = letters(keeper(core), 0, 100)
    assert following is None
    return listed


def back(core: Core, letter: DeadLetter) -> list[WritesRefused | None]:
    ends: list[WritesRefused | None] = []
    part, only = origin_of(core.broker, letter)
    redrive(core.broker.transfers, letter, lambda: part, only, ends.append)
    core.broker.run()
    return ends


def test_letters_are_paged_and_selected_by_their_properties(core: Core) -> None:
    dead(core, b"a", b"b", b"c")
    first, following = letters(keeper(core), 0, 2)
    assert [letter.body for letter in first] == [b"a", b"b"]
    assert following == 2
    listed = all_letters(core)

    def chosen(selection: DeadLetterSelection) -> list[bytes]:
        return [letter.body for letter in listed if selection.wants(letter)]

    now_ms = core.clock.now_ns // 10**6
    assert chosen(DeadLetterSelection()) == [b"a", b"b", b"c"]
    assert chosen(DeadLetterSelection(ids=[listed[1].id, listed[2].note("id")])) == [b"b", b"c"]
    assert chosen(DeadLetterSelection(error="error 1")) == [b"b"]
    assert chosen(DeadLetterSelection(reason="max_attempts", topic="t", channel="c")) == [
        b"a",
        b"b",
        b"c",
    ]
    assert (
        chosen(DeadLetterSelection(reason="timeout"))
        == chosen(DeadLetterSelection(channel="d"))
        == []
    )
    assert (
        chosen(DeadLetterSelection(since_ms=now_ms + 1))
        == chosen(DeadLetterSelection(until_ms=now_ms - 1))
        == []
    )


@pytest.mark.parametrize("crash", [False, True])
def test_a_redriven_message_goes_to_its_channel_only_and_starts_anew(crash: bool) -> None:
    core = Core()
    client = dead(core, b"a", b"b")
    sibling = core.client("t", "sibling").ready(10)
    hidden = core.channel("t", "hidden")
    core.publish("t", b"fresh")
    assert sibling.bodies == client.bodies == [b"fresh"]
    letter = all_letters(core)[1]
    assert back(core, letter) == [None]
    if crash:
        core.kill(journaled=True)
        client = core.client("t").ready(100)
        sibling = core.client("t", "sibling").ready(100)
        hidden = core.channel("t", "hidden")
        core.wait(0)
    assert [(m.body, m.attempts) for m in client.got if m.body != b"fresh"] == [(b"b", 1 + crash)]
    assert set(sibling.bodies) <= {b"fresh"}
    assert hidden.depth == 1
    assert keeper(core).depth == 1
    assert [letter.body for letter in all_letters(core)] == [b"a"]
    core.publish("t", b"more")
    late = core.client("t", "hidden").ready(10)
    assert late.bodies == [b"fresh", b"more"]
    assert sibling.bodies[-1] == client.bodies[-1] == b"more"
    assert late.channel.depth == sibling.channel.depth == 0
    number = client.bodies.index(b"b")
    properties = Properties.unpack(client.channel.cursor.properties(client.offset(number)))
    assert properties.tag == "b"
    assert properties.system == {"dead_redrives": "1", "redriven_id": letter.note("id")}
    for one in (client, sibling, late):
        one.leave()
    core.stop()
    assert core.channel("t", "c").depth == 3
    assert core.channel("t", "sibling").depth == core.channel("t", "hidden").depth == 2


def test_a_channel_set_back_or_made_later_gets_no_letters_of_another() -> None:
    from martlet.broker.topic.rewind import replay

    core = Core()
    client = dead(core, b"a")
    sibling = core.client("t", "sibling")
    back(core, all_letters(core)[0])
    assert client.bodies == [b"a"]
    replay(core.broker.topic("t"), "sibling", {0: 0})
    sibling.ready(10)
    assert sibling.bodies == [b"a"]
    assert sibling.channel.depth == 0
    replay(core.broker.topic("t"), "c", {0: 0})
    assert sorted(client.bodies) == [b"a"] * 3


def test_a_letter_that_dies_again_knows_how_often_it_was_brought_back(core: Core) -> None:
    client = dead(core, b"a")
    for _ in range(2):
        back(core, all_letters(core)[0])
        client.requeue(len(client.got) - 1)
        core.broker.run()
    (letter,) = all_letters(core)
    assert letter.note("redrives") == "2"
    assert letter.properties.tag == "a"
    assert letter.note("attempts") == "1"


def test_those_before_and_behind_a_letter_that_is_taken_stay_and_keep_their_order() -> None:
    core = Core()
    dead(core, *[b"%d" % number for number in range(6)])
    listed = all_letters(core)
    purge(listed[3])
    back(core, listed[1])
    core.kill(journaled=True)
    assert keeper(core).depth == 4
    client = core.client("t.c.dead", CHANNEL).ready(10)
    assert sorted(client.bodies) == [b"0", b"2", b"4", b"5"]
    assert {message.attempts for message in client.got} == {1}
    client.finish()
    assert keeper(core).depth == 0
    assert not keeper(core).cursor.pending


def test_a_letter_in_the_hands_of_a_consumer_is_shown_as_such(core: Core) -> None:
    dead(core, b"a")
    core.client("t.c.dead", CHANNEL).ready(1)
    assert [letter.state for letter in all_letters(core)] == [PeekState.IN_FLIGHT]


def test_a_missing_origin_is_reported_with_what_to_do(core: Core) -> None:
    dead(core, b"a")
    (letter,) = all_letters(core)
    core.broker.delete_channel(core.broker.topic("t"), "c")
    with pytest.raises(NotFound, match=r"no channel 'c' of topic 't', .*make it again, or name"):
        origin_of(core.broker, letter)
    core.publish("t.c.dead", b"by hand")
    with pytest.raises(NotFound, match="does not say where it came from"):
        origin_of(core.broker, all_letters(core)[1])


def test_where_the_disk_is_full_a_letter_is_put_back(core: Core) -> None:
    dead(core, b"a")
    core.fill_disk()
    (error,) = back(core, all_letters(core)[0])
    assert isinstance(error, WritesRefused)
    assert [letter.state for letter in all_letters(core)] == [PeekState.DUE]
    assert keeper(core).in_flight_count == 0
    assert keeper(core).depth == 1


@pytest.mark.parametrize("gone", ["topic", "channel"])
def test_a_letter_stays_if_its_origin_is_deleted_at_the_last_moment(core: Core, gone: str) -> None:
    dead(core, b"a", b"b")
    letter, other = all_letters(core)
    part, only = origin_of(core.broker, letter)
    ends: list[WritesRefused | None] = []
    redrive(core.broker.transfers, letter, lambda: part, only, ends.append)
    if gone == "topic":
        core.broker.delete_topic("t")
    else:
        core.broker.delete_channel(part, "c")
    core.broker.run()
    (error,) = ends
    assert "topic 't', and the channel 'c' of it was deleted meanwhile" in str(error)
    assert [letter.body for letter in all_letters(core)] == [b"a", b"b"]
    assert keeper(core).depth == 2
    redrive(core.broker.transfers, other, lambda: core.broker.topic("elsewhere"), None, ends.append)
    core.broker.run()
    assert ends[1:] == [None]
