"""The identity of a data folder: a random name that stays with it.

Readers of the segment files compare it with the name that the broker reports, so that they never
read another broker's log.
"""

from __future__ import annotations

import json

from martlet.log.storage import Storage

NAME = "broker.json"
VERSION = 1


class WrongVersion(OSError):
    """The folder was written by another version of Martlet."""


class NoIdentity(OSError):
    """The file holds no name; the text says what to do."""


class Unfinished(OSError):
    """An unfinished operation on the folder must end first; the text names it."""


def mark_unfinished(storage: Storage, why: str | None) -> None:
    """Keep brokers from starting on the folder, and record why; with None, allow it again."""
    found = json.loads(storage.read(NAME) or b"{}")
    if found.get("unfinished") != why:
        content = {key: value for key, value in found.items() if key != "unfinished"}
        if why is not None:
            content["unfinished"] = why
        storage.replace(NAME, json.dumps(content).encode())


def broker_identity(storage: Storage, fresh: str, *, to_finish: bool = False) -> str:
    """Return the folder's name, which is `fresh` if it has none yet.

    Raises:
        WrongVersion: this version cannot read the folder's format. NoIdentity: the name cannot be
        read. Unfinished: it is marked so, and the caller is not the one `to_finish` it.
    """
    data = storage.read(NAME)
    if data is None:
        content = {"broker": fresh, "version": VERSION}
        storage.replace(NAME, json.dumps(content).encode())
        return fresh
    try:
        found = dict(json.loads(data))
        version, name = found["version"], str(found.get("broker", ""))
    except (ValueError, LookupError, TypeError) as error:
        raise NoIdentity(
            f"{NAME}, which holds its name, cannot be understood ({error}): put it back from a"
            " backup, or delete it, and readers of the log's files take it for another broker's"
        ) from None
    if version != VERSION:
        raise WrongVersion(
            f"{NAME} says format {version}, this Martlet reads {VERSION}: run the one that wrote it"
        )
    if "unfinished" in found and not to_finish:
        raise Unfinished(str(found["unfinished"]))
    return name
