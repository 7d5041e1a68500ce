"""The confirmed position of an epoch: every record before it is on enough replicas.

::

    a (primary)  | epoch 6     | EPOCH 7 | r | r | r | r |
    b            | epoch 6     | EPOCH 7 | r | r |
    c            | epoch 6     | EPOCH 7 |
                                         ^   ^ confirmed with 2 copies: a and b have it
                                         | nothing before is confirmed by this epoch alone

What older epochs left is confirmed only together with this epoch's first record: else a log with a
later epoch, but without those records, could win the next election (Raft's figure 8).

While `in_sync` changes, the old and the new quorum must both agree, from before the swap is sent
until its outcome is known.
"""

from __future__ import annotations

from martlet.replica.replica_set import Quorum


class Confirmation:
    """How far each replica has acknowledged the log, and how far it is confirmed by that.

    Args:
        begun_position: behind the epoch's first record.
    """

    def __init__(self, quorum: Quorum, min_in_sync: int, begun_position: int) -> None:
        self.quorums = [quorum]
        """Those in force: one, or the old and the new one."""
        self.min_in_sync = min_in_sync
        """Nothing is confirmed while fewer replicas are in sync."""
        self.begun_position = begun_position
        self.position = 0
        """The confirmed position; 0 before this epoch has confirmed anything."""
        self._acknowledged: dict[str, int] = {}

    def acknowledge(self, name: str, position: int) -> None:
        """Take in how far a replica's log goes; on one connection it never falls."""
        assert position >= self._acknowledged.get(name, 0)
        self._acknowledged[name] = position

    def forget(self, name: str) -> None:
        """Forget what a replica acknowledged: its connection ended, and it may cut its log."""
        self._acknowledged.pop(name, None)

    def acknowledged(self, name: str) -> int:
        """Return how far a replica's log goes."""
        return self._acknowledged.get(name, 0)

    def reached_by(self, quorum: Quorum) -> int:
        """Return the position that a quorum has acknowledged."""
        positions = sorted((self.acknowledged(name) for name in quorum.in_sync), reverse=True)
        return positions[quorum.copies - 1]

    def update(self) -> bool:
        """Raise the confirmed position as far as all quorums in force agree. Returns whether it
        rose.
        """
        if any(len(quorum.in_sync) < self.min_in_sync for quorum in self.quorums):
            return False
        reached = min(map(self.reached_by, self.quorums))
        if reached < self.begun_position or reached <= self.position:
            return False
        self.position = reached
        return True

    def allows(self, quorum: Quorum) -> bool:
        """Whether a quorum may come into force: it has all that is confirmed, and the epoch's
        first record.
        """
        floor = max(self.position, self.begun_position)
        return len(self.quorums) == 1 and self.reached_by(quorum) >= floor

    def begin_change(self, quorum: Quorum) -> None:
        """Count by a second quorum, too."""
        assert self.allows(quorum)
        self.quorums.append(quorum)

    def end_change(self, quorum: Quorum) -> None:
        """Count by one quorum again: the metadata store has it, and no other can come."""
        self.quorums = [quorum]
