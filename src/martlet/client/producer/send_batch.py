"""What is sent to a Martlet broker with one SEND, and tried again until it is answered."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Sequence
from itertools import chain
from typing import TYPE_CHECKING, Any

from martlet.client.errors import ConnectionLost, PublishUnclear, Refused
from martlet.client.producer.message import SendOptions
from martlet.client.producer.result import SendResult
from martlet.properties.block import pack_block
from martlet.protocol.nsq import commands
from martlet.put_status import PutStatus

if TYPE_CHECKING:
    from martlet.client.producer.sender import Sender
    from martlet.client.producer.session import ProducerSession


class PendingSend:
    """Messages that are sent together, and the future of the first one's result.

    Attributes:
        topic: where to.
        bodies: the messages'.
        entries: the packed properties of those that have any, by their numbers.
        options: how they are sent.
        size_bytes: what they take in a SEND.
        deadline_s: when to give up, by the event loop's clock.
        is_alone: whether it goes by itself: it is wrong, or what it went with was.
    """

    __slots__ = (
        "bodies",
        "deadline_s",
        "entries",
        "future",
        "is_alone",
        "options",
        "size_bytes",
        "topic",
    )

    def __init__(
        self,
        topic: str,
        bodies: Sequence[bytes],
        entries: Sequence[tuple[int, bytes]],
        options: SendOptions,
        size_bytes: int,
        future: asyncio.Future[SendResult],
        deadline_s: float,
    ) -> None:
        self.topic = topic
        self.bodies = bodies
        self.entries = entries
        self.options = options
        self.size_bytes = size_bytes
        self.future = future
        self.deadline_s = deadline_s
        self.is_alone = False

    @property
    def order_key(self) -> tuple[str, str] | None:
        """The topic and the order key, for those that have one."""
        key = self.options.order_key
        return (self.topic, key) if key else None

    def fail(self, error: Exception) -> None:
        """Tell whoever waits for it, if somebody still does."""
        if not self.future.done():
            self.future.set_exception(error)


class SendBatch:
    """Sendings of one topic, with equal options, that go to a broker with one SEND.

    It is never changed once it was sent: the broker knows it by its number.

    Attributes:
        desk: the broker's.
        sendings: what is in it.
        message_count, size_bytes: of all of them.
        number: its number there.
        is_known: whether the broker is told that number, and so recognises it when it comes again.
        tries: how often it was sent.
        stored: what the broker has answered, where that was not good enough.
    """

    __slots__ = (
        "_first_sent_s",
        "_sender",
        "desk",
        "is_known",
        "message_count",
        "not_before_s",
        "number",
        "sendings",
        "size_bytes",
        "stored",
        "tries",
    )

    def __init__(self, sender: Sender, desk: ProducerSession, sending: PendingSend) -> None:
        self._sender = sender
        self.desk = desk
        self.sendings = [sending]
        self.message_count = len(sending.bodies)
        self.size_bytes = sending.size_bytes
        self.number = 0
        self.is_known = True
        self.tries = 0
        self.stored: SendResult | None = None
        self.not_before_s = 0.0
        """When it may be sent again."""
        self._first_sent_s: float | None = None

    @property
    def is_done(self) -> bool:
        """Whether nobody waits for it any more."""
        return all(each.future.done() for each in self.sendings)

    @property
    def may_be_tried_again(self) -> bool:
        """Whether it was not tried as often as it may be."""
        retries = self.sendings[0].options.retries
        return retries is None or self.tries <= retries

    def add(self, sending: PendingSend) -> None:
        """Take in one more, before it is sent."""
        self.sendings.append(sending)
        self.message_count += len(sending.bodies)
        self.size_bytes += sending.size_bytes

    def go_to(self, desk: ProducerSession) -> None:
        """It is tried at another broker."""
        self.desk = desk
        self.not_before_s = 0.0
        self._first_sent_s = None

    def command(self, now_s: float) -> bytes:
        """The command's bytes."""
        first = self.sendings[0]
        fields = first.options.to_json()
        if self.is_known:
            fields["producer"] = self.desk.producer.hex()
            fields["sequence"] = self.number
            if self._first_sent_s is not None:
                fields["age_ms"] = int((now_s - self._first_sent_s) * 1000) + 1
        self._first_sent_s = self._first_sent_s or now_s
        self.tries += 1
        if len(self.sendings) == 1:
            return commands.send(first.topic, first.bodies, fields, pack_block(first.entries))
        bodies = list(chain.from_iterable([each.bodies for each in self.sendings]))
        entries: list[tuple[int, bytes]] = []
        start = 0
        for each in self.sendings:
            entries += [(start + number, entry) for number, entry in each.entries]
            start += len(each.bodies)
        return commands.send(first.topic, bodies, fields, pack_block(entries))

    def succeed(self, first: SendResult) -> None:
        """Tell everybody who waits where his messages are."""
        start = 0
        for each in self.sendings:
            if not each.future.done():
                each.future.set_result(first.behind(start))
            start += len(each.bodies)

    def fail(self, error: Exception) -> None:
        """Tell everybody who waits, unless it is stored after all."""
        if self.stored is not None:
            self.succeed(self.stored)
            return
        for each in self.sendings:
            each.fail(error)

    # What the connection is told.

    def answered(self, data: bytes) -> None:
        """The broker has answered. Raises PublishUnclear where it is no answer to a SEND."""
        name = self.desk.name
        try:
            fields: dict[str, Any] = json.loads(data)
            status = fields["status"]
            result = None
            if status in _STORED:
                offset, id = fields["offset"], fields["id"]
                result = SendResult(
                    PutStatus(status),
                    int(fields["queue"]),
                    None if offset is None else int(offset),
                    None if id is None else str(id).encode(),
                    name,
                    bool(fields.get("duplicate")),
                )
        except (ValueError, LookupError, TypeError, RecursionError):
            error = PublishUnclear(f"{name} answered a send with {data[:80]!r}")
            self._sender.settled(self)
            self.fail(error)
            raise error from None
        if result is not None:
            self._sender.is_stored(self, result)
        else:
            self._sender.refused(self, Refused(str(status), str(fields.get("text", ""))))

    def refused(self, error: Refused) -> None:
        """The broker took it for a mistake, and hangs up."""
        self._sender.is_wrong(self, error)

    def lost(self, error: ConnectionLost) -> None:
        """Nobody knows whether the broker has stored it."""
        self._sender.lost(self, error)


_STORED = frozenset(PutStatus)
