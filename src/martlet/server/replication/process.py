"""The process of a replica: its ports of clients stay open while its roles change.

::

    clients -> Listeners --- primary -------> Server
                         |-- standby, TCP --> SplicedConnection --> the primary
                         '-- standby, HTTP -> StandbyRoutes ------> the primary, but for its own
"""

from __future__ import annotations

import asyncio
import gc
import logging
import math
import time
import uuid
from contextlib import suppress
from typing import TYPE_CHECKING

from martlet.options import BrokerOptions, OptionError
from martlet.replica.frames import CLIENT_IS_OPERATOR, CLIENT_SPEAKS_HTTP
from martlet.replica.note import ReplicaFailed
from martlet.server.build import allow_many_files
from martlet.server.flusher import RETRY_S
from martlet.server.listeners import Listeners
from martlet.server.lookup_peer import host_and_port
from martlet.server.metadata.address import BadStoreAddress, open_store
from martlet.server.replication.node import ReplicaNode, SteppedDown
from martlet.server.replication.repeated_lines import RepeatedLines
from martlet.server.replication.splice import MAX_SPLICING, SplicedConnection, open_splice
from martlet.server.replication.trust import LinkTrust
from martlet.server.tls import server_context
from martlet.unreachable import Outage

if TYPE_CHECKING:
    from martlet.replica.replica import Replica
    from martlet.server.http.request import Routes
    from martlet.server.replication.link import ReplicaLink
    from martlet.server.replication.standby_http import Forwarder

_USEFUL_S = 10.0
"""How long a start waits until the replica serves clients or follows a primary, in seconds."""


class ReplicaProcess:
    """A replica, from the start of its process until `stop`.

    Raises:
        OSError: an address or a file of the options cannot be used.
        OptionError: an option is no address of a lookup daemon, or of a metadata store.
    """

    def __init__(self, options: BrokerOptions, log: logging.Logger | None = None) -> None:
        for address in options.lookupd_tcp_addresses:
            host_and_port(address)
        self.options = options
        self.log = log or logging.getLogger("martlet")
        try:
            self._store = open_store(options.metadata, options.replica_set)
        except BadStoreAddress as error:
            raise OptionError(f"--metadata={error}") from error
        allow_many_files()
        self.instance = uuid.uuid4().hex
        self.repaired_at_s = -math.inf
        self.trust = LinkTrust.load(options)
        self.listeners = Listeners(options, server_context(options), self.log)
        self.operators = self.listeners.operators
        self.spliced: set[SplicedConnection] = set()
        self.epoch = 0
        self.splicing = asyncio.Semaphore(MAX_SPLICING)
        self.node = ReplicaNode(options, self._store, self, self.log, is_first=True)
        self._started_at_s = int(time.time())
        self._forwarder: Forwarder | None = None
        # A client that is held, or one that connects again and again, tries every 50 ms.
        self._splice_log = RepeatedLines.above(self.log)
        self._last_primary = ("", "")
        self._is_stopping = False
        self._full_disk = Outage(
            f"REPLICA: {options.replica_name} begins anew in {RETRY_S:g} s",
            f"REPLICA: {options.replica_name} goes on",
            log=self.log,
            level=logging.ERROR,
        )

    async def run(self) -> None:
        """Be a replica until `stop` is called.

        Raises:
            ReplicaFailed: the disk failed, not for a lack of space; start the process again once it
            is well.
            OSError: an address or the folder cannot be used.
        """
        try:
            await self.answer_as_standby()
            while True:
                try:
                    await self._run_node()
                    return
                except SteppedDown as error:
                    if self._is_stopping:
                        return
                    self.log.warning("REPLICA: %s is no primary any more: %s",
                                     self.options.replica_name, error)  # fmt: skip
                except ReplicaFailed as error:
                    if error.may_pass:
                        self._full_disk.failed(str(error))
                        await asyncio.sleep(RETRY_S)
                    if self._is_stopping or not error.may_pass:
                        raise
                # The next node reads its log first, and the document then.
                self._keep_primary()
                self.node = ReplicaNode(self.options, self._store, self, self.log, is_first=False)
                # The broker that is dropped keeps files open, and was excluded from collections.
                gc.unfreeze()
                gc.collect()
                gc.freeze()
        finally:
            self.listeners.close()
            for connection in list(self.spliced):
                connection.abort()
            await self.listeners.close_http()
            if self._forwarder is not None:
                await self._forwarder.close()
            await self._store.close()

    async def _run_node(self) -> None:
        """Run the node, and log when it goes on after a lack of space. Raises as `run`."""

        async def goes_on() -> None:
            await self.node.is_useful.wait()
            self._full_disk.over()

        watching = asyncio.create_task(goes_on())
        try:
            await self.node.run()
        finally:
            watching.cancel()

    async def useful(self) -> None:
        """Return once the replica serves clients or follows a primary, or after a while."""
        try:
            async with asyncio.timeout(_USEFUL_S):
                await self.node.is_useful.wait()
        except TimeoutError:
            return

    def stop(self) -> None:
        """Make `run` return; a primary first hands over to a standby, if one is in sync."""
        self._is_stopping = True
        self.node.stop()

    # as a standby

    async def answer_as_standby(self) -> None:
        """Pass clients on to the primary from now on."""
        await self.listeners.answer_by(
            lambda: SplicedConnection(self, self._splice_log), self._routes, ends_requests=True
        )

    def epoch_began(self, epoch: int) -> None:
        """End the connections of clients to the primary of an earlier epoch."""
        self.epoch = epoch
        if self._forwarder is not None:
            self._forwarder.epoch_began(epoch)
        for connection in list(self.spliced):
            connection.epoch_began(epoch)

    def _routes(self) -> Routes:
        from martlet.server.replication.standby_http import Forwarder, StandbyRoutes, own_routes

        if self._forwarder is None:
            limit = max(self.options.max_body_size, self.options.max_msg_size)
            self._forwarder = Forwarder(self._connect_http, self._is_primary, limit)
        forward = self._forwarder.forward
        own = own_routes(lambda: self.node.status, self.listeners.lag, self._started_at_s, forward)
        return StandbyRoutes(own, lambda: self.node.log_routes, forward)

    def primary_address(self) -> str | None:
        """Return where the primary takes connections of replicas; None where there is none."""
        self._keep_primary()
        name, address = self._last_primary
        replica: Replica | None = getattr(self.node, "replica", None)
        is_replaced = replica is not None and replica.is_replaced
        is_other = is_replaced or name != self.options.replica_name
        return address if name and is_other else None

    def _keep_primary(self) -> None:
        """Keep the primary that the newest document names, for the time when the metadata store has
        lost the document or has an old one, or a new node has not read it yet.
        """
        replica: Replica | None = getattr(self.node, "replica", None)
        seen = replica.seen if replica is not None else None
        replica_set = seen.replica_set if seen is not None else None
        pledged = replica.note.pledged if replica is not None else 0
        if (
            replica_set is not None
            and replica_set.primary is not None
            and replica_set.epoch >= pledged
        ):
            self._last_primary = (replica_set.primary, replica_set.replicas[replica_set.primary])

    def _is_primary(self) -> bool:
        return self.node.is_serving.is_set()

    async def _connect_http(self, is_operators: bool) -> tuple[ReplicaLink, int]:
        """Connect to the primary for a request. Raises OSError."""
        kind = CLIENT_IS_OPERATOR if is_operators else CLIENT_SPEAKS_HTTP
        return await open_splice(self, self._splice_log, "", kind)

    async def until_primary(self, timeout_s: float) -> None:
        """Return once this replica is primary and serves clients, or after a while."""
        with suppress(TimeoutError):
            async with asyncio.timeout(timeout_s):
                await self.node.is_serving.wait()

    def own_connection(self) -> asyncio.BaseProtocol | None:
        """Return the protocol of a client of this replica; None where it is no primary."""
        server = self.node.server
        return server.connect() if server is not None and self._is_primary() else None
