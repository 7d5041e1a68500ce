"""What a replica must never forget: a small durable file beside its log.

`pledged` is the highest epoch whose primary it has greeted. It writes this down before it says
HELLO, and takes nothing of a lower epoch ever after. `is_whole` is False where it may lack records
that it acknowledged: it lost power, and acknowledged before they were on the disk. `epochs` are
those of the log, whose segments may be retired. `replica` is the name of the replica that all this
is about: one that is started with a copy of another's folder may lack what it acknowledged itself.
`life` is the last one that the document was seen to have for it, and `runs` are the
processes that ran on the folder since.
"""

from __future__ import annotations

import json
from dataclasses import dataclass

from martlet.log.storage import Storage
from martlet.replica.life import NO_LIFE, Life

NAME = "replica.json"


class BadNote(Exception):
    """The note cannot be read: a replica that does not know its pledges must not take part."""


@dataclass(frozen=True)
class ReplicaNote:
    """The note.

    Attributes:
        pledged: see above.
        is_whole: see above.
        epochs: (epoch, start, end) of each, oldest first.
        replica: see above; empty in a note that is older than this field.
        life, runs: see above; without an incarnation in a note that is older than these fields.
    """

    pledged: int = 0
    is_whole: bool = True
    epochs: tuple[tuple[int, int, int], ...] = ()
    replica: str = ""
    life: Life = NO_LIFE
    runs: tuple[str, ...] = ()

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
