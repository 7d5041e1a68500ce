"""The replica set: the document in the metadata store that says who is primary.

::

    {"format": 1, "epoch": 7, "primary": "b",
     "replicas": {"a": "10.0.0.1:4153", "b": "10.0.0.2:4153", "c": "10.0.0.3:4153"},
     "in_sync": ["a", "b", "c"], "copies": 2, "wanted_copies": 2, "min_in_sync": 2, "touch": 0}

Each change is a compare-and-swap on the document's version. A swap that names a primary raises the
epoch by 1. In an epoch its primary alone changes `in_sync` and `copies`.

A position is confirmed when `copies` members of `in_sync` have acknowledged it. So any
`len(in_sync) - copies + 1` members include one that has everything confirmed: as many must answer
before a new primary begins. This is PacificA's configuration manager with BookKeeper's ack quorum.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from typing import Any, NamedTuple

FORMAT = 1


class BadReplicaSet(ValueError):
    """A document that is no replica set; the text says what is wrong with it."""


class Quorum(NamedTuple):
    """How many replicas, and of which, make a position confirmed."""

    in_sync: frozenset[str]
    copies: int

    @property
    def answers_needed(self) -> int:
        """How many members must answer so that one of them has everything confirmed."""
        return len(self.in_sync) - self.copies + 1


@dataclass(frozen=True)
class ReplicaSet:
    """The replicas of a broker.

    Attributes:
        epoch: rises with each primary.
        primary: its name; None before the first.
        replicas: the address of each, by name.
        in_sync: those whose acknowledgements count.
        copies: how many of them make a position confirmed.
        wanted_copies: `copies`, as far as `in_sync` is large enough.
        min_in_sync: nothing is confirmed while `in_sync` is smaller.
        touch: a counter; raising it settles a swap whose outcome is unknown.
    """

    epoch: int
    primary: str | None
    replicas: Mapping[str, str]
    in_sync: frozenset[str]
    copies: int
    wanted_copies: int
    min_in_sync: int
    touch: int = 0

    def __post_init__(self) -> None:
        if self.epoch < 0 or not self.in_sync:
            raise BadReplicaSet(f"epoch {self.epoch} with {len(self.in_sync)} replicas in sync")
        if unknown := sorted(self.in_sync - set(self.replicas)):
            raise BadReplicaSet(f"in sync, but not among the replicas: {', '.join(unknown)}")
        if not 1 <= self.copies <= len(self.in_sync):
            raise BadReplicaSet(f"{self.copies} copies of {len(self.in_sync)} in sync")
        if not self.copies <= self.wanted_copies <= len(self.replicas):
            raise BadReplicaSet(
                f"{self.wanted_copies} copies wanted: it must be from {self.copies} to the number"
                f" of replicas, {len(self.replicas)}"
            )
        if not 1 <= self.min_in_sync <= len(self.replicas):
            raise BadReplicaSet(
                f"min_in_sync is {self.min_in_sync}: it must be from 1 to the number of replicas,"
                f" {len(self.replicas)}"
            )

    @classmethod
    def first(
        cls,
        name: str,
        replicas: Mapping[str, str],
        *,
        epoch: int = 0,
        wanted_copies: int | None = None,
        min_in_sync: int | None = None,
    ) -> ReplicaSet:
        """Return the document of a new set, in which only one replica's log counts.

        Args:
            name: that replica, which becomes the first primary.
            replicas: all, with their addresses.
            epoch: the last one of that log.
            wanted_copies: a majority where it is None.
            min_in_sync: as `wanted_copies` where it is None.
        """
        wanted = len(replicas) // 2 + 1 if wanted_copies is None else wanted_copies
        least = wanted if min_in_sync is None else min_in_sync
        return cls(epoch, None, dict(replicas), frozenset({name}), 1, wanted, least)

    @property
    def quorum(self) -> Quorum:
        """What confirms a position now."""
        return Quorum(self.in_sync, self.copies)

    def elected(self, name: str) -> ReplicaSet:
        """Return the set with a new primary, in a new epoch."""
        assert name in self.in_sync
        return replace(self, epoch=self.epoch + 1, primary=name)

    def with_in_sync(self, in_sync: frozenset[str]) -> ReplicaSet:
        """Return the set with other members in sync, and as many copies as they allow."""
        return replace(self, in_sync=in_sync, copies=min(self.wanted_copies, len(in_sync)))

    def touched(self) -> ReplicaSet:
        """Return the set with nothing changed but its counter."""
        return replace(self, touch=self.touch + 1)

    def pack(self) -> bytes:
        """Return the document."""
        return json.dumps(
            {
                "format": FORMAT,
                "epoch": self.epoch,
                "primary": self.primary,
                "replicas": dict(sorted(self.replicas.items())),
                "in_sync": sorted(self.in_sync),
                "copies": self.copies,
                "wanted_copies": self.wanted_copies,
                "min_in_sync": self.min_in_sync,
                "touch": self.touch,
            }
        ).encode()

    @classmethod
    def unpack(cls, document: bytes) -> ReplicaSet:
        """Read a document. Raises BadReplicaSet."""
        try:
            fields: dict[str, Any] = json.loads(document)
            if fields["format"] != FORMAT:
                raise BadReplicaSet(
                    f"format {fields['format']!r}, where this version reads {FORMAT}"
                )
            numbers = ("epoch", "copies", "wanted_copies", "min_in_sync", "touch")
            if any(type(fields[name]) is not int for name in numbers):
                raise BadReplicaSet(f"one of {', '.join(numbers)} is no number")
            return cls(
                primary=fields["primary"],
                replicas=dict(fields["replicas"]),
                in_sync=frozenset(fields["in_sync"]),
                **{name: fields[name] for name in numbers},
            )
        except (ValueError, KeyError, TypeError) as error:
            if isinstance(error, BadReplicaSet):
                raise
            raise BadReplicaSet(f"no replica set: {error!r}") from error


@dataclass(frozen=True)
class Presence:
    """What a replica says of itself in the metadata store, for as long as it is alive.

    Attributes:
        epoch: the highest that it knows.
        end_position: behind the last record of its log.
        is_whole: whether it may be counted: it has all that it ever acknowledged.
        yields: it is primary and asks for another one, since it reaches too few standbys.
        tcp_address, http_address: those of its clients.
    """

    epoch: int = 0
    end_position: int = 0
    is_whole: bool = True
    yields: bool = False
    tcp_address: str = ""
    http_address: str = ""

    def pack(self) -> bytes:
        """Return it as stored."""
        return json.dumps(asdict(self)).encode()

    @classmethod
    def unpack(cls, document: bytes) -> Presence:
        """Read one. What another version says besides is ignored. Raises BadReplicaSet."""
        try:
            fields: dict[str, Any] = json.loads(document)
            defaults = asdict(cls())
            known = {name: fields[name] for name in fields.keys() & defaults.keys()}
            if any(type(value) is not type(defaults[name]) for name, value in known.items()):
                raise BadReplicaSet(f"a presence with a field of another type: {known}")
            return cls(**known)
        except (ValueError, AttributeError) as error:
            if isinstance(error, BadReplicaSet):
                raise
            raise BadReplicaSet(f"no presence: {error!r}") from error


class Seen(NamedTuple):
    """One look at the metadata store.

    Attributes:
        replica_set: None where there is none yet.
        version: that of the document, which a swap names.
        presences: those of the replicas that are alive, by name.
    """

    replica_set: ReplicaSet | None
    version: int
    presences: Mapping[str, Presence]
