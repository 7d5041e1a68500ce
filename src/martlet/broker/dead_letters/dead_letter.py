"""Dead letters, and the moves of messages from their channel to another topic.

A message of a channel that has failed too often moves to the channel's dead-letter topic, which is
like any other, so that any consumer can work through it.  The broker creates it with the first dead
letter, and in it a channel `CHANNEL`, which keeps the unhandled ones: finishing a message there
handles it, and the channel's depth is the number of messages left.  A dead letter has the body and
the properties of the original message, and these properties of the broker::

    dead_reason        the reason: see `DeadLetterReason`
    dead_attempts      the number of deliveries
    dead_failures      the number of failures, the last one included
    dead_first_error   the consumer's error text at the first and the last failure, if it
    dead_last_error    sent any: NSQ's REQ cannot, Martlet's clients do
    dead_topic, dead_channel, dead_queue, dead_offset, dead_id      the original message
    dead_stored_ms     when that was published, in ms since 1970
    dead_at_ms         when it became a dead letter, in ms since 1970
    dead_redrives      the number of redrives before
    dead_before        the topics in which it failed before it came to dead_topic, the oldest first
    dead_instead_of    the topic that it was to go to, where that would have begun a cycle

It moves at least once: it is first appended to the target topic, and finished in its channel once
it is as safe there as a publish that was answered OK::

    in the channel        held, without a consumer  -> appended, waits for a flush -> finished
    in the target         not there                    there                          there
    after a crash here    the channel has it           both have it, or the channel   moved

If it cannot be appended, because the disk is full or a limit is reached, it stays in its channel:
held until the append succeeds, or put back.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, replace
from hashlib import sha256
from typing import TYPE_CHECKING

from martlet.broker.errors import WritesRefused
from martlet.broker.tracing.recorder import TraceStep
from martlet.log.record import FRAME_HEADER_BYTES
from martlet.names import EPHEMERAL, MAX_NAME_LENGTH, is_ephemeral
from martlet.properties.model import BadProperties, Properties

if TYPE_CHECKING:
    from collections.abc import Mapping

    from martlet.broker.queue.channel_state import ChannelState
    from martlet.broker.queue.queue_log import Receipt
    from martlet.broker.retry import DeadLetterReason
    from martlet.broker.topic.topic import Topic, TopicRegistry

CHANNEL = "dead-letters"
"""The channel of a dead-letter topic that holds the unhandled messages."""
_SUFFIX = ".dead"
_PREFIX = "dead_"
_MILLISECOND_NS = 1_000_000
MAX_MOVES = 8
"""How many topics a message may fail in, one after the other, by its channels' policies."""


def default_name(topic: str, channel: str) -> str:
    """Return the default dead-letter topic of a channel: ``<topic>.<channel>.dead``.

    Unique for each channel: a name that would be too long, or ambiguous because the topic's name
    contains a dot, or ephemeral, is shortened and gets a hash of both names.
    """
    plain = f"{topic}.{channel}{_SUFFIX}"
    ephemeral = is_ephemeral(topic) or is_ephemeral(channel)
    if "." not in topic and not ephemeral and len(plain) <= MAX_NAME_LENGTH:
        return plain
    digest = sha256(f"{topic}:{channel}".encode()).hexdigest()[:8]
    names = f"{topic.removesuffix(EPHEMERAL)}.{channel.removesuffix(EPHEMERAL)}"
    return f"{names[: MAX_NAME_LENGTH - len(_SUFFIX) - 9]}.{digest}{_SUFFIX}"


@dataclass(frozen=True, slots=True)
class DeadLetterInfo:
    """The history of a message that becomes a dead letter."""

    reason: DeadLetterReason
    attempts: int
    """The number of deliveries."""
    errors: tuple[str, str]
    """The error texts of the first and the last failure; empty for none."""
    at_ns: int
    failures: int = 0


def dead_letter_topic(channel: ChannelState) -> str:
    """Return the name of a channel's dead-letter topic."""
    return channel.policy.dead_letter_topic or default_name(channel.topic, channel.name)


def target_of(channel: ChannelState, entry: bytes) -> str:
    """Return the name of the topic that a message with those properties goes to when it fails."""
    return acyclic_target(entry, channel.topic, channel.name, dead_letter_topic(channel))


def acyclic_target(entry: bytes, topic: str, channel: str, configured: str) -> str:
    """Return the topic that a message goes to when it fails in a channel.

    It is the configured one, unless the message has failed there before, or in too many topics;
    then it is the channel's default one, where it stays. So no cycle of dead-letter topics moves a
    message on without end.
    """
    path = _path(entry)
    if configured not in (*path, topic) and len(path) < MAX_MOVES:
        return configured
    name = default_name(topic, channel)
    while name in path:
        name = default_name(name, CHANNEL)
    return name


def _path(entry: bytes) -> list[str]:
    """Return the topics in which a dead letter has failed before, the oldest first."""
    notes = _unpacked(entry).system if entry else {}
    return [*notes.get("dead_before", "").split(), *notes.get("dead_topic", "").split()]


def dead_letter_properties(
    entry: bytes,
    death: DeadLetterInfo,
    origin: Mapping[str, str | int],
    stored_at_ns: int,
    configured: str,
) -> bytes:
    """Pack the properties of a dead letter.

    Args:
        entry: the message's packed properties.
        origin: ``topic``, ``channel``, ``queue``, ``offset`` and ``id`` of the message.
        stored_at_ns: when it was published.
        configured: the dead-letter topic of its channel.
    """
    first, last = death.errors
    topic, channel = str(origin["topic"]), str(origin["channel"])
    is_kept = acyclic_target(entry, topic, channel, configured) != configured
    facts: dict[str, str | int] = {
        "reason": death.reason,
        "attempts": death.attempts,
        "failures": death.failures or death.attempts,
        "first_error": first,
        "last_error": last,
        **origin,
        "stored_ms": stored_at_ns // _MILLISECOND_NS,
        "at_ms": death.at_ns // _MILLISECOND_NS,
        "before": " ".join(_path(entry)[-MAX_MOVES:]),
        "instead_of": configured if is_kept else "",
    }
    notes = {_PREFIX + name: str(value) for name, value in facts.items() if value != ""}
    return _with_notes(entry, notes)


def redriven_properties(entry: bytes) -> bytes:
    """Pack the properties of the original message, and the number of redrives."""
    properties = _unpacked(entry)
    notes = {"dead_redrives": str(int(properties.system.get("dead_redrives", "0")) + 1)}
    if "dead_id" in properties.system:
        notes["redriven_id"] = properties.system["dead_id"]
    return _with_notes(entry, notes)


def _with_notes(entry: bytes, notes: Mapping[str, str]) -> bytes:
    """Replace the broker's notes in properties, and remove the mark of a send."""
    properties = _unpacked(entry)
    system = {n: v for n, v in properties.system.items() if not n.startswith(_PREFIX)}
    if "dead_redrives" in properties.system:
        system["dead_redrives"] = properties.system["dead_redrives"]
    own = replace(properties, sent=None, system={}).pack()
    # Packed apart: the client's own properties may fill the size limit already.
    return own + Properties(system={**system, **notes}).pack()


def _unpacked(entry: bytes) -> Properties:
    try:
        return Properties.unpack(entry)
    except BadProperties:
        return Properties()


_AT_ONCE = 200
_BYTES_AT_ONCE = 1 << 20
"""Messages appended in one turn of the loop."""
_AGAIN_NS = 5_000_000_000
"""The interval between retries of a refused append."""
_STORED_AT = 8
"""The offset of the timestamp in a frame."""


@dataclass(slots=True, eq=False)
class MessageMove:
    """A message on its way from a channel."""

    channel: ChannelState
    offset: int
    attempts: int
    """The number of deliveries in the channel."""
    to: Callable[[bytes], Topic]
    """Returns the target topic for its properties, created if it is new. Raises WritesRefused."""
    pack: Callable[[bytes, int], bytes]
    """Returns its new properties, from its former ones and the time when it was stored."""
    only: ChannelState | None = None
    """The only channel of the target that gets it; None for all."""
    insists: bool = True
    """Whether a refused append is retried; else the message is put back."""
    on_end: Callable[[WritesRefused | None], None] = lambda error: None
    """Called with None when it is finished in its channel; with an error if it stays there, or was
    deleted from there meanwhile.
    """
    receipt: Receipt | None = None
    """Set when it is staged."""
    failures: int = 0
    """The number of failures, if higher than the channel's own count."""


@dataclass(slots=True)
class _Load:
    """Messages for one target: the moves, their bodies, and properties by number."""

    transfers: list[MessageMove]
    bodies: list[bytes]
    entries: list[tuple[int, bytes]]


class MessageMover:
    """All messages on their way."""

    def __init__(self, topics: TopicRegistry) -> None:
        self.waits_for_flush = False
        """Whether a publish is answered OK only when it is durable."""
        self.on_written: Callable[[], None] = lambda: None
        """Called when messages were appended that wait for a flush."""
        self.on_refused: Callable[[MessageMove, WritesRefused], None] = lambda transfer, error: None
        """Called with the first of several consecutive refusals."""
        self._topics = topics
        self._waiting: deque[MessageMove] = deque()
        self._written: deque[MessageMove] = deque()
        self._alarm = topics.schedule.alarm(self._run)
        self._refused = False

    def __len__(self) -> int:
        return len(self._waiting) + len(self._written)

    def begin(self, transfer: MessageMove) -> None:
        """Move a message that no consumer holds, in a later turn of the loop."""
        transfer.channel.moving.add(transfer.offset, transfer.attempts, transfer.failures)
        self._waiting.append(transfer)
        self._alarm.at(self._topics.clock())

    def move_to_dead_letters(
        self,
        channel: ChannelState,
        offset: int,
        attempts: int,
        failures: int,
        reason: DeadLetterReason,
    ) -> None:
        """Move a message that no consumer holds to its channel's dead-letter topic."""
        topics, cursor, now_ns = self._topics, channel.cursor, self._topics.wall()
        if channel.recorder is not None:
            try:
                name = target_of(channel, cursor.properties(offset))
            except OSError:
                name = dead_letter_topic(channel)  # The move reads it again.
            channel.recorder.note(
                *(TraceStep.GIVEN_UP, offset, offset + 1, now_ns, None, attempts, 0),
                f"{reason} -> {name}",
            )
        errors = cursor.pending.errors.get(offset, ("", ""))
        death = DeadLetterInfo(reason, attempts, errors, now_ns, failures)
        origin: dict[str, str | int] = {
            "topic": channel.topic,
            "channel": channel.name,
            "queue": cursor.queue.number,
            "offset": offset,
            "id": cursor.queue.message_id(offset).decode(),
        }

        def pack(entry: bytes, stored_at_ns: int) -> bytes:
            configured = dead_letter_topic(channel)
            return dead_letter_properties(entry, death, origin, stored_at_ns, configured)

        def opened(entry: bytes) -> Topic:
            topic = topics.topic(target_of(channel, entry))
            topic.channel(CHANNEL)
            return topic.next_queue()

        def count(error: WritesRefused | None) -> None:
            channel.dead_letter_count += error is None

        self.begin(
            MessageMove(channel, offset, attempts, opened, pack, on_end=count, failures=failures)
        )

    def append_again(self, channel: ChannelState, offset: int, attempts: int) -> None:
        """Move a due message to the end of its queue, for its channel alone."""

        def to(_entry: bytes) -> Topic:
            return self._topics.topic(channel.topic).at_queue(channel.queue.number)

        self.begin(MessageMove(channel, offset, attempts, to, _without_mark, only=channel))

    def _run(self, now_ns: int) -> int | None:
        """Append some of the waiting messages. Returns when to run again."""
        self.settle()
        failures: list[BaseException] = []
        blocked = self._append(failures)
        self._topics.commit()
        self.settle()
        if self._written:
            self.on_written()
        if failures:
            raise failures[0]
        if not self._waiting:
            return None
        return now_ns + _AGAIN_NS if blocked or self._refused else now_ns

    def _append(self, failures: list[BaseException]) -> bool:
        """Append the first waiting messages. Returns whether some cannot be read at the moment.
        Other errors are added to `failures`, and the messages concerned are retried.
        """
        loads: dict[tuple[Topic, ChannelState | None], _Load] = {}
        refused: list[tuple[MessageMove, WritesRefused]] = []
        again: list[MessageMove] = []
        is_blocked = False
        left_bytes = _BYTES_AT_ONCE
        for _ in range(min(_AT_ONCE, len(self._waiting))):
            transfer = self._waiting.popleft()
            try:
                left_bytes -= self._load(transfer, loads)
            except OSError:
                again.append(transfer)  # The index is unreadable, as with too many open files.
                is_blocked = True
            except WritesRefused as error:
                refused.append((transfer, error))
            except BaseException as error:
                again.append(transfer)
                failures.append(error)
            if left_bytes <= 0:
                break
        for (topic, only), load in loads.items():
            try:
                receipt = topic.stage(
                    load.bodies, -only.id if only is not None else 0, load.entries
                )
            except BaseException as error:
                again += load.transfers
                failures.append(error)
                continue
            for transfer in load.transfers:
                transfer.receipt = receipt
                self._written.append(transfer)
        for transfer, why in refused:
            self._refuse(transfer, why)
        self._waiting += again
        return is_blocked

    def _load(
        self, transfer: MessageMove, loads: dict[tuple[Topic, ChannelState | None], _Load]
    ) -> int:
        """Read a message, and add it to the others with the same target. Returns its size."""
        channel, offset = transfer.channel, transfer.offset
        if not channel.moving.holds(offset):
            # Emptied, deleted, set back, or dropped to free space.
            transfer.on_end(WritesRefused("the channel has it no more"))
            return 0
        ((_, frame, properties),) = channel.cursor.messages((offset,), with_properties=True)
        if frame is None:
            channel.moving.finish(offset)
            transfer.on_end(WritesRefused("the message cannot be read any more"))
            return 0
        stored_at_ns = int.from_bytes(frame[_STORED_AT : _STORED_AT + 8])
        entry = transfer.pack(properties, stored_at_ns)
        to, only = transfer.to(properties), transfer.only
        if self._topics.queues.get(to.id) is not to or (only is not None and only.closed):
            # No channel would get it there.
            channel.moving.put_back(offset, transfer.attempts)
            gone = f"the channel {only.name!r} of it" if only is not None else "it"
            why = f"it was to go to topic {to.name!r}, and {gone} was deleted meanwhile"
            transfer.on_end(WritesRefused(why))
            return 0
        load = loads.setdefault((to, only), _Load([], [], []))
        if entry:
            load.entries.append((len(load.bodies), entry))
        load.bodies.append(bytes(frame[FRAME_HEADER_BYTES:]))
        load.transfers.append(transfer)
        return len(frame) + len(entry)

    def settle(self) -> None:
        """Finish messages in their channels that are safe in their targets."""
        for _ in range(len(self._written)):
            transfer = self._written.popleft()
            receipt = transfer.receipt
            assert receipt is not None
            if receipt.error is not None:
                self._refuse(transfer, receipt.error)
            elif receipt.position and self._is_safe(receipt.position):
                self._refused = False
                self._topics.relocated_position = max(
                    self._topics.relocated_position, receipt.position
                )
                if transfer.channel.moving.holds(transfer.offset):
                    transfer.channel.moving.finish(transfer.offset)
                transfer.on_end(None)
            else:
                self._written.append(transfer)

    def _is_safe(self, position: int) -> bool:
        return not self.waits_for_flush or position <= self._topics.log.durable_position

    def _refuse(self, transfer: MessageMove, error: WritesRefused) -> None:
        if not self._refused:
            self._refused = True
            self.on_refused(transfer, error)
        transfer.receipt = None
        if transfer.insists:
            self._waiting.append(transfer)
            return
        if transfer.channel.moving.holds(transfer.offset):
            transfer.channel.moving.put_back(transfer.offset, transfer.attempts)
        transfer.on_end(error)


def _without_mark(entry: bytes, stored_at_ns: int) -> bytes:
    """Return the properties of a message without the mark of a producer's send."""
    if not entry:
        return entry
    try:
        return replace(Properties.unpack(entry), sent=None).pack()
    except BadProperties:
        return b""
