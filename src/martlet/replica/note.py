"""What a replica must never forget: a small durable file beside its log."""

from __future__ import annotations

import json
from dataclasses import dataclass

from martlet.log.storage import Storage
from martlet.replica.life import NO_LIFE, Life

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
