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
from martlet.broker.queue.consumer import ChannelConsumer, TopologyPreference
from martlet.broker.queue.cursor import Cursor
from martlet.broker.queue.queue_log import Receipt
from martlet.broker.recovery.restore import RestoredBroker, restore
from martlet.broker.retention.checkpoint import begin_checkpoint, end_checkpoint
from martlet.broker.topic.topic import Topic
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

    def kill(self, *, power: bool = False) -> None:
        """Kill the broker, or cut the power, and start it again."""
        self.storage = self.storage.crash(power=power)
        self._open()

    def stop(self) -> None:
        """Stop it cleanly and start it again."""
        self.broker.write_journal()
        self.checkpoint()
        self.storage.close()
        self.storage = self.storage.crash()
        self._open()

    def checkpoint(self) -> None:
        job = begin_checkpoint(self.broker)
        job.flush.run()
        job.save()
        end_checkpoint(self.broker, job)

    def flush(self) -> None:
        job = self.broker.log.flush_job()
        job.run()
        self.broker.log.flushed(job)

    def publish(self, topic: str, *bodies: bytes, delay_ns: int = 0) -> Receipt:
        deliver_at_ns = self.clock.now_ns + delay_ns if delay_ns else 0
        receipt = self.broker.topic(topic).stage(list(bodies), deliver_at_ns)
        self.broker.commit()
        return receipt

    def channel(self, topic: str, channel: str = "c") -> Channel:
        return self.broker.topic(topic).channel(channel)

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
