"""The identity of a data folder: a random name that stays with it.

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


class NoIdentity(OSError):
    """The file says nothing; the text says what to do."""


class Unfinished(OSError):
    """Something is being done to the folder that has to be ended first; the text says what."""


def mark_unfinished(storage: Storage, why: str | None) -> None:
    """Let no broker start on the folder, and say why; with None, let one start again."""
    found = json.loads(storage.read(NAME) or b"{}")
    if found.get("unfinished") != why:
        content = {key: value for key, value in found.items() if key != "unfinished"}
        if why is not None:
            content["unfinished"] = why
        storage.replace(NAME, json.dumps(content).encode())


def broker_identity(storage: Storage, fresh: str, *, to_finish: bool = False) -> str:
    """The folder's name, which is `fresh` if it has none yet.

    Raises:
        WrongVersion: the folder's format is not ours.
        NoIdentity: the name cannot be read.
        Unfinished: it is marked so, and the caller is not the one `to_finish` it.
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
