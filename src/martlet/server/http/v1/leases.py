"""Leases: the messages that clients over HTTP have received and not yet acknowledged.

Each receive is a consumer of the channel, as a subscribed client of NSQ's protocol is one: it sets
its ready count to ``max``, and back to 0 once it has something; its message timeout is the lease.
The core delivers in turn to it and to NSQ's consumers, and redelivers what is not acknowledged in
time::

    receive   add_consumer   RDY max     ... messages ...  RDY 0   answer
    finish    lease of the receipt -> consumer -> channel.finish
    the consumer is removed when it holds nothing any more, or its lease has ended

Before an answer is sent, the journal has the channel's cursor. So a broker that is killed knows
afterwards which messages it had delivered how often, and a receipt stays valid until the message is
delivered again (see `LeaseReceipt`).

If a client disconnects before its answer, other clients get its messages at once. That
is no failure, and no attempt where none of the answer was sent.
"""

from __future__ import annotations

import asyncio
import re
import struct
from base64 import b64encode
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import replace
from itertools import count
from typing import Any, NamedTuple

from martlet.broker.broker import BrokerCore
from martlet.broker.channel.channel import Channel
from martlet.broker.channel.partitioned import PartitionedChannel
from martlet.broker.channel.subscriber import Subscriber
from martlet.broker.errors import NotInFlight, WritesRefused
from martlet.broker.queue.queue_log import OFFSET_BITS, OFFSET_MASK
from martlet.log.record import FRAME_HEADER_BYTES
from martlet.options import BrokerOptions
from martlet.properties.block import FRAME_TYPE, Block
from martlet.properties.model import Properties
from martlet.protocol.nsq.negotiation import default_identity
from martlet.protocol.nsq.v2 import ParserState
from martlet.server.group_commit import GroupCommit
from martlet.text import MILLISECOND_NS, SECOND_NS

MAX_CHARACTERS = 128
_PATTERN = re.compile(
    r"1-([0-9a-f]{1,16})-([0-9a-f]{1,16})-([0-9a-f]{1,16})-([0-9a-f]{16})-([0-9a-f]{1,16})-"
    r"([0-9a-f]{1,8})"
)
MAX_ANSWER_BYTES = 8 << 20
"""The limit of all bodies in one answer; a single message may be larger."""
MAX_POLLS = 1000
"""The maximum number of receives that wait for messages, of a broker."""
MAX_LEASED = 10_000
"""The maximum number of messages of a channel that clients over HTTP may have."""
_CONFIRM_S = 1.0
"""How long an answer waits until replicas know of the delivery."""
_GRACE_S = 0.005
"""The time after the end of a lease at which the core has handled it."""
_HEAD = struct.Struct(">II")
_MESSAGE = struct.Struct(">8xqH16s")


class BadReceipt(ValueError):
    """A text that is no receipt."""


class LeaseReceipt(NamedTuple):
    """The receipt of one delivery of a message to a client over HTTP.

    It is text to clients, with hexadecimal numbers::

        1-5-2a-9-00c0ffee00000007-18c3f2a1b0c4d5e6-1
        |  |  | |        |               |          attempts: deliveries of the message so far
        |  |  | |        |               when the message was stored, in nanoseconds since 1970
        |  |  | |        id of the message, which has its queue and offset
        |  |  | number of the channel in the log, which has the topic
        |  |  number of the lease in this epoch
        |  epoch: the run of the broker
        version

    Within an epoch the lease decides: it knows which messages its consumer holds. A receipt of an
    earlier epoch, from before a restart or a failover, is compared with the message: where a
    failover cut the log, another message may have the id, but it was not stored at the same time.
    """

    epoch: int
    lease: int
    channel: int
    message_id: bytes
    stored_at_ns: int
    attempts: int

    def __str__(self) -> str:
        return (
            f"1-{self.epoch:x}-{self.lease:x}-{self.channel:x}-{self.message_id.decode()}"
            f"-{self.stored_at_ns:x}-{self.attempts:x}"
        )

    @classmethod
    def parse(cls, text: str) -> LeaseReceipt:
        """Read the text of a receipt. Raises BadReceipt."""
        match = _PATTERN.fullmatch(text)
        if match is None:
            raise BadReceipt("it is no receipt: send the text 'receipt' of a received message")
        epoch, lease, channel = (int(match[number], 16) for number in (1, 2, 3))
        return cls(epoch, lease, channel, match[4].encode(), int(match[5], 16), int(match[6], 16))


class ReceiveRefused(Exception):
    """A receive that would exceed a limit; the text names it and the way out."""


class ChannelDeleted(Exception):
    """The channel was deleted while a receive waited."""


class LeasedMessage(NamedTuple):
    """A message of an answer."""

    stored_at_ns: int
    attempts: int
    """Deliveries so far."""
    message_id: bytes
    """16 hexadecimal digits."""
    body: bytes
    properties: bytes
    """Packed; empty for none."""


class ReceivingClient:
    """The client of one receive: a consumer of a channel until its messages are done.

    Its fields that it does not use are those that reports on clients show.

    Args:
        channel: the channel at all queues.
    """

    state = ParserState.SUBSCRIBED
    deflate = snappy = False
    guard = tls = None

    def __init__(
        self,
        number: int,
        channel: Channel | PartitionedChannel,
        options: BrokerOptions,
        remote_address: str,
        user_agent: str,
        now_ns: int,
    ) -> None:
        self.number = number
        self.channel = channel
        self.consumer: Any = None
        """Its consumer of the channel, or its subscriber."""
        self.remote_address = remote_address
        self.identity = replace(default_identity(options, remote_address), user_agent=user_agent)
        self.connected_at_ns = now_ns
        self.message_counters: dict[str, int] = {}
        self.is_closed = False
        """Whether the channel was deleted."""
        self.ends_at_s = 0.0
        """When its lease ends, by the loop's clock."""
        self.timer: asyncio.TimerHandle | None = None
        self.woken = asyncio.Event()
        """Set once there are messages, or none are to be waited for."""
        self._frames: list[memoryview | bytes | bytearray] = []
        self._frame_bytes = 0

    @property
    def trace_name(self) -> str:
        """The client's name in traces."""
        return f"http {self.remote_address}"

    @property
    def connection(self) -> ReceivingClient:
        """Itself, for reports."""
        return self

    # for the core

    def send_messages(self, frames: Sequence[memoryview | bytes | bytearray]) -> None:
        """Take messages for the answer."""
        self._frames += frames
        self._frame_bytes += sum(map(len, frames))
        if self._frame_bytes >= MAX_ANSWER_BYTES:
            self.consumer.ready_count = 0
        self.woken.set()

    def channel_closed(self) -> None:
        """Stop waiting: the channel was deleted."""
        self.is_closed = True
        self.woken.set()

    def channel_grown(self, channel: PartitionedChannel, consumer: Subscriber) -> None:
        """Consume all queues of a channel that now has several."""
        self.channel, self.consumer = channel, consumer

    def failures_counted(self, max_attempts: int) -> None:
        """Do nothing: it does not announce started messages."""

    def recalled(self, queue: int) -> None:
        """Do nothing: it does not handle messages in order."""

    # the answer

    def take(self) -> tuple[list[LeasedMessage], list[bytes]]:
        """Return the received messages, and the ids of those that are too many for one answer."""
        taken: list[LeasedMessage] = []
        surplus: list[bytes] = []
        body_bytes = 0
        frames, self._frames = self._frames, []
        for message in _messages(frames):
            body_bytes += len(message.body)
            if taken and body_bytes > MAX_ANSWER_BYTES:
                surplus.append(message.message_id)
            else:
                taken.append(message)
        return taken, surplus


def _messages(frames: Sequence[memoryview | bytes | bytearray]) -> Iterator[LeasedMessage]:
    """Yield the messages in frames, of which those with properties precede their messages."""
    block, number = Block(b""), 0
    for data in frames:
        at = 0
        while at < len(data):
            size, kind = _HEAD.unpack_from(data, at)
            end = at + 4 + size
            if kind == FRAME_TYPE:
                block, number = Block(bytes(data[at + _HEAD.size : end])), 0
            else:
                stored_at_ns, attempts, message_id = _MESSAGE.unpack_from(data, at)
                body = bytes(data[at + FRAME_HEADER_BYTES : end])
                yield LeasedMessage(stored_at_ns, attempts, message_id, body, block.of(number))
                number += 1
            at = end


class Leases:
    """All leases of a broker."""

    def __init__(self, broker: BrokerCore, commits: GroupCommit, options: BrokerOptions) -> None:
        self._broker = broker
        self._commits = commits
        self._options = options
        self._loop = asyncio.get_running_loop()
        self._numbers = count(1)
        self._clients: dict[int, ReceivingClient] = {}
        """The clients that hold messages, or wait for some, by the number of the lease."""
        self._is_closed = False
        self.poll_count = 0
        """How many receives wait for messages."""

    def __len__(self) -> int:
        return len(self._clients)

    # receiving

    def subscribe(
        self,
        channel: Channel | PartitionedChannel,
        visibility_s: float,
        remote_address: str,
        user_agent: str,
    ) -> ReceivingClient:
        """Begin a receive. The caller calls `release` if it does not `lease` anything.

        Raises:
            ReceiveRefused: a limit is reached.
            TooMany, Conflict: the channel takes no such consumer.
        """
        if self.poll_count >= MAX_POLLS:
            raise ReceiveRefused(
                f"{MAX_POLLS} receives wait for messages at this broker, which is the maximum: try"
                " again later, or take more messages with fewer receives (max=)"
            )
        leased = sum(
            client.consumer.in_flight_count
            for client in self._clients.values()
            if client.channel.id == channel.id
        )
        if leased >= MAX_LEASED:
            raise ReceiveRefused(
                f"clients over HTTP have {leased} messages of channel {channel.name!r} of topic"
                f" {channel.topic!r}, and the maximum is {MAX_LEASED}: finish some of them, or let"
                " their leases end"
            )
        client = ReceivingClient(
            next(self._numbers),
            channel,
            self._options,
            remote_address,
            user_agent,
            self._broker.wall(),
        )
        timeout_ns = round(visibility_s * SECOND_NS)
        client.consumer = channel.add_consumer(client, timeout_ns, with_properties=True)
        self._clients[client.number] = client
        return client

    async def wait(self, client: ReceivingClient, max_count: int, wait_s: float) -> None:
        """Wait until a client has messages, or for so long. Raises ChannelDeleted."""
        self.poll_count += 1
        try:
            _set_ready(client, max_count)
            if wait_s and not client.woken.is_set():
                with suppress(TimeoutError):
                    async with asyncio.timeout(wait_s):
                        await client.woken.wait()
        finally:
            self.poll_count -= 1
            if not client.is_closed:
                _set_ready(client, 0)
        if client.is_closed:
            raise ChannelDeleted

    async def lease(self, client: ReceivingClient) -> list[LeasedMessage]:
        """Return the messages that a client has got; they are its own until its lease ends."""
        messages, surplus = client.take()
        if surplus:
            give_back(client, surplus, is_started=False)
        if not messages:
            self.release(client)
            return messages
        timeout_s = client.consumer.timeout_ns / SECOND_NS
        client.ends_at_s = self._loop.time() + timeout_s
        client.timer = self._loop.call_later(timeout_s + _GRACE_S, self._lease_ended, client)
        await self._persist(client.channel)
        return messages

    async def _persist(self, channel: Channel | PartitionedChannel) -> None:
        """Write a channel's cursor to the journal, so that it survives the process and, if answers
        wait for replicas, a failover. Where that fails, or takes long, messages are delivered again
        after a crash.
        """
        if self._is_closed:
            return
        with suppress(WritesRefused, TimeoutError):
            self._broker.write_moved(channel)
            if self._broker.unconfirmed is not None:
                async with asyncio.timeout(_CONFIRM_S):
                    await self._commits.all_settled()

    def receipt(self, client: ReceivingClient, message: LeasedMessage) -> LeaseReceipt:
        """Return the receipt of a message that a client has got."""
        return LeaseReceipt(
            self._broker.epoch,
            client.number,
            client.channel.id,
            message.message_id,
            message.stored_at_ns,
            message.attempts,
        )

    # ends

    def release(self, client: ReceivingClient) -> None:
        """Unsubscribe a client; messages that it has go to others at once."""
        if self._clients.pop(client.number, None) is None:
            return
        if client.timer is not None:
            client.timer.cancel()
        client.channel.remove_consumer(client.consumer)

    def abandon(
        self, client: ReceivingClient, messages: Sequence[LeasedMessage], *, sent: bool
    ) -> None:
        """End the lease of a disconnected client; others get its messages, without a failure.

        Args:
            sent: whether it may have got some of the answer.
        """
        client.consumer.progress.takes_no_more = True  # So that none of them fails.
        taken, surplus = client.take()
        ids = [message.message_id for message in (*messages, *taken)] + surplus
        if not client.is_closed:
            give_back(client, ids, is_started=sent)
        self.release(client)

    def _lease_ended(self, client: ReceivingClient) -> None:
        """Unsubscribe a client once the core has redelivered what it did not finish."""
        if not client.consumer.in_flight_count or client.is_closed:
            self.release(client)
            return
        left_s = max(client.ends_at_s - self._loop.time(), 0) + _GRACE_S
        client.timer = self._loop.call_later(left_s, self._lease_ended, client)

    def close(self) -> None:
        """Stop the timers: the broker ends. What clients have is in flight for the journal."""
        self._is_closed = True
        for client in self._clients.values():
            if client.timer is not None:
                client.timer.cancel()
            client.woken.set()
        self._clients.clear()

    # acknowledging

    def acknowledge(
        self,
        channel: Channel | PartitionedChannel,
        text: object,
        act: Callable[[ReceivingClient, int], object],
        *,
        finishes: bool = False,
    ) -> object:
        """Acknowledge a message.

        Args:
            act: acknowledges for the consumer of a client, by the position of the message.
            finishes: whether `act` finishes it; then the lease may have ended, unless the message
                was delivered again.

        Returns what `act` does. Raises BadReceipt and NotInFlight.
        """
        receipt = LeaseReceipt.parse(text if isinstance(text, str) else "")
        if receipt.channel != channel.id:
            raise NotInFlight("it is the receipt of another channel")
        position = channel.queue.offset_of(receipt.message_id)
        is_of_now = receipt.epoch == self._broker.epoch
        client = self._clients.get(receipt.lease) if is_of_now else None
        if client is not None and client.channel.id == channel.id and client.consumer is not None:
            try:
                done = act(client, position)
            except NotInFlight:
                if not finishes:
                    raise NotInFlight("its lease has ended, or it is finished already") from None
            else:
                if not client.consumer.in_flight_count:
                    self.release(client)
                return done
        if not finishes:
            raise NotInFlight("its lease has ended; it is or will be delivered again")
        self._check_stored(channel, position, receipt)
        channel.finish_ended(position, receipt.attempts)
        return None

    def _check_stored(
        self, channel: Channel | PartitionedChannel, position: int, receipt: LeaseReceipt
    ) -> None:
        """Check that a message is the one of a receipt. Raises NotInFlight."""
        number, offset = queue_and_offset(channel, position)
        queue_channel = channel.at_queues[number] if number < len(channel.at_queues) else None
        if queue_channel is None or not offset < queue_channel.source.limit:
            raise NotInFlight("there is no such message")
        frame = queue_channel.cursor.frame(offset, 1)
        if frame is None:
            raise NotInFlight("it is not stored any more")
        if _MESSAGE.unpack_from(frame)[0] != receipt.stored_at_ns:
            raise NotInFlight("a failover cut the message off, and another one has its id")

    def touch(self, client: ReceivingClient, position: int, visibility_s: float) -> int:
        """Restart the lease of a message. Returns when it ends, in milliseconds since 1970."""
        timeout_ns = round(visibility_s * SECOND_NS)
        ends_at_ns: int = client.channel.touch(client.consumer, position, timeout_ns)
        left_s = (ends_at_ns - self._broker.clock()) / SECOND_NS
        client.ends_at_s = max(client.ends_at_s, self._loop.time() + left_s)
        return (self._broker.wall() + round(left_s * SECOND_NS)) // MILLISECOND_NS


def queue_and_offset(channel: Channel | PartitionedChannel, position: int) -> tuple[int, int]:
    """Return the queue and the offset of a position: an id minus that of queue 0."""
    if len(channel.at_queues) == 1:
        return 0, position
    return position >> OFFSET_BITS, position & OFFSET_MASK


def give_back(client: ReceivingClient, ids: Sequence[bytes], *, is_started: bool) -> None:
    """Give messages of a client to others, without a failure."""
    queue = client.channel.queue
    positions = [queue.offset_of(message_id) for message_id in ids]
    if positions:
        client.channel.give_back(client.consumer, positions, is_started=is_started)


def _set_ready(client: ReceivingClient, max_count: int) -> None:
    client.channel.set_ready(client.consumer, max_count)


def shown(
    message: LeasedMessage, target: tuple[int, int], receipt: LeaseReceipt
) -> dict[str, object]:
    """Return a message as JSON fields."""
    fields: dict[str, object] = {
        "id": message.message_id.decode(),
        "receipt": str(receipt),
        "attempts": message.attempts,
        "timestamp_ms": message.stored_at_ns // MILLISECOND_NS,
        "queue": target[0],
        "offset": target[1],
    }
    try:
        fields["body"] = message.body.decode()
    except UnicodeDecodeError:
        fields["body_base64"] = b64encode(message.body).decode()
    return fields | Properties.unpack(message.properties).to_json()
