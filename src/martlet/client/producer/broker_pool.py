"""The brokers of a producer: those configured, and those found by lookup daemons."""

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
from martlet.client.settings import ConnectionSettings
from martlet.client.transport.connection import Connection
from martlet.client.transport.discovery import Discovery

logger = logging.getLogger("martlet.client")

REVIVAL_S = 1.0


class BrokerPool:
    """Keep each broker connected, and send the accumulator's batches.

    A found broker that no lookup daemon knows any more is dropped once it is disconnected.

    Attributes:
        attempted: set once a broker is connected, or all refuse this client, or it is closed.
        is_closed: whether the connections are closed, for good.
        refusal: the error of a broker, while all refuse this client permanently.
        on_refused: called when that becomes so.
        on_connected: called with each new connection to a broker.
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
        self.on_connected: Callable[[Connection], None] = lambda _connection: None
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
        self._link_of: dict[InFlightQueue, BrokerLink] = {}
        self._keepers: dict[BrokerLink, asyncio.Task[None]] = {}
        self._watch: asyncio.Task[None] | None = None
        self._look: asyncio.TimerHandle | None = None
        self._looks_in_vain = 0
        self._has_searched = self._discovery is None
        self.is_closed = False
        self._change: asyncio.Future[None] | None = None
        self._is_flushing = False
        self._loop: asyncio.AbstractEventLoop

    @property
    def links(self) -> list[BrokerLink]:
        """Return one for each broker."""
        return list(self._links.values())

    @property
    def is_fixed(self) -> bool:
        """Whether no further brokers will be found."""
        return self._discovery is None

    @property
    def errors(self) -> str:
        """Why there is no connection."""
        if not self._links:
            return "the lookup daemons know no broker, or do not answer"
        errors = [str(each.last_error) for each in self.links if each.last_error is not None]
        return "; ".join(errors) or "no answer yet"

    @property
    def trouble(self) -> str:
        """Why messages wait."""
        if connected := [str(each) for each in self.links if each.connection is not None]:
            return f"{', '.join(connected)} did not answer what was sent before"
        return f"no connection: {self.errors}"

    def open(self) -> None:
        """Start connecting, and polling the lookup daemons."""
        self._loop = asyncio.get_running_loop()
        for address in self._given:
            self._add(address)
        self._search()
        self._look_later()

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
        if self._look is not None:
            self._look.cancel()
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
            link.queue for link in self._links.values() if not link.queue.is_held and link.can_write
        ]
        if not brokers:
            return  # A new connection, or the next answer, triggers another flush.
        now_s = self._loop.time()
        for batch in self._accumulator.pack(brokers):
            connection = self._link_of[batch.broker].connection
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
        up = [link for link in self._links.values() if link.connection is not None]
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
        connection = self._link_of[broker].connection
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
        self._link_of[link.queue] = link
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
            self._looks_in_vain = 0
        elif self._discovery is not None and not self._given:
            self._looks_in_vain += 1
            self._loop.call_later(
                self._backoff.delay_s(self._looks_in_vain), self._discovery.look_again
            )

    def _drop(self, address: Address) -> None:
        """Drop a disconnected broker that no lookup daemon knows any more."""
        logger.info("the broker at %s has gone", address)
        link = self._links.pop(address)
        del self._link_of[link.queue]
        self._accumulator.remove_broker(link.queue)
        self._keepers.pop(link).cancel()
        self.flush_soon()

    def _on_up(self, link: BrokerLink) -> None:
        self.refusal = None
        self.attempted.set()
        self.flush_soon()
        self._has_changed()
        if link.connection is not None:
            link.connection.on_writable = self.flush_soon
            self.on_connected(link.connection)

    def _on_down(self, _link: BrokerLink) -> None:
        self.flush_soon()  # Batches in flight there go to others.
        if self._discovery is not None:
            self._discovery.look_again()

    def _on_refused(self, link: BrokerLink) -> None:
        if self._has_searched and all(each.refusal is not None for each in self.links):
            self.refusal = link.refusal
            self.attempted.set()
            assert link.refusal is not None
            self.on_refused(link.refusal)
            self._has_changed()

    async def changed(self) -> None:
        """Wait until a broker is connected or found, or none accepts this client."""
        if self._change is None:
            self._change = self._loop.create_future()
        await asyncio.shield(self._change)

    def _has_changed(self) -> None:
        change, self._change = self._change, None
        if change is not None:
            change.set_result(None)

    # Health checks.

    def _look_later(self) -> None:
        self._look = self._loop.call_later(self._answer_timeout_s / 2, self._look_at_all)

    def _look_at_all(self) -> None:
        """Check which brokers have answered since the last check."""
        answering = [each for each in self.links if each.connection and not each.queue.is_slow]
        for link in self.links:
            link.look(may_cut=any(each is not link for each in answering))
        self._look_later()
