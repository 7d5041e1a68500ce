"""The replica set: the document in the metadata store that says who is primary.

::

    {"format": 1, "broker": "0f3a...", "epoch": 7, "primary": "b",
     "replicas": {"a": "10.0.0.1:4153", "b": "10.0.0.2:4153", "c": "10.0.0.3:4153"},
     "in_sync": ["a", "b", "c"], "copies": 2, "wanted_copies": 2, "min_in_sync": 2,
     "leaving": [], "hand_over_to": null, "is_forced": false, "touch": 0,
     "lives": {"a": [1, "5c1e...", "e90b..."], ...}, "last_life": 3, "primary_instance": "77a0..."}

Each change is a compare-and-swap on the document's version. A swap that names a primary raises the
epoch by 1. In an epoch its primary alone changes `in_sync` and `copies`. An operator changes the
other fields: the primary reads them at its next poll, and does what they ask for. Each process
claims its name in `lives`, see `martlet.replica.note`.

A position is confirmed when `copies` members of `in_sync` have acknowledged it. So any
`len(in_sync) - copies + 1` members include one that has everything confirmed: as many must answer
before a new primary begins. This is PacificA's configuration manager with BookKeeper's ack quorum.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from typing import Any, NamedTuple

from martlet.replica.note import NO_LIFE, Life

FORMAT = 1
MAX_REPLICAS = 15
MAX_EPOCH = (1 << 32) - 1
"""The maximum that a record of the log holds."""
LOST_REPLICA_SET = (
    "the metadata store has lost the replica set: bring it back with `martlet replicas recreate"
    " NAME NAME ...`"
)
_MAX_PROBLEM = 1000
"""The maximum characters of a problem that are announced."""


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
    """The replicas of a broker."""

    broker: str
    """The broker's id, the same at all replicas."""
    epoch: int
    """Rises with each primary."""
    primary: str | None
    """None before the first."""
    replicas: Mapping[str, str]
    """The address of each, by name."""
    in_sync: frozenset[str]
    """Those whose acknowledgements count."""
    copies: int
    """How many of them make a position confirmed."""
    wanted_copies: int
    """`copies`, as far as `in_sync` is large enough."""
    min_in_sync: int
    """Nothing is confirmed while `in_sync` is smaller."""
    leaving: frozenset[str] = frozenset()
    """Those that an operator removes; the primary takes them out of `in_sync`."""
    hand_over_to: str | None = None
    """The replica that an operator wants as primary; None for no change."""
    is_forced: bool = False
    """An operator has decided that the primary's log counts, whatever it lacks."""
    touch: int = 0
    """A counter; raising it settles a swap whose outcome is unknown."""
    lives: Mapping[str, Life] = field(default_factory=dict)
    """The process of each replica whose name was claimed."""
    last_life: int = 0
    """The highest number of a life so far."""
    primary_instance: str = ""
    """The process that is primary of this epoch; empty where any that has the name may begin it, as
    in documents of earlier versions.
    """

    def __post_init__(self) -> None:
        if len(self.replicas) > MAX_REPLICAS:
            raise BadReplicaSet(f"{len(self.replicas)} replicas; {MAX_REPLICAS} are the maximum")
        if not 0 <= self.epoch <= MAX_EPOCH or not self.in_sync:
            raise BadReplicaSet(f"epoch {self.epoch} with {len(self.in_sync)} replicas in sync")
        named = self.in_sync | self.leaving | ({self.hand_over_to, self.primary} - {None})
        if unknown := sorted(map(str, named - set(self.replicas))):
            raise BadReplicaSet(f"named, but not among the replicas: {', '.join(unknown)}")
        if not 1 <= self.copies <= len(self.in_sync):
            raise BadReplicaSet(f"{self.copies} copies of {len(self.in_sync)} in sync")
        if not 1 <= self.wanted_copies <= len(self.replicas):
            raise BadReplicaSet(
                f"{self.wanted_copies} copies wanted: it must be from 1 to the number of replicas,"
                f" {len(self.replicas)}"
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
        broker: str,
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
        copies = len(replicas) // 2 + 1 if wanted_copies is None else wanted_copies
        min_count = copies if min_in_sync is None else min_in_sync
        return cls(broker, epoch, None, dict(replicas), frozenset({name}), 1, copies, min_count)

    @classmethod
    def recreated(
        cls, replicas: Mapping[str, str], *, broker: str, epoch: int, min_in_sync: int | None = None
    ) -> ReplicaSet:
        """Return a document that replaces a lost one, in a new epoch without a primary. All
        replicas must answer before the next epoch begins, so the longest log is the one that all
        get.

        Args:
            replicas: all, with their addresses.
            epoch: the highest that any of them has pledged to.
            min_in_sync: a majority where it is None.
        """
        copies = len(replicas) // 2 + 1
        min_count = copies if min_in_sync is None else min_in_sync
        return cls(
            broker, epoch + 1, None, dict(replicas), frozenset(replicas), 1, copies, min_count
        )

    @property
    def quorum(self) -> Quorum:
        """What confirms a position now."""
        return Quorum(self.in_sync, self.copies)

    def elected(self, name: str) -> ReplicaSet:
        """Return the set with a new primary, in a new epoch."""
        assert name in self.in_sync
        return replace(
            self, epoch=self.epoch + 1, primary=name, hand_over_to=None, is_forced=False,
            primary_instance=self.instance_of(name),
        )  # fmt: skip

    # who is who

    def instance_of(self, name: str) -> str:
        """Return the process that a replica is; empty where none has claimed the name."""
        return self.lives.get(name, NO_LIFE).instance

    def claimed(self, name: str, life: Life, address: str) -> ReplicaSet:
        """Return the set in which a process is a replica from now on."""
        return replace(
            self,
            replicas={**self.replicas, name: address},
            lives={**self.lives, name: life},
            last_life=max(self.last_life, life.number),
        )

    def may_be_alone(self, name: str) -> bool:
        """Whether a replica may have confirmed what no other one has."""
        is_made = self.primary is not None and len(self.replicas) > 1
        return is_made and self.copies == 1 and name in self.in_sync

    def named(self, presences: Mapping[str, Presence]) -> ReplicaSet:
        """Return the set in which running processes are the replicas of their names, and no others
        of these names.
        """
        lives, number = dict(self.lives), self.last_life
        for presence in presences.values():
            number = max(number, presence.life)
        for name in sorted(presences):
            if presences[name].instance:
                number += 1
                lives[name] = Life(number, presences[name].instance, presences[name].incarnation)
        return replace(self, lives=lives, last_life=number)

    def with_in_sync(self, in_sync: frozenset[str]) -> ReplicaSet:
        """Return the set with other members in sync, and as many copies as they allow."""
        return replace(self, in_sync=in_sync, copies=min(self.wanted_copies, len(in_sync)))

    # what an operator asks for

    def with_replica(self, name: str, address: str) -> ReplicaSet:
        """Return the set with one more replica, or with a new address of one."""
        return replace(self, replicas={**self.replicas, name: address})

    def with_leaving(self, name: str) -> ReplicaSet:
        """Return the set with a replica that the primary is to take out of `in_sync`."""
        return replace(self, leaving=self.leaving | {name})

    def without_replica(self, name: str) -> ReplicaSet:
        """Return the set without a replica that is not in sync, and with as many copies and
        replicas in sync at most as there are replicas.
        """
        assert name not in self.in_sync and name != self.primary
        replicas = {other: self.replicas[other] for other in self.replicas if other != name}
        return replace(
            self,
            replicas=replicas,
            lives={other: self.lives[other] for other in self.lives if other != name},
            leaving=self.leaving - {name},
            hand_over_to=None if self.hand_over_to == name else self.hand_over_to,
            wanted_copies=min(self.wanted_copies, len(replicas)),
            min_in_sync=min(self.min_in_sync, len(replicas)),
        )

    def with_hand_over(self, name: str | None) -> ReplicaSet:
        """Return the set with the replica that is to be primary; None for no change."""
        return replace(self, hand_over_to=name)

    def forced(self, name: str) -> ReplicaSet:
        """Return the set in which one replica's log counts, whatever it lacks."""
        return replace(
            self, epoch=self.epoch + 1, primary=name, in_sync=frozenset({name}), copies=1,
            min_in_sync=1, leaving=frozenset(), hand_over_to=None, is_forced=True,
            primary_instance="",
        )  # fmt: skip

    def touched(self) -> ReplicaSet:
        """Return the set with nothing changed but its counter."""
        return replace(self, touch=self.touch + 1)

    def pack(self) -> bytes:
        """Return the document."""
        return json.dumps(
            {
                "format": FORMAT,
                "broker": self.broker,
                "epoch": self.epoch,
                "primary": self.primary,
                "replicas": dict(sorted(self.replicas.items())),
                "in_sync": sorted(self.in_sync),
                "copies": self.copies,
                "wanted_copies": self.wanted_copies,
                "min_in_sync": self.min_in_sync,
                "leaving": sorted(self.leaving),
                "hand_over_to": self.hand_over_to,
                "is_forced": self.is_forced,
                "touch": self.touch,
                "lives": dict(sorted(self.lives.items())),
                "last_life": self.last_life,
                "primary_instance": self.primary_instance,
            }
        ).encode()

    @classmethod
    def unpack(cls, document: bytes) -> ReplicaSet:
        """Read a document. Raises BadReplicaSet."""
        try:
            fields: dict[str, Any] = {"lives": {}, "last_life": 0, "primary_instance": ""}
            fields |= json.loads(document)
            if fields["format"] != FORMAT:
                raise BadReplicaSet(
                    f"format {fields['format']!r}, where this version reads {FORMAT}"
                )
            numbers = ("epoch", "copies", "wanted_copies", "min_in_sync", "touch", "last_life")
            if any(type(fields[name]) is not int for name in numbers):
                raise BadReplicaSet(f"one of {', '.join(numbers)} is no number")
            if any(type(address) is not str for address in fields["replicas"].values()):
                raise BadReplicaSet("an address of a replica is no text")
            return cls(
                broker=str(fields["broker"]),
                primary=fields["primary"],
                replicas=dict(fields["replicas"]),
                in_sync=frozenset(fields["in_sync"]),
                leaving=frozenset(fields["leaving"]),
                hand_over_to=fields["hand_over_to"],
                is_forced=fields["is_forced"] is True,
                lives={name: _life(*life) for name, life in fields["lives"].items()},
                primary_instance=str(fields["primary_instance"]),
                **{name: fields[name] for name in numbers},
            )
        except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
            if isinstance(error, BadReplicaSet):
                raise
            raise BadReplicaSet(f"no replica set: {error!r}") from error


def _life(number: int, instance: str, incarnation: str) -> Life:
    if type(number) is not int or type(instance) is not str or type(incarnation) is not str:
        raise BadReplicaSet("a life of a replica is no number with two texts")
    return Life(number, instance, incarnation)


@dataclass(frozen=True)
class Presence:
    """What a replica says of itself in the metadata store, for as long as it is alive."""

    epoch: int = 0
    """The highest that it has pledged to."""
    end_position: int = 0
    """Behind the last record of its log."""
    is_whole: bool = True
    """Whether it may be counted: it has all that it ever acknowledged."""
    yields: bool = False
    """It is primary and asks for another one, since it reaches too few standbys."""
    tcp_address: str = ""
    """Where clients connect; a standby passes them on to the primary."""
    http_address: str = ""
    broker: str = ""
    """The id of its broker; empty while its data folder is new."""
    address: str = ""
    """Where other replicas connect."""
    role: str = ""
    """``primary``, ``candidate``, ``standby``, or ``waiting`` for a replica set."""
    confirmed_position: int = 0
    """Up to where it knows its log as confirmed."""
    log_epoch: int = 0
    """Of the last record of its log."""
    problem: str = ""
    """Why it does not follow; empty while it does."""
    began_s: int = 0
    """When its epoch began, in seconds since 1970, where it is primary."""
    instance: str = ""
    """A random name of its process."""
    modes: str = ""
    """The ``--flush`` and ``--replication`` that all replicas should share."""
    initial_primary: str = ""
    """``NAME=HOST:PORT`` of the first of ``--initial-replicas``; empty without that flag."""
    life: int = 0
    """The number of the last life of its folder, see `martlet.replica.note`."""
    incarnation: str = ""
    """Of its folder; empty while that is new."""

    def pack(self) -> bytes:
        """Return it as stored."""
        return json.dumps(asdict(replace(self, problem=self.problem[:_MAX_PROBLEM]))).encode()

    @classmethod
    def unpack(cls, document: bytes) -> Presence:
        """Read one; ignore the fields of a later version. Raises BadReplicaSet."""
        try:
            fields: dict[str, Any] = json.loads(document)
            defaults = asdict(cls())
            shared = {name: fields[name] for name in fields.keys() & defaults.keys()}
            if any(type(value) is not type(defaults[name]) for name, value in shared.items()):
                raise BadReplicaSet(f"a presence with a field of another type: {shared}")
            return cls(**shared)
        except (ValueError, AttributeError, RecursionError) as error:
            if isinstance(error, BadReplicaSet):
                raise
            raise BadReplicaSet(f"no presence: {error!r}") from error


class Seen(NamedTuple):
    """The metadata store, read once."""

    replica_set: ReplicaSet | None
    """None where there is none yet."""
    version: int
    """Of the document, which a swap names."""
    presences: Mapping[str, Presence]
    """Those of the replicas that are alive, by name."""


def no_replica_set(presences: Mapping[str, Presence]) -> str:
    """Return the text for a store without a replica set, with what makes one."""
    text = "there is no replica set yet: "
    initial = min(
        (presence.initial_primary for presence in presences.values() if presence.initial_primary),
        default="",
    )
    if not initial:
        return f"{text}create one with `martlet replicas create NAME NAME ...`"
    name, _, address = initial.partition("=")
    text += f"{name}, which --initial-replicas names first, makes it"
    if name not in presences:
        text += (
            f", and it is not running: start it with `martlet broker --replica-name={name}"
            f" --replica-address={address}`, and with --initial-replicas and the further flags of"
            " the others"
        )
    elif not presences[name].initial_primary:
        text += (
            ", but it runs without that flag: start it again with the --initial-replicas of the"
            f" others, or give `martlet replicas create {name} NAME ...`"
        )
    return text
