"""A machine of a simulated cluster: a replica, its disk, and while it is primary, its broker."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import replace
from random import Random
from typing import TYPE_CHECKING

from tests.simulation.network import MILLISECOND_NS, connect
from tests.simulation.oracle import Broken
from tests.unit.broker.core import Client

from martlet.broker.broker import BrokerCore
from martlet.broker.errors import NotInFlight, WritesRefused
from martlet.broker.queue.queue_log import StoredQueue
from martlet.broker.recovery.restore import BrokerRecovery, promote
from martlet.broker.retention.checkpoint import CheckpointJob, begin_checkpoint, end_checkpoint
from martlet.log.commit_log import CommitLog
from martlet.log.copy import CopiedLog, open_copy
from martlet.log.epochs import EpochRange
from martlet.log.segmented import SegmentedLog
from martlet.replica.frames import Frame
from martlet.replica.note import ReplicaFailed
from martlet.replica.primary import Primary
from martlet.replica.replica import Replica
from martlet.replica.replica_set import ReplicaSet, Seen
from martlet.replica.shipping import Link
from martlet.replica.standby import MAX_PUMP_BYTES, Standby
from martlet.testing import SimulatedStorage

if TYPE_CHECKING:
    from tests.simulation.cluster import Cluster

BROKER = "broker-1"
SEGMENT_BYTES = 4096
TOPICS = ("a", "b")
TICK_NS = 20 * MILLISECOND_NS
UPKEEP_NS = 300 * MILLISECOND_NS


def copy_of(storage: SimulatedStorage) -> SimulatedStorage:
    """Return a copy of a data folder, whose process goes on."""
    copied = storage.crash()
    copied.capacity_bytes = storage._dead = None
    return copied


class Life:
    """One process on a machine, from its start to its end."""


class MachineClock:
    """The clocks of a machine, for a broker."""

    def __init__(self, machine: Node) -> None:
        self._machine = machine

    def __call__(self) -> int:
        return self._machine.wall_clock_ns()

    wall = __call__


class Node:
    """A machine: `martlet.replica.replica.ReplicaHost`.

    Args:
        cluster: has the machine.
        name: of the replica. Where a machine is replaced, two have the same.
        storage: another machine's data folder, of which this one has a copy; None for a new one.
    """

    def __init__(
        self, cluster: Cluster, name: str, storage: SimulatedStorage | None = None
    ) -> None:
        self.cluster = cluster
        self.name = name
        self.address = f"{name}{sum(machine.name == name for machine in cluster.machines)}"
        """Of the machine; no other has the same."""
        self.is_copied = storage is not None
        self.storage = copy_of(storage) if storage else SimulatedStorage(cluster.random)
        self.life: Life | None = None
        self.instance = ""
        """Of the process that runs, or ran last."""
        self.has_power = True
        self.is_paused = False
        self.skew_ns = cluster.random.randrange(-(10**9), 10**9)
        self.replica: Replica
        self.broker: BrokerCore | None = None
        self.clients: list[Client] = []
        self.checked_position = 0
        """The oracle has compared the log up to here."""
        self.shown: dict[int, tuple[StoredQueue, int]] = {}
        """By the number of a topic: how far the oracle has checked what a standby shows of it."""
        self.was_cut_off_power = False
        self.is_given_up = False
        """Whether its process is not started again."""
        self.was_copied = False
        """Whether a machine with a copy of its folder takes its place."""
        self.was_taken_back = False
        """Whether its copy was given up."""
        self.replaces_another = False
        """Whether its folder is a copy of another replica's."""
        self._files: tuple[Life | None, dict[int, bytearray]] = (None, {})
        """The segments that were there, and in whose time."""
        self._waiting: list[Callable[[], None]] = []
        """What happened while the process was paused."""

    # the process

    def start(self) -> None:
        """Start a process, as a script would that starts it again whenever it ends."""
        if self.life is not None or not self.has_power or self.is_given_up:
            return
        if self.was_copied:
            if self.cluster.store.replica_set.instance_of(self.name) != self.instance:
                return  # It would wait, as a copy is the replica by now.
            self.cluster.take_back(self)
        lost_power, self.was_cut_off_power = self.was_cut_off_power, False
        self.checked_position = 0
        self.broker = None
        self.instance = f"{self.cluster.random.getrandbits(64):016x}"
        try:
            self.replica = Replica(
                self.name,
                BROKER,
                self.storage,
                self,
                self.cluster.random,
                self.cluster.settings,
                self.cluster.now_ns,
                may_be_incomplete=lost_power and not self.cluster.settings.flush_sync,
            )
        except ReplicaFailed:
            self.was_cut_off_power = lost_power
            self.storage = self.storage.crash()
            self.cluster.after(500 * MILLISECOND_NS, self.start)
            return
        self.is_copied = False
        self.life = Life()
        self._every(TICK_NS, self.tick)
        self._every(1000 * MILLISECOND_NS, self._announce)
        self._every(UPKEEP_NS, self._keep_up)

    def kill(self, *, power: bool = False) -> None:
        """End the process; with `power`, the machine too."""
        self.storage = self.storage.crash(power=power)
        self.life = None
        self.is_paused = False
        self._waiting.clear()
        self.broker = None
        self.was_cut_off_power |= power
        self.has_power = not power

    def resume(self) -> None:
        self.is_paused = False
        waiting, self._waiting = self._waiting, []
        for step in waiting:
            step()

    def _do(self, life: Life | None, step: Callable[[], None]) -> None:
        """Do something unless the process has ended; after a pause where it is paused."""
        if life is None or life is not self.life:
            return
        if self.is_paused:
            self._waiting.append(lambda: self._do(life, step))
            return
        try:
            step()
        except ReplicaFailed:
            self._fail()

    def _fail(self) -> None:
        """The disk failed: the process ends, and is started again."""
        self.cluster.kill(self)
        self.cluster.after(500 * MILLISECOND_NS, self.start)

    def _later(self, delay_ns: int, step: Callable[[], None]) -> None:
        life = self.life
        self.cluster.after(delay_ns, lambda: self._do(life, step))

    def _every(self, interval_ns: int, step: Callable[[], None]) -> None:
        def again() -> None:
            step()
            self._later(interval_ns, again)

        self._later(self.cluster.random.randrange(interval_ns), again)

    @property
    def now_ns(self) -> int:
        return self.cluster.now_ns

    def wall_clock_ns(self) -> int:
        """The time of day on this machine."""
        return self.cluster.now_ns + self.skew_ns + 10**18

    def has_same_segment(self, base: int, data: bytearray) -> bool:
        """Whether this machine has the same bytes on its disk."""
        if not any(segment.base == base for segment in self.storage.segments()):
            return False
        return self.storage.segment_bytes_of(base) == data

    # what a process tells its replica

    def tick(self) -> None:
        self.replica.tick(self.now_ns)
        self.end_turn()

    def end_turn(self) -> None:
        if self.broker is not None:
            self.broker.commit()
        self.replica.end_turn(self.now_ns)
        self._check_standby()
        self._check_segments()
        if self.cluster.settings.flush_sync:
            self.flush()

    def received(self, link: Link, frame: Frame) -> None:
        self._do(self.life, lambda: self.replica.received(link, frame, self.now_ns))

    def disconnected(self, link: Link) -> None:
        self._do(self.life, lambda: self.replica.disconnected(link, self.now_ns))

    def connected(self, attempt: int, link: Link) -> None:
        self._do(self.life, lambda: self.replica.connected(attempt, link, self.now_ns))

    def later(self, life: Life | None, step: Callable[[], None]) -> None:
        """Do something in the next turn of a process, unless it has ended."""
        self.cluster.after(0, lambda: self._do(life, step))

    def drained(self) -> None:
        """A connection that was full takes frames again."""
        self.replica.end_turn(self.now_ns)

    def has_more_to_send(self, link: Link) -> bool:
        """Whether the log that is sent over a connection goes on, and the receiver wants it."""
        role = self.replica.role
        if isinstance(role, Primary):
            senders = [standby.sender for standby in role.standbys.values() if standby.link is link]
            max_bytes = self.cluster.settings.max_unacknowledged_bytes
        else:
            senders = [role._sender] if isinstance(role, Standby) and role.link is link else []
            max_bytes = MAX_PUMP_BYTES
        return any(
            sender.position < sender.log.position and sender.unacknowledged_bytes < max_bytes
            for sender in senders
            if sender is not None
        )

    def connect_failed(self, attempt: int, *, is_refused: bool) -> None:
        now_ns = self.now_ns
        self._do(
            self.life,
            lambda: self.replica.connect_failed(attempt, is_refused=is_refused, now_ns=now_ns),
        )

    def turn(self) -> None:
        """End a turn that something outside began."""
        self._do(self.life, self.end_turn)

    def _announce(self) -> None:
        name = self.address if self.replica.is_replaced else self.name
        presence = replace(self.replica.presence(self.now_ns), instance=self.instance)
        self.cluster.store.announce(name, presence)

    # what the replica asks of its process

    def connect(self, attempt: int, name: str, address: str) -> None:
        (peer,) = [machine for machine in self.cluster.machines if machine.address == address]
        connect(self.cluster, self, peer, attempt)

    def poll(self) -> None:
        if self.cluster.is_store_cut(self):
            self._later(1000 * MILLISECOND_NS, lambda: self.replica.poll_failed(self.now_ns))
            return

        life = self.life

        def answered(seen: Seen | None) -> None:
            def tell() -> None:
                if seen is None:
                    self.replica.poll_failed(self.now_ns)
                else:
                    self.replica.polled(seen, self.now_ns)
                self.end_turn()

            self._do(life, tell)

        self.cluster.store.read(answered)

    def swap(self, replica_set: ReplicaSet, version: int) -> None:
        life = self.life
        if self.cluster.is_store_cut(self):
            self._later(
                1000 * MILLISECOND_NS,
                lambda: self.replica.swap_unclear(replica_set, self.now_ns),
            )
            return
        self.cluster.store.swap(
            replica_set,
            version,
            lambda outcome: self._do(
                life, lambda: self.replica.swapped(replica_set, outcome, self.now_ns)
            ),
            lambda: self._do(life, lambda: self.replica.swap_unclear(replica_set, self.now_ns)),
        )

    def open_copy(self, epochs: Sequence[EpochRange]) -> CopiedLog:
        self.broker = None
        self.clients = []
        return open_copy(self.storage, epochs=epochs)[0]

    def folder_is_of(self, replica: str) -> None:
        """The folder was copied from the machine of another replica."""
        if not self.replaces_another:
            raise Broken(f"{self.name} is said to have the folder of {replica}")
        self.replaces_another = False

    def lacks_acknowledged(self) -> None:
        """No folder is restored from a backup here; but a copy may have been the replica."""
        if not self.was_taken_back:
            raise Broken(f"{self.address} is said to lack what it acknowledged")

    def recover(self, copy: CopiedLog) -> BrokerRecovery:
        return BrokerRecovery(copy.storage, copy.segments, SEGMENT_BYTES, copy=copy)

    def promote(
        self, copy: CopiedLog, recovery: BrokerRecovery, epoch: int, confirmed: int
    ) -> CommitLog:
        self.cluster.oracle.elected(self, copy, epoch)
        broker, restored = promote(
            copy,
            recovery,
            epoch,
            MachineClock(self),
            Random(self.cluster.random.random()),
            segment_bytes=SEGMENT_BYTES,
        )
        if not restored.has_begun:
            raise WritesRefused("; ".join(restored.notes))
        broker.await_confirmation(confirmed)
        self.broker = broker
        self.is_serving = False
        self.checkpoint_job: CheckpointJob | None = None
        return broker.log

    def confirmed(self, position: int) -> None:
        broker = self.broker
        assert broker is not None
        self.cluster.oracle.confirmed(self, broker.log, position)
        broker.confirm(position)
        if not self.is_serving:
            self.is_serving = True
            self._serve(broker)

    # the broker of a primary

    def _serve(self, broker: BrokerCore) -> None:
        for name in TOPICS:
            try:
                channel = broker.topic(name).channel("c")
            except WritesRefused:
                self.is_serving = False  # With the next confirmation, then.
                return
            client = Client(channel, 2 * 10**9)
            self.clients.append(client)
            client.ready(20)

    def publish(self) -> None:
        """A publisher sends some messages."""
        broker = self.broker
        if broker is None or not self.is_serving or self.is_paused:
            return
        primary = self.replica.primary
        if primary is not None and primary.handing_over_to is not None:
            return
        name = self.cluster.random.choice(TOPICS)
        bodies = self.cluster.some_bodies()
        try:
            receipt = broker.topic(name).stage(bodies, 0)
            broker.commit()
        except WritesRefused:
            return
        if receipt.error is None:
            self.cluster.oracle.published(self, broker, name, bodies, receipt.position)
        self.turn()

    def consume(self) -> None:
        """The consumers finish what they have, but for some."""
        if self.broker is None or self.is_paused:
            return
        for client in list(self.clients):
            got, client.got = client.got, []
            for message in got:
                offset = client.channel.cursor.queue.offset_of(message.id)
                self.cluster.oracle.delivered(client.channel.topic, offset, message.body)
                if self.cluster.chance(0.9):
                    with suppress(NotInFlight):  # It timed out while the process was paused.
                        client.channel.finish(client.consumer, offset)
        self.turn()

    def _keep_up(self) -> None:
        """Journal, flush, make a checkpoint."""
        broker = self.broker
        try:
            if broker is not None:
                if broker.log.failed is None:
                    broker.run()
                    broker.write_journal()
                    self.checkpoint(broker)
            else:
                self._checkpoint_standby()
        except (WritesRefused, OSError):
            pass  # A full or a failing disk: it is tried again.
        if not self.cluster.settings.flush_sync:
            self.flush()
        self.end_turn()

    def checkpoint(self, broker: BrokerCore) -> None:
        """Begin a checkpoint, or end the one that was begun, once it is confirmed."""
        job = self.checkpoint_job
        if job is None:
            self.checkpoint_job = begin_checkpoint(broker)
        elif broker.confirmed_position >= job.flush.position:
            self.checkpoint_job = None
            job.flush.run()
            broker.log.flushed(job.flush)
            job.save()
            end_checkpoint(broker, job)

    def _checkpoint_standby(self) -> None:
        role = self.replica.role
        if isinstance(role, Standby) and role.recovery is not None and role.recovery.is_usable:
            checkpoint = role.recovery.take_checkpoint(role.copy.durable_position)
            if checkpoint is not None:
                checkpoint.save(self.storage)
                self.replica.checkpoint_saved(checkpoint)

    def flush(self) -> None:
        """Flush the log, in a thread; the process hears of it later."""
        role = self.replica.role
        log: SegmentedLog = role.log if isinstance(role, Primary) else role.copy
        if log.failed is not None or log.durable_position == log.position:
            return
        job = log.flush_job()
        try:
            job.run()
        except OSError as error:
            log.flush_failed(error)
            return

        def flushed() -> None:
            now = self.replica.role
            if (now.log if isinstance(now, Primary) else now.copy) is not log:
                return
            log.flushed(job)
            if isinstance(now, Primary):
                now.flushed(self.now_ns)
            self.replica.end_turn(self.now_ns)

        self._later(self.cluster.random.randrange(20 * MILLISECOND_NS), flushed)

    def _check_standby(self) -> None:
        """What a standby has taken in, and shows, is what the primary had confirmed."""
        role = self.replica.role
        if isinstance(role, Standby) and role.recovery is not None and role.recovery.is_usable:
            recovery = role.recovery
            self.cluster.oracle.followed(self, role.copy, recovery.position)
            if recovery.is_usable_for(role.copy) and recovery.is_confirmed(role.floor):
                self.cluster.oracle.shown(self, recovery)

    def _check_segments(self) -> None:
        """No segment goes before the confirmed log says so."""
        files = self.storage.segment_files()
        before, self._files = self._files, (self.life, files)
        if before[0] is self.life:
            gone = before[1].keys() - files.keys()
            self.cluster.oracle.removed(self, {base: before[1][base] for base in gone})
