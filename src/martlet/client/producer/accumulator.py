"""What is published and not answered yet: waiting to be sent, or in flight at one of the brokers.

::

    publish -> waiting -> pack -> in flight on a lane -> OK: done
                  ^                       |
                  +------- put_back ------+   the connection was lost: sent again, by any lane

Whatever waits for a topic when there is room to send goes as one command: what was published in one
turn of the event loop, or while the brokers were slow or away.  So a single publish is not delayed,
and many at once cost what one costs.  Nothing here touches a socket or a clock.

What has an order key waits for the lane to which its key is pinned
(`martlet.client.producer.key_pinning`).  With one lane, everything of a topic stays in order.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator
from itertools import chain

from martlet.client.errors import PublishLost, PublishRefused, PublishUnclear, Refused
from martlet.client.producer.in_flight import InFlightQueue
from martlet.client.producer.key_pinning import KeyPinning
from martlet.client.producer.limits import Limits
from martlet.client.producer.publication import PendingPublish, PublishBatch, PublishTrouble
from martlet.client.producer.routing import lightest

MAY_BE_ANOTHERS_FAULT = frozenset({"E_BAD_MESSAGE", "E_BAD_BODY"})
"""Errors of one message for which the broker refuses all that came in the same command."""
MAY_DO_ELSEWHERE = frozenset({"E_PUB_FAILED", "E_MPUB_FAILED", "E_DPUB_FAILED"})
"""Errors of the broker, such as a full disk: another may take the same message."""
MAY_PASS = "E_AUTH_FAILED"
"""The auth server cannot be asked just now: nothing is wrong with what was published."""


class Accumulator:
    """The publications that wait, and the lanes on which others are in flight.

    Attributes:
        on_room: called when a broker has answered and something waits to be sent.
        lanes: one for each broker.
        pending_messages: published and not answered.
        pending_bytes: their bytes.
        retried_count: messages that were to be sent again.
    """

    def __init__(self, limits: Limits, *, retries: int | None = None) -> None:
        self.on_room: Callable[[], None] = lambda: None
        self.lanes: list[InFlightQueue] = []
        self.pending_messages = 0
        self.pending_bytes = 0
        self._stored_before = 0
        """By brokers that have gone."""
        self.retried_count = 0
        self._limits = limits
        self._retries = retries
        self._waiting: deque[PendingPublish] = deque()
        self._order = KeyPinning(self.lanes)
        self._pins = self._order.pins
        self._turn = 0

    @property
    def stored_count(self) -> int:
        """How many messages were answered OK."""
        return self._stored_before + sum(lane.stored_count for lane in self.lanes)

    # The lanes.

    def add_lane(self, name: str) -> InFlightQueue:
        """There is a broker of that address, not connected yet."""
        lane = InFlightQueue(name, self._limits)
        self.lanes.append(lane)
        return lane

    def remove_lane(self, lane: InFlightQueue) -> None:
        """The broker is not to be used any more."""
        self.put_back(lane, "the broker is not to be used any more")
        self._stored_before += lane.stored_count
        self.lanes.remove(lane)

    def raise_lane(self, lane: InFlightQueue) -> None:
        """The broker is connected."""
        lane.is_up = True
        if self._order.homeless:
            self._order.house()

    # What is published.

    def add(self, publication: PendingPublish) -> None:
        """Publish this."""
        self.pending_messages += len(publication.bodies)
        self.pending_bytes += publication.size_bytes
        if publication.order_key is None:
            self._waiting.append(publication)
        else:
            self._order.add(publication, publication.order_key)

    def _queues(self) -> list[deque[PendingPublish]]:
        return [self._waiting, self._order.homeless, *(lane.pinned for lane in self.lanes)]

    def waiting(self) -> Iterator[PendingPublish]:
        """All that are not sent and have no answer."""
        waiting = chain.from_iterable(self._queues())
        return (each for each in waiting if not each.future.done())

    def unanswered(self) -> Iterator[PendingPublish]:
        """All that have no answer yet."""
        for lane in self.lanes:
            for shipment in lane.in_flight:
                yield from (each for each in shipment.publications if not each.future.done())
        yield from self.waiting()

    def forget_settled(self) -> None:
        """Let go of what waits and whose time ran out, or that was cancelled."""
        for queue in self._queues():
            for _ in range(len(queue)):
                publication = queue.popleft()
                if publication.future.done():
                    self._forget(publication)
                else:
                    queue.append(publication)

    # What is sent.

    def pack(self, lanes: list[InFlightQueue]) -> list[PublishBatch]:
        """Take what may be sent now on these lanes; the caller sends it in this order.

        Of the lanes, which are not held, those are left that may be given more.
        """
        packed: list[PublishBatch] = []
        if not self._pins:
            self._pack(self._waiting, lanes, packed)
            return packed
        # Who waits longest goes first, so that neither keeps the other from being sent.
        waiting = self._waiting
        oldest_s = waiting[0].deadline_s if waiting else 0.0
        with_pinned = [lane for lane in lanes if lane.pinned]
        before = [each for each in with_pinned if each.pinned[0].deadline_s <= oldest_s]
        for lane in before:
            self._pack_pinned(lane, lanes, packed)
        self._pack(waiting, lanes, packed)
        for lane in with_pinned:
            if lane not in before and lane in lanes:
                self._pack_pinned(lane, lanes, packed)
        return packed

    def _pack_pinned(
        self, lane: InFlightQueue, lanes: list[InFlightQueue], packed: list[PublishBatch]
    ) -> None:
        self._pack(lane.pinned, [lane], packed)
        if lane.is_held:
            lanes.remove(lane)

    def _pack(
        self, waiting: deque[PendingPublish], lanes: list[InFlightQueue], packed: list[PublishBatch]
    ) -> None:
        growing: dict[str, PublishBatch] = {}
        max_bytes = self._limits.command_bytes
        while waiting and lanes:
            publication = waiting[0]
            if publication.future.done():
                self._forget(waiting.popleft())  # Cancelled, or too late.
                continue
            topic = publication.topic
            shipment = growing.get(topic)
            if (
                shipment is not None
                and not publication.alone
                and (publication.trouble is None or not publication.trouble.is_suspect)
                and shipment.size_bytes + publication.size_bytes <= max_bytes
                and shipment.lane.has_room(publication)
            ):
                shipment.publications.append(waiting.popleft())
                shipment.message_count += len(publication.bodies)
                shipment.size_bytes += publication.size_bytes
                lane = shipment.lane
                lane.message_count += len(publication.bodies)
                lane.size_bytes += publication.size_bytes
                continue
            if len(lanes) > 1:
                found = lightest(lanes, publication)
                if found is None:
                    return
                lane = found
            else:
                lane = lanes[0]
                if not lane.has_room(publication):
                    return
            self._turn += 1
            lane.turn = self._turn
            shipment = PublishBatch(self, lane, waiting.popleft())
            lane.message_count += shipment.message_count
            lane.size_bytes += shipment.size_bytes
            lane.in_flight.append(shipment)
            packed.append(shipment)
            if lane.is_on_trial or publication.is_suspect:
                lane.is_held = True
                lanes.remove(lane)
                growing = {name: each for name, each in growing.items() if each.lane is not lane}
            elif publication.alone:
                growing.pop(topic, None)
            else:
                growing[topic] = shipment

    # What becomes of it.

    def settle(self, shipment: PublishBatch, is_stored: bool) -> None:
        """All of the oldest shipment of its lane has its answer."""
        lane = shipment.lane
        oldest = lane.in_flight.popleft()
        assert oldest is shipment
        count, size_bytes = shipment.message_count, shipment.size_bytes
        if is_stored:
            lane.stored_count += count
            lane.refusals = 0
            lane.is_on_trial = False
        lane.message_count -= count
        lane.size_bytes -= size_bytes
        self.pending_messages -= count
        self.pending_bytes -= size_bytes
        if lane.is_held and not lane.in_flight:
            lane.is_held = False
        if self._pins:
            for publication in shipment.publications:
                self._order.settle(publication)
        lane.on_answer()
        if self._waiting or (self._pins and any(each.pinned for each in self.lanes)):
            self.on_room()

    def refused(self, shipment: PublishBatch, error: Refused) -> None:
        """The broker has refused the oldest shipment of its lane, and hangs up."""
        lane = shipment.lane
        shipment.is_refused = True
        publications = shipment.publications
        if len(publications) > 1 and error.code in MAY_BE_ANOTHERS_FAULT:
            # They stay in flight, and are put back when the connection is gone.
            for publication in publications:
                publication.alone = True
            return
        if error.code == MAY_PASS:
            lane.refusals += 1  # They are put back too.
            return
        lane.refused_count += shipment.message_count
        final = PublishRefused(error.code, error.text)
        if error.code in MAY_DO_ELSEWHERE:
            lane.refusals += 1
            lane.is_on_trial = True
            for publication in publications:
                trouble = publication.failed(error)
                if trouble.refusals >= len(self.lanes) or self._is_hopeless(trouble):
                    publication.fail(final)
        else:
            for publication in publications:
                publication.fail(final)
        if all(publication.future.done() for publication in publications):
            self.settle(shipment, is_stored=False)

    def lost_track(self, shipment: PublishBatch, error: PublishUnclear) -> None:
        """The oldest shipment of its lane was answered, but nobody knows what with."""
        shipment.lane.lost_count += shipment.message_count
        for publication in shipment.publications:
            publication.fail(error)
        self.settle(shipment, is_stored=False)

    def put_back(self, lane: InFlightQueue, reason: str) -> int:
        """The connection is gone: what was in flight waits again, before everything else.

        Returns how many messages that are.  The first of it becomes suspect of having made the
        broker hang up.
        """
        lane.is_up = False
        free: list[PendingPublish] = []
        ordered: list[PendingPublish] = []
        count = 0
        for shipment in lane.in_flight:
            if not shipment.is_refused:
                lane.lost_count += shipment.message_count
                for publication in shipment.publications:
                    trouble = publication.failed()
                    if self._is_hopeless(trouble):
                        times = f"sent {trouble.failures} times, and not answered"
                        publication.fail(PublishLost(f"{times}: {reason}"))
            for publication in shipment.publications:
                if publication.future.done():
                    self._forget(publication)
                    continue
                if not count:
                    publication.trouble = publication.trouble or PublishTrouble()
                    publication.trouble.is_suspect = True
                count += len(publication.bodies)
                (free if publication.order_key is None else ordered).append(publication)
        self._waiting.extendleft(reversed(free))
        ordered += lane.pinned
        lane.clear()
        self._order.move(ordered)
        self.retried_count += count
        return count

    def _is_hopeless(self, trouble: PublishTrouble) -> bool:
        """Whether it has failed once more than it may."""
        return self._retries is not None and trouble.failures > self._retries

    def _forget(self, publication: PendingPublish) -> None:
        """This has its answer without having been stored."""
        self.pending_messages -= len(publication.bodies)
        self.pending_bytes -= publication.size_bytes
        self._order.settle(publication)
