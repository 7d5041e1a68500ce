"""A broker's core on a simulated clock and disk, and clients that write down what they get."""

from __future__ import annotations

import struct
from collections.abc import Sequence
from random import Random
from typing import Any, NamedTuple, Self

from martlet.broker.broker import BrokerCore
from martlet.broker.channel.channel import Channel
from martlet.broker.channel.partitioned import PartitionedChannel
from martlet.broker.channel.subscriber import Subscriber
from martlet.broker.dead_letters import dead_letter
from martlet.broker.groups.group_queue import GroupQueue
from martlet.broker.policy import ChannelPolicy
from martlet.broker.queue.consumer import ChannelConsumer, TopologyPreference
from martlet.broker.queue.cursor import Cursor
from martlet.broker.queue.queue_log import Receipt
from martlet.broker.recovery.restore import RestoredBroker, restore
from martlet.broker.retention.checkpoint import CheckpointJob, begin_checkpoint, end_checkpoint
from martlet.broker.topic.topic import Topic
from martlet.broker.transactions.manager import Transactions
from martlet.log.record import HEADER_BYTES, Header, RecordKind, payload
from martlet.log.recovery import RecoveryReport, scan
from martlet.properties.model import Properties
from martlet.testing import SimulatedClock, SimulatedStorage

SECOND_NS = 10**9
SEGMENT_BYTES = 4096
_FRAME = struct.Struct(">IIqH16s")


class Got(NamedTuple):
    """A message as a client got it."""

    id: bytes
    attempts: int
    body: bytes


def parse(frames: bytes) -> list[Got]:
    """The messages of some frames."""
    got = []
    at = 0
    while at < len(frames):
        size, kind, _, attempts, id = _FRAME.unpack_from(frames, at)
        assert kind == 2
        got.append(Got(id, attempts, frames[at + _FRAME.size : at + size + 4]))
        at += size + 4
    return got


def bodies_of(broker: BrokerCore, topic: Topic, start: int | None = None) -> list[bytes]:
    """The bodies that are stored of a topic at a queue, in order; from an offset, or from behind
    all gaps.
    """
    cursor = Cursor(broker.log, topic.queue, topic.queue.start_offset if start is None else start)
    got: list[Got] = []
    while cursor.next < topic.queue.end_offset:
        for frames in cursor.take(0, 1 << 30, topic.queue.end_offset)[0]:
            got += parse(bytes(frames))
    return [message.body for message in got]


def group_of(channel: Channel) -> GroupQueue:
    """The group that a channel is."""
    assert channel.group is not None
    return channel.group


class Client:
    """A subscribed client."""

    def __init__(
        self,
        channel: Channel,
        timeout_ns: int,
        sample_rate: int = 0,
        *,
        says_started: bool = False,
        nearness: TopologyPreference = TopologyPreference.ELSEWHERE,
    ) -> None:
        self.channel = channel
        self.got: list[Got] = []
        self.closed = 0
        self.recalls: list[int] = []
        """The queues whose messages until then are redelivered."""
        self.consumer: ChannelConsumer = channel.add_consumer(
            self, timeout_ns, sample_rate, says_started=says_started, nearness=nearness
        )

    def send_messages(self, frames: Sequence[memoryview | bytes | bytearray]) -> None:
        for frame in frames:
            self.got += parse(bytes(frame))

    def channel_closed(self) -> None:
        self.closed += 1

    def failures_counted(self, max_attempts: int) -> None: ...

    def recalled(self, queue: int) -> None:
        self.recalls.append(queue)

    def channel_grown(self, channel: PartitionedChannel, consumer: Subscriber) -> None:
        self.grown = channel, consumer

    @property
    def bodies(self) -> list[bytes]:
        return [message.body for message in self.got]

    def offset(self, number: int) -> int:
        """The offset of a message that it got."""
        return self.channel.cursor.queue.offset_of(self.got[number].id)

    def ready(self, count: int) -> Self:
        self.channel.set_ready(self.consumer, count)
        return self

    def finish(self, *numbers: int) -> None:
        """Finish messages by their index among those it got; all by default."""
        for number in numbers or range(len(self.got)):
            self.channel.finish(self.consumer, self.offset(number))

    def requeue(self, number: int, delay_ns: int = 0) -> None:
        self.channel.requeue(self.consumer, self.offset(number), delay_ns)

    def touch(self, number: int) -> None:
        self.channel.touch(self.consumer, self.offset(number))

    def leave(self) -> None:
        self.channel.remove_consumer(self.consumer)


class Core:
    """A broker's core and its surroundings."""

    waits_for_flush = False
    """Whether relocated records count only once they are durable."""

    def __init__(self, *, segment_bytes: int = SEGMENT_BYTES, **options: Any) -> None:
        self.clock = SimulatedClock()
        self.storage = SimulatedStorage(Random(1))
        self.segment_bytes = segment_bytes
        self.options = options
        self.lost: list[tuple[str, str, int, int, str]] = []
        self.restored: RestoredBroker
        self.broker: BrokerCore
        self._open()

    def _open(self) -> None:
        self.broker, self.restored = restore(
            self.storage,
            self.clock,
            Random(2),
            segment_bytes=self.segment_bytes,
            on_lost=lambda *args: self.lost.append(args),
            **self.options,
        )
        self.broker.transfers.waits_for_flush = self.waits_for_flush
        self.broker.run()

    def kill(self, *, power: bool = False, journaled: bool = False) -> None:
        """Kill the broker, or cut the power, and start it again; once its journal is written or at
        any moment.
        """
        if journaled:
            self.broker.write_journal()
        self.storage = self.storage.crash(power=power)
        self._open()

    def stop(self) -> None:
        """Stop it cleanly and start it again."""
        self.broker.write_journal()
        self.checkpoint()
        self.storage.close()
        self.storage = self.storage.crash()
        self._open()

    def start_again(self, way: str) -> None:
        """Stop it, kill it, or cut the power once all is durable, and start it again."""
        if way == "stop":
            self.stop()
        else:
            self.flush()
            self.kill(power=way == "power")

    def checkpoint(self, count: int = 1) -> None:
        for _ in range(count):
            self.complete(begin_checkpoint(self.broker))

    def complete(self, job: CheckpointJob) -> None:
        job.flush.run()
        job.save()
        end_checkpoint(self.broker, job)

    def flush(self) -> None:
        job = self.broker.log.flush_job()
        job.run()
        self.broker.log.flushed(job)

    def flush_now(self) -> bool:
        """Flush for an eviction."""
        self.flush()
        return True

    def records(self, kind: RecordKind) -> list[tuple[Header, bytes]]:
        """The log's records of a kind, with what they hold."""
        records = scan(self.broker.log.segments, 0, RecoveryReport())
        return [(h, bytes(payload(h, record))) for h, record in records if h.kind == kind]

    def damage(self, position: int) -> None:
        """Flip a bit of the record at a position, behind its header."""
        segment = self.broker.log.find(position)
        assert segment is not None
        content = self.storage.segment_bytes_of(segment.base)
        content[position - segment.base + HEADER_BYTES] ^= 1

    def publish(self, topic: str, *bodies: bytes, delay_ns: int = 0) -> Receipt:
        deliver_at_ns = self.clock.now_ns + delay_ns if delay_ns else 0
        receipt = self.broker.topic(topic).stage(list(bodies), deliver_at_ns)
        self.broker.commit()
        return receipt

    def send(self, topic: str, properties: Properties, *bodies: bytes) -> Receipt:
        """Publish messages that have all the same properties."""
        entries = [(number, properties.pack()) for number in range(len(bodies))]
        receipt = self.broker.topic(topic).stage(list(bodies), 0, entries)
        self.broker.commit()
        return receipt

    def publish_emptied(self, topic: str, *bodies: bytes) -> None:
        """Publish messages while the topic is paused, and empty it: no channel gets them."""
        paused = self.broker.topic(topic)
        paused.set_paused(True)
        self.publish(topic, *bodies)
        paused.empty()
        paused.set_paused(False)

    def stored(self, topic: str = "t") -> list[bytes]:
        """The bodies that are stored of a topic, in order; none where there is no such topic."""
        is_there = topic in self.broker.topics
        return bodies_of(self.broker, self.topic(topic)) if is_there else []

    def dead_letters(self, topic: str = "t.c.dead") -> list[tuple[bytes, Properties]]:
        """Bodies and properties of all that is stored in a dead-letter topic."""
        channel = self.topic(topic).find_channel(dead_letter.CHANNEL)
        dead = []
        for offset in range(channel.source.limit):
            frame = channel.cursor.frame(offset, 1)
            assert frame is not None
            dead.append((bytes(frame[34:]), Properties.unpack(channel.cursor.properties(offset))))
        return dead

    def fill_disk(self) -> None:
        """Publish to another topic until the disk is full and so is the last segment."""
        self.storage.capacity_bytes = self.storage.used_bytes
        for size in (500, 1):
            while self.publish("filling", b"x" * size).error is None:
                pass

    @property
    def transactions(self) -> Transactions:
        return self.broker.transactions

    def topic(self, name: str = "t") -> Topic:
        """A topic that is there."""
        return self.broker.find_topic(name)

    def channel(self, topic: str = "t", channel: str = "c") -> Channel:
        return self.broker.topic(topic).channel(channel)

    def configure(self, topic: str = "t", channel: str = "c", **policy: Any) -> Channel:
        """Give a channel a policy that sets this and nothing else."""
        configured = self.channel(topic, channel)
        self.topic(topic).configure_channel(channel, ChannelPolicy().changed(policy))
        return configured

    def client(
        self,
        topic: str,
        channel: str = "c",
        *,
        timeout_ns: int = 60 * SECOND_NS,
        sample: int = 0,
        says_started: bool = False,
    ) -> Client:
        subscribed = self.channel(topic, channel)
        return Client(subscribed, timeout_ns, sample, says_started=says_started)

    def wait(self, duration_ns: int) -> None:
        self.clock.advance(duration_ns)
        self.broker.run()

    def fill(self, topic: str, segments: int) -> list[bytes]:
        """Publish until at least that many segments are begun; return all the bodies."""
        bodies: list[bytes] = []
        end = self.broker.log.position + segments * self.segment_bytes
        while self.broker.log.position < end:
            body = b"%d " % len(bodies) * 40
            bodies.append(body)
            assert self.publish(topic, body).error is None
        return bodies
