"""Sends to Martlet brokers: gathered, numbered, tried again, and answered with where they are.

::

    send -> waiting -> parcel, numbered at a desk -> answered: done
              |               ^          |
         held, while          +- again --+  the connection was lost, or the broker could not store
         its order key is             |
         on its way                   +-> another broker, if that is asked for, by another number

What waits with the same topic and options goes as one SEND.  A parcel keeps its number at a broker
and what is in it, so that the broker recognises it: tried again there it is stored exactly once.
At another broker it is another send, and may be stored twice.

Messages with an order key wait for those before them that have the same key to be answered: what is
sent in one go keeps its order, whatever has to be tried again.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Iterator
from itertools import chain

from martlet.client.errors import (
    Closed,
    ConnectionLost,
    NotSupported,
    ProducerFull,
    PublishLost,
    PublishRefused,
    PublishTimeout,
    PublishUnclear,
    Refused,
)
from martlet.client.producer.accumulator import MAY_BE_ANOTHERS_FAULT, MAY_PASS
from martlet.client.producer.broker_link import BrokerLink
from martlet.client.producer.broker_pool import BrokerPool
from martlet.client.producer.limits import Limits
from martlet.client.producer.result import SendResult
from martlet.client.producer.routing import home
from martlet.client.producer.send_batch import PendingSend, SendBatch
from martlet.client.producer.session import ProducerSession
from martlet.client.transport.backoff import Backoff
from martlet.properties.block import pack_block
from martlet.protocol.nsq import commands
from martlet.put_status import PutStatus

MAY_DO_LATER = frozenset({"REFUSED", "TRY_AGAIN"})
"""Of the broker at the moment, such as a full disk."""
MAY_BE_STORED = "TOO_OLD"
_BACKOFF = Backoff(max_s=1.0)


class Sender:
    """The sends of a producer.

    Args:
        pool: its brokers.
        limits: how much is sent at once.
        is_idempotent: whether a send that is tried again is to be recognised.
        tries_others: whether what a broker could not do is tried at another.
    """

    def __init__(
        self, pool: BrokerPool, limits: Limits, *, is_idempotent: bool, tries_others: bool
    ) -> None:
        self.pending_messages = 0
        self.pending_bytes = 0
        self.retried_count = 0
        self.timed_out_count = 0
        self.stored_count = 0
        self._pool = pool
        self._limits = limits
        self._is_idempotent = is_idempotent
        self._tries_others = tries_others
        self._waiting: deque[PendingSend] = deque()
        self._held: dict[tuple[str, str], deque[PendingSend]] = {}
        """What waits for others with its order key, by topic and key; for those on their way."""
        self._desks: dict[BrokerLink, ProducerSession] = {}
        self._turn = 0
        self._timer: asyncio.TimerHandle | None = None
        self._look: asyncio.TimerHandle | None = None

    def _sendings(self) -> Iterator[PendingSend]:
        yield from self._waiting
        yield from chain.from_iterable(self._held.values())
        for desk in self._desks.values():
            for parcel in desk.unanswered.values():
                yield from parcel.sendings

    def unanswered(self) -> list[PendingSend]:
        """All that have no answer yet."""
        return [each for each in self._sendings() if not each.future.done()]

    def add(self, sending: PendingSend) -> None:
        """Send this."""
        self.pending_messages += len(sending.bodies)
        self.pending_bytes += sending.size_bytes
        sending.future.add_done_callback(lambda _future: self._settle(sending))
        self._waiting.append(sending)
        self._expire_at(sending.future.get_loop(), sending.deadline_s)
        self._pool.flush_soon()

    def _settle(self, sending: PendingSend) -> None:
        self.pending_messages -= len(sending.bodies)
        self.pending_bytes -= sending.size_bytes

    def send_oneway(self, sending: PendingSend) -> None:
        """Write it to a broker that takes it now, and expect no answer.

        Raises:
            ConnectionLost, NotSupported: there is none.
            ProducerFull: none reads as fast as that.
        """
        desks = self._connected()
        ready = [desk for desk in desks if desk.can_send]
        if not ready:
            if desks:
                raise ProducerFull("the broker does not read as fast as messages are sent to it")
            raise ConnectionLost(f"nothing was sent: {self._pool.trouble}")
        desk = self._chosen(ready, sending)
        assert desk is not None
        assert desk.link.connection is not None
        fields = sending.options.to_json() | {"oneway": True}
        desk.link.connection.write(
            commands.send(sending.topic, sending.bodies, fields, pack_block(sending.entries))
        )

    # Sending.

    def _connected(self) -> list[ProducerSession]:
        """The desks at brokers that are connected, and know what SEND is.

        Raises:
            NotSupported: none of those that are connected does.
        """
        links = self._pool.links
        desks = []
        others = []
        for link in links:
            connection = link.connection
            if connection is None:
                continue
            if not connection.features.extensions:
                others.append(link.lane.name)
                continue
            desk = self._desks.get(link)
            if desk is None:
                desk = self._desks[link] = ProducerSession(link)
            connection.on_writable = self._pool.flush_soon
            desks.append(desk)
        if others and not desks and not self._desks:
            raise NotSupported(
                f"{', '.join(others)}: no Martlet broker, and only those take messages with"
                " properties or tell where they are stored: publish() without them works"
            )
        return desks

    def flush(self) -> None:
        """Send what may be sent now."""
        if not self._waiting and not any(desk.again for desk in self._desks.values()):
            return
        try:
            desks = self._connected()
        except NotSupported as error:
            self.fail_all(error)
            return
        self._give_up_lost_desks()
        now_s = asyncio.get_running_loop().time()
        ready = [desk for desk in desks if desk.can_send]
        for desk in ready:
            self._send_again(desk, now_s)
        for parcel in self._pack([desk for desk in ready if desk.has_room]):
            self._send(parcel, now_s)

    def _send(self, parcel: SendBatch, now_s: float) -> None:
        connection = parcel.desk.link.connection
        assert connection is not None
        if parcel.tries:
            self.retried_count += parcel.message_count
        connection.send(parcel.command(now_s), parcel)

    def _send_again(self, desk: ProducerSession, now_s: float) -> None:
        while desk.again:
            parcel = desk.again[0]
            if parcel.is_done:
                desk.again.popleft()
                self.settled(parcel)
                continue
            if parcel.not_before_s > now_s:
                self._look_at(parcel.not_before_s)
                return
            desk.again.popleft()
            self._send(parcel, now_s)

    def _pack(self, desks: list[ProducerSession]) -> list[SendBatch]:
        packed: list[SendBatch] = []
        growing: dict[object, SendBatch] = {}
        waiting = self._waiting
        while waiting and desks:
            sending = waiting[0]
            if sending.future.done():
                waiting.popleft()
                continue
            key = sending.order_key
            group = (sending.topic, sending.options)
            parcel = growing.get(group)
            if (
                parcel is not None
                and not sending.is_alone
                and parcel.size_bytes + sending.size_bytes <= self._limits.command_bytes
            ):
                parcel.add(waiting.popleft())
                continue
            if key is not None and key in self._held:
                self._held[key].append(waiting.popleft())
                continue
            desk = self._chosen(desks, sending)
            if desk is None:
                break
            parcel = self._numbered(desk, waiting.popleft())
            if sending.is_alone:
                growing.pop(group, None)
            else:
                growing[group] = parcel
            if key is not None:
                self._held[key] = deque()
            packed.append(parcel)
            if not desk.has_room:
                desks.remove(desk)
        return packed

    def _numbered(self, desk: ProducerSession, sending: PendingSend) -> SendBatch:
        parcel = SendBatch(self, desk, sending)
        parcel.is_known = self._is_idempotent
        parcel.number = desk.take(parcel)
        return parcel

    def _chosen(self, desks: list[ProducerSession], sending: PendingSend) -> ProducerSession | None:
        """The home of an order key, or who has least to answer; None where that one is busy."""
        key = sending.order_key
        if key is not None and len(self._pool.links) > 1:
            lane = home([link.lane for link in self._pool.links if link in self._desks], key)
            return next((desk for desk in desks if desk.lane is lane), None)
        self._turn += 1
        desk = min(desks, key=lambda each: (each.size_bytes, each.turn))
        desk.turn = self._turn
        return desk

    # What becomes of it.

    def settled(self, parcel: SendBatch) -> None:
        """A parcel is done with."""
        parcel.desk.drop(parcel)
        key = parcel.sendings[0].order_key
        if key is not None:
            self._waiting.extendleft(reversed(self._held.pop(key, ())))
        if self._waiting:
            self._pool.flush_soon()

    def is_stored(self, parcel: SendBatch, result: SendResult) -> None:
        """The broker has stored it, if not as safely as was wanted."""
        if result.status is not PutStatus.OK and self._tries_others:
            parcel.stored = result
            if parcel.may_be_tried_again and self._pass_on(parcel):
                return
        self.stored_count += parcel.message_count
        self.settled(parcel)
        parcel.succeed(result)

    def refused(self, parcel: SendBatch, error: Refused) -> None:
        """The broker has not stored it; it may do so later."""
        if error.code in MAY_DO_LATER and parcel.may_be_tried_again:
            self._try_again(parcel, _BACKOFF.delay_s(parcel.tries))
            return
        self.settled(parcel)
        if error.code == MAY_BE_STORED:
            parcel.fail(PublishUnclear(f"{parcel.desk.name}: {error}"))
        else:
            parcel.fail(PublishRefused(error.code, error.text))

    def is_wrong(self, parcel: SendBatch, error: Refused) -> None:
        """The broker took it for a mistake: it is not stored, and the connection is lost."""
        if error.code == MAY_PASS and parcel.may_be_tried_again:
            self._try_again(parcel, _BACKOFF.delay_s(parcel.tries))
            return
        alone = error.code in MAY_BE_ANOTHERS_FAULT and len(parcel.sendings) > 1
        self.settled(parcel)
        if not alone:
            parcel.fail(PublishRefused(error.code, error.text))
            return
        # One at a time: the others are stored then.  They wait for numbers as everything does, of
        # which the broker knows so many and no more.
        for sending in reversed(parcel.sendings):
            sending.is_alone = True
            self._waiting.appendleft(sending)
        self._pool.flush_soon()

    def lost(self, parcel: SendBatch, error: ConnectionLost) -> None:
        """Nobody knows whether the broker has stored it."""
        if isinstance(error.__cause__, Refused):
            # The broker hung up on what was sent before it.
            parcel.tries -= 1
        if parcel.is_done:
            self.settled(parcel)
        elif parcel.may_be_tried_again:
            self._try_again(parcel, 0.0)
        else:
            self.settled(parcel)
            parcel.fail(PublishLost(f"sent {parcel.tries} times, and not answered: {error}"))

    def _try_again(self, parcel: SendBatch, delay_s: float) -> None:
        if self._tries_others and self._pass_on(parcel):
            return
        parcel.not_before_s = asyncio.get_running_loop().time() + delay_s
        parcel.desk.keep(parcel)
        self._pool.flush_soon()

    def _pass_on(self, parcel: SendBatch) -> bool:
        """Send it to another broker, by another number. False where there is none."""
        try:
            others = [desk for desk in self._connected() if desk is not parcel.desk]
        except NotSupported:
            return False
        others = [desk for desk in others if desk.can_send and desk.has_room]
        if not others:
            return False
        desk = min(others, key=lambda each: each.size_bytes)
        parcel.desk.drop(parcel)
        parcel.go_to(desk)
        parcel.number = desk.take(parcel)
        desk.again.append(parcel)
        self._pool.flush_soon()
        return True

    def _give_up_lost_desks(self) -> None:
        """Brokers that are known to nobody any more take nothing."""
        links = set(self._pool.links)
        for link in [link for link in self._desks if link not in links]:
            desk = self._desks.pop(link)
            for parcel in list(desk.unanswered.values()):
                if not (self._tries_others and self._pass_on(parcel)):
                    self.settled(parcel)
                    parcel.fail(PublishLost(f"the broker at {desk.name} has gone"))

    # Time.

    def _look_at(self, time_s: float) -> None:
        if self._look is None or time_s < self._look.when():
            if self._look is not None:
                self._look.cancel()
            self._look = asyncio.get_running_loop().call_at(time_s, self._look_again)

    def _look_again(self) -> None:
        self._look = None
        self._pool.flush_soon()

    def _expire_at(self, loop: asyncio.AbstractEventLoop, deadline_s: float) -> None:
        if self._timer is None or deadline_s < self._timer.when():
            if self._timer is not None:
                self._timer.cancel()
            self._timer = loop.call_at(deadline_s, self._expire, loop)

    def _expire(self, loop: asyncio.AbstractEventLoop) -> None:
        """Give up what is too late."""
        self._timer = None
        now_s = loop.time()
        trouble = f"not sent in time: {self._pool.trouble}"
        for sending in [*self._waiting, *chain.from_iterable(self._held.values())]:
            self._look_whether_late(sending, now_s, trouble)
        for desk in self._desks.values():
            for parcel in list(desk.unanswered.values()):
                for sending in parcel.sendings:
                    self._look_whether_late(
                        sending, now_s, f"{desk.name} did not answer in time", parcel
                    )
                if parcel.is_done and parcel in desk.again:
                    desk.again.remove(parcel)
                    self.settled(parcel)
        self._waiting = deque(each for each in self._waiting if not each.future.done())

    def _look_whether_late(
        self, sending: PendingSend, now_s: float, reason: str, parcel: SendBatch | None = None
    ) -> None:
        if sending.future.done():
            return
        if sending.deadline_s > now_s:
            self._expire_at(sending.future.get_loop(), sending.deadline_s)
        elif parcel is not None and parcel.stored is not None:
            parcel.succeed(parcel.stored)
        else:
            self.timed_out_count += len(sending.bodies)
            sending.fail(PublishTimeout(reason))

    def fail_all(self, error: Exception) -> None:
        """Whoever waits gets this error."""
        for sending in self.unanswered():
            sending.fail(error)
        self._waiting.clear()

    def close(self) -> None:
        """Send nothing more."""
        for timer in (self._timer, self._look):
            if timer is not None:
                timer.cancel()
        self.fail_all(Closed("the producer was closed before the broker answered"))
