"""The brokers of a producer: those configured, and those found by lookup daemons.

A broker is known by its id, if it tells one, and otherwise by its address. Several addresses that
turn out to be one broker share its queue, and so one sequence of numbers: what one of them did not
answer is repeated at another under the same number, and stored once. That is how a producer goes on
when another replica has become the primary. One of its connections is active: see
`martlet.client.transport.active`.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence

from martlet.addresses import Address
from martlet.client.errors import ConnectionLost, ConnectRefused, ProducerFull
from martlet.client.hooks import Hooks
from martlet.client.producer.accumulator import Accumulator, not_supported
from martlet.client.producer.broker_link import BrokerLink
from martlet.client.producer.in_flight import InFlightQueue, send_command
from martlet.client.producer.pending import PendingPublish
from martlet.client.producer.routing import broker_of_key
from martlet.client.producer.stats import BrokerStats
from martlet.client.settings import ConnectionSettings
from martlet.client.transport.active import ActiveLinks, warn_of_copies
from martlet.client.transport.connection import Connection
from martlet.client.transport.discovery import Discovery

logger = logging.getLogger("martlet.client")

REVIVAL_S = 1.0


class BrokerPool:
    """Keep each address connected, and send the accumulator's batches.

    A found address that no lookup daemon knows any more is dropped once it is disconnected. What is
    to be repeated at its broker waits until that is found at another address.

    Attributes:
        attempted: set once a broker is connected, or all refuse this client, or it is closed.
        refusal: the error of a broker, while all refuse this client permanently.
        on_connected: functions to call with each new connection to a broker.
    """

    def __init__(
        self,
        accumulator: Accumulator,
        addresses: Sequence[Address],
        connection: ConnectionSettings,
        answer_timeout_s: float,
        hooks: Hooks,
    ) -> None:
        self.attempted = asyncio.Event()
        self.refusal: ConnectRefused | None = None
        self.on_refused: Callable[[ConnectRefused], None] = lambda _refusal: None
        self.on_connected: list[Callable[[Connection], None]] = []
        self._accumulator = accumulator
        self._accumulator.on_room = self.flush_soon
        self._accumulator.call_later = self._call_later
        self._given = list(addresses)
        self._connection = connection
        self._backoff = connection.backoff
        self._hooks = hooks
        self._answer_timeout_s = answer_timeout_s
        self._discovery: Discovery | None = None
        if (daemons := connection.lookup_daemons) is not None:
            self._discovery = Discovery(None, daemons, connection.lookup_poll_s, self._on_found)
        self._links: dict[Address, BrokerLink] = {}
        self._active_links = ActiveLinks[InFlightQueue, BrokerLink]()
        self._active = self._active_links.of
        self._keepers: dict[BrokerLink, asyncio.Task[None]] = {}
        self._watch: asyncio.Task[None] | None = None
        self._check_timer: asyncio.TimerHandle | None = None
        self._empty_polls = 0
        self._has_searched = self._discovery is None
        self.is_closed = False
        self._change: asyncio.Future[None] | None = None
        self._is_flushing = False
        self._loop: asyncio.AbstractEventLoop

    @property
    def links(self) -> list[BrokerLink]:
        """Return one for each address."""
        return list(self._links.values())

    def active_link(self, broker: InFlightQueue) -> BrokerLink | None:
        """Return the link on which a broker's batches go; None while it is not connected."""
        return self._active.get(broker)

    def stats(self) -> tuple[BrokerStats, ...]:
        """Return the statistics of each broker."""
        links = {link.queue: link for link in reversed(self.links)} | self._active
        return tuple(
            links[broker].stats() for broker in self._accumulator.brokers if broker in links
        )

    @property
    def is_fixed(self) -> bool:
        """Whether no further brokers will be found."""
        return self._discovery is None

    @property
    def errors(self) -> str:
        """Why there is no connection."""
        if not self._links:
            return "the lookup daemons know no broker, or do not answer"
        errors = [str(link.last_error) for link in self.links if link.last_error is not None]
        return "; ".join(errors) or "no answer yet"

    @property
    def trouble(self) -> str:
        """Why messages wait."""
        if connected := [str(link) for link in self._active.values()]:
            return f"{', '.join(connected)} did not answer what was sent before"
        return f"no connection: {self.errors}"

    def open(self) -> None:
        """Start connecting, and polling the lookup daemons."""
        self._loop = asyncio.get_running_loop()
        for address in self._given:
            self._add(address)
        self._search()
        self._check_later()

    def _search(self) -> None:
        """Start polling the lookup daemons."""
        if self._discovery is not None and not self.is_closed:
            self._watch = asyncio.create_task(self._discovery.watch(), name="martlet lookup")
            self._watch.add_done_callback(self._on_search_ended)

    def _on_search_ended(self, watch: asyncio.Task[None]) -> None:
        error = None if watch.cancelled() else watch.exception()
        if error is not None:
            logger.error(
                "discovery of brokers failed unexpectedly, and begins again", exc_info=error
            )
            self._loop.call_later(REVIVAL_S, self._search)

    async def close(self) -> None:
        """Close all connections."""
        self.is_closed = True
        self._has_changed()
        self.attempted.set()
        if self._check_timer is not None:
            self._check_timer.cancel()
        tasks = [*self._keepers.values(), *([self._watch] if self._watch else [])]
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks)
        await asyncio.gather(*(link.close() for link in self.links))

    # Sending.

    def flush_soon(self) -> None:
        """Send waiting messages at the end of this turn."""
        if not self._is_flushing:
            self._is_flushing = True
            self._loop.call_soon(self._flush)

    def _flush(self) -> None:
        self._is_flushing = False
        brokers = [
            broker for broker, link in self._active.items() if not broker.is_held and link.can_write
        ]
        if not brokers:
            return  # A new connection, or the next answer, triggers another flush.
        now_s = self._loop.time()
        for batch in self._accumulator.pack(brokers):
            connection = self._active[batch.broker].connection
            assert connection is not None
            try:
                command = batch.command(now_s)
            except Exception as error:
                self._accumulator.not_sent(batch, error)
            else:
                connection.send(command, batch)

    def _call_later(self, delay_s: float, function: Callable[[], None]) -> None:
        self._loop.call_later(delay_s, function)

    def send_oneway(self, pending: PendingPublish) -> None:
        """Write a SEND to a broker that reads now, and expect no answer.

        Raises:
            ConnectionLost, NotSupported: there is no such broker. ProducerFull: no broker reads
            fast enough.
        """
        up = list(self._active.values())
        able = [link for link in up if link.queue.takes_sends]
        if not able:
            if up:
                raise not_supported(*map(str, up))
            raise ConnectionLost(f"nothing was sent: {self.trouble}")
        ready = [link.queue for link in able if link.can_write]
        if pending.order_key is not None:
            broker = broker_of_key([link.queue for link in able], pending.order_key)
        else:
            broker = self._accumulator.take_turn(ready)
        if broker is None or broker not in ready:
            raise ProducerFull("the broker does not read as fast as messages are sent to it")
        connection = self._active[broker].connection
        assert pending.fields is not None and connection is not None
        connection.write(send_command([pending], pending.fields.to_json() | {"oneway": True}))

    # The brokers.

    def _add(self, address: Address) -> None:
        dialer = self._connection.dialer(
            address, is_found=address not in self._given, hooks=self._hooks
        )
        link = BrokerLink(self._accumulator, str(address), dialer, self._backoff, self._hooks)
        link.on_up = self._on_up
        link.on_down = self._on_down
        link.on_refused = self._on_refused
        self._links[address] = link
        self.refusal = None
        self._keepers[link] = asyncio.create_task(link.keep(), name=f"martlet producer {address}")
        self._has_changed()

    def _on_found(self, addresses: list[Address], is_all: bool) -> None:
        """Connect to brokers that lookup daemons named; all, if every daemon has answered."""
        if self.is_closed:
            return
        self._has_searched = self._has_searched or is_all
        for address in addresses:
            if address not in self._links:
                logger.info("found a broker at %s", address)
                self._add(address)
        if is_all:
            for address in self._links.keys() - set(addresses) - set(self._given):
                if self._links[address].connection is None:
                    self._drop(address)
        if addresses:
            self._empty_polls = 0
        elif self._discovery is not None and not self._given:
            self._empty_polls += 1
            self._loop.call_later(
                self._backoff.delay_s(self._empty_polls), self._discovery.poll_now
            )

    def _drop(self, address: Address) -> None:
        """Drop a disconnected address that no lookup daemon knows any more."""
        logger.info("the broker at %s has gone", address)
        link = self._links.pop(address)
        self._keepers.pop(link).cancel()
        self._remove_unused(link.queue)
        self.flush_soon()

    def _remove_unused(self, broker: InFlightQueue) -> None:
        """Remove a broker without an address, unless a replica of it may still take its batches."""
        is_awaited = broker.has_replicas and broker.has_numbered
        if not is_awaited and all(link.queue is not broker for link in self.links):
            self._accumulator.remove_broker(broker)

    def _on_up(self, link: BrokerLink) -> None:
        self.refusal = None
        self.attempted.set()
        self._recognise(link)
        self._choose_active(link.queue)
        self.flush_soon()
        self._has_changed()
        if link.connection is not None:
            link.connection.on_writable = self.flush_soon
            for on_connected in self.on_connected:
                on_connected(link.connection)

    def _recognise(self, link: BrokerLink) -> None:
        """Give a link the queue of the broker that it has reached."""
        assert link.connection is not None
        others = ((str(other), other.connection) for other in self.links)
        warn_of_copies(str(link), link.connection, others, "messages go to one of them alone")
        broker_id, before = link.connection.features.broker_id, link.queue
        if broker_id in ("", before.broker_id):
            return
        brokers = self._accumulator.brokers
        queue = next((broker for broker in brokers if broker.broker_id == broker_id), None)
        if queue is not None and not before.broker_id and before.has_numbered:
            return  # Its numbers are of a producer id of their own.
        if queue is None and before.broker_id:
            queue = self._accumulator.add_broker(str(link))
        link.queue = queue or before
        link.queue.broker_id = broker_id
        link.queue.has_replicas = link.connection.features.has_replicas
        if link.queue is not before:
            logger.info("%s is broker %s, known as %s", link, broker_id, link.queue.name)
            self._remove_unused(before)

    def _choose_active(self, broker: InFlightQueue) -> None:
        """Send to the newest run of a broker of those that are connected."""
        links = [link for link in self.links if link.queue is broker]
        link = self._active_links.choose(broker, links)
        if link is not None:
            link.activate()
            self._has_changed()

    def _on_down(self, link: BrokerLink) -> None:
        broker = link.queue
        if self._active_links.release(broker, link):
            self._choose_active(broker)
            if broker not in self._active:
                self._seek(link)
        self.flush_soon()  # Batches in flight there go to others.

    def _seek(self, lost: BrokerLink) -> None:
        """Seek a broker at other addresses, as its last connection is lost."""
        for link in self.links:
            is_other = link is not lost and link.connection is None
            if is_other and (link.queue is lost.queue or not link.queue.broker_id):
                link.hasten()
        if self._discovery is not None:
            self._discovery.poll_now()

    def _on_refused(self, link: BrokerLink) -> None:
        if self._has_searched and all(other.refusal is not None for other in self.links):
            self.refusal = link.refusal
            self.attempted.set()
            assert link.refusal is not None
            self.on_refused(link.refusal)
            self._has_changed()

    async def changed(self) -> None:
        """Wait until a broker has a connection or is found, or none accepts this client."""
        if self._change is None:
            self._change = self._loop.create_future()
        await asyncio.shield(self._change)

    def _has_changed(self) -> None:
        change, self._change = self._change, None
        if change is not None:
            change.set_result(None)

    # Health checks.

    def _check_later(self) -> None:
        self._check_timer = self._loop.call_later(self._answer_timeout_s / 2, self._check_all)

    def _check_all(self) -> None:
        """Check which brokers have answered since the last check, and which are of no use."""
        active = list(self._active.values())
        answering = [link for link in active if not link.queue.is_slow]
        for link in active:
            link.check_answers(may_cut=any(other is not link for other in answering))
        for broker in list(self._accumulator.brokers):
            self._remove_unused(broker)
        self._check_later()
