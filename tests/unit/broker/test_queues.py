"""Topics of several queues: what belongs to one queue, and what to all of them together."""

from __future__ import annotations

from random import Random
from typing import Any, cast

import numpy as np
import pytest
from tests.unit.broker.core import SECOND_NS, Core, Got
from tests.unit.broker.core import Client as CoreClient

from martlet.broker.broker import BrokerCore
from martlet.broker.channel.partitioned import PartitionedChannel
from martlet.broker.channel.subscriber import Subscriber
from martlet.broker.errors import NotFound, NotInFlight, QueuesRefused, WritesRefused
from martlet.broker.queue.queue_log import MAX_QUEUES
from martlet.broker.topic.rewind import channel_from, replay
from martlet.log.record import RecordKind


class Client(CoreClient):
    """A client of a whole channel."""

    channel: Any
    consumer: Any

    def __init__(
        self, core: Core, topic: str = "t", channel: str = "c", timeout_ns: int = 60 * SECOND_NS
    ) -> None:
        all_queues: Any = core.channel(topic, channel).all_queues
        super().__init__(all_queues, timeout_ns)

    def channel_grown(self, channel: PartitionedChannel, consumer: Subscriber) -> None:
        self.channel, self.consumer = channel, consumer

    def position(self, got: Got) -> int:
        return cast(int, self.channel.queue.offset_of(got.id))

    def finish(self, *some: Got) -> None:  # type: ignore[override]
        for got in some:
            self.channel.finish(self.consumer, self.position(got))

    def finish_all(self) -> None:
        positions = np.array([self.position(got) for got in self.got], np.uint64).view(np.int64)
        self.got.clear()
        assert not len(self.channel.finish_run(self.consumer, positions))


def publish(broker: BrokerCore, name: str, queue: int, *bodies: bytes, due_ns: int = 0) -> None:
    assert broker.topics[name].at_queue(queue).stage(list(bodies), due_ns).error is None
    broker.commit()


def four(**options: Any) -> Core:
    core = Core(**options)
    core.broker.set_queues("t", 4)
    return core


def test_each_queue_has_offsets_of_its_own_and_ids_that_lead_back() -> None:
    core = four()
    topic = core.topic()
    assert [part.number for part in topic.at_queues] == [
        part.queue.number for part in topic.at_queues
    ]
    assert len({part.id for part in topic.at_queues}) == 4
    client = Client(core).ready(100)
    for queue in (2, 0, 2, 3):
        publish(core.broker, "t", queue, b"%d" % queue)
    assert client.bodies == [b"2", b"0", b"2", b"3"]
    positions = [client.position(got) for got in client.got]
    assert [(p >> 54, p & (1 << 54) - 1) for p in positions] == [(2, 0), (0, 0), (2, 1), (3, 0)]
    assert [part.queue.end_offset for part in topic.at_queues] == [1, 0, 2, 1]


def test_messages_without_a_target_queue_go_to_the_queues_in_turn() -> None:
    core = four()
    topic = core.topic()
    for _ in range(2):
        topic.next_queue().stage([b"a"])
        assert topic.next_queue().stage([b"b"]) is topic.next_queue().queue.receipt
        core.broker.commit()
    for _ in range(6):
        core.broker.append(topic.next_queue(), b"lone")
    assert sorted(part.queue.end_offset for part in topic.at_queues) == [2, 2, 3, 3]


def test_a_key_always_leads_to_the_same_queue() -> None:
    core = four()
    topic = core.topic()
    # See tests/unit/properties/test_key_hash.py.
    assert topic.queue_for_key(b"123456789").number == 0xAC7081CC % 4
    assert {topic.queue_for_key(b"%d" % n).number for n in range(100)} == {0, 1, 2, 3}
    with pytest.raises(
        NotFound,
        match=r"'t' has no queue 4: it has 4 queues, 0 to 3; add queues with: .* --queues=5",
    ):
        topic.at_queue(4)


def test_ready_counts_for_all_queues_together_and_they_take_turns() -> None:
    core = four()
    for queue in range(3):
        publish(core.broker, "t", queue, *(b"%d" % queue for _ in range(50)))
    client = Client(core).ready(1)
    seen = []
    for _ in range(30):
        assert len(client.got) == 1
        seen.append(client.bodies[0])
        message = client.got.pop()
        client.finish(message)
    assert [seen.count(b"%d" % queue) for queue in range(3)] == [10, 10, 10]
    client.ready(7)
    assert client.consumer.in_flight_count == 7
    assert core.topic().channels["c"].all_queues.in_flight_count == 7


def test_a_run_of_fins_of_several_queues() -> None:
    core = four()
    for queue in range(4):
        publish(core.broker, "t", queue, *(b"x" * 20 for _ in range(10)))
    client = Client(core).ready(25)
    assert len(client.got) == 25
    client.finish_all()
    assert len(client.got) == 15
    channel = client.channel
    assert client.consumer.finish_count == 25
    assert channel.finishes.count == 25
    base = client.channel.queue.id_base
    wrong = np.array([(5 << 54), (1 << 54) + 400, (1 << 64) - 1], np.uint64).view(np.int64)
    assert sorted(channel.finish_run(client.consumer, wrong).tolist()) == sorted(wrong.tolist())
    for position in wrong.tolist():
        with pytest.raises(NotInFlight):
            channel.finish(client.consumer, position)
    assert client.channel.queue.message_id(5 << 54) == b"%016x" % ((base + (5 << 54)) % (1 << 64))
    client.finish_all()
    assert channel.in_flight_count == channel.depth == 0


def test_a_fin_said_twice_in_a_run_of_ordered_queues_is_refused_once() -> None:
    core = four()
    core.configure(order="queue")
    for queue in range(4):
        publish(core.broker, "t", queue, b"one", b"two")
    client = Client(core).ready(25)
    first = [2 << 54, 0, 1 << 54, 3 << 54]
    left = client.channel.finish_run(client.consumer, np.array([*first, 2 << 54, 0], np.int64))
    refused = []
    for position in left.tolist():
        try:
            client.channel.finish(client.consumer, position)
        except NotInFlight:
            refused.append(position)
    assert sorted(refused) == [0, 2 << 54]
    assert client.consumer.finish_count == 4
    assert len(client.got) == 8


def test_capacity_freed_by_a_timeout_serves_all_queues() -> None:
    """The one message of queue 0 is taken back for good; what waits in queue 1 must come."""
    core = four()
    publish(core.broker, "t", 0, b"0")
    first = Client(core, timeout_ns=SECOND_NS).ready(1)
    assert first.bodies == [b"0"]
    publish(core.broker, "t", 1, b"1")
    core.wait(SECOND_NS)
    assert sorted(first.bodies) in ([b"0", b"0"], [b"0", b"1"])
    first.got.clear()
    core.wait(SECOND_NS)
    core.wait(SECOND_NS)
    assert b"1" in first.bodies


def test_capacity_freed_by_an_operator_serves_all_queues() -> None:
    core = four()
    publish(core.broker, "t", 0, b"0")
    client = Client(core).ready(1)
    publish(core.broker, "t", 3, b"3")
    assert client.bodies == [b"0"]
    client.channel.at_queues[0].empty()
    assert client.bodies == [b"0", b"3"]


def test_a_topic_grows_under_its_consumers(core: Core) -> None:
    client = Client(core).ready(3)
    other = Client(core, channel="d").ready(1)
    core.publish("t", b"a", b"b", b"c", b"d")
    assert client.bodies == [b"a", b"b", b"c"]
    core.broker.set_queues("t", 2)
    assert isinstance(client.channel, PartitionedChannel)
    assert client.consumer.in_flight_count == 3
    publish(core.broker, "t", 1, b"e")
    client.finish(client.got[0], client.got[1])
    assert sorted(client.bodies) == [b"a", b"b", b"c", b"d", b"e"]
    channel = client.channel
    core.broker.set_queues("t", 5)
    assert client.channel is channel
    assert len(channel.at_queues) == 5
    client.ready(10)
    publish(core.broker, "t", 4, b"f")
    assert client.bodies[-1] == b"f"
    client.finish(*client.got[2:])
    assert channel.depth == channel.in_flight_count == 0
    other.ready(100)
    assert sorted(other.bodies) == [b"a", b"b", b"c", b"d", b"e", b"f"]
    client.leave()
    assert not core.topic().channels["c"].consumers


def test_a_grown_topic_is_there_after_a_restart_with_its_channels(core: Core) -> None:
    core.broker.topic("t").channel("c")
    core.broker.topic("t").channel("d")
    core.broker.topic("t").pause_channel("d", True)
    core.publish("t", b"0")
    core.broker.set_queues("t", 3)
    publish(core.broker, "t", 2, b"2")
    ids = [part.id for part in core.topic().at_queues]
    bases = [part.queue.id_base for part in core.topic().at_queues]
    for life in (core.kill, core.stop):
        life()
        topic = core.topic()
        assert [part.id for part in topic.at_queues] == ids
        assert [part.queue.id_base for part in topic.at_queues] == bases
        assert all(part.channels["d"].paused for part in topic.at_queues)
        assert topic.channels["c"].all_queues.depth == 2
    assert sorted(Client(core).ready(10).bodies) == [b"0", b"2"]


@pytest.mark.parametrize("seed", range(40))
def test_a_power_cut_leaves_all_new_queues_or_none(core: Core, seed: int) -> None:
    core.storage.random = Random(seed)
    core.broker.topic("t").channel("c")
    core.flush()
    core.broker.set_queues("t", 3)
    for queue in range(3):
        publish(core.broker, "t", queue, b"%d" % queue)
    core.topic().set_paused(True)
    core.kill(power=True)
    topic = core.topic()
    assert len(topic.at_queues) in (1, 3)
    assert all("c" in part.channels for part in topic.at_queues)
    for part in topic.at_queues:
        assert part.channels["c"].at_queues == [p.channels["c"] for p in topic.at_queues]


def test_a_channel_that_is_missing_at_a_queue_is_made_and_skips_nothing(core: Core) -> None:
    """A power cut took the entry of the growth, and left a pause entry with the new queues."""
    topic = core.broker.topic("t")
    topic.channel("c")
    append, entries = core.broker.log.append_journal, []

    def lose(kind: RecordKind, payload: bytes, **more: Any) -> int:
        entries.append(payload)
        return core.broker.log.position

    with pytest.MonkeyPatch.context() as context:
        context.setattr(core.broker.log, "append_journal", lose)
        core.broker.set_queues("t", 2)
    assert entries
    assert core.broker.log.append_journal == append
    topic.set_paused(True)
    topic.set_paused(False)
    publish(core.broker, "t", 1, b"1")
    core.kill()
    assert len(core.topic().at_queues) == 2
    assert Client(core).ready(10).bodies == [b"1"]


def test_a_topic_never_gets_fewer_queues_nor_too_many() -> None:
    core = four()
    with pytest.raises(QueuesRefused, match="'t' has 4 queues and cannot have 3"):
        core.broker.set_queues("t", 3)
    for count in (0, -1, MAX_QUEUES + 1):
        with pytest.raises(QueuesRefused, match=f"1 to 1024 queues, not {count}"):
            core.broker.set_queues("other", count)
    assert "other" not in core.broker.topics
    position = core.broker.log.position
    core.broker.set_queues("t", 4)
    assert core.broker.log.position == position


def test_queues_that_cannot_be_written_down_are_not_made(core: Core) -> None:
    client = Client(core).ready(1)

    def refuse(*_: Any, **__: Any) -> int:
        raise WritesRefused("the disk is full")

    with pytest.MonkeyPatch.context() as context:
        context.setattr(core.broker.log, "append_journal", refuse)
        with pytest.raises(WritesRefused):
            core.broker.set_queues("t", 3)
    topic = core.topic()
    assert topic.at_queues == [topic]
    assert not topic.several
    assert client.channel is topic.channels["c"]
    with pytest.MonkeyPatch.context() as context:
        core.broker.set_queues("t", 3)
        context.setattr(core.broker.log, "append_journal", refuse)
        with pytest.raises(WritesRefused):
            topic.channel("d")
        with pytest.raises(WritesRefused):
            topic.set_paused(True)
        with pytest.raises(WritesRefused):
            topic.delete_channel("c")
    assert all(part.channels.keys() == {"c"} and not part.paused for part in topic.at_queues)


def test_an_ephemeral_channel_goes_from_all_queues_with_its_last_consumer() -> None:
    core = four()
    topic = core.topic()
    client = Client(core, channel="e#ephemeral")
    client.leave()
    core.broker.left(topic, client.channel)
    assert not any(part.channels for part in topic.at_queues)


def test_segments_are_kept_for_every_queue_and_go_when_all_have_passed() -> None:
    core = four()
    topic = core.topic()
    client = Client(core)
    published = []
    for number in range(200):
        body = b"%d " % number * 40
        published.append(body)
        core.broker.append(topic.next_queue(), body)
    core.checkpoint()
    segments = len(core.broker.log.segments)
    assert segments > 4
    core.stop()
    client = Client(core).ready(1000)
    assert sorted(client.bodies) == sorted(published)
    client.finish_all()
    core.broker.write_journal()
    core.checkpoint(2)
    assert len(core.broker.log.segments) < segments / 2
    core.kill()
    assert core.topic().channels["c"].all_queues.depth == 0


def test_indexes_of_all_queues_are_made_anew_from_the_log() -> None:
    core = four()
    topic = core.topic()
    for number in range(40):
        core.broker.append(topic.next_queue(), b"%d" % number)
    core.checkpoint()
    names = [part.queue.index.name for part in topic.at_queues]
    assert len(set(names)) == 4
    core.storage.remove(names[2])
    core.kill()
    assert any(names[2] in note for note in core.restored.notes)
    assert len(Client(core).ready(100).got) == 40


def test_a_channel_is_set_back_at_each_queue() -> None:
    core = four()
    client = Client(core).ready(100)
    for queue in range(4):
        publish(core.broker, "t", queue, *(b"%d %d" % (queue, n) for n in range(5)))
    client.finish_all()
    replay(core.topic(), "c", {1: 3, 2: 4})
    assert sorted(client.bodies) == [b"1 3", b"1 4", b"2 4"]
    core.kill()
    channel_from(core.topic(), "past", {3: 1})
    assert Client(core, channel="past").ready(10).bodies == [b"3 1", b"3 2", b"3 3", b"3 4"]
    with pytest.raises(NotFound):
        replay(core.topic(), "c", {4: 0})


def test_a_queue_that_never_got_anything_costs_a_client_nothing() -> None:
    """It stays in the line there, and is not lined up again by each answer."""
    core = Core(segment_bytes=1 << 20)
    core.broker.set_queues("t", MAX_QUEUES)
    client = Client(core).ready(2)
    for _ in range(10):
        publish(core.broker, "t", 7, b"x")
        client.finish_all()
    assert len(client.consumer.out) <= 1


def test_an_ordered_queue_goes_on_when_another_frees_capacity() -> None:
    """It is lent to the client, which had no capacity when the message came."""
    core = four()
    core.topic().channel("c")
    core.configure(order="queue")
    client = Client(core).ready(1)
    for queue, body in ((1, b"a"), (0, b"b"), (1, b"c")):
        publish(core.broker, "t", queue, body)
    publish(core.broker, "t", 1, b"d")
    for count in range(1, 5):
        assert len(client.got) == count
        client.finish(client.got[-1])
    assert sorted(client.bodies) == [b"a", b"b", b"c", b"d"]
    assert [body for body in client.bodies if body != b"b"] == [b"a", b"c", b"d"]


def test_started_messages_of_a_client_are_found_over_all_queues() -> None:
    core = four()
    client = Client(core).ready(6)
    for queue in (0, 1, 2, 0, 1, 2):
        publish(core.broker, "t", queue, b"%d" % queue)
    client.finish(client.got[1])
    client.leave()
    failures = {
        client.channel.queue.message_id((queue << 54) + offset): message.failures
        for queue, part in enumerate(client.channel.at_queues)
        for offset, message in part.cursor.pending.by_offset.items()
    }
    counts = [failures.get(got.id) for got in client.got]
    assert counts == [1, None, 1, 0, 0, 0]
