"""The metadata store: one document a broker, changed by compare-and-swap, and the presences of the
replicas that are alive.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Protocol

from martlet.replica.replica_set import BadReplicaSet, Presence, ReplicaSet, Seen

PRESENCE_S = 3
"""How long a presence lasts that is not renewed, in seconds."""


class StoreUnreachable(Exception):
    """The metadata store did not answer; the text says why."""


class SwapUnclear(Exception):
    """The outcome of a swap is not known: it may have been applied, or be applied later."""


def readable(presences: Iterable[tuple[str, bytes]]) -> dict[str, Presence]:
    """Return the presences of replicas by name, without those that cannot be read: what one replica
    or a stranger wrote there must not keep the others from reading.
    """
    alive: dict[str, Presence] = {}
    for name, document in presences:
        try:
            alive[name] = Presence.unpack(document)
        except BadReplicaSet:
            continue
    return alive


class MetadataStore(Protocol):
    """A metadata store, for one replica set."""

    async def read(self) -> Seen:
        """Read the document and the presences, as they are at one moment after the call began.

        Raises:
            StoreUnreachable: no answer.
            BadReplicaSet: the document cannot be read.
        """

    async def swap(self, replica_set: ReplicaSet, version: int) -> int | None:
        """Write the document if it still has a version; 0 where there is none yet.

        Returns the new version; None where it had another version. That may be due to this very
        swap, if its first answer was lost and it was asked again.

        Raises SwapUnclear.
        """

    async def announce(self, name: str, presence: Presence) -> None:
        """Renew the presence of a replica, for `PRESENCE_S`. Raises StoreUnreachable."""

    async def names(self) -> list[str]:
        """Return the names of all replica sets in the store. Raises StoreUnreachable."""

    async def close(self) -> None:
        """Release all resources."""
