"""The server: a broker behind its listeners, on one event loop.

In each tick of the loop the server reads all connections with input, one after the other, and
stages what they publish. At the end of the tick it commits everything at once
(`martlet.server.group_commit`). `martlet.server.build` puts the parts of a server together.
"""

from __future__ import annotations

import asyncio
import logging
import socket
from collections.abc import Callable, Coroutine
from contextlib import suppress
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from martlet.addresses import is_host
from martlet.broker.errors import WritesRefused
from martlet.server.disk_space import CHECK_NS, CHECK_WHILE_FULL_NS
from martlet.server.observability.statsd import push

if TYPE_CHECKING:
    from martlet.broker.broker import BrokerCore
    from martlet.broker.retention.eviction import HistoryReclaimer
    from martlet.options import BrokerOptions
    from martlet.server.clock import DueTimer
    from martlet.server.data_folder import DataFolder
    from martlet.server.disk_space import DiskSpace
    from martlet.server.flusher import Flusher
    from martlet.server.group_commit import GroupCommit
    from martlet.server.http.request import Routes
    from martlet.server.http.v1.leases import Leases
    from martlet.server.listeners import Listeners
    from martlet.server.lookup_peer import LookupPeers
    from martlet.server.nsq.authorizer import AuthServers
    from martlet.server.nsq.clients import Clients
    from martlet.server.nsq.connection import ClientConnection
    from martlet.server.nsq.publish import FlushTimeouts
    from martlet.server.observability.stats import StatsSource
    from martlet.server.rpc.registry import CallRegistry


@dataclass(eq=False)
class Server:
    """A broker with its TCP and HTTP listeners."""

    options: BrokerOptions
    """The options as at the broker's start, with the actual ports."""
    broker: BrokerCore
    folder: DataFolder
    listeners: Listeners
    commits: GroupCommit
    timer: DueTimer
    reclaimer: HistoryReclaimer
    disk_space: DiskSpace
    clients: Clients
    connect: Callable[..., ClientConnection]
    """Makes the connection of an accepted client; it may be given the client's address."""
    routes: Callable[[], Routes]
    """Returns the endpoints of HTTP, which take long to import."""
    calls: CallRegistry
    stats: StatsSource
    lookups: LookupPeers
    flush_timeouts: FlushTimeouts
    auth_servers: AuthServers | None
    leases: Leases
    """The messages that clients over HTTP have."""
    log: logging.Logger
    _tasks: list[asyncio.Task[None]] = field(default_factory=list)

    async def start(self) -> None:
        """Accept connections, and start the periodic jobs."""
        options = self.options
        self.timer.start()
        self.listeners.on_http_input = self.commits.ticks.others_wait
        await self.listeners.answer_by(self.connect, self.routes)
        if options.statsd_address:
            self._run(push(self.stats, options))
        await self.lookups.set_addresses(options.lookupd_tcp_addresses)
        self._run(warn(options, self.log))
        self._every(options.journal_interval_ns, self.commits.write_journal, steady=True)
        self._every(options.checkpoint_interval_ns, self.disk_space.keep_checkpoint)
        self._every(CHECK_NS, self.disk_space.check)
        self._every(CHECK_WHILE_FULL_NS, self.disk_space.check_while_full)
        self._every(options.sync_timeout_ns, self._keep_flushed)

    async def stop(self) -> None:
        """Close the listeners, save the broker's state, and release the data folder."""
        await self._stop_tasks(self.listeners.close)
        await self.listeners.close_http()
        self.commits.close()
        await self._stop_clients()
        self.log.info("NSQ: closing topics")
        with suppress(WritesRefused):
            self.broker.write_journal()
        if self.broker.unconfirmed is None:  # Else it would wait for replicas.
            await self.flusher.checkpoint()
        self.log.info("NSQ: stopping subsystems")
        self.flusher.close()
        self.folder.close()

    async def abandon(self) -> None:
        """Close all connections of clients and save nothing: with replicas, another broker has
        begun, and the log is no longer this one's. The caller has given the listeners to another
        one, and releases the data folder.
        """
        await self._stop_tasks(lambda: None)
        await self._stop_clients()
        self.flusher.close()

    async def _stop_tasks(self, stop_listening: Callable[[], None]) -> None:
        await self.lookups.close()
        stop_listening()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def _stop_clients(self) -> None:
        self.leases.close()
        await self.clients.stop()
        if self.auth_servers is not None:
            await self.auth_servers.close()
        self.timer.close()
        self.flush_timeouts.close()

    @property
    def tcp_address(self) -> str:
        """The address of NSQ's protocol, with the port chosen for port 0."""
        return self.listeners.tcp_address

    @property
    def tcp_port(self) -> int:
        """The port of `tcp_address`, -1 for a Unix socket."""
        return self.listeners.tcp_port

    @property
    def http_address(self) -> str:
        """The address of HTTP; empty for none."""
        return self.listeners.http_address

    @property
    def http_port(self) -> int:
        """The port of `http_address`, -1 for a Unix socket, 0 for none."""
        return self.listeners.http_port

    @property
    def flusher(self) -> Flusher:
        """Makes flushes and checkpoints."""
        return self.commits.flusher

    @property
    def connections(self) -> set[ClientConnection]:
        """The connections of all clients over TCP."""
        return self.clients.connections

    def _run(self, coroutine: Coroutine[object, object, None]) -> None:
        self._tasks.append(asyncio.get_running_loop().create_task(coroutine))

    def _every(self, interval_ns: int, call: Callable[[], object], *, steady: bool = False) -> None:
        """Call at an interval from the end of the last call or, if `steady`, from its start."""

        async def repeat() -> None:
            loop = asyncio.get_running_loop()
            rest_s = interval_s = interval_ns / 1e9
            while True:
                await asyncio.sleep(rest_s)
                began_s = loop.time()
                try:
                    result = call()
                    if asyncio.iscoroutine(result):
                        await result
                except Exception:
                    # Without this the job would silently never run again.
                    self.log.exception("%r failed; it is tried again", call)
                if steady:
                    rest_s = max(0.0, interval_s - (loop.time() - began_s))

        self._run(repeat())

    def _keep_flushed(self) -> None:
        self.commits.flush_if_idle()


async def warn(options: BrokerOptions, log: logging.Logger) -> None:
    """Warn of valid options that are usually a mistake."""
    if options.sync_every == 1 and options.flush != "sync":
        log.warning(
            "LOG: --sync-every=1 flushes each message to the disk, but OK does not wait for that:"
            " a power cut may take messages that were answered OK; --flush=sync makes it wait"
        )
    if options.disk_full_policy == "dead-letter" or options.dead_letter_path:
        log.warning(
            "LOG: --disk-full-policy=dead-letter and --dead-letter-path have no effect: on a full"
            " disk publishing is refused, unless --disk-full-policy=drop-oldest is given"
        )
    if (
        options.replica_name
        and options.operator_token_file
        and not (options.replica_secret_file or options.replica_tls_cert)
    ):
        log.warning(
            "REPLICA: all users of this machine are operators, whatever --operator-token-file says,"
            " by the port %s for replicas: give all of them the same --replica-secret-file",
            options.replica_address,
        )
    name = options.broadcast_address
    if options.lookupd_tcp_addresses and not is_host(name):
        log.warning(
            "LOOKUP: lookup daemons refuse this broker: its --broadcast-address %r is no host name"
            " or IP address",
            name,
        )
    if not options.lookupd_tcp_addresses and name == socket.gethostname():
        return  # The name is the default, and no lookup daemon gets it.
    try:
        await asyncio.get_running_loop().getaddrinfo(name, None)
    except (OSError, UnicodeError) as error:
        log.warning(
            "LOOKUP: %r, under which clients that ask a lookup daemon are sent here, does not"
            " resolve on this machine (%s): give a name or an address that clients reach with"
            " --broadcast-address",
            name,
            error,
        )
