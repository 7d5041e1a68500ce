"""The event log: the actions of clients and operators, in the words of nsqd's log lines.

Operators grep for these lines and count them, so each has nsqd's text where the same thing
happens::

    TOPIC(orders): created
    TOPIC(orders): new channel(mail)
    TCP: new client(127.0.0.1:41966)
    CLIENT(127.0.0.1:41966): desired protocol magic '  V2'
    [127.0.0.1:41966] IDENTIFY: {ClientID:a Hostname:b HeartbeatInterval:30000 ...}
    [127.0.0.1:41966] - E_INVALID invalid command BAD
    client(127.0.0.1:41966) - E_INVALID invalid command BAD
    PROTOCOL(V2): [127.0.0.1:41966] exiting ioloop

A client whose FINs, REQs or TOUCHs come too late by the thousand gets all its errors; beyond a
hundred a second, only their count is logged. Topics and channels that a start restores from the log
have no lines, since they are not new.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import TYPE_CHECKING

from martlet.text import SECOND_NS, counted

if TYPE_CHECKING:
    from martlet.broker.broker import BrokerCore
    from martlet.broker.channel.channel import Channel
    from martlet.broker.dead_letters.dead_letter import MessageMove
    from martlet.broker.retention.eviction import Evicted
    from martlet.broker.topic.topic import Topic
    from martlet.broker.transactions.state import OpenTransaction
    from martlet.protocol.nsq.v2 import ProtocolError

_NAMED = 5
"""The maximum number of channels named in one line, those first that lost most."""
_IDENTIFY: Mapping[str, tuple[str, object]] = {
    "ClientID": ("client_id", ""),
    "Hostname": ("hostname", ""),
    "HeartbeatInterval": ("heartbeat_interval", 0),
    "OutputBufferSize": ("output_buffer_size", 0),
    "OutputBufferTimeout": ("output_buffer_timeout", 0),
    "FeatureNegotiation": ("feature_negotiation", False),
    "TLSv1": ("tls_v1", False),
    "Deflate": ("deflate", False),
    "DeflateLevel": ("deflate_level", 0),
    "Snappy": ("snappy", False),
    "SampleRate": ("sample_rate", 0),
    "UserAgent": ("user_agent", ""),
    "MsgTimeout": ("msg_timeout", 0),
}
"""The fields in nsqd's order and under the names that it logs: their key, and their default."""


MAX_REFUSALS = 100
"""The maximum number of refusals of one client logged within a second; more are only counted."""


class _Refusals:
    """The number of refusals until a time."""

    __slots__ = ("count", "until_ns")

    def __init__(self, until_ns: int) -> None:
        self.count = 0
        self.until_ns = until_ns


class EventLog:
    """Write the lines."""

    def __init__(self, broker: BrokerCore, log: logging.Logger) -> None:
        self._broker = broker
        self._log = log
        self._refusals: dict[str, _Refusals] = {}
        """The refusals of each connected client that had any."""
        self._refusing_since_ns: int | None = None
        self._refused_before = 0

    # topics and channels

    def topic_changed(self, topic: Topic) -> None:
        """Log that a topic was created or deleted."""
        there = self._broker.topics.get(topic.name) is topic
        self._log.info("TOPIC(%s): %s", topic.name, "created" if there else "deleting")

    def topic_grown(self, topic: Topic) -> None:
        """Log that a topic has more queues."""
        self._log.info("TOPIC(%s): has %s now", topic.name, counted(len(topic.at_queues), "queue"))

    def channel_changed(self, topic: Topic, channel: Channel) -> None:
        """Log that a channel was created or deleted, by itself or with its topic."""
        if topic.channels.get(channel.name) is channel:
            self._log.info("TOPIC(%s): new channel(%s)", topic.name, channel.name)
            return
        if self._broker.topics.get(topic.name) is topic:
            self._log.info("TOPIC(%s): deleting channel %s", topic.name, channel.name)
        self._log.info("CHANNEL(%s): deleting", channel.name)

    def set_aside(self, transaction: OpenTransaction, why: str) -> None:
        """Log that an undecided transaction waits for an operator."""
        self._log.warning(
            "TRANSACTION: %s of group %r, with %s, waits for an operator: %s; topic %s shows them,"
            " and 'martlet transactions' commits it or rolls it back",
            transaction.id,
            transaction.group,
            counted(transaction.message_count, "message"),
            why,
            self._broker.transactions.limits.aside_topic,
        )

    def abandoned(self, transaction: OpenTransaction, why: str) -> None:
        """Log that a transaction was rolled back, since its producer did not answer."""
        self._log.info(
            "TRANSACTION: %s, with %s, is rolled back: %s",
            transaction.id,
            counted(transaction.message_count, "message"),
            why,
        )

    def evicted(self, evicted: Evicted) -> None:
        """Log that a segment with unfinished messages was removed to free space."""
        lost = [
            (len(offsets), loss.name_of(channel))
            for loss in evicted.losses
            for channel, offsets in loss.unfinished.items()
            if len(offsets)
        ]
        named = ", ".join(f"{name} {count}" for count, name in sorted(lost, reverse=True)[:_NAMED])
        self._log.warning(
            "LOG: the disk is full: the oldest segment, of %d bytes, has gone with %s not"
            " finished: %s%s",
            evicted.segment_bytes,
            counted(sum(len(loss.offsets) for loss in evicted.losses), "message"),
            named,
            f" and {counted(len(lost) - _NAMED, 'more channel')}" if len(lost) > _NAMED else "",
        )

    def transfer_refused(self, transfer: MessageMove, error: Exception) -> None:
        """Log that a message, usually a dead letter, could not be moved."""
        channel = transfer.channel
        self._log.error(
            "LOG: message %s of topic %s, channel %s, cannot be moved to another topic: %s; %s",
            channel.queue.message_id(transfer.offset).decode(),
            channel.topic,
            channel.name,
            error,
            "it stays, and is tried again every 5 s, as are those after it"
            if transfer.insists
            else "it stays where it is",
        )

    # the disk

    def write_refused(self, reason: str) -> None:
        """Log that the log refuses messages: once, until `check_for_room` logs the end of it."""
        log = self._broker.log
        if log.refusal is not None and log.failed is None:
            return  # The replica logs it, whether it was planned or not.
        if self._refusing_since_ns is None:
            self._refusing_since_ns = self._broker.clock()
            self._refused_before = log.refused_count - 1
            self._log.error("LOG: messages are refused: %s", reason)

    def check_for_room(self) -> None:
        """Log that messages are accepted again, if they were refused and there is space now."""
        log = self._broker.log
        if self._refusing_since_ns is not None and log.full is None and log.failed is None:
            refused_s = (self._broker.clock() - self._refusing_since_ns) / SECOND_NS
            self._refusing_since_ns = None
            self._log.info(
                "LOG: messages are accepted again: %s had been refused in %.1f s",
                counted(log.refused_count - self._refused_before, "write"),
                refused_s,
            )

    # clients

    def opened(self, address: str) -> None:
        """Log a new client."""
        self._log.info("TCP: new client(%s)", address)

    def greeted(self, address: str, magic: bytes, expected: bytes) -> None:
        """Log the protocol that a client speaks."""
        text = magic.decode("utf-8", "backslashreplace")
        self._log.info("CLIENT(%s): desired protocol magic '%s'", address, text)
        if magic != expected:
            self._log.error("client(%s) bad protocol magic '%s'", address, text)

    def said_nothing(self, address: str, *, is_spliced: bool) -> None:
        """Log that a connection ends before the client has named its protocol.

        A standby ends a spliced one at each change of the primary, and keeps its client.
        """
        if is_spliced:
            self._log.info("CLIENT(%s): the standby that it is at no longer splices it", address)
        else:
            self._log.error("failed to read protocol version - EOF")

    def identified(self, address: str, fields: Mapping[str, object]) -> None:
        """Log a client's IDENTIFY."""
        if self._log.isEnabledFor(logging.INFO):
            shown = " ".join(
                f"{name}:{_shown(fields.get(key, default))}"
                for name, (key, default) in _IDENTIFY.items()
            )
            self._log.info("[%s] IDENTIFY: {%s}", address, shown)

    def refused(self, address: str, error: ProtocolError) -> None:
        """Log an error answered to a client, and the disconnection by a fatal one."""
        if not error.fatal and self._are_too_many(address):
            return
        self._log.error("[%s] - %s", address, error)
        if error.fatal:
            self._log.error("client(%s) - %s", address, error)

    def dropped(self, address: str, topic: str, error: Exception) -> None:
        """Log refused messages whose client wants no answer."""
        if not self._are_too_many(address):
            self._log.error("[%s] - what was sent to %s is dropped: %s", address, topic, error)

    def shortened(self, address: str, delay_ns: int, max_ns: int) -> None:
        """Log that the delay of a client's REQ exceeds the limit."""
        if self._are_too_many(address):
            return
        text = "PROTOCOL(V2): [%s] REQ timeout %d out of range 0-%d. Setting to %d"
        self._log.info(text, address, delay_ns, max_ns, max_ns)

    def _are_too_many(self, address: str) -> bool:
        """Return whether a refusal is only counted, since the client had too many lately."""
        now_ns = self._broker.clock()
        refusals = self._refusals.get(address)
        if refusals is None or now_ns >= refusals.until_ns:
            self._log_suppressed(address)
            self._refusals[address] = refusals = _Refusals(now_ns + SECOND_NS)
        refusals.count += 1
        return refusals.count > MAX_REFUSALS

    def _log_suppressed(self, address: str) -> None:
        refusals = self._refusals.pop(address, None)
        if refusals is not None and refusals.count > MAX_REFUSALS:
            unlogged = refusals.count - MAX_REFUSALS
            self._log.error("[%s] - %d more lines like these, not logged each", address, unlogged)

    def unreadable(self, address: str, error: Exception) -> None:
        """Log input that is no command at all."""
        self._log.error("client(%s) - failed to read command - %s", address, error)

    def closed(self, address: str, error: Exception | None) -> None:
        """Log the end of a client that spoke the protocol."""
        self._log_suppressed(address)
        self._log.info("PROTOCOL(V2): [%s] exiting ioloop", address)
        if error is not None:
            self.unreadable(address, error)


def _shown(value: object) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)
