"""NSQ's rules of delivery that the model of `tests/property/broker` leaves open."""

from __future__ import annotations

import errno
from unittest.mock import Mock

import numpy as np
import pytest
from tests.unit.broker.core import SECOND_NS, Core

from martlet.broker.channel import delivery as delivery_module
from martlet.broker.errors import NameRefused, NotFound, NotInFlight, TooMany
from martlet.broker.queue import in_flight as window_module
from martlet.log import index as index_module


def test_consumers_share_the_messages(core: Core) -> None:
    clients = [core.client("t").ready(10) for _ in range(3)]
    core.publish("t", *[b"%d" % n for n in range(9)])
    assert all(2 <= len(client.got) <= 4 for client in clients)
    assert sorted(b for c in clients for b in c.bodies) == [b"%d" % n for n in range(9)]


def test_lone_messages_behind_a_slow_one_do_not_pile_up(monkeypatch: pytest.MonkeyPatch) -> None:
    """Window and leases stay small, though one message takes its consumer all of its time."""
    monkeypatch.setattr(delivery_module, "COMFORTABLE_SPAN", 32)
    monkeypatch.setattr(window_module, "COMFORTABLE_SPAN", 32)
    core = Core(segment_bytes=1 << 20)
    slow, quick = core.client("t"), core.client("t")
    slow.ready(1)
    topic = core.broker.topic("t")
    core.broker.append(topic, b"slow")
    quick.ready(10)
    for number in range(200):
        core.broker.append(topic, b"%d" % number)
        quick.finish(number)
    window = quick.channel.cursor.window
    assert window.next - window.floor <= 40
    assert len(quick.consumer.leases) <= 40
    slow.finish()
    assert window.floor == window.next == 201
    assert (slow.bodies, len(quick.got)) == ([b"slow"], 200)


def test_a_channel_with_an_unreadable_index_is_put_off(monkeypatch: pytest.MonkeyPatch) -> None:
    """Publishers do not notice, and delivery goes on by itself."""
    monkeypatch.setattr(index_module, "MAX_ROWS_IN_MEMORY", 4)
    monkeypatch.setattr(index_module, "_KEPT_ROWS", 1)
    reported: list[tuple[str, str, OSError]] = []
    core = Core(segment_bytes=1 << 20, on_put_off=lambda *args: reported.append(args))
    client = core.client("t").ready(10)
    client.channel.set_paused(True)
    bodies = [b"%d" % number for number in range(8)]
    for body in bodies[:6]:
        core.publish("t", body)
    error = OSError(errno.EMFILE, "Too many open files")
    with monkeypatch.context() as disk:
        disk.setattr(core.storage, "map", Mock(side_effect=error))
        client.channel.set_paused(False)
        core.publish("t", bodies[6])
        core.broker.append(core.broker.topic("t"), bodies[7])
        core.wait(SECOND_NS)
    assert client.got == []
    assert reported == [("t", "c", error)] * 4
    core.wait(SECOND_NS)
    assert client.bodies == bodies
    assert len(reported) == 4


def test_a_message_that_fails_again_and_again_keeps_no_other_from_its_consumer(core: Core) -> None:
    client = core.client("t").ready(1)
    core.publish("t", b"bad", b"1", b"2", b"3")
    for _ in range(8):
        last = len(client.got) - 1
        if client.got[last].body == b"bad":
            client.requeue(last)
        else:
            client.finish(last)
    assert {b"1", b"2", b"3"} < set(client.bodies)


def test_messages_to_be_delivered_again_do_not_wait_behind_the_backlog(core: Core) -> None:
    client = core.client("t").ready(1)
    core.publish("t", *[b"%d" % n for n in range(50)])
    client.requeue(0)
    for number in range(1, 4):
        client.finish(number)
    assert client.bodies.count(b"0") == 2


def test_messages_that_time_out_together_come_again_by_offset(core: Core) -> None:
    core.publish("t", b"a", b"b", b"c")
    client = core.client("t").ready(1)
    client.requeue(0, SECOND_NS)
    core.wait(SECOND_NS)
    client.ready(3)
    assert client.bodies == [b"a", b"b", b"a", b"c"]
    core.wait(60 * SECOND_NS)
    assert client.bodies[4:] == [b"a", b"b", b"c"]


def test_of_a_run_of_answers_all_that_can_be_is_done_at_once(core: Core) -> None:
    client = core.client("t").ready(10)
    core.publish("t", *[b"%d" % n for n in range(10)])
    channel, consumer = client.channel, client.consumer
    client.finish(3)

    def left(*offsets: int) -> list[int]:
        left: list[int] = channel.finish_run(consumer, np.array(offsets, np.int64)).tolist()
        return left

    assert left(3) == [3]
    assert left(-1, 3, 10) == [-1, 3, 10]
    assert consumer.in_flight_count == 9
    assert left(10, 4, 3, 2, -1) == [10, 3, -1]  # in no order, and some that are not in flight
    assert (consumer.in_flight_count, consumer.finish_count) == (7, 3)
    assert left(5, 6, 5) == [5, 6, 5]  # one of them twice: only the first time is right
    assert left(9, 1, 0) == []
    assert (consumer.in_flight_count, consumer.finish_count) == (4, 6)
    assert channel.finishes.count == 6
    stranger = core.client("t").ready(1)
    assert channel.finish_run(stranger.consumer, np.array([5], np.int64)).tolist() == [5]
    with pytest.raises(NotInFlight):
        channel.finish(stranger.consumer, 5)


@pytest.mark.parametrize("offset", [10, 1 << 62, (1 << 63) + 4, (1 << 64) - 1])
def test_answers_for_offsets_that_do_not_exist_are_refused(core: Core, offset: int) -> None:
    client = core.client("t").ready(10)
    core.publish("t", b"1")
    for answer in (client.channel.finish, client.channel.touch):
        with pytest.raises(NotInFlight):
            answer(client.consumer, offset)
    with pytest.raises(NotInFlight):
        client.channel.requeue(client.consumer, offset, 0)


def test_sampling_gives_a_share_and_forgets_the_rest() -> None:
    core = Core(segment_bytes=1 << 20)
    client = core.client("t", sample=30).ready(2000)
    core.publish("t", *[b"%d" % n for n in range(1000)])
    assert 200 < len(client.got) < 400
    assert client.channel.depth == 0
    client.finish()
    assert client.channel.cursor.lowest_needed == 1000


def test_a_channel_takes_as_many_consumers_as_it_may() -> None:
    core = Core(max_consumers=1)
    client = core.client("t")
    with pytest.raises(TooMany, match="consumers for t:c exceeds limit of 1"):
        core.client("t")
    client.leave()
    core.client("t")


def test_names_are_checked_and_looked_up(core: Core) -> None:
    for bad in ("", "a b", "a" * 65, "a#b", "ü"):
        with pytest.raises(NameRefused):
            core.broker.topic(bad)
        with pytest.raises(NameRefused):
            core.broker.topic("t").channel(bad)
    with pytest.raises(NotFound, match="there is no topic 'nope'"):
        core.broker.find_topic("nope")
    with pytest.raises(NotFound, match="there is no channel 'nope' of topic 't'"):
        core.broker.topic("t").find_channel("nope")


def test_ids_run_over_64_bits(core: Core) -> None:
    topic = core.broker.topic("t")
    topic.queue.id_base = (1 << 64) - 2
    client = core.client("t").ready(10)
    core.publish("t", b"1", b"2", b"3", b"4")
    assert [m.id for m in client.got] == [
        b"fffffffffffffffe",
        b"ffffffffffffffff",
        b"0000000000000000",
        b"0000000000000001",
    ]
    client.finish()
    assert client.channel.cursor.lowest_needed == 4


def test_attempts_stop_counting_where_the_wire_ends(core: Core) -> None:
    client = core.client("t").ready(1)
    core.publish("t", b"1")
    client.channel.cursor.pending.wait(0, 70_000, 0, core.clock.now_ns)
    client.channel.cursor.window.release(0)
    client.consumer.in_flight_count = 0
    client.ready(1)
    assert client.got[-1].attempts == 0xFFFF


def test_bytes_of_refused_messages_are_not_counted(core: Core) -> None:
    core.publish("t", b"12345")
    core.storage.capacity_bytes = core.storage.used_bytes
    while core.publish("t", b"x" * 1000).error is None:
        pass
    assert core.topic().message_bytes == 5 + 1000 * (core.topic().message_count - 1)


@pytest.mark.parametrize("id", [b"0x000000000000ff", b" 00000000000000f", b"0_0000000000000f"])
def test_only_hexadecimal_digits_are_an_id(core: Core, id: bytes) -> None:
    """Python reads all these as numbers, and with luck as that of a message in flight."""
    client = core.client("t").ready(1)
    with pytest.raises(ValueError, match="Non-hexadecimal digit"):
        client.channel.cursor.queue.offset_of(id)
