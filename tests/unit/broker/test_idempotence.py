"""Which sends a broker knows, and for how long."""

from __future__ import annotations

import errno

import pytest
from tests.unit.broker.core import SECOND_NS, Core

from martlet.broker import idempotence as room
from martlet.broker.idempotence import ProducerSend, ProducerState, Reused, TooOld, marked, marks
from martlet.broker.queue.queue_log import Receipt
from martlet.log.recovery import RecoveryReport, scan
from martlet.properties.block import pack_block
from martlet.properties.model import Properties, Sent

A, B, C = (bytes([letter]) * 16 for letter in b"abc")


def send(
    core: Core, sent: Sent, *bodies: bytes, topic: str = "t", commit: bool = True
) -> ProducerSend:
    """Send as a server does. Raises TooOld and Reused."""
    target = core.broker.topic(topic)
    earlier = core.broker.producers.find(sent, target)
    if earlier is not None:
        return earlier
    offset = target.next_offset
    receipt = target.stage(list(bodies), 0, marked([], sent))
    staged = ProducerSend(receipt, target.id, offset, sent.count)
    core.broker.producers.add(sent, staged, core.clock())
    if commit:
        core.broker.commit()
    return staged


def test_a_send_that_is_repeated_is_the_same_also_while_it_is_staged(core: Core) -> None:
    first = send(core, Sent(A, 1, 2), b"1", b"2", commit=False)
    assert send(core, Sent(A, 1, 2), b"1", b"2", commit=False) is first
    core.broker.commit()
    assert send(core, Sent(A, 1, 2), b"1", b"2") is first
    assert core.topic().queue.end_offset == 2
    assert send(core, Sent(B, 1, 1), b"1") is not first, "another producer has its own numbers"


@pytest.mark.parametrize("how", ["kill", "stop", "power"])
def test_a_send_is_known_after_a_restart(core: Core, how: str) -> None:
    core.publish("t", b"0")
    before = send(core, Sent(A, 7, 1), b"1")
    core.start_again(how)
    after = send(core, Sent(A, 7, 1), b"1")
    assert (after.topic, after.offset, after.count) == (before.topic, 1, 1)
    assert after.receipt.position == before.receipt.position
    assert core.topic().queue.end_offset == 2


def test_a_send_lost_in_a_power_cut_does_not_count_as_stored() -> None:
    """The head of a later segment, which survived, had it."""
    taken = 0
    for seed in range(20):
        core = Core()
        core.storage.random.seed(seed)
        core.publish("t", b"0")
        core.checkpoint()
        sent = send(core, Sent(A, 1, 1), b"1")
        core.broker.begin_segment()
        core.kill(power=True)
        records = scan(core.broker.log.segments, 0, RecoveryReport())
        is_there = any(header.next_position == sent.receipt.position for header, _ in records)
        again = send(core, Sent(A, 1, 1), b"1")
        assert (again.receipt.position == sent.receipt.position and again.offset == 1) == is_there
        taken += not is_there
    assert 0 < taken < 20


def test_the_head_of_a_segment_keeps_sends_of_dropped_segments(core: Core) -> None:
    core.channel("t")
    send(core, Sent(A, 1, 1), b"1")
    core.fill("t", 2)
    core.topic().channels["c"].empty()
    core.checkpoint(2)
    core.flush()
    core.fill("u", 1)
    core.flush()
    core.storage.remove("checkpoint")
    core.kill()
    assert core.restored.checkpoint_position is None
    assert core.topic().queue.first_stored_offset > 0
    assert send(core, Sent(A, 1, 1), b"1").offset == 0


def test_sends_may_come_in_any_order_within_the_window_only() -> None:
    core = Core(segment_bytes=1 << 20)
    last = 2 * room.MAX_SENDS_EACH
    for number in range(last, 0, -2):
        send(core, Sent(A, number, 1), b"%d" % number)
    assert core.broker.producers.send_count == room.MAX_SENDS_EACH
    for number in range(last - 1, room.MAX_SENDS_EACH, -2):
        send(core, Sent(A, number, 1), b"%d" % number)
    with pytest.raises(TooOld, match=r"send 3 of producer 6161.* is too old"):
        send(core, Sent(A, 3, 1), b"3")
    assert send(core, Sent(A, last, 1), b"?").offset == 0


def test_the_longest_silent_producer_is_forgotten_and_its_repetition_not_trusted() -> None:
    core = Core()
    producers = core.broker.producers = ProducerState(2, 1000)
    producers.topics = core.broker.by_id
    tried_ns = core.clock()
    for producer in (A, B, C):
        core.clock.advance(1)
        send(core, Sent(producer, 1, 1), producer)
    assert len(producers) == 2
    topic = core.topic()
    with pytest.raises(TooOld, match="was forgotten"):
        producers.find(Sent(A, 1, 1), topic, tried_ns)
    assert producers.find(Sent(A, 2, 1), topic) is None, "it is sent for the first time"
    core.clock.advance(11 * SECOND_NS)
    assert producers.find(Sent(A, 3, 1), topic, core.clock()) is None, "since it was forgotten"
    core.stop()
    with pytest.raises(TooOld, match="was forgotten"):
        core.broker.producers.find(Sent(A, 1, 1), core.topic(), tried_ns)


@pytest.mark.parametrize("restarted", [False, True])
def test_earlier_sends_of_a_forgotten_producer_are_not_trusted_when_it_returns(
    restarted: bool,
) -> None:
    """The window that he had got anew knew nothing of it, and it was stored twice."""
    core = Core()
    producers = core.broker.producers = ProducerState(2, 1000)
    producers.topics = core.broker.by_id
    tried_ns = core.clock()
    for producer in (A, B, C):
        core.clock.advance(1)
        send(core, Sent(producer, 1, 1), producer)
    send(core, Sent(A, 2, 1), b"2")
    core.clock.advance(11 * SECOND_NS)
    if restarted:
        core.stop()
    producers, topic = core.broker.producers, core.topic()
    with pytest.raises(TooOld, match="was forgotten"):
        producers.find(Sent(A, 1, 1), topic, tried_ns)
    assert producers.find(Sent(A, 3, 1), topic, core.clock()) is None
    again = producers.find(Sent(A, 2, 1), topic, tried_ns)
    assert again is not None
    assert again.offset == 3


def test_a_refused_send_is_stored_when_it_is_repeated(core: Core) -> None:
    core.publish("t", b"0")
    core.storage.write_error = OSError(errno.EIO, "broken")
    refused = send(core, Sent(A, 1, 1), b"1")
    assert refused.receipt.error is not None
    core.storage.write_error = None
    core.kill()
    stored = send(core, Sent(A, 1, 1), b"1")
    assert stored.receipt.error is None
    assert stored.offset == 1


def test_a_number_that_is_used_twice_is_an_error_unless_the_first_topic_has_gone() -> None:
    core = Core()
    send(core, Sent(A, 1, 1), b"1")
    with pytest.raises(Reused, match="by number 1"):
        send(core, Sent(A, 1, 1), b"1", topic="other")
    with pytest.raises(Reused, match="by number 1"):
        send(core, Sent(A, 1, 2), b"1", b"2")
    core.broker.delete_topic("t")
    assert send(core, Sent(A, 1, 1), b"1", topic="other").receipt.error is None


def test_marks_are_found_beside_other_properties() -> None:
    tagged = Properties(tag="t", headers={"x": "\x06\x00\x1c\x00" + "y" * 28}).pack()
    first, second = Sent(A, 1, 2), Sent(B, 9, 1)
    entries = [*marked([(0, tagged), (1, tagged)], first), *((5, e) for _, e in marked([], second))]
    assert marks(memoryview(pack_block(entries))) == [(0, first), (5, second)]
    assert Properties.unpack(entries[0][1]).sent == first
    assert marks(memoryview(pack_block([(0, tagged)]))) == []


def test_a_segment_head_keeps_as_many_producers_as_fit() -> None:
    producers = ProducerState.beside(2 << 20)
    receipt = Receipt()
    receipt.position = 8
    for number in range(5000):
        producer = number.to_bytes(16, "big")
        producers.add(Sent(producer, 1, 1), ProducerSend(receipt, 1, number, 1), number)
    assert producers.send_count == len(producers) == 1024
    entries = list(producers.entries(8))
    assert max(map(len, entries)) < 1 << 16
    assert sum(map(len, entries)) < 1 << 17
    other = ProducerState.beside(2 << 20)
    for entry in entries:
        other.learn(entry)
    assert list(other.entries(8)) == entries
    assert other.forgotten_until_ns == 5000 - 1024 - 1
