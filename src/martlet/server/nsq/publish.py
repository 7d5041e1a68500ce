"""The publishing commands: PUB, MPUB, DPUB and SEND.

PUB, MPUB and DPUB are answered OK, or by an error that ends the connection.  SEND, for messages
with properties and options, is answered with a JSON object that says where they were stored.  A
refusal is one too, with a status of its own, and does not end the connection::

    {"status": "OK", "queue": 0, "offset": 1041, "count": 3, "id": "00c0ffee00c0ffee"}
    {"status": "REFUSED", "text": "the disk is full: ..."}

The options of SEND, all of which may be left out:

- ``deliver_at_ms``: delivery time since 1970.  Before it the message has no offset; the ``id`` of
  the answer, from which those of further messages count up, cancels it.  When due it gets a new id,
  and the property ``delayed`` keeps the first one
- ``queue``: the number of the queue; ``order_key``: the queue of all messages with that key, which
  is ``order_key_base64`` where it is no text
- ``priority``: 0 to 9, 4 by default; the messages of each other one have a queue of their own, so
  not beside ``queue``
- ``wait``: false for an answer once they are written, even if a PUB would wait for the disk
- ``flush_timeout_ms``: the limit of the wait for the disk or for replicas, in place of
  ``--sync-flush-timeout`` and ``--sync-replica-timeout``; the status is then FLUSH_DISK_TIMEOUT or
  FLUSH_SLAVE_TIMEOUT, and they are stored all the same
- ``transaction``: invisible until the transaction is committed, see below
- ``oneway``: true for no answer at all
- ``claim_ms``: where the SEND creates an ephemeral topic, delete that again after this time, unless
  it has a channel by then; for a reply, whose requester may be gone
- ``producer``, 32 hexadecimal digits, and ``sequence``: a number of this send.  A repeated send is
  not stored again but answered as the first one, with ``"duplicate": true`` (see
  `martlet.broker.idempotence`); ``age_ms`` is the time since the first send

The options of SEND into a transaction are ``transaction``, its id; ``branch``, the name of the
sender; ``number``, of the send in its branch, from 0, so that a repeated one is stored once;
``queue``, ``order_key`` and ``priority``, as above; ``deliver_at_ms`` or ``delay_ms``, a list of
``[time, count]`` with the delivery times of all messages in order: since 1970, or from now on; and
``begin``, with the arguments of the call `transaction.begin`, to begin the transaction too.  With
``"commit": true`` the messages are an entire transaction, and are committed: such a SEND has none
of ``branch``, ``number`` and ``begin``, and may be repeated.  The answer is
``{"status": "OK", "count": 3}``, once they are as safe as a PUB that is answered OK.

Answers keep the order of the commands: one that need not wait comes after one that must.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Sequence
from heapq import heappop, heappush
from itertools import count as counted
from typing import TYPE_CHECKING

from martlet.broker.errors import (
    BrokerError,
    LimitReached,
    NotFound,
    QueuesRefused,
    WritesRefused,
)
from martlet.broker.idempotence import ProducerSend, Reused, TooOld, marked
from martlet.broker.queue.queue_log import Receipt
from martlet.broker.topic.topic import check_queue
from martlet.names import PutStatus
from martlet.properties.model import MAX_PRIORITY, NORMAL_PRIORITY, PRODUCER_BYTES, Sent
from martlet.protocol.nsq import v2
from martlet.server.nsq.client_io import WAIT, DeferredReply, Outcome, ReplyQueue
from martlet.server.nsq.compiled_path import open_compiled_path
from martlet.server.rpc.begun_transactions import begin_open, refused
from martlet.server.rpc.registry import CallArguments, CallError, deliver_at_ns
from martlet.text import MILLISECOND_NS

if TYPE_CHECKING:
    from martlet.broker.broker import BrokerCore
    from martlet.broker.topic.retained import Retained
    from martlet.broker.topic.topic import Topic
    from martlet.options import BrokerOptions
    from martlet.server.group_commit import GroupCommit
    from martlet.server.nsq.connection import ClientConnection
    from martlet.server.observability.event_log import EventLog
    from martlet.server.observability.replication import Replication

_OPTIONS = (
    "age_ms",
    "claim_ms",
    "deliver_at_ms",
    "flush_timeout_ms",
    "oneway",
    "order_key",
    "order_key_base64",
    "priority",
    "producer",
    "queue",
    "sequence",
    "wait",
)
_TRANSACTION_OPTIONS = (
    "begin",
    "branch",
    "delay_ms",
    "deliver_at_ms",
    "number",
    "order_key",
    "order_key_base64",
    "priority",
    "queue",
    "transaction",
)
_COMMIT_OPTIONS = (
    "commit",
    "delay_ms",
    "deliver_at_ms",
    "order_key",
    "order_key_base64",
    "priority",
    "queue",
    "transaction",
)
_encode_json = json.JSONEncoder(separators=(",", ":")).encode
_MAX_TIMES = 10_000
_MAX_CLAIM_MS = 3_600_000
_GRAIN_S = 0.01
"""The time within which flush timeouts are handled together."""
CODES: dict[type[Exception], str] = {
    LimitReached: "LIMIT_REACHED",
    NotFound: "NO_QUEUE",
    QueuesRefused: "NO_QUEUE",
    Reused: "SEQUENCE_REUSED",
    TooOld: "TOO_OLD",
}


class LonePublish:
    """The fast path of a lone PUB."""

    def __init__(self, broker: BrokerCore, commits: GroupCommit, buffer: bytearray) -> None:
        self._waits_for_replicas = commits.answers_confirmed
        flusher = commits.flusher if commits.answers_flushed else None
        self._compiled = (
            None if self._waits_for_replicas else open_compiled_path(broker, buffer, flusher)
        )
        """The compiled path; None where nothing is compiled, or answers wait for replicas."""
        if self._compiled is not None:
            commits.ticks.serve = self._compiled.serve
        self._broker = broker
        self._answers_at_once = commits.answers_at_once
        self._ticks = commits.ticks
        self._buffer = buffer
        self._view = memoryview(buffer)

    def serve(self, connection: ClientConnection) -> None:
        """Serve a connection by the compiled path from now on, if there is one, and a socket."""
        if self._compiled is not None:
            self._compiled.add(connection)

    def leave(self, connection: ClientConnection) -> None:
        """Leave a connection to the loop from now on, before its socket is closed."""
        if self._compiled is not None:
            self._compiled.remove(connection)

    def publish(self, connection: ClientConnection, nbytes: int) -> bool:
        """Append a PUB at once, instead of at the tick's end, and answer it unless the answer waits
        for a flush.

        Returns False if the bytes are another command, or the PUB must wait.
        """
        if connection.replies.due or self._ticks.crowded or self._waits_for_replicas:
            return False
        lone = connection.decoder.lone_publish(self._buffer, nbytes)
        if lone is None:
            return False
        name, start = lone
        topic = self._broker.topics.get(name)
        if topic is None:
            return False
        if topic.several:
            topic = topic.next_queue()
        connection.has_received = True
        try:
            self._broker.append(topic, self._view[start:nbytes])
        except WritesRefused as error:
            connection.refuse(v2.ProtocolError("E_PUB_FAILED", f"PUB failed {error}"))
            return True
        counters = connection.message_counters
        counters[name] = counters.get(name, 0) + 1
        if self._answers_at_once:
            connection.output.transport.write(v2.OK)
        else:
            connection.replies.promise_flushed(self._broker.log.position)
        return True


class StoredSend(DeferredReply):
    """The answer to a SEND whose messages are stored.

    Args:
        target: the topic's queue that they go to.
        topic: the topic that has them, which may be a bucket; None if it is gone since.
        send: their place in it.
        waits: whether to answer only when they are as safe as a PUB answered OK.
        is_duplicate: whether they were stored before.
    """

    __slots__ = (
        "_is_duplicate",
        "_replication",
        "_send",
        "_status",
        "_target",
        "_topic",
        "is_answered",
    )

    def __init__(
        self,
        target: Topic,
        topic: Retained | None,
        send: ProducerSend,
        waits: bool,
        is_duplicate: bool = False,
        replication: Replication | None = None,
    ) -> None:
        super().__init__(waits)
        self._replication = replication
        self._target = target
        self._topic = topic
        self._send = send
        self._is_duplicate = is_duplicate
        self._status = PutStatus.OK
        self.is_answered = False
        """Whether the answer was sent."""

    def hurry(self) -> None:
        """Stop waiting for the disk, or for replicas: it takes too long."""
        self.waits = False
        is_sync = self._replication is not None and self._replication.is_sync
        self._status = PutStatus.FLUSH_SLAVE_TIMEOUT if is_sync else PutStatus.FLUSH_DISK_TIMEOUT

    def stored(self) -> bytes:
        """The answer."""
        self.is_answered = True
        topic, offset = self._topic, self._send.offset
        replication = self._replication
        if self.waits and replication is not None and replication.lacks_replicas:
            self._status = PutStatus.SLAVE_NOT_AVAILABLE
        return encode_reply(
            status=self._status,
            queue=self._target.number,
            offset=offset if topic is self._target else None,
            count=self._send.count,
            id=topic.queue.message_id(offset).decode() if topic is not None else None,
            **({"duplicate": True} if self._is_duplicate else {}),
        )

    def refused(self, error: WritesRefused) -> bytes:
        """Return the answer if they were refused."""
        self.is_answered = True
        return refusal(error)


class FlushTimeouts:
    """The SENDs that wait for a flush: one that waits too long is answered that its messages are
    stored, though a power cut may still lose them.
    """

    def __init__(self, commits: GroupCommit) -> None:
        self._commits = commits
        self._loop = asyncio.get_running_loop()
        self._waiting: list[tuple[float, int, ReplyQueue, StoredSend]] = []
        self._numbers = counted()
        self._timer: asyncio.TimerHandle | None = None

    def watch(self, replies: ReplyQueue, stored: StoredSend, timeout_ms: int) -> None:
        """Answer a send after its timeout, unless it is answered by then."""
        waiting = self._waiting
        while waiting and waiting[0][3].is_answered:
            heappop(waiting)
        deadline_s = self._loop.time() + timeout_ms / 1000
        heappush(waiting, (deadline_s, next(self._numbers), replies, stored))
        if self._timer is None or waiting[0][3] is stored:
            self._set_timer()

    def _set_timer(self) -> None:
        self.close()
        if self._waiting:
            self._timer = self._loop.call_at(self._waiting[0][0], self._answer_late)

    def _answer_late(self) -> None:
        now_s = self._loop.time() + _GRAIN_S
        late: dict[ReplyQueue, None] = {}
        while self._waiting and (self._waiting[0][0] <= now_s or self._waiting[0][3].is_answered):
            _, _, replies, stored = heappop(self._waiting)
            if not stored.is_answered and not replies.is_closed:
                stored.hurry()
                late[replies] = None
        for replies in late:
            replies.settle(self._commits.durable_position)
        self._set_timer()

    def close(self) -> None:
        """Stop the timer."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None


class NoReply(DeferredReply):
    """No answer; errors are logged."""

    __slots__ = ("_address", "_events", "_topic")

    def __init__(self, events: EventLog, address: str, topic: str) -> None:
        super().__init__(waits=False)
        self._events = events
        self._address = address
        self._topic = topic

    def stored(self) -> bytes:
        """Nothing."""
        return b""

    def refused(self, error: Exception) -> bytes:
        """Log the error, and answer nothing."""
        self._events.dropped(self._address, self._topic, error)
        return b""


class Added(DeferredReply):
    """The answer to a SEND whose half messages are stored."""

    __slots__ = ("_count",)

    def __init__(self, count: int) -> None:
        super().__init__(waits=True)
        self._count = count

    def stored(self) -> bytes:
        """The answer."""
        return encode_reply(status="OK", count=self._count)

    def refused(self, error: WritesRefused) -> bytes:
        """Return the answer if they were refused."""
        return refusal(error)


def encode_reply(**fields: object) -> bytes:
    """Return the frame of an answer to SEND."""
    return v2.frame(v2.FrameType.RESPONSE, _encode_json(fields).encode())


def refusal(error: Exception) -> bytes:
    """Return the answer to a refused SEND."""
    if isinstance(error, CallError):
        return encode_reply(status=error.code, text=str(error), **error.fields)
    return encode_reply(status=CODES.get(type(error), "REFUSED"), text=str(error))


class PublishCommands:
    """PUB, MPUB, DPUB and SEND."""

    def __init__(
        self,
        broker: BrokerCore,
        options: BrokerOptions,
        answers_at_once: bool,
        flush_timeouts: FlushTimeouts,
        events: EventLog,
        replication: Replication | None,
    ) -> None:
        self._broker = broker
        self._max_delay_ns = options.max_delay_ns
        timeout_ns = options.sync_flush_timeout_ns
        if replication is not None and replication.is_sync:
            timeout_ns = options.sync_replica_timeout_ns
        self._flush_timeout_ms = timeout_ns // MILLISECOND_NS
        self._replication = replication
        self._answers_at_once = answers_at_once
        self._flush_timeouts = flush_timeouts
        self._events = events

    def publish(self, connection: ClientConnection, command: v2.PublishCommand) -> Outcome:
        """PUB, MPUB and DPUB: stage messages, and answer once they are committed, or flushed."""
        guard = connection.guard
        if guard is not None and not guard.may_publish(command.verb, command.topic):
            return WAIT
        broker = self._broker
        deliver_at_ns = 0
        if command.delay_ms:
            deliver_at_ns = broker.wall() + command.delay_ms * MILLISECOND_NS
        try:
            topic = broker.topic(command.topic)
            if topic.several:
                topic = topic.next_queue()
            if deliver_at_ns:
                receipt = broker.delays.defer(topic, command.bodies, deliver_at_ns)
            else:
                receipt = topic.stage(command.bodies)
        except WritesRefused as error:
            raise v2.ProtocolError(
                f"E_{command.verb}_FAILED", f"{command.verb} failed {error}"
            ) from error
        counters = connection.message_counters
        counters[command.topic] = counters.get(command.topic, 0) + len(command.bodies)
        connection.replies.promise(receipt, command.verb, command.commands)
        return None

    # SEND

    def send(self, connection: ClientConnection, command: v2.SendCommand) -> Outcome:
        """SEND."""
        guard = connection.guard
        if guard is not None and not guard.may_publish("PUB", command.topic):
            return WAIT
        if "transaction" in command.options:
            self._send_in_transaction(connection, command)
            return None
        no_reply = None
        if command.options.get("oneway") is True:
            no_reply = NoReply(self._events, connection.remote_address, command.topic)
        try:
            self._stage(connection, command, CallArguments(command.options), no_reply)
        except (
            CallError,
            LimitReached,
            NotFound,
            QueuesRefused,
            Reused,
            TooOld,
            WritesRefused,
        ) as error:
            if no_reply is not None:
                no_reply.refused(error)
            else:
                connection.replies.reply(refusal(error))
        return None

    def _stage(
        self,
        connection: ClientConnection,
        command: v2.SendCommand,
        arguments: CallArguments,
        no_reply: NoReply | None,
    ) -> None:
        arguments.only(*_OPTIONS)
        arguments.flag("oneway")
        broker = self._broker
        at_ns = deliver_at_ns(arguments, broker.wall(), self._max_delay_ns)
        waits = arguments.flag("wait", True)
        timeout_ms = arguments.number(
            "flush_timeout_ms", self._flush_timeout_ms, min_value=1, max_value=1 << 31
        )
        sent = _sent(arguments, len(command.bodies))
        claim_ms = arguments.number("claim_ms", 0, max_value=_MAX_CLAIM_MS)
        is_new = command.topic not in broker.topics
        topic = topic_to_fill(broker, command.topic, arguments)
        if claim_ms and is_new and topic.ephemeral:
            broker.drop_unclaimed(topic, claim_ms * MILLISECOND_NS)
        known = None
        if sent is not None:
            age_ns = arguments.number("age_ms", 0, max_value=1 << 42) * MILLISECOND_NS
            known = broker.producers.find(sent, topic, broker.clock() - age_ns if age_ns else 0)
        promise: StoredSend
        if known is not None:
            target = broker.by_id[known.target].target
            assert target is not None
            promise = StoredSend(
                target,
                broker.by_id.get(known.topic),
                known,
                waits,
                is_duplicate=True,
                replication=self._replication,
            )
            receipt = known.receipt
        else:
            queue = queue_of(broker, topic, arguments)
            target = topic.next_queue() if queue < 0 else topic.at_queues[queue]
            count = len(command.bodies)
            queue_topic = broker.delays.bucket(target, at_ns, count) if at_ns else target
            offset = queue_topic.next_offset
            properties = command.properties if sent is None else marked(command.properties, sent)
            receipt = queue_topic.stage(command.bodies, at_ns, properties)
            stored = ProducerSend(receipt, queue_topic.id, offset, count, target.id)
            if sent is not None:
                broker.producers.add(sent, stored, broker.clock())
            counters = connection.message_counters
            counters[command.topic] = counters.get(command.topic, 0) + count
            promise = StoredSend(target, queue_topic, stored, waits, replication=self._replication)
        if no_reply is None and waits and not self._answers_at_once:
            self._flush_timeouts.watch(connection.replies, promise, timeout_ms)
        connection.replies.promise(receipt, "SEND", no_reply or promise)

    # SEND into a transaction

    def _send_in_transaction(self, connection: ClientConnection, command: v2.SendCommand) -> None:
        try:
            position, added = self._add_half_messages(command, CallArguments(command.options))
        except (BrokerError, WritesRefused) as error:
            connection.replies.reply(refusal(refused(error)))
        except CallError as error:
            connection.replies.reply(refusal(error))
        else:
            receipt = Receipt()
            receipt.position = position
            connection.replies.promise(receipt, "SEND", added)

    def _add_half_messages(
        self, command: v2.SendCommand, arguments: CallArguments
    ) -> tuple[int, Added]:
        is_all = arguments.flag("commit")
        arguments.only(*(_COMMIT_OPTIONS if is_all else _TRANSACTION_OPTIONS))
        transactions = self._broker.transactions
        transaction_id = arguments.text("transaction", max_value=255)
        if is_all:
            return self._commit_at_once(command, arguments, transaction_id)
        branch, number = arguments.text("branch", max_value=64), arguments.number("number")
        queue = _queue_of_half_messages(self._broker, command.topic, arguments)
        times = self._delivery_times(arguments, len(command.bodies))
        is_new = "begin" in arguments and transaction_id not in transactions.open
        if is_new:
            begin_open(
                transactions, transaction_id, CallArguments(arguments.mapping("begin", max_value=5))
            )
        try:
            batch, position = transactions.add(
                transaction_id,
                branch,
                number,
                command.topic,
                command.bodies,
                command.properties,
                queue,
                times,
            )
        except (BrokerError, WritesRefused):
            if is_new:
                transactions.record(transaction_id)
            raise
        return position, Added(batch.message_count)

    def _commit_at_once(
        self, command: v2.SendCommand, arguments: CallArguments, transaction_id: str
    ) -> tuple[int, Added]:
        transactions = self._broker.transactions
        # A repeated one stays committed, whatever has become of its topic.
        outcome = transactions.committed(transaction_id)
        if outcome is None:
            topic = topic_to_fill(self._broker, command.topic, arguments)
            queue = queue_of(self._broker, topic, arguments)
            times = self._delivery_times(arguments, len(command.bodies))
            outcome = transactions.commit_at_once(
                transaction_id, topic.name, command.bodies, command.properties, queue, times
            )
        return outcome.position, Added(len(command.bodies))

    def _delivery_times(self, arguments: CallArguments, count: int) -> Sequence[tuple[int, int]]:
        """Return delivery times in nanoseconds with their numbers of messages. Raises CallError."""
        names = [name for name in ("deliver_at_ms", "delay_ms") if name in arguments]
        if not names:
            return []
        (name, *others) = names
        if others:
            raise CallError(
                "BAD_ARGUMENT", "'deliver_at_ms' and 'delay_ms' both set the time: give one"
            )
        now_ns = self._broker.wall()
        base_ns = now_ns if name == "delay_ms" else 0
        latest_ns = now_ns + self._max_delay_ns
        times: list[tuple[int, int]] = []
        for each in arguments.sequence(name, max_value=_MAX_TIMES):
            match each:
                case [int(time_ms), int(some)] if time_ms >= 0 and 0 < some <= count:
                    at_ns = base_ns + time_ms * MILLISECOND_NS
                case _:
                    raise CallError("BAD_ARGUMENT", f"{name!r} must be a list of [time, count]")
            if at_ns > latest_ns:
                raise CallError(
                    "BAD_ARGUMENT",
                    f"{name!r} has a time {(at_ns - now_ns) // 10**9} s from now; the longest delay"
                    f" is {self._max_delay_ns // 10**9} s (--max-delay)",
                )
            times.append((at_ns, some))
        if sum(some for _, some in times) != count:
            raise CallError(
                "BAD_ARGUMENT", f"{name!r} must have a time for each of the {count} messages"
            )
        return times


def _sent(arguments: CallArguments, count: int) -> Sent | None:
    if "producer" not in arguments and "sequence" not in arguments:
        return None
    producer = arguments.text("producer")
    sequence = arguments.number("sequence", min_value=1)
    try:
        producer_id = bytes.fromhex(producer)
    except ValueError:
        producer_id = b""
    if len(producer_id) != PRODUCER_BYTES or len(producer) != 2 * PRODUCER_BYTES:
        raise CallError(
            "BAD_ARGUMENT", f"'producer' must be 32 hexadecimal digits, not {producer[:40]!r}"
        )
    return Sent(producer_id, sequence, count)


def topic_to_fill(broker: BrokerCore, name: str, *targets: CallArguments) -> Topic:
    """Return the topic of messages, created if it is new and none of their targets is refused.

    Raises CallError, LimitReached, NameRefused, NotFound and WritesRefused.
    """
    if name not in broker.topics:
        for arguments in targets:
            _, queue = _target(arguments)
            check_queue(name, queue or 0, 1)
    return broker.topic(name)


def _queue_of_half_messages(broker: BrokerCore, name: str, arguments: CallArguments) -> int:
    """Return the number of the target queue; -1 for any. The commit creates a topic that is new.

    Raises CallError, NameRefused, NotFound, LimitReached, QueuesRefused and WritesRefused.
    """
    priority, queue = _target(arguments)
    if name in broker.topics or priority != NORMAL_PRIORITY:
        return queue_of(broker, broker.topic(name), arguments)
    broker.check_new(name)
    if queue is None:
        return -1 if arguments.order_key() is None else 0
    check_queue(name, queue, 1)
    return queue


def _target(arguments: CallArguments) -> tuple[int, int | None]:
    """Return the priority, and the number of the queue if it is given. Raises CallError."""
    priority = arguments.number("priority", NORMAL_PRIORITY, max_value=MAX_PRIORITY)
    if "queue" not in arguments:
        return priority, None
    for name in ("order_key", "order_key_base64", "priority"):
        if name in arguments:
            raise CallError("BAD_ARGUMENT", f"'queue' and {name!r} both choose a queue: give one")
    return priority, arguments.number("queue")


def queue_of(broker: BrokerCore, topic: Topic, arguments: CallArguments) -> int:
    """Return the number of the target queue; -1 for any.

    Raises CallError, NotFound, QueuesRefused and WritesRefused.
    """
    priority, queue = _target(arguments)
    if queue is not None:
        return topic.at_queue(queue).number
    if priority != NORMAL_PRIORITY:
        return broker.queue_of_priority(topic, priority).number
    key = arguments.order_key()
    return -1 if key is None else topic.queue_for_key(key).number
