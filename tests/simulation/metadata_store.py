"""The metadata store of a simulated cluster: one document, changed by compare-and-swap.

Requests and answers take time, and may be lost; a swap whose answer is lost may be applied late.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import TYPE_CHECKING

from martlet.replica.replica_set import Presence, ReplicaSet, Seen

if TYPE_CHECKING:
    from tests.simulation.cluster import Cluster

MILLISECOND_NS = 1_000_000
TIMEOUT_NS = 1000 * MILLISECOND_NS
PRESENCE_NS = 3300 * MILLISECOND_NS


class MetadataStore:
    def __init__(self, cluster: Cluster, replica_set: ReplicaSet) -> None:
        self.cluster = cluster
        self.replica_set = replica_set
        self.version = 1
        self.is_away = False
        self._older: deque[tuple[ReplicaSet, int]] = deque(maxlen=6)
        self._presences: dict[str, tuple[int, Presence]] = {}

    def _trip_ns(self) -> int:
        return self.cluster.random.randint(1, 10) * MILLISECOND_NS

    def _is_lost(self) -> bool:
        return self.is_away or self.cluster.chance(self.cluster.faults.lost_answers)

    def read(self, answer: Callable[[Seen | None], None]) -> None:
        """Read the document and the presences; None is answered where that failed."""

        def read() -> None:
            if self._is_lost():
                self.cluster.after(TIMEOUT_NS, lambda: answer(None))
                return
            now_ns = self.cluster.now_ns
            presences = {
                name: presence
                for name, (until_ns, presence) in self._presences.items()
                if now_ns < until_ns
            }
            document = (self.replica_set, self.version)
            if self._older and self.cluster.chance(self.cluster.faults.stale_looks):
                document = self.cluster.random.choice(self._older)
            seen = Seen(ReplicaSet.unpack(document[0].pack()), document[1], presences)
            # The answer may be slow, and old when it comes.
            slow_ns = 2 * TIMEOUT_NS if self.cluster.chance(self.cluster.faults.slow_looks) else 1
            self.cluster.after(
                self._trip_ns() + self.cluster.random.randrange(slow_ns), lambda: answer(seen)
            )

        self.cluster.after(self._trip_ns(), read)

    def swap(
        self,
        replica_set: ReplicaSet,
        version: int,
        answer: Callable[[int | None], None],
        unclear: Callable[[], None],
    ) -> None:
        document = replica_set.pack()

        def apply() -> int | None:
            if version != self.version:
                return None
            self.change(ReplicaSet.unpack(document))
            return self.version

        def arrive() -> None:
            if self._is_lost() or self.cluster.chance(self.cluster.faults.lost_swaps):
                # It never arrived, arrives late, or its answer is lost.
                fate = self.cluster.random.randrange(3)
                if fate == 0 and not self.is_away:
                    apply()
                elif fate == 1:
                    late_ns = self.cluster.random.randrange(4 * TIMEOUT_NS)
                    self.cluster.after(late_ns, lambda: apply() and None)
                self.cluster.after(TIMEOUT_NS, unclear)
                return
            outcome = apply()
            self.cluster.after(self._trip_ns(), lambda: answer(outcome))

        self.cluster.after(self._trip_ns(), arrive)

    def change(self, new: ReplicaSet) -> None:
        """Write a document, as a swap that is applied or as an operator."""
        self.cluster.oracle.replica_set_changed(self.replica_set, new)
        self._older.append((self.replica_set, self.version))
        self.replica_set = new
        self.version += 1

    def announce(self, name: str, presence: Presence) -> None:

        def arrive() -> None:
            if not self._is_lost():
                self._presences[name] = (self.cluster.now_ns + PRESENCE_NS, presence)

        self.cluster.after(self._trip_ns(), arrive)
