"""One process of a replicated broker, from its start until it stops or steps down.

::

    metadata store <--- SetMembership, swap ----+
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
import time
from collections.abc import Callable, Coroutine, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from random import Random
from typing import TYPE_CHECKING, Any

from martlet import unreachable
from martlet.broker.errors import WritesRefused
from martlet.broker.recovery.restore import BrokerRecovery, promote
from martlet.log.commit_log import CommitLog
from martlet.log.copy import CopiedLog, open_copy
from martlet.log.cut import CutTail
from martlet.log.epochs import EpochRange
from martlet.log.folder import read_boot_id
from martlet.log.open_files import Acceptor
from martlet.log.segmented import FlushJob
from martlet.names import PUBLISH_AGAIN
from martlet.options import BrokerOptions
from martlet.replica.frames import CLIENT_IS_OPERATOR, Frame, FrameKind
from martlet.replica.note import ReplicaFailed
from martlet.replica.primary import Primary, ReplicaSettings
from martlet.replica.replica import Replica
from martlet.replica.replica_set import ReplicaSet
from martlet.replica.standby import Standby, StandbyState
from martlet.server.build import (
    assemble_server,
    broker_settings,
    import_all,
    log_recovery,
    with_ports,
)
from martlet.server.clock import Clock, elapsed_ns
from martlet.server.data_folder import IDENTITY_NAME, DataFolder, open_folder
from martlet.server.http.log_api import CopiedState, standby_routes
from martlet.server.http.request import Routes
from martlet.server.http.server import HttpServer
from martlet.server.listening_socket import listen, shown
from martlet.server.metadata.store import MetadataStore, SwapUnclear
from martlet.server.replication.link import ReplicaLink, connect
from martlet.server.replication.membership import SetMembership
from martlet.server.replication.repeated_lines import RepeatedLines
from martlet.server.replication.status import AddressBook, ReplicaStatus
from martlet.server.server import Server
from martlet.server.tls import server_context

if TYPE_CHECKING:
    from martlet.server.replication.process import ReplicaProcess

TICK_S = 0.02
"""How often time passes for a replica, in seconds."""
ANNOUNCE_S = 1.0
"""How often a replica renews its presence, in seconds."""
_REPAIR_S = 3600.0
"""How soon a primary steps down again so that its log is repaired, in seconds."""
_HAND_OVER_S = 2.0
"""How long a primary that stops waits for its successor, in seconds."""
_MAX_ADDRESS_BYTES = 100
_BOOT = "boot"
"""The file with the boot of the machine in which the replica last ran, and the number of its folder
in the file system, which a copy of the folder does not have; blank after a clean stop.
"""


class SteppedDown(ReplicaFailed):
    """Another replica is primary: this process starts anew as its standby."""


class ReplicaNode:
    """A replica with its files, sockets and timers: `martlet.replica.replica.ReplicaHost`.

    Args:
        is_first: whether no other node has run in this process.
    """

    def __init__(
        self,
        options: BrokerOptions,
        store: MetadataStore,
        ports: ReplicaProcess,
        log: logging.Logger,
        *,
        is_first: bool,
    ) -> None:
        self.options = with_ports(options, ports.listeners)
        self.name = options.replica_name
        self.instance = ports.instance
        self.address = self.options.replica_address
        self.is_copied = False
        self.log = log
        self._repeated_log = RepeatedLines.above(log)
        self.server: Server | None = None
        """The broker and its clients, while this replica is primary."""
        self.is_serving = asyncio.Event()
        """Set once clients are served."""
        self.is_useful = asyncio.Event()
        """Set once this replica is primary and serves clients, or follows one."""
        self.status = ReplicaStatus(self)
        self.log_routes: Routes = {}
        """The endpoints for readers of the log at a standby, once its folder is open."""
        self._settings = ReplicaSettings(
            flush_sync=options.flush == "sync", replica_timeout_ns=options.replica_timeout_ns
        )
        self._store = store
        self._ports = ports
        self._loop = asyncio.get_running_loop()
        self._ended: asyncio.Future[None] = self._loop.create_future()
        self.membership = SetMembership(self.options, store, ports.instance, self._ended, log)
        self._tasks: set[asyncio.Task[None]] = set()
        self._disk = ThreadPoolExecutor(1, "martlet-replica-disk")
        self._epoch = 0
        """The newest one that it has pledged to."""
        self._ticks_soon = False
        self._is_first = is_first
        self._is_started = False
        self._is_stopping = False
        self._is_flushing = False
        self._is_saving = False
        self._damaged: set[tuple[int, int]] = set()
        """The damaged ranges that were logged."""
        self._began_s = 0
        """When the epoch of this primary began, in seconds since 1970."""
        self._shortage = ""
        """Why this primary takes no messages; empty while it does."""
        self._listener: Acceptor | None = None
        self._spliced_http: HttpServer | None = None
        """Answers requests that standbys forward, while this replica is primary."""
        self.links: set[ReplicaLink] = set()
        self.strangers: dict[ReplicaLink, None] = {}
        self.folder: DataFolder
        self.addresses: AddressBook
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
            self.stop_at_once()
            return
        self._is_stopping = True
        primary.hand_over(successor, self.now_ns())
        self._loop.call_later(_HAND_OVER_S, self.stop)
        self._tick()

    def stop_at_once(self) -> None:
        """Make `run` return."""
        if not self._ended.done():
            self._ended.set_result(None)

    async def _start(self) -> None:
        options = self.options
        path = Path(options.data_path or ".").absolute()
        if self._is_first:
            # A later node learns from the document whether another process has replaced this one.
            await self.membership.until_alone()
        broker_id = ""
        if not (path / IDENTITY_NAME).exists():
            broker_id = await self.membership.find_broker_id()
        if self._ended.done():
            return
        self.folder = open_folder(path, options, self.log, broker_id)
        self.log.info("REPLICA: %s of broker %s, in %s", self.name, self.folder.broker_id, path)
        self.log_routes = standby_routes(
            self.folder, self._copied_state, self.status.http_addresses
        )
        storage = self.folder.storage
        self.addresses = AddressBook(storage)
        here = [read_boot_id(), str(path.stat().st_ino)]
        boot = (storage.read(_BOOT) or b"").decode().split()
        lost_power = boot[:1] not in ([], here[:1])
        # The folder that it was copied from may have gone on, with or without its process.
        self.is_copied = boot[1:] not in ([], here[1:])
        if self.is_copied:
            self.log.warning(
                "LOG: %s is a copy of a data folder, made while its replica ran: it counts once it"
                " has all of the primary's log",
                path,
            )
        # In a thread: it reads the whole log, and clients are carried on to the primary meanwhile.
        await self._loop.run_in_executor(self._disk, import_all)
        self.replica = await self._loop.run_in_executor(
            self._disk,
            partial(
                Replica,
                self.name,
                self.folder.broker_id,
                storage,
                self,
                Random(),
                self._settings,
                self.now_ns(),
                may_be_incomplete=lost_power and not self._settings.flush_sync,
            ),
        )
        storage.replace(_BOOT, " ".join(here).encode())
        await self._listen()
        self._every(TICK_S, self._tick)
        self._every(ANNOUNCE_S, self._announce)
        self._every(options.sync_timeout_ns / 1e9, self._flush_standby)

    def _copied_state(self) -> CopiedState | None:
        """The state that readers of the log see at a standby."""
        role = self.replica.role if hasattr(self, "replica") else None
        if not isinstance(role, Standby):
            return None
        return CopiedState(role.copy, role.recovery, self.replica.confirmed_position)

    async def _listen(self) -> None:
        """Take connections of other replicas. Raises OSError."""
        address = self.options.replica_address
        sock = listen(address, "replica-address")
        tls = self._ports.trust.server_tls
        self._listener = Acceptor(self._link, sock, f"replicas {shown(sock)}", tls)
        self.log.info("REPLICA: listening on %s", address)

    async def _close(self) -> None:
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        if self._listener is not None:
            self._listener.close()
        for link in [*self.links, *self.strangers]:
            link.close()
        server, self.server = self.server, None
        self._disk.shutdown()
        self.is_serving.clear()
        if server is not None:
            # At once: requests under way get a moment, for which no other client is to wait.
            spliced = [] if self._spliced_http is None else [self._spliced_http.stop()]
            await asyncio.gather(self._ports.answer_as_standby(), server.clients.stop(), *spliced)
            await server.abandon()
        if hasattr(self, "replica") and self._ended.done() and self._ended.exception() is None:
            await self._loop.run_in_executor(None, self._note_clean_stop)
        if hasattr(self, "folder"):
            self.folder.close()

    def _note_clean_stop(self) -> None:
        """Flush the log, and note that a power cut from now on loses nothing of it."""
        role = self.replica.role
        log = role.log if isinstance(role, Primary) else role.copy
        if log.failed is not None:
            return
        try:
            log.flush_job().run()
            self.folder.storage.replace(_BOOT, b"")
        except OSError as error:
            self.log.error("LOG: flushing it at the end failed: %s", error)

    def now_ns(self) -> int:
        """Return the time, which never goes back, and goes on while the process is stopped."""
        return elapsed_ns()

    def _do(self, step: Callable[[], object]) -> None:
        """Do a step of the replica; its failure ends the node."""
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

    def _tick_soon(self) -> None:
        """Tick in this turn of the loop, since something has changed."""
        if not self._ticks_soon:
            self._ticks_soon = True
            self._loop.call_soon(self._tick)

    def _tick(self) -> None:
        self._ticks_soon = False
        if self._ended.done():
            return
        self._do(lambda: self.replica.tick(self.now_ns()))
        self._refuse_if_short()
        self._end_turn()
        primary = self.replica.primary
        if self._is_stopping and primary is not None and not primary.standbys:
            # All replicas stop, and no standby is left to hand over to.
            self.stop_at_once()

    def _end_turn(self) -> None:
        self._do(lambda: self.replica.end_turn(self.now_ns()))
        self._report()
        if self._settings.flush_sync:
            # What is appended outside of a tick of the server is to be confirmed, too.
            if self.server is not None:
                self.server.flusher.flush()
            self._flush_standby()
        self._save_standby()

    def _report(self) -> None:
        """Log what this replica has become, and what hinders it."""
        replica = self.replica
        role = replica.role
        seen = replica.seen.replica_set if replica.is_replaced and replica.seen else None
        epoch = role.epoch if seen is None else max(role.epoch, seen.epoch)
        if epoch > self._epoch:
            self._epoch = epoch
            self._ports.epoch_began(epoch)
        said = f"{replica.role_name} in epoch {role.epoch}"
        if isinstance(role, Primary) and role.handing_over_to is not None:
            said += f", and hands over to {role.handing_over_to}"
        if replica.problem:
            said += f": {replica.problem}"
        self._say(said)
        if isinstance(role, Standby) and role.state is StandbyState.FOLLOWING:
            self.is_useful.set()

    def _say(self, said: str) -> None:
        if self.membership.say(said):
            self._run(self._announce())  # So that others see it at once.

    def _refuse_if_short(self) -> None:
        """Take no messages while too few replicas can have them."""
        primary, server = self.replica.primary, self.server
        if primary is None or server is None or primary.handing_over_to is not None:
            return
        why = primary.shortage(self.now_ns())
        if why and primary.log.refusal is None:  # Also where a hand-over was given up.
            self.log.error("REPLICA: messages are refused: %s", why)
            primary.log.refuse_writes(why)
            # By then the sends that wait have been answered that replicas take too long.
            self._loop.call_later(
                self.options.sync_replica_timeout_ns / 1e9, self._refuse_waiting, server
            )
        elif self._shortage and not why:
            self.log.info("REPLICA: messages are taken again")
            primary.log.accept_writes()
        self._shortage = why

    def _refuse_waiting(self, server: Server) -> None:
        if self._shortage and self.server is server:
            server.commits.refuse_waiting(WritesRefused(self._shortage))

    async def _announce(self) -> None:
        began_s = 0 if self.server is None else self._began_s
        await self.membership.announce(self.replica, self.now_ns(), began_s)

    # links

    def _link(self) -> ReplicaLink:
        return ReplicaLink(self, self._ports.trust, self._repeated_log)

    def _own_link(self) -> ReplicaLink:
        return ReplicaLink(self, self._ports.trust, self._repeated_log, is_acceptor=False)

    def link_received(self, link: ReplicaLink, frames: list[Frame]) -> None:
        """Frames arrived."""
        for frame in frames:
            if link.is_closed:
                break
            self._do(lambda frame=frame: self.replica.received(link, frame, self.now_ns()))  # type: ignore[misc]
        self._end_turn()

    def link_drained(self, link: ReplicaLink) -> None:
        """A connection that was full takes frames again."""
        self._do(lambda: self.replica.end_turn(self.now_ns()))

    def link_lost(self, link: ReplicaLink) -> None:
        """A connection ended."""
        if hasattr(self, "replica"):
            self._do(lambda: self.replica.disconnected(link, self.now_ns()))
            self._tick_soon()

    def link_spliced(self, link: ReplicaLink, frame: Frame) -> None:
        """Serve a client of a standby; close the connection where this is no primary."""
        server, http = self.server, self._spliced_http
        if server is None or http is None or not self.is_serving.is_set():
            link.close()
            return
        link.send(Frame(FrameKind.SPLICED, self.replica.role.epoch))
        client = bytes(frame.body[:_MAX_ADDRESS_BYTES]).decode(errors="replace") or "unknown"
        is_operator = CLIENT_IS_OPERATOR in (frame.position, frame.second)
        link.release(
            http.connection(is_operator)
            if frame.position
            else server.connect(client, is_vouched_for=is_operator)
        )

    # ReplicaHost

    def connect(self, attempt: int, name: str, address: str) -> None:
        """Begin a connection to a replica."""

        async def begin() -> None:
            try:
                link = await connect(address, self._ports.trust, self._own_link)
            except OSError as error:
                refused = isinstance(error, ConnectionRefusedError)
                reason = f"not connected to {name} at {address}: {unreachable.reason(error)}"
                self._do(
                    lambda: self.replica.connect_failed(
                        attempt,
                        is_refused=refused,
                        now_ns=self.now_ns(),
                        reason="" if refused else reason,
                    )
                )
                return
            self._do(lambda: self.replica.connected(attempt, link, self.now_ns()))

        self._run(begin())

    def poll(self) -> None:
        """Begin to read the document and the presences."""

        async def begin() -> None:
            seen = await self.membership.poll(self.replica)
            if seen is None:
                self._do(lambda: self.replica.poll_failed(self.now_ns()))
                return
            self.addresses.note(seen)
            self._do(lambda: self.replica.polled(seen, self.now_ns()))
            self._tick_soon()

        self._run(begin())

    def swap(self, replica_set: ReplicaSet, version: int) -> None:
        """Begin a compare-and-swap of the document."""

        async def begin() -> None:
            try:
                outcome = await self._store.swap(replica_set, version)
            except SwapUnclear as error:
                # A candidate asks again and again.
                self._repeated_log.warning("REPLICA: %s", error)
                self._do(lambda: self.replica.swap_unclear(replica_set, self.now_ns()))
                return
            self._do(lambda: self.replica.swapped(replica_set, outcome, self.now_ns()))
            self._tick_soon()

        self._run(begin())

    def open_copy(self, epochs: Sequence[EpochRange]) -> CopiedLog:
        """Open the log as a copy. Raises SteppedDown where a broker has it."""
        if self.server is not None:
            if self._is_stopping and not self._ended.done():
                self._ended.set_result(None)
            raise SteppedDown("another replica is primary")
        copy, report = open_copy(self.folder.storage, epochs=epochs)
        damaged = {(damage.start, damage.end): damage for damage in report.damaged}
        for span in damaged.keys() - self._damaged:
            self.log.error("LOG: %s; another replica's bytes are asked for", damaged[span])
        for start, end in sorted(self._damaged - damaged.keys()):
            if copy.stored_at(start) is not None:
                self.log.info("LOG: %d bytes from position %d are good again", end - start, start)
        self._damaged = set(damaged)
        copy.on_cut = self._log_cut
        return copy

    def _log_cut(self, tail: CutTail) -> None:
        self.log.warning(
            "LOG: %d bytes from position %d on are cut off, which the primary does not have: they"
            " were not confirmed. %d bytes of them are kept in %s",
            tail.written_bytes,
            tail.start,
            tail.kept_bytes,
            ", ".join(str(self.folder.path / name) for name in tail.kept) or "no file",
        )

    def folder_is_of(self, replica: str) -> None:
        """Log that the data folder is a copy of another replica's."""
        self.log.warning(
            "LOG: the data folder is that of replica %s, and this is %s: it counts once it has all"
            " of the primary's log",
            replica,
            self.name,
        )

    def lacks_acknowledged(self) -> None:
        """Log that this standby lacks records that it had acknowledged."""
        self.log.error(
            "LOG: this replica lacks records that it had acknowledged to the primary: its data"
            " folder is an older one, as from a backup, or the end of its log is damaged. It counts"
            " again once it has all of the primary's log"
        )

    def recover(self, copy: CopiedLog) -> BrokerRecovery:
        """Begin the state of a broker from a copied log."""
        return BrokerRecovery(copy.storage, copy.segments, self.options.segment_bytes, copy=copy)

    def promote(
        self, copy: CopiedLog, recovery: BrokerRecovery, epoch: int, confirmed: int
    ) -> CommitLog:
        """Begin an epoch. Raises OSError and WritesRefused."""
        clock = Clock()
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
        broker.lost = partial(self._lost, broker.lost)
        broker.log.refuse_percent = self.options.disk_refuse_percent
        log_recovery(self.folder.path, broker, restored, self.log)
        broker.await_confirmation(min(confirmed, broker.log.position))
        self.server = server = assemble_server(
            self.options,
            server_context(self.options),
            self._ports.listeners,
            self.folder,
            broker,
            clock,
            self.log,
            replication=self.status,
        )
        server.commits.on_log_moved = self._log_moved
        self._began_s = int(time.time())
        self.log.info("REPLICA: %s begins epoch %d at %d", self.name, epoch, copy.position)
        return broker.log

    def _lost(
        self, log_lost: Callable[[str, str, int, int, str], None],
        topic: str, channel: str, first: int, end: int, reason: str,
    ) -> None:  # fmt: skip
        """Step down, if another replica may have messages that this primary cannot read."""
        primary, now_s = self.replica.primary, time.monotonic()
        if (
            primary is None
            or primary.successor is None
            or self._ended.done()
            # What no replica has good is lost.
            or now_s - self._ports.repaired_at_s < _REPAIR_S
        ):
            log_lost(topic, channel, first, end, reason)
            return
        self._ports.repaired_at_s = now_s
        self.log.error(
            "LOG: topic %s, channel %s: messages %d to %d cannot be read: %s; another replica's"
            " bytes are asked for", topic, channel, first, end - 1, reason,
        )  # fmt: skip
        primary.log.refuse_writes(f"the log is repaired: {PUBLISH_AGAIN}")
        self._ended.set_exception(SteppedDown("its log is damaged"))

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
        self._spliced_http = HttpServer(server.routes(), self._ports.listeners.operators)
        self.is_serving.set()
        self.is_useful.set()
        await self._announce()  # So that standbys find this one at once.

    def _log_moved(self) -> None:
        """The log of the primary has grown, or has become durable."""
        if self.server is None:
            return  # A flush has ended after the primary stepped down.
        role = self.replica.role
        if isinstance(role, Primary):
            role.flushed(self.now_ns())
        self._do(lambda: self.replica.end_turn(self.now_ns()))

    # the disk of a standby

    def _flush_standby(self) -> None:
        role = self.replica.role
        if isinstance(role, Primary) or self._is_flushing:
            return
        copy = role.copy
        if copy.failed is None and copy.durable_position >= copy.position:
            return
        if copy.failed is not None and not copy.may_recover:
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
            if copy.failed is None:
                self.log.error("LOG: flushing it failed: %s", error)
            copy.flush_failed(error)
            self._do(lambda: self.replica.tick(self.now_ns()))
        elif error is not None:
            raise error
        else:
            copy.flushed(job)
            self._end_turn()

    def _save_standby(self) -> None:
        """Save a checkpoint of a standby's state, if one is due."""
        role = self.replica.role
        if not isinstance(role, Standby) or self._is_saving:
            return
        recovery, copy = role.recovery, role.copy
        if recovery is None or not recovery.is_usable or copy.failed is not None:
            return
        checkpoint = recovery.take_checkpoint(copy.durable_position)
        if checkpoint is None:
            return
        self._is_saving = True
        future = self._loop.run_in_executor(self._disk, checkpoint.save, copy.storage)

        def saved(done: asyncio.Future[None]) -> None:
            self._is_saving = False
            error = done.exception()
            if isinstance(error, OSError):
                self.log.error("LOG: a checkpoint could not be saved: %s", error)
            elif error is not None:
                raise error
            elif self.replica.role is role and role.recovery is recovery:
                self._do(lambda: self.replica.checkpoint_saved(checkpoint))

        future.add_done_callback(saved)
