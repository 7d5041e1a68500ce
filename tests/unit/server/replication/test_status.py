"""The last known addresses of replicas."""

from __future__ import annotations

from pathlib import Path

import pytest

from martlet.log.storage import DiskStorage
from martlet.replica.replica_set import Presence, ReplicaSet, Seen
from martlet.server.replication.status import ADDRESSES_NAME, AddressBook, ClientAddresses


def announced(port: int) -> Presence:
    return Presence(tcp_address=f"host:{port}", http_address=f"host:{port + 1}")


def seen(replicas: str, presences: dict[str, Presence]) -> Seen:
    replica_set = ReplicaSet.first("a", dict.fromkeys(replicas, "host:4153"), broker="id")
    return Seen(replica_set, 1, presences)


def test_addresses_outlast_presences_and_restarts(tmp_path: Path) -> None:
    storage = DiskStorage(tmp_path)
    book = AddressBook(storage)
    book.note(seen("abc", {"a": announced(1), "b": announced(3), "c": Presence(role="waiting")}))
    book.note(seen("abc", {"b": announced(5)}))
    book.note(Seen(None, 0, {}))  # The metadata store has lost the document.
    for either in (book, AddressBook(storage)):
        assert either.find("a") == ClientAddresses("host:1", "host:2")
        assert either.find("b") == ClientAddresses("host:5", "host:6")
        assert either.find("c") is None
    storage.close()


def test_only_replicas_of_the_set_are_kept(tmp_path: Path) -> None:
    """Any process that reaches the metadata store may announce any name."""
    storage = DiskStorage(tmp_path)
    book = AddressBook(storage)
    book.note(seen("ab", {"a": announced(1), "b": announced(3), "x": announced(5)}))
    assert book.find("x") is None
    book.note(seen("ac", {}))
    for either in (book, AddressBook(storage)):
        assert either.find("a") is not None
        assert either.find("b") is None
    storage.close()


@pytest.mark.parametrize("text", ["", "[]", "{", '{"a": 1}', '{"a": ["x"]}', "\xff"])
def test_a_damaged_file_counts_as_none(tmp_path: Path, text: str) -> None:
    (tmp_path / ADDRESSES_NAME).write_text(text, "latin-1")
    storage = DiskStorage(tmp_path)
    assert AddressBook(storage).find("a") is None
    storage.close()
