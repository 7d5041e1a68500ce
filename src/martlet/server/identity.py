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
        Unfinished: it is marked so, and the caller is not the one `to_finish` it.
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
    if "unfinished" in found and not to_finish:
        raise Unfinished(str(found["unfinished"]))
    return str(found["broker"])
