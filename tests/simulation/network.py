"""The network of a simulated cluster: connections whose frames arrive in order, or never.

In a part of the runs a connection takes few bytes: what a log needs beyond waits in the log.
"""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING

from tests.simulation.oracle import Broken

from martlet.replica.frames import Frame, FrameKind, FrameReader

if TYPE_CHECKING:
    from tests.simulation.cluster import Cluster
    from tests.simulation.node import Node

MILLISECOND_NS = 1_000_000


class End:
    """One end of a connection: `martlet.replica.shipping.Link`."""

    def __init__(self, cluster: Cluster, node: Node, peer: Node) -> None:
        self.cluster = cluster
        self.node = node
        self.peer = peer
        self.life = node.life
        self.other: End
        self.is_open = True
        self._coming: deque[Frame | None] = deque()
        """What the other end sent; None where it ended the connection."""
        self._coming_bytes = 0
        self._is_due = False
        self.is_full = False
        """Whether it has taken all that it takes, until some has arrived."""
        self._reader = FrameReader()

    def send(self, frame: Frame) -> None:
        if not self.is_open:
            return
        # The kernel has copied the bytes when a write returns.
        body = bytearray(frame.body)
        if frame.kind == FrameKind.DATA and self.cluster.chance(self.cluster.faults.corrupt):
            body[self.cluster.random.randrange(len(body))] ^= 1
        if self.is_full and frame.kind == FrameKind.DATA:
            raise Broken(f"{self.node.name} sends its log into a connection that is full")
        self.other.arrive(frame._replace(body=bytes(body)))
        self.is_full |= self.other.has_no_room

    def close(self) -> None:
        if self.is_open:
            self.is_open = False
            self.other.arrive(None)

    def arrive(self, frame: Frame | None) -> None:
        """Put something on the way to this end."""
        self._coming.append(frame)
        self._coming_bytes += _length(frame)
        self._deliver_later()

    @property
    def has_no_room(self) -> bool:
        """Whether as much is on the way to this end as the connection takes."""
        capacity = self.cluster.link_bytes
        return capacity is not None and self._coming_bytes > capacity

    def drained(self) -> None:
        """The connection takes more: a log that waits must go on at once."""
        if not self.is_full:
            return
        self.is_full = False
        self.node.drained()
        if self.is_open and not self.is_full and self.node.has_more_to_send(self):
            raise Broken(f"{self.node.name} does not go on when a connection has room again")

    def _deliver_later(self) -> None:
        if not self._is_due and self._coming:
            self._is_due = True
            delay_ns = self.cluster.network_delay_ns(self.node, self.peer)
            self.cluster.after(delay_ns, self._deliver)

    def _deliver(self) -> None:
        self._is_due = False
        if not self.is_open or self.life is not self.node.life:
            return
        if self.cluster.is_cut(self.peer, self.node) or self.node.is_paused:
            self._is_due = True
            self.cluster.after(50 * MILLISECOND_NS, self._deliver)
            return
        # What came within one delay arrives together, up to a chance.
        count = self.cluster.random.randint(1, len(self._coming))
        coming = [self._coming.popleft() for _ in range(count)]
        self._coming_bytes -= sum(map(_length, coming))
        if self.other.is_full and not self.has_no_room:
            self.other.node.later(self.other.life, self.other.drained)
        for frame in coming:
            if frame is None:
                self.is_open = False
                self.node.disconnected(self)
                return
            for whole in self._packed(frame):
                if self.is_open:
                    self.node.received(self, whole)
        self.node.turn()
        self._deliver_later()

    def _packed(self, frame: Frame) -> list[Frame]:
        """The frame after a trip as bytes, in two pieces; in a part of the runs only."""
        if not self.cluster.packs_frames:
            return [frame]
        data = frame.pack_header() + bytes(frame.body)
        cut = self.cluster.random.randrange(len(data))
        return self._reader.feed(data[:cut]) + self._reader.feed(data[cut:])

    def reset(self) -> None:
        """The connection breaks: what is under way is lost, and this end hears of it."""
        if self.is_open:
            self.is_open = False
            self._coming.clear()
            if self.life is self.node.life:
                self.node.disconnected(self)


def _length(frame: Frame | None) -> int:
    return len(frame.body) if frame is not None else 0


def connect(cluster: Cluster, node: Node, peer: Node, attempt: int) -> None:
    """Connect a node to another one, as its replica asked."""
    life = node.life

    def arrived() -> None:
        if node.life is not life or life is None:
            return
        is_reachable = not cluster.is_cut(node, peer) and not cluster.is_cut(peer, node)
        if not is_reachable or not peer.has_power or peer.is_paused:
            cluster.after(1000 * MILLISECOND_NS, timed_out)
        elif peer.life is None:
            node.connect_failed(attempt, is_refused=True)
        else:
            here, there = End(cluster, node, peer), End(cluster, peer, node)
            here.other, there.other = there, here
            cluster.ends += [here, there]
            node.connected(attempt, here)

    def timed_out() -> None:
        if node.life is life:
            node.connect_failed(attempt, is_refused=False)

    cluster.after(2 * cluster.network_delay_ns(), arrived)
