"""One process of a replicated broker, from its start until it stops or steps down.

::

    metadata store <--- look, swap, announce ---+
                                                |
    other replicas <--- ReplicaLink ------- ReplicaNode ---- Replica: standby, candidate, primary
                                                |                 |
    clients <---------- Server (primary only) --+            data folder

A primary that steps down drops its broker and all connections of clients, as a process that is
killed does, and starts anew as a standby on the same folder.
"""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import Callable, Coroutine, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from pathlib import Path
from random import Random
from typing import Any

from martlet.broker.errors import WritesRefused
from martlet.broker.recovery.restore import BrokerRecovery, promote
from martlet.log.commit_log import CommitLog
from martlet.log.copy import CopiedLog, open_copy
from martlet.log.epochs import EpochRange
from martlet.log.segmented import FlushJob
from martlet.options import BrokerOptions
from martlet.replica.frames import Frame
from martlet.replica.primary import Primary
from martlet.replica.replica import Replica, ReplicaFailed
from martlet.replica.replica_set import BadReplicaSet, ReplicaSet
from martlet.replica.settings import ReplicaSettings
from martlet.replica.standby import Standby
from martlet.server.build import assemble_server, broker_settings, log_recovery, with_ports
from martlet.server.clock import Clock
from martlet.server.data_folder import DataFolder, open_folder
from martlet.server.listeners import Listeners
from martlet.server.metadata.sqlite_store import read_boot_id
from martlet.server.metadata.store import MetadataStore, StoreUnreachable, SwapUnclear
from martlet.server.replication.link import ReplicaLink, connect
from martlet.server.server import Server
from martlet.server.tls import server_context

TICK_S = 0.02
"""How often time passes for a replica, in seconds."""
ANNOUNCE_S = 1.0
"""How often a replica renews its presence, in seconds."""
_HAND_OVER_S = 2.0
"""How long a primary that stops waits for its successor, in seconds."""
_BOOT = "boot"
"""The file with the boot of the machine in which the replica last ran; blank after a clean stop."""


@dataclass(frozen=True)
class NodeOptions:
    """The options of a replica, beside those of its broker.

    Attributes:
        name: of the replica, in the replica set.
        broker_id: of the broker, the same for all replicas.
        address: ``HOST:PORT`` where other replicas connect.
        is_sync: whether an answer waits until the message is confirmed.
        settings: those of all replicas.
    """

    name: str
    broker_id: str
    address: str
    is_sync: bool = True
    settings: ReplicaSettings = field(default_factory=ReplicaSettings)


class SteppedDown(ReplicaFailed):
    """Another replica is primary: this process starts anew as its standby."""


class ReplicaNode:
    """A replica with its files, sockets and timers: `martlet.replica.replica.ReplicaHost`.

    Args:
        options: of the broker.
        node: of the replica.
        store: the metadata store.
        log: the destination of log lines.
    """

    def __init__(
        self, options: BrokerOptions, node: NodeOptions, store: MetadataStore, log: logging.Logger
    ) -> None:
        self.options = options
        self.node = node
        self.log = log
        self.server: Server | None = None
        """The broker and its clients, while this replica is primary."""
        self.is_serving = asyncio.Event()
        """Set once clients are served."""
        self._store = store
        self._loop = asyncio.get_running_loop()
        self._ended: asyncio.Future[None] = self._loop.create_future()
        self._tasks: set[asyncio.Task[None]] = set()
        self._disk = ThreadPoolExecutor(1, "martlet-replica-disk")
        self._said = ""
        self._is_started = False
        self._is_stopping = False
        self._is_flushing = False
        self._is_saving = False
        self._listener: asyncio.Server | None = None
        self.links: set[ReplicaLink] = set()
        self.folder: DataFolder
        self.replica: Replica

    async def run(self) -> None:
        """Be a replica until `stop` is called.

        Raises:
            SteppedDown: another replica is primary; run a new node.
            ReplicaFailed: the disk failed; run a new node once it is well.
            OSError: an address or the folder cannot be used.
        """
        try:
            await self._start()
            await self._ended
        finally:
            await self._close()

    def stop(self) -> None:
        """Make `run` return; a primary first hands over to a standby, if one is in sync."""
        if self._ended.done():
            return
        primary = self.replica.primary if hasattr(self, "replica") else None
        successor = primary.successor if primary is not None else None
        if primary is None or successor is None or self._is_stopping:
            self._ended.set_result(None)
            return
        self._is_stopping = True
        self.log.info("REPLICA: %s hands over to %s", self.node.name, successor)
        primary.log.refuse_writes(
            f"replica {self.node.name} stops, and {successor} goes on: publish to that one"
        )
        primary.hand_over(successor)
        self._loop.call_later(_HAND_OVER_S, self.stop)
        self._tick()

    async def _start(self) -> None:
        options = self.options
        host, _, port = self.node.address.rpartition(":")
        self._listener = await self._loop.create_server(self._link, host.strip("[]"), int(port))
        path = Path(options.data_path or ".").absolute()
        self.folder = open_folder(path, options, self.log, self.node.broker_id)
        if self.folder.broker_id != self.node.broker_id:
            raise OSError(
                f"the data folder {path} is of broker {self.folder.broker_id}, and the replica set"
                f" of {self.node.broker_id}: give a new --data-path"
            )
        storage = self.folder.storage
        boot = (storage.read(_BOOT) or b"").decode()
        lost_power = boot not in ("", read_boot_id())
        self.replica = Replica(
            self.node.name,
            self.node.broker_id,
            storage,
            self,
            Random(),
            self.node.settings,
            self._now_ns(),
            may_be_incomplete=lost_power and not self.node.settings.flush_sync,
        )
        storage.replace(_BOOT, read_boot_id().encode())
        self._every(TICK_S, self._tick)
        self._every(ANNOUNCE_S, self._announce)
        self._every(options.sync_timeout_ns / 1e9, self._flush_standby)

    async def _close(self) -> None:
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        if self._listener is not None:
            self._listener.close()
        for link in list(self.links):
            link.close()
        server, self.server = self.server, None
        self._disk.shutdown()
        if server is not None:
            await server.abandon()
        if self._ended.done() and self._ended.exception() is None:
            await self._loop.run_in_executor(None, self._note_clean_stop)
        if hasattr(self, "folder"):
            self.folder.storage.close()

    def _note_clean_stop(self) -> None:
        """Flush the log, and note that the next start finds all of it whatever happens to the
        machine meanwhile.
        """
        role = self.replica.role
        log = role.log if isinstance(role, Primary) else role.copy
        if log.failed is not None:
            return
        try:
            log.flush_job().run()
            self.folder.storage.replace(_BOOT, b"")
        except OSError as error:
            self.log.error("LOG: flushing it at the end failed: %s", error)

    def _now_ns(self) -> int:
        return int(self._loop.time() * 1e9)

    def _do(self, step: Callable[[], object]) -> None:
        """Do something that may end the process."""
        if self._ended.done():
            return
        try:
            step()
        except ReplicaFailed as error:
            if not self._ended.done():
                self._ended.set_exception(error)

    def _run(self, coroutine: Coroutine[object, object, None]) -> None:
        task = self._loop.create_task(coroutine)
        self._tasks.add(task)
        task.add_done_callback(self._task_ended)

    def _task_ended(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and (error := task.exception()) and not self._ended.done():
            self._ended.set_exception(error)

    def _every(self, interval_s: float, call: Callable[[], Any]) -> None:
        async def repeat() -> None:
            while True:
                result = call()
                if asyncio.iscoroutine(result):
                    await result
                await asyncio.sleep(interval_s)

        self._run(repeat())

    def _tick(self) -> None:
        self._do(lambda: self.replica.tick(self._now_ns()))
        self._end_turn()

    def _end_turn(self) -> None:
        self._do(lambda: self.replica.end_turn(self._now_ns()))
        self._report()
        if self.node.settings.flush_sync:
            # What is appended outside of a tick of the server is to be confirmed, too.
            if self.server is not None:
                self.server.flusher.flush()
            self._flush_standby()
        self._save_standby()

    def _report(self) -> None:
        """Log what this replica has become, and what hinders it."""
        role = self.replica.role
        said = f"{type(role).__name__.lower()} in epoch {role.epoch}"
        if self.replica.problem:
            said += f": {self.replica.problem}"
        if said != self._said:
            self._said = said
            self.log.info("REPLICA: %s is %s", self.node.name, said)

    async def _announce(self) -> None:
        presence = replace(
            self.replica.presence(self._now_ns()),
            tcp_address=self.server.tcp_address if self.server is not None else "",
            http_address=self.server.http_address if self.server is not None else "",
        )
        try:
            await self._store.announce(self.node.name, presence)
        except StoreUnreachable as error:
            self.log.warning("REPLICA: %s", error)

    # links

    def _link(self) -> ReplicaLink:
        return ReplicaLink(self, self.log)

    def link_received(self, link: ReplicaLink, frames: list[Frame]) -> None:
        """Frames arrived."""
        for frame in frames:
            if link.is_closed:
                break
            self._do(lambda frame=frame: self.replica.received(link, frame, self._now_ns()))  # type: ignore[misc]
        self._end_turn()

    def link_lost(self, link: ReplicaLink) -> None:
        """A connection ended."""
        if hasattr(self, "replica"):
            self._do(lambda: self.replica.disconnected(link, self._now_ns()))

    # ReplicaHost

    def connect(self, attempt: int, name: str, address: str) -> None:
        """Begin a connection to a replica."""

        async def begin() -> None:
            try:
                link = await connect(address, self._link)
            except OSError as error:
                refused = isinstance(error, ConnectionRefusedError)
                self._do(
                    lambda: self.replica.connect_failed(
                        attempt, is_refused=refused, now_ns=self._now_ns()
                    )
                )
                return
            self._do(lambda: self.replica.connected(attempt, link, self._now_ns()))

        self._run(begin())

    def look(self) -> None:
        """Begin to read the document and the presences."""

        async def begin() -> None:
            try:
                seen = await self._store.look()
            except (StoreUnreachable, BadReplicaSet) as error:
                self.log.warning("REPLICA: %s", error)
                self._do(lambda: self.replica.look_failed(self._now_ns()))
                return
            self._do(lambda: self.replica.looked(seen, self._now_ns()))
            self._end_turn()

        self._run(begin())

    def swap(self, replica_set: ReplicaSet, version: int) -> None:
        """Begin a compare-and-swap of the document."""

        async def begin() -> None:
            try:
                outcome = await self._store.swap(replica_set, version)
            except SwapUnclear as error:
                self.log.warning("REPLICA: %s", error)
                self._do(lambda: self.replica.swap_unclear(replica_set, self._now_ns()))
                return
            self._do(lambda: self.replica.swapped(replica_set, outcome, self._now_ns()))

        self._run(begin())

    def open_copy(self, epochs: Sequence[EpochRange]) -> CopiedLog:
        """Open the log as a copy. Raises SteppedDown where a broker has it."""
        if self.server is not None:
            if self._is_stopping and not self._ended.done():
                self._ended.set_result(None)
            raise SteppedDown("another replica is primary")
        copy, report = open_copy(self.folder.storage, epochs=epochs)
        for damage in report.damaged:
            self.log.error("LOG: %s; another replica's bytes are asked for", damage)
        return copy

    def recover(self, copy: CopiedLog) -> BrokerRecovery:
        """Begin the state of a broker from a copied log."""
        return BrokerRecovery(copy.storage, copy.segments, self.options.segment_bytes, copy=copy)

    def promote(
        self, copy: CopiedLog, recovery: BrokerRecovery, epoch: int, confirmed: int
    ) -> CommitLog:
        """Begin an epoch. Raises OSError and WritesRefused."""
        tls = server_context(self.options)
        clock = Clock()
        with ExitStack() as undo:
            listeners = Listeners(self.options, tls, self.log)
            undo.callback(listeners.close)
            broker, restored = promote(
                copy,
                recovery,
                epoch,
                clock,
                random.SystemRandom(),
                segment_bytes=self.options.segment_bytes,
                **broker_settings(self.options, self.log),
            )
            if not restored.has_begun:
                raise WritesRefused("; ".join(restored.notes))
            undo.pop_all()
        log_recovery(self.folder.path, broker, restored, self.log)
        broker.await_confirmation(min(confirmed, broker.log.position))
        self.server = server = assemble_server(
            with_ports(self.options, listeners),
            tls,
            listeners,
            self.folder,
            broker,
            clock,
            self.log,
            answers_confirmed=self.node.is_sync,
        )
        server.commits.on_log_moved = self._log_moved
        self.log.info("REPLICA: %s begins epoch %d at %d", self.node.name, epoch, copy.position)
        return broker.log

    def confirmed(self, position: int) -> None:
        """Every record before a position is confirmed."""
        server = self.server
        assert server is not None
        server.broker.confirm(position)
        server.commits.answer()
        server.flusher.confirmed()
        if not self._is_started:
            self._is_started = True
            self._run(self._serve(server))

    async def _serve(self, server: Server) -> None:
        await server.start()
        self.is_serving.set()

    def _log_moved(self) -> None:
        """The log of the primary has grown, or has become durable."""
        role = self.replica.role
        if isinstance(role, Primary):
            role.flushed()
        self._do(lambda: self.replica.end_turn(self._now_ns()))

    # the disk of a standby

    def _flush_standby(self) -> None:
        role = self.replica.role
        if isinstance(role, Primary) or self._is_flushing:
            return
        copy = role.copy
        if copy.failed is not None or copy.durable_position >= copy.position:
            return
        self._is_flushing = True
        job = copy.flush_job()
        future = self._loop.run_in_executor(self._disk, job.run)
        future.add_done_callback(lambda done: self._flushed(copy, job, done))

    def _flushed(self, copy: CopiedLog, job: FlushJob, done: asyncio.Future[None]) -> None:
        self._is_flushing = False
        error = done.exception()
        role = self.replica.role
        if isinstance(role, Primary) or role.copy is not copy:
            return
        if isinstance(error, OSError):
            copy.flush_failed(error)
            self._do(lambda: self._fail(copy))
        elif error is not None:
            raise error
        else:
            copy.flushed(job)
            self._end_turn()

    def _fail(self, copy: CopiedLog) -> None:
        raise ReplicaFailed(copy.failed)

    def _save_standby(self) -> None:
        """Save a checkpoint of a standby's state, where there is one."""
        role = self.replica.role
        if not isinstance(role, Standby) or self._is_saving:
            return
        recovery, copy = role.recovery, role.copy
        if recovery is None or not recovery.is_usable or copy.failed is not None:
            return
        found = recovery.take_checkpoint(copy.durable_position)
        if found is None:
            return
        self._is_saving = True
        future = self._loop.run_in_executor(self._disk, found.save, copy.storage)

        def saved(done: asyncio.Future[None]) -> None:
            self._is_saving = False
            error = done.exception()
            if isinstance(error, OSError):
                self.log.error("LOG: a checkpoint could not be saved: %s", error)
            elif error is not None:
                raise error
            elif self.replica.role is role and role.recovery is recovery:
                recovery.saved(found)

        future.add_done_callback(saved)
