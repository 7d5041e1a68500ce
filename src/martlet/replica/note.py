"""What a replica must never forget, and its lives: which process, on which folder, a name is.

::

    a starts     claims the name: life 1, of folder X         the document names life 1
    a hangs
    a' starts    empty folder Y, same name: claims life 4      the document names life 4
    a wakes up   its life is not the one that is named, and was before: it stands down for good

Each process claims its name by compare-and-swap before it takes part. The numbers of lives rise
over all names of a set, so that a later claim is known from an earlier one. The note is a small
durable file beside the log.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum
from typing import NamedTuple

from martlet.log.storage import Storage


class Life(NamedTuple):
    """One process as a replica."""

    number: int = 0
    """Of the claim; 0 before any."""
    instance: str = ""
    """A random name of the process."""
    incarnation: str = ""
    """A random name of the data folder, made when it joins the set under a name; empty where an
    operator has named a process whose folder is not known.
    """


NO_LIFE = Life()
"""That of a folder which has claimed no name."""


class Entitlement(Enum):
    """What a process is by the document."""

    NAMED = "named"
    """The replica of its name."""
    SUCCEEDS = "succeeds"
    """It may claim the name, and its folder has all that the life before acknowledged, as far as
    its note is right.
    """
    REPLACES = "replaces"
    """It may claim the name if another replica has what the life before acknowledged: its own
    folder may lack that.
    """
    REPLACED = "replaced"
    """Another process has the name for good."""


def entitlement(
    named: Life | None, own: Life, runs: Sequence[str], instance: str, *, has_pledged: bool
) -> Entitlement:
    """Return what a process is.

    Args:
        named: the life in the document; None where it has none, as that of an earlier version.
        own: the last life of the folder that the document is known to have named.
        runs: the processes on the folder since then, which may have claimed the name.
        instance: the process.
        has_pledged: whether the folder has been a replica's.
    """
    if named is None:
        is_new = own.number == 0 and not has_pledged
        return Entitlement.REPLACES if is_new else Entitlement.SUCCEEDS
    if named.instance == instance:
        is_bound = named.incarnation == own.incarnation
        return Entitlement.NAMED if is_bound else Entitlement.SUCCEEDS
    if named.number < own.number:
        return Entitlement.SUCCEEDS  # This is an old state of the document.
    if own.instance == instance:
        return Entitlement.REPLACED
    if named.instance in (own.instance, *runs):
        return Entitlement.SUCCEEDS
    # A new folder, or one of an earlier version, which has claimed nothing; or a copy of the folder
    # was the replica meanwhile.
    may_replace = own.number == 0 or named.incarnation == own.incarnation
    return Entitlement.REPLACES if may_replace else Entitlement.REPLACED


NAME = "replica.json"


class ReplicaFailed(Exception):
    """The replica's disk failed, so that it must not go on: it begins anew on its folder.

    Args:
        may_pass: whether only space was missing, so that the process itself begins anew; otherwise
            it ends.
    """

    def __init__(self, message: str | None, *, may_pass: bool = False) -> None:
        super().__init__(message)
        self.may_pass = may_pass


class BadNote(Exception):
    """The note cannot be read: a replica that does not know its pledges must not take part."""


@dataclass(frozen=True)
class ReplicaNote:
    """The note; a field that is newer than the file has its default."""

    pledged: int = 0
    """The highest epoch whose primary the replica has greeted. It is written before HELLO is sent;
    nothing of a lower epoch is taken afterwards.
    """
    is_whole: bool = True
    """False where the replica may lack records that it acknowledged: it lost power, and had
    acknowledged them before they were on the disk.
    """
    epochs: tuple[tuple[int, int, int], ...] = ()
    """(epoch, start, end) of each epoch of the log, oldest first; their segments may be retired."""
    replica: str = ""
    """The replica of which the note is. One that is started with a copy of another's folder may
    lack what it acknowledged itself.
    """
    life: Life = NO_LIFE
    """The last life of the replica that was read from the document."""
    runs: tuple[str, ...] = ()
    """The processes that ran on the folder since that."""

    @classmethod
    def load(cls, storage: Storage) -> ReplicaNote:
        """Read the note. Without one the replica may have had another disk, on which there was
        more: so it is not whole. Raises BadNote.
        """
        data = storage.read(NAME)
        if data is None:
            return cls(is_whole=False)
        try:
            fields = json.loads(data)
            epochs = tuple((int(a), int(b), int(c)) for a, b, c in fields["epochs"])
            replica = str(fields.get("replica", ""))
            life, runs = _life(*fields.get("life", NO_LIFE)), fields.get("runs", ())
            pledged, is_whole = int(fields["pledged"]), fields["is_whole"] is True
            return cls(pledged, is_whole, epochs, replica, life, tuple(map(str, runs)))
        except (ValueError, KeyError, TypeError) as error:
            raise BadNote(
                f"{NAME} cannot be read ({error!r}); replace this replica by an empty one"
            ) from error

    def save(self, storage: Storage) -> None:
        """Write the note, durably. Raises OSError."""
        fields = {
            "pledged": self.pledged,
            "is_whole": self.is_whole,
            "epochs": self.epochs,
            "replica": self.replica,
            "life": self.life,
            "runs": self.runs,
        }
        storage.replace(NAME, json.dumps(fields).encode())


def _life(number: object, instance: object, incarnation: object) -> Life:
    return Life(int(str(number)), str(instance), str(incarnation))
