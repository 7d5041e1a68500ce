"""The server: a broker behind its doors, on one event loop.

In each turn of the loop the connections that have something to read are read, one after the
other, and what they publish is staged.  At the end of the turn it is committed at once: one batch
a queue, one write each, one reply write a connection.
"""

from __future__ import annotations

import asyncio
import logging
import random
import resource
from collections.abc import Callable
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import TYPE_CHECKING

from martlet.broker.errors import WritesRefused
from martlet.broker.queue.queue_log import Receipt
from martlet.broker.recovery.restore import RestoredBroker, restore
from martlet.broker.retention.eviction import Eviction
from martlet.broker.retention.history import Retention, Watermarks
from martlet.broker.retention.reclaim import HistoryReclaimer
from martlet.layer.layer import SPACE_BYTES
from martlet.options import BrokerOptions
from martlet.plural import counted
from martlet.protocol.nsq.v2 import ProtocolLimits
from martlet.server.clock import Clock
from martlet.server.data_folder import open_folder, refusal
from martlet.server.disk_space import LOOK_NS, LOOK_WHILE_FULL_NS, DiskSpace
from martlet.server.flusher import Flusher
from martlet.server.journal_writer import JournalWriter
from martlet.server.listeners import Listeners
from martlet.server.lookup_peer import LookupPeers
from martlet.server.nsq.authorizer import Authorizer, AuthServers
from martlet.server.nsq.connection import ClientConnection
from martlet.server.nsq.flush_timeouts import FlushTimeouts
from martlet.server.observability.event_log import EventLog
from martlet.server.observability.statsd import expand_prefix, push
from martlet.server.rpc.registry import CallRegistry
from martlet.server.rpc.transactions import transaction_limits
from martlet.server.start_warnings import warn
from martlet.server.tick import LoopTicks
from martlet.server.tls import server_context

if TYPE_CHECKING:
    import ssl

    from martlet.broker.channel.channel import Channel
    from martlet.broker.channel.partitioned import PartitionedChannel
    from martlet.broker.topic.topic import Topic
    from martlet.server.http.server import Routes

RECEIVE_BYTES = 1 << 18


class Server:
    """A broker with its TCP and HTTP doors.

    Args:
        options: as the flags give them.
        log: where log lines go.
    """

    def __init__(self, options: BrokerOptions, log: logging.Logger | None = None) -> None:
        self.options = options
        self.log = log or logging.getLogger("martlet")
        self.limits = ProtocolLimits(
            options.max_rdy_count,
            options.max_msg_size,
            options.max_body_size,
            options.max_req_timeout_ns // 1_000_000,
        )
        self.connections: set[ClientConnection] = set()
        self.receive_buffer = bytearray(RECEIVE_BYTES)
        self.receive_view = memoryview(self.receive_buffer)
        self.wire_view = memoryview(bytearray(SPACE_BYTES))
        """Where layers receive what is still encrypted or compressed."""
        self.tls: ssl.SSLContext | None = None
        self._staged: dict[ClientConnection, None] = {}
        self.is_stopping = False
        """Whether it hangs up: no client is lost by that."""
        self._awaiting: dict[ClientConnection, None] = {}
        self._settled: list[tuple[Receipt, asyncio.Future[None]]] = []
        self._sync = options.flush == "sync"
        self.answers_at_once = not self._sync
        """Whether what is written may be answered, with no flush to wait for."""
        self._alarm: asyncio.TimerHandle | None = None
        self._flushed_count = 0
        self._tasks: list[asyncio.Task[None]] = []
        self._auth_servers = AuthServers(options) if options.auth_http_addresses else None
        self._empty: asyncio.Event | None = None

    # start and stop

    async def start(self) -> None:
        """Open the data folder and the doors. Raises OSError where one cannot be opened."""
        self.loop = asyncio.get_running_loop()
        self.turns = LoopTicks(self.loop.call_soon, self._turn)
        options = self.options
        for warning in options.topology_warnings():
            self.log.warning("%s", warning)
        self.tls = server_context(options)
        self.data_path = Path(options.data_path or ".").absolute()
        _allow_many_files()
        with ExitStack() as undo:
            # Before anything is written: a broker that cannot listen leaves nothing behind.
            self._doors = doors = Listeners(options, self.tls, self.log)
            undo.callback(doors.close)
            self.storage, self.broker_id = open_folder(self.data_path, options, self.log)
            undo.callback(self.storage.close)
            self.tcp_address, self.tcp_port = doors.tcp_address, doors.tcp_port
            self.http_address, self.http_port = doors.http_address, doors.http_port
            self._open_log()
            undo.pop_all()
        self.disk = Flusher(self.broker, self.log, self._durable)
        self._journal = JournalWriter(self.broker, options.journal_interval_ns)
        self.lookups = LookupPeers(self)
        self.events = EventLog(self.broker, self.log)
        self.broker.log.on_refused = self.events.write_refused
        self.calls = CallRegistry(self)
        self.relief = HistoryReclaimer(self.broker)
        self.late_flushes = FlushTimeouts(self)
        if options.drops_oldest:
            self.relief = Eviction(self.broker, self.disk.flush_now, self.events.evicted)
        transfers = self.broker.transfers
        transfers.waits_for_flush = self._sync
        transfers.on_written = self.disk.flush
        transfers.on_refused = self.events.transfer_refused
        self.broker.on_topic = self._topic_changed
        self.broker.on_grown = self.events.topic_grown
        self.broker.on_channel = self._channel_changed
        self.broker.schedule.on_earlier = self._set_alarm
        self._set_alarm(self.broker.run())
        self.options = options = options.replace(
            broadcast_tcp_port=options.broadcast_tcp_port or max(0, self.tcp_port),
            broadcast_http_port=options.broadcast_http_port or max(0, self.http_port),
            tls_required=options.tls_demanded,
        )
        await doors.open(self._connection, self._routes)
        self._push_stats()
        await self.lookups.set_addresses(options.lookupd_tcp_addresses)
        self._tasks.append(self.loop.create_task(warn(options, self.log)))
        self._every(options.journal_interval_ns, self._keep_journal, steady=True)
        room = DiskSpace(self.broker, self.disk, self.relief, self.events)
        self._every(options.checkpoint_interval_ns, room.keep_checkpoint)
        self._every(LOOK_NS, room.look)
        self._every(LOOK_WHILE_FULL_NS, room.look_while_full)
        self._every(options.sync_timeout_ns, self._keep_flushed)

    def _open_log(self) -> None:
        options = self.options
        self.clock = Clock()
        try:
            self.broker, restored = restore(
                self.storage,
                self.clock,
                random.SystemRandom(),
                segment_bytes=options.segment_bytes,
                max_consumers=options.max_channel_consumers,
                prefers_near=options.prefers_near,
                max_topics=options.max_topics,
                max_channels=options.max_channels_per_topic,
                max_timeout_ns=options.max_msg_timeout_ns,
                latency_window_ns=options.latency_window_ns,
                retention=Retention.asked(options.retention_ns, options.retention_bytes),
                transactions=transaction_limits(options),
                watermarks=Watermarks(options.disk_clean_percent, options.disk_force_percent),
                max_delayed=options.max_delayed_messages,
                max_ephemeral=options.mem_queue_size,
                traces=options.trace,
                on_lost=self._lost,
                on_put_off=self._put_off,
            )
        except OSError as error:
            raise refusal(self.data_path, error) from error
        self.broker.log.refuse_percent = options.disk_refuse_percent
        self._log_recovery(restored)

    def _log_recovery(self, restored: RestoredBroker) -> None:
        report = restored.report
        for note in restored.notes:
            self.log.warning("LOG: %s", note)
        for damage in report.damaged:
            self.log.error("LOG: %s", damage)
        if report.cut is not None:
            cut = report.cut
            self.log.warning("LOG: cut a torn tail at position %d: %s", cut.start, cut.reason)
        self.log.info(
            "LOG: %s from %s, %s replayed, going on at position %d",
            counted(len(self.broker.topics), "topic"),
            self.data_path,
            counted(report.records, "record"),
            report.end_position,
        )

    def _lost(self, topic: str, channel: str, first: int, end: int, reason: str) -> None:
        self.log.error(
            "LOG: topic %s, channel %s: messages %d to %d are lost: %s",
            topic, channel, first, end - 1, reason,
        )  # fmt: skip

    def _put_off(self, topic: str, channel: str, error: OSError) -> None:
        self.log.error(
            "LOG: topic %s, channel %s: delivery is tried again in a second: %s",
            topic, channel, error,
        )  # fmt: skip

    async def stop(self) -> None:
        """Close the doors, write down where everything is, and let the folder go."""
        await self.lookups.close()
        self._doors.close()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await self._doors.close_web()
        self._turn()
        if self._sync and self.broker.log.failed is None:
            self.disk.flush()
        self.is_stopping = True
        for connection in list(self.connections):
            connection.close()
        await asyncio.sleep(0)
        for connection in list(self.connections):
            connection.abort()
        if self.connections:
            self._empty = asyncio.Event()
            await self._empty.wait()
        if self._auth_servers is not None:
            await self._auth_servers.close()
        if self._alarm is not None:
            self._alarm.cancel()
        self.late_flushes.close()
        self.log.info("NSQ: closing topics")
        with suppress(WritesRefused):
            self.broker.write_journal()
        await self.disk.checkpoint()
        self.log.info("NSQ: stopping subsystems")
        self.disk.close()
        self.storage.close()

    def _topic_changed(self, topic: Topic) -> None:
        self.events.topic_changed(topic)
        self.lookups.topic_changed(topic)

    def _channel_changed(self, topic: Topic, channel: Channel) -> None:
        self.events.channel_changed(topic, channel)
        self.lookups.channel_changed(topic, channel)

    def _push_stats(self) -> None:
        options = self.options
        port = options.broadcast_http_port
        prefix = expand_prefix(options.statsd_prefix, options.broadcast_address, port)
        self.options = options.replace(statsd_prefix=prefix)
        if options.statsd_address:
            self._tasks.append(self.loop.create_task(push(self)))

    def _every(self, interval_ns: int, call: Callable[[], object], *, steady: bool = False) -> None:
        """Call every so often: so long after the last call has ended, or, if `steady`, begun."""

        async def repeat() -> None:
            rest_s = interval_s = interval_ns / 1e9
            while True:
                await asyncio.sleep(rest_s)
                began_s = self.loop.time()
                try:
                    result = call()
                    if asyncio.iscoroutine(result):
                        await result
                except Exception:
                    # Or it would never be done again, and nobody would hear of it.
                    self.log.exception("%r failed; it is tried again", call)
                if steady:
                    rest_s = max(0.0, interval_s - (self.loop.time() - began_s))

        self._tasks.append(self.loop.create_task(repeat()))

    # connections

    def _connection(self) -> ClientConnection:
        if self.log.isEnabledFor(logging.DEBUG):
            from martlet.server.nsq.traced import TracedConnection

            return TracedConnection(self)
        return ClientConnection(self)

    def _routes(self) -> Routes:
        from martlet.server.http.server import broker_routes

        return broker_routes(self)

    def guard(self, connection: ClientConnection) -> Authorizer | None:
        """What asks who a client is; None where everybody may do everything."""
        if self._auth_servers is None:
            return None
        return Authorizer(
            self._auth_servers,
            self.clock,
            connection.remote_address,
            lambda: connection.tls.common_name if connection.tls else None,
            connection.go_on,
            self.log,
        )

    def opened(self, connection: ClientConnection) -> None:
        """A client has connected."""
        max_count = self.options.max_connections
        self.connections.add(connection)
        if max_count and len(self.connections) > max_count:
            self.log.warning(
                "TCP: refusing %s: --max-connections is %d", connection.remote_address, max_count
            )
            connection.abort()
        else:
            self.events.opened(connection.remote_address)

    def closed(self, connection: ClientConnection, error: Exception | None) -> None:
        """A client has gone."""
        self.connections.discard(connection)
        if self._empty is not None and not self.connections:
            self._empty.set()
        self._staged.pop(connection, None)
        self._awaiting.pop(connection, None)
        if connection.greeted:
            self.events.closed(connection.remote_address, error)

    def left(self, topic: Topic, channel: Channel | PartitionedChannel) -> None:
        """A consumer has left."""
        self.broker.left(topic, channel)

    # turns

    def staged(self, connection: ClientConnection) -> None:
        """A connection has staged messages in this turn."""
        self._staged[connection] = None

    def _turn(self) -> None:
        """Commit what was staged and answer for it."""
        self._commit()
        if self._staged:
            staged, self._staged = self._staged, {}
            if self._sync:
                self._awaiting.update(staged)
                self._durable()
            else:
                for connection in staged:
                    connection.settle(None)
        if not self._sync:
            unflushed = self.broker.stored_count - self._flushed_count
            if unflushed >= (self.options.sync_every or 1) and self.disk.rested:
                self._keep_flushed()
        if self._settled:
            self._durable()
        if self._sync and self._awaiting:
            self.disk.flush()
        with suppress(WritesRefused):
            self._journal.turn_ended()

    def _commit(self) -> None:
        """Commit everything, though something unforeseen happens with the messages of a topic."""
        while True:
            try:
                return self.broker.commit()
            except Exception:
                # Or whoever published to the other topics would never be answered.
                self.log.exception("a topic's messages could not be stored or delivered")

    @property
    def durable_position(self) -> int | None:
        """Up to where the log is durable; None where to be written is enough."""
        return self.broker.log.durable_position if self._sync else None

    def _durable(self) -> None:
        """More of the log is durable: answer for it."""
        if self.broker.transfers:
            self.broker.transfers.settle()
        position = self.durable_position
        failed = self.broker.log.failed
        for connection in list(self._awaiting):
            if failed is not None:
                connection.fail(WritesRefused(failed))
            if not connection.settle(position):
                del self._awaiting[connection]
        waiting, self._settled = self._settled, []
        for receipt, future in waiting:
            if future.done():
                continue
            if receipt.error is not None:
                future.set_exception(receipt.error)
            elif receipt.position and (position is None or receipt.position <= position):
                future.set_result(None)
            elif failed is not None:
                future.set_exception(WritesRefused(failed))
            else:
                self._settled.append((receipt, future))

    async def settled(self, receipt: Receipt) -> None:
        """Return when the flush mode's promise holds for a receipt. Raises WritesRefused."""
        future: asyncio.Future[None] = self.loop.create_future()
        self._settled.append((receipt, future))
        self.turns.heard()
        if self._sync:
            self.loop.call_soon(self.disk.flush)
        await future

    # time

    def _set_alarm(self, time_ns: int | None) -> None:
        if self._alarm is not None:
            self._alarm.cancel()
            self._alarm = None
        if time_ns is not None:
            delay_ns = max(0, time_ns - self.clock())
            self._alarm = self.loop.call_later(delay_ns / 1e9, self._ring)

    def _ring(self) -> None:
        self._alarm = None
        try:
            self.broker.run()
        except Exception:
            # Or nothing would ever be due again.
            self.log.exception("something that is due failed; it is tried again")
        self._set_alarm(self.broker.schedule.next_ns())

    async def _keep_journal(self) -> None:
        if self.clock.adjust():
            self._set_alarm(self.broker.schedule.next_ns())
        with suppress(WritesRefused):
            await self._journal.write()

    def _keep_flushed(self) -> None:
        if not self.disk.flushing:
            self._flushed_count = self.broker.stored_count
            self.disk.flush()


def _allow_many_files() -> None:
    """Raise the limit of open files as far as it goes: each connection is one."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    with suppress(ValueError, OSError):
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
