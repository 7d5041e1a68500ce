"""Who a data folder belongs to: a random name that stays with it.

Readers of the segment files compare it with what the broker says of itself, so that they never
read another broker's log.
"""

from __future__ import annotations

import json

from martlet.log.storage import Storage

NAME = "broker.json"
VERSION = 1


class WrongVersion(OSError):
    """The folder was written by another version of Martlet."""


def broker_identity(storage: Storage, fresh: str) -> str:
    """The folder's name, which is `fresh` if it has none yet.

    Raises:
        WrongVersion: the folder's format is not ours.
    """
    data = storage.read(NAME)
    if data is None:
        content = {"broker": fresh, "version": VERSION}
        storage.replace(NAME, json.dumps(content).encode())
        return fresh
    found = json.loads(data)
    if found.get("version") != VERSION:
        raise WrongVersion(
            f"{NAME} says format {found.get('version')}, this Martlet reads {VERSION}"
        )
    return str(found["broker"])
