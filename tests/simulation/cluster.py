"""A simulated cluster: replicas with real logs and brokers on a simulated clock, disk and network.

One seed decides everything: what clients do, how long each step takes and what breaks when. The
first part of a run has faults; then all is mended, and the cluster must be well within seconds.
"""

from __future__ import annotations

import errno
import heapq
from collections.abc import Callable
from dataclasses import dataclass, fields, replace
from functools import partial
from random import Random

from tests.simulation.metadata_store import MetadataStore
from tests.simulation.network import MILLISECOND_NS, End
from tests.simulation.node import BROKER, SEGMENT_BYTES, Node, copy_of
from tests.simulation.oracle import Broken, Oracle

from martlet.replica.primary import Primary, ReplicaSettings
from martlet.replica.replica_set import ReplicaSet
from martlet.testing import SimulatedStorage

SECOND_NS = 1000 * MILLISECOND_NS
RECOVERY_NS = 20 * SECOND_NS
"""Within this all must be well after the last fault."""


@dataclass(frozen=True)
class Faults:
    """How often things break: weights of the faults, and chances of a single event.

    Attributes:
        kill, power, pause, one_way, isolate, store_away, store_cut, disk_full, flush_error, reset,
        write_error, wipe, hand_over, power_all, slow, replace, copy: weights.
        lost_answers, lost_swaps, slow_looks, stale_looks: chances of a request to the metadata
            store; a swap has both of the first two.
        flips: the chance that a bit of a stopped node's log flips.
        corrupt: the chance that a bit of a DATA frame flips on the way.
        interval_ms: a fault happens this often, on average.
    """

    kill: float = 5
    power: float = 3
    pause: float = 2
    one_way: float = 2
    isolate: float = 2
    store_away: float = 1
    store_cut: float = 2
    disk_full: float = 1
    flush_error: float = 1
    reset: float = 3
    hand_over: float = 1
    remove: float = 1
    power_all: float = 1
    slow: float = 1
    write_error: float = 1
    wipe: float = 1
    replace: float = 1
    copy: float = 1
    lost_answers: float = 0.05
    lost_swaps: float = 0.05
    slow_looks: float = 0.05
    stale_looks: float = 0.02
    flips: float = 0.1
    corrupt: float = 0.002
    interval_ms: int = 700


_CHANCES = (
    *("lost_answers", "lost_swaps", "slow_looks", "stale_looks", "flips", "corrupt"),
    "interval_ms",
)
_MAX_REPLACED = 2
_OF_ANY_MACHINE = ("kill", "pause", "one_way", "isolate", "store_cut", "slow")
"""The faults that those have, too, that were replaced."""
_WEIGHTS = [field.name for field in fields(Faults) if field.name not in _CHANCES]


class Cluster:
    """A cluster and what happens to it."""

    def __init__(
        self,
        seed: int,
        *,
        size: int | None = None,
        flush_sync: bool | None = None,
        min_in_sync: int | None = None,
        faults: Faults | None = None,
        duration_ns: int = 12 * SECOND_NS,
        trace: Callable[[str], None] | None = None,
    ) -> None:
        self.random = Random(seed)
        shape = Random(seed)
        self.size = size or shape.choice([2, 3, 3, 3, 3, 5])
        self.settings = ReplicaSettings(
            flush_sync=shape.random() < 0.5 if flush_sync is None else flush_sync,
            joining_lag_bytes=2000,
            max_lag_bytes=20_000,
            max_unacknowledged_bytes=5000,
        )
        self.packs_frames = shape.random() < 0.2
        self.link_bytes: int | None = None
        """How much is on the way over a connection before it takes no more; None for any."""
        self.faults = faults or Faults()
        self.duration_ns = duration_ns
        self.now_ns = 0
        self.oracle = Oracle()
        names = "abcde"[: self.size]
        if min_in_sync is None:
            # With one copy in the memory of one machine, a power cut loses it.
            least = [1, None] if self.settings.flush_sync else [None]
            min_in_sync = shape.choice(least)
        self.store = MetadataStore(
            self,
            ReplicaSet.first(
                "a", {name: f"{name}0" for name in names}, broker=BROKER, min_in_sync=min_in_sync
            ),
        )
        if shape.random() < 0.3:
            self.link_bytes = shape.randrange(3000)
        self.wanted_copies = self.store.replica_set.wanted_copies
        self.min_in_sync = self.store.replica_set.min_in_sync
        self.machines: list[Node] = []
        """All that there ever were, those that were replaced included."""
        self.nodes: dict[str, Node] = {}
        """The machine that an operator has for each replica."""
        for name in names:
            self._build(name)
        self.ends: list[End] = []
        self.is_calm = False
        self._cuts: set[tuple[str, str]] = set()
        self._store_cuts: set[str] = set()
        self._slow_nodes: set[str] = set()
        self._events: list[tuple[int, int, Callable[[], None]]] = []
        self._event_count = 0
        self._made = 0
        self._trace = trace
        for node in self.nodes.values():
            node.start()

    def _build(self, name: str, storage: SimulatedStorage | None = None) -> Node:
        """Set up a machine for a replica, in place of the one that it has."""
        node = self.nodes[name] = Node(self, name, storage)
        self.machines.append(node)
        return node

    @property
    def replaced(self) -> list[Node]:
        """The machines that were replaced."""
        return [machine for machine in self.machines if self.nodes[machine.name] is not machine]

    # time and chance

    def after(self, delay_ns: int, step: Callable[[], object]) -> None:
        self._event_count += 1
        heapq.heappush(self._events, (self.now_ns + delay_ns, self._event_count, step))  # type: ignore[misc]

    def chance(self, probability: float) -> bool:
        """Whether something happens; nothing does once all is mended."""
        return self.random.random() < probability and (probability > 0.5 or not self.is_calm)

    def network_delay_ns(self, *nodes: Node) -> int:
        """How long a frame takes between two nodes."""
        if any(node.address in self._slow_nodes for node in nodes):
            return self.random.randrange(100, 600) * MILLISECOND_NS
        if self.chance(0.02):
            return self.random.randrange(300 * MILLISECOND_NS)
        return self.random.randrange(1, 2 * MILLISECOND_NS)

    def say(self, text: str) -> None:
        """Note what happens, for the trace of a run that fails."""
        if self._trace is not None:
            self._trace(f"{self.now_ns / SECOND_NS:7.3f} {text}")

    def run(self) -> None:
        """Let everything happen. Raises Broken."""
        self._run_until(self.duration_ns, with_faults=True)
        self._mend()
        end_ns = self.now_ns + RECOVERY_NS
        while not self._is_well():
            if self.now_ns > end_ns:
                raise Broken(f"not well {RECOVERY_NS // SECOND_NS} s after the last fault: {self}")
            self._run_until(self.now_ns + 200 * MILLISECOND_NS, with_faults=False)
        self._run_until(self.now_ns + 5 * SECOND_NS, with_faults=False)
        # A primary that was paused may have had much to deliver.
        end_ns = self.now_ns + RECOVERY_NS
        while self.oracle.lost and self.now_ns < end_ns:
            self._run_until(self.now_ns + SECOND_NS, with_faults=False)
        self.oracle.end()

    def _run_until(self, end_ns: int, *, with_faults: bool) -> None:
        publish_ns = fault_ns = self.now_ns
        if with_faults:
            fault_ns = self.now_ns + SECOND_NS
        while self.now_ns < end_ns:
            next_ns = min(publish_ns, self._events[0][0] if self._events else end_ns, end_ns)
            if next_ns == publish_ns:
                self.now_ns = max(self.now_ns, publish_ns)
                publish_ns += self.random.randrange(1, 40 * MILLISECOND_NS)
                for node in self.machines:
                    if self.random.random() < 0.7 and not self.is_calm:
                        node.publish()
                    node.consume()
                continue
            if with_faults and next_ns >= fault_ns:
                self.now_ns = max(self.now_ns, fault_ns)
                fault_ns += self.random.randrange(2 * self.faults.interval_ms) * MILLISECOND_NS
                self._break_something()
                continue
            if not self._events:
                break
            self.now_ns, _, step = heapq.heappop(self._events)
            step()
        self.now_ns = max(self.now_ns, end_ns)

    def some_bodies(self) -> list[bytes]:
        """Bodies that no other message has."""
        bodies = []
        for _ in range(self.random.choice([1, 1, 2, 5])):
            self._made += 1
            bodies.append((b"%d " % self._made).ljust(self.random.randrange(300), b"."))
        return bodies

    # the network

    def is_cut(self, sender: Node, receiver: Node) -> bool:
        """Whether nothing gets from one node to another."""
        return (sender.address, receiver.address) in self._cuts

    def is_store_cut(self, node: Node) -> bool:
        """Whether a node does not reach the metadata store."""
        return node.address in self._store_cuts

    # what breaks

    def _break_something(self) -> None:
        fault = self.random.choices(_WEIGHTS, [getattr(self.faults, name) for name in _WEIGHTS])[0]
        node = self.random.choice(list(self.nodes.values()))
        if fault in _OF_ANY_MACHINE:
            node = self.random.choice(self.machines)
        length_ns = self.random.choice([100, 700, 2500, 5000]) * MILLISECOND_NS
        self.say(f"{fault} {node.address} for {length_ns // MILLISECOND_NS} ms")
        getattr(self, f"_{fault}")(node, self.random.randrange(1, length_ns))

    def _kill(self, node: Node, length_ns: int) -> None:
        if node.life is not None:
            self.kill(node)
            if node not in self.replaced:
                self._flip(node)
            self.after(length_ns, node.start)

    def kill(self, node: Node, *, power: bool = False) -> None:
        """End a node's process; its peers hear of it unless its machine is gone."""
        node.kill(power=power)
        if not power:
            for end in self.ends:
                if end.node is node and end.is_open:
                    end.is_open = False
                    self.after(self.network_delay_ns(), end.other.reset)
        self.ends = [end for end in self.ends if end.is_open and end.life is end.node.life]

    def _power(self, node: Node, length_ns: int) -> None:
        if not node.has_power or not self._may_lose(node):
            return
        self.kill(node, power=True)
        self.after(length_ns, lambda: self._power_back(node))

    def _may_lose(self, node: Node) -> bool:
        """Whether what is only in this node's memory is on enough others: with asynchronous flush
        one machine at a time may lose power.
        """
        if self.settings.flush_sync:
            return True
        if self.oracle.set_changes == 0:  # The first primary is the only copy.
            return False
        for other in self.nodes.values():
            is_whole = other.life is not None and other.replica.note.is_whole
            if other is not node and not is_whole:
                return False
        return True

    def _power_back(self, node: Node) -> None:
        node.has_power = True
        self._flip(node)
        for end in self.ends:
            # The machine does not know the connections that its peers still have.
            if end.peer is node and end.is_open and end.other.life is not node.life:
                self.after(self.random.randrange(SECOND_NS), end.reset)
        node.start()

    def _power_all(self, node: Node, length_ns: int) -> None:
        if self.settings.flush_sync:
            for machine in self.nodes.values():
                if machine.has_power:
                    self.kill(machine, power=True)
                    self.after(self.random.randrange(length_ns), partial(self._power_back, machine))

    def _pause(self, node: Node, length_ns: int) -> None:
        if node.life is not None and not node.is_paused:
            node.is_paused = True
            life = node.life
            self.after(length_ns, lambda: node.resume() if node.life is life else None)

    def _one_way(self, node: Node, length_ns: int) -> None:
        other = self.random.choice([machine for machine in self.machines if machine is not node])
        self._cut({(node.address, other.address)}, length_ns)

    def _isolate(self, node: Node, length_ns: int) -> None:
        here, others = (
            node.address,
            [machine.address for machine in self.machines if machine is not node],
        )
        cuts = {(here, there) for there in others} | {(there, here) for there in others}
        self._cut(cuts, length_ns)
        if self.random.randrange(2):
            self._store_cut(node, length_ns)

    def _cut(self, cuts: set[tuple[str, str]], length_ns: int) -> None:
        self._cuts |= cuts
        self.after(length_ns, lambda: self._cuts.difference_update(cuts))

    def _reset(self, node: Node, length_ns: int) -> None:
        ends = [end for end in self.ends if end.is_open]
        if ends:
            end = self.random.choice(ends)
            end.other.reset()
            end.reset()

    def _store_away(self, node: Node, length_ns: int) -> None:
        self.store.is_away = True
        self.after(length_ns, lambda: setattr(self.store, "is_away", False))

    def _store_cut(self, node: Node, length_ns: int) -> None:
        self._store_cuts.add(node.address)
        self.after(length_ns, lambda: self._store_cuts.discard(node.address))

    def _slow(self, node: Node, length_ns: int) -> None:
        self._slow_nodes.add(node.address)
        self.after(length_ns, lambda: self._slow_nodes.discard(node.address))

    def _disk_full(self, node: Node, length_ns: int) -> None:
        free = self.random.randrange(3 * SEGMENT_BYTES)
        node.storage.capacity_bytes = node.storage.used_bytes + free

        def freed() -> None:
            node.storage.capacity_bytes = None

        self.after(length_ns, freed)

    def _flush_error(self, node: Node, length_ns: int) -> None:
        node.storage.flush_error = OSError(errno.EIO, "Input/output error")
        self.after(length_ns // 4 + 1, lambda: setattr(node.storage, "flush_error", None))

    def _write_error(self, node: Node, length_ns: int) -> None:
        node.storage.write_error = OSError(errno.EIO, "Input/output error")
        self.after(length_ns // 4 + 1, lambda: setattr(node.storage, "write_error", None))

    def _wipe(self, node: Node, length_ns: int) -> None:
        """A disk is replaced, while all other nodes are well, and have what was on it."""
        if self._is_needless(node):
            if node.life is not None:
                self.kill(node)
            node.storage = SimulatedStorage(self.random)
            self.after(length_ns, node.start)

    def _is_needless(self, node: Node) -> bool:
        """Whether all other nodes are well, and have what a node has."""
        others = [other for other in self.nodes.values() if other is not node]
        return self.store.replica_set.copies > 1 and all(
            other.life is not None and other.replica.note.is_whole for other in others
        )

    def _may_replace(self, node: Node) -> bool:
        is_few = len(self.replaced) < _MAX_REPLACED
        is_there = node.life is not None and node.replica.is_member
        return is_few and is_there and self._is_needless(node)

    def _replace(self, node: Node, length_ns: int) -> None:
        """A machine hangs, or is cut off, and an operator replaces it with an empty folder, or
        with a copy of another replica's. Then it wakes up.
        """
        if not self._may_replace(node):
            return
        others = [other for other in self.nodes.values() if other is not node]
        source = self.random.choice(others) if self.random.randrange(3) == 0 else None
        self._hang(node, length_ns)
        made = self._build(node.name, source.storage if source else None)
        made.replaces_another = source is not None
        made.start()

    def _copy(self, node: Node, length_ns: int) -> None:
        """A folder is copied while its process runs. Later that hangs, or an operator forgets it,
        and the copy takes its place.
        """
        if node.life is None:
            return
        copied, incarnation = copy_of(node.storage), node.replica.note.life.incarnation

        def take_its_place() -> None:
            if (
                self.nodes[node.name] is node
                and not self.is_calm
                and self._may_replace(node)
                and node.replica.note.life.incarnation == incarnation  # Its disk is the same.
            ):
                self.say(f"a copy takes the place of {node.address}")
                node.was_copied = True
                if self.random.randrange(3):
                    self._hang(node, length_ns)
                self._build(node.name, copied).start()

        self.after(self.random.randrange(length_ns), take_its_place)

    def take_back(self, node: Node) -> None:
        """An operator starts a machine again whose copy has not become the replica."""
        copied = self.nodes[node.name]
        copied.is_given_up = True
        if copied.life is not None:
            self.kill(copied)
        self.nodes[node.name] = node
        node.was_copied, node.was_taken_back = False, True

    def _hang(self, node: Node, length_ns: int) -> None:
        if self.random.randrange(2):
            self._pause(node, length_ns)
        else:
            self._isolate(node, length_ns)

    def _hand_over(self, node: Node, length_ns: int) -> None:
        """An operator asks for another primary."""
        replica_set = self.store.replica_set
        if node.name in replica_set.replicas:
            self.store.change(replica_set.with_hand_over(node.name))

    def _remove(self, node: Node, length_ns: int) -> None:
        """An operator removes a replica, and adds it again after a while."""
        replica_set = self.store.replica_set
        if len(replica_set.replicas) < 3 or node.name == replica_set.primary:
            return
        if node.name in replica_set.replicas and node.name not in replica_set.leaving:
            self.store.change(replica_set.with_leaving(node.name))
            self.after(length_ns, lambda: self._end_removal(node, length_ns))

    def _end_removal(self, node: Node, length_ns: int) -> None:
        replica_set = self.store.replica_set
        if node.name not in replica_set.in_sync and node.name != replica_set.primary:
            self.store.change(replica_set.without_replica(node.name))
        else:  # It is not out yet, and stays.
            self.store.change(replace(replica_set, leaving=replica_set.leaving - {node.name}))
        # By then another machine may be that replica.
        self.after(length_ns, lambda: self._add(self.nodes[node.name]))

    def _add(self, node: Node) -> None:
        replica_set = self.store.replica_set
        if node.name not in replica_set.replicas:
            copies = min(self.wanted_copies, len(replica_set.replicas) + 1)
            more = replace(replica_set.with_replica(node.name, node.address), wanted_copies=copies)
            if node.life is not None:
                presence = replace(node.replica.presence(self.now_ns), instance=node.instance)
                more = more.named({node.name: presence})
            self.store.change(replace(more, min_in_sync=min(self.min_in_sync, len(more.replicas))))

    def _flip(self, node: Node) -> None:
        """A bit of a stopped node's log flips, while all other nodes are well."""
        others = [other for other in self.nodes.values() if other is not node]
        if not self.chance(self.faults.flips) or any(
            other.life is None or not other.replica.note.is_whole for other in others
        ):
            return
        # What flips in the only copy in sync is lost.
        replica_set = self.store.replica_set
        others = [
            other for other in others if other.name in replica_set.in_sync - replica_set.leaving
        ]
        # What flips in the last records looks like a write that was not finished.
        for segment in node.storage.segments()[:-2]:
            data = node.storage.segment_bytes_of(segment.base)
            if self.chance(0.3) and any(
                other.has_same_segment(segment.base, data) for other in others
            ):
                self.say(f"a bit of {node.name} flips in the segment at {segment.base}")
                data[self.random.randrange(len(data))] ^= 1 << self.random.randrange(8)
                return

    # the end

    def _mend(self) -> None:
        self.say("all is mended")
        self.is_calm = True
        self._cuts.clear()
        self._store_cuts.clear()
        self._slow_nodes.clear()
        self.store.is_away = False
        replica_set = self.store.replica_set
        if replica_set.leaving:
            self.store.change(replace(replica_set, leaving=frozenset()))
        for node in self.nodes.values():
            self._add(node)
        for node in self.machines:
            node.storage.capacity_bytes = None
            node.storage.flush_error = node.storage.write_error = None
            node.has_power = True
            if node.is_paused:
                node.resume()
            node.start()

    def _is_well(self) -> bool:
        replica_set = self.store.replica_set
        if replica_set.in_sync != set(self.nodes) or any(
            n.life is None for n in self.nodes.values()
        ):
            return False
        if any(
            machine.life is not None and not machine.replica.is_replaced
            for machine in self.replaced
        ):
            return False
        primary = self.nodes[replica_set.primary].replica.role if replica_set.primary else None
        if not isinstance(primary, Primary) or primary.epoch != replica_set.epoch:
            return False
        return primary.confirmation.position == primary.log.position

    def __str__(self) -> str:
        lines = [f"{self.store.replica_set}, version {self.store.version}"]
        for node in self.machines:
            if node.life is None:
                lines.append(f"{node.address}: no process")
                continue
            role = node.replica.role
            log = role.log if isinstance(role, Primary) else role.copy
            state = "" if isinstance(role, Primary) else role.state.value
            lines.append(
                f"{node.address}: {type(role).__name__} {state} epoch {role.epoch}, log"
                f" {log.position}, {node.replica.note}, failed {log.failed}, {log.damaged},"
                f" problem {node.replica.problem!r}"
            )
        return "\n".join(lines)
