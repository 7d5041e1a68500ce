"""The metadata store in a file of SQLite: for replicas on one machine.

::

    replicas.db                           the documents, in SQLite
    replicas.db.presences/SET@REPLICA     the presence of a replica, which it replaces each second

Its failure is theirs, as all are on that machine. A presence lasts by the machine's monotonic
clock, and for one boot.

A replica may be stopped at any instant, and the others must elect a primary then. So presences are
files that take no lock, and SQLite's journal is a write-ahead log, in which a writer does not wait
for readers. Only a replica that is stopped while it changes the document, which is rare, keeps the
others from changing it; they still read it.
"""

from __future__ import annotations

import asyncio
import json
import os
import sqlite3
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TypeVar

from martlet.log.folder import read_boot_id
from martlet.private_files import make_private_folder, private_opener
from martlet.replica.replica_set import Presence, ReplicaSet, Seen
from martlet.server.metadata.store import PRESENCE_S, StoreUnreachable, SwapUnclear, readable
from martlet.unreachable import loss

_T = TypeVar("_T")
_BUSY_S = 1.0
"""How long a call waits for another process, in seconds."""
_SCHEMA = """
CREATE TABLE IF NOT EXISTS replica_set (
    name TEXT PRIMARY KEY, version INTEGER NOT NULL, document BLOB NOT NULL);
CREATE TABLE IF NOT EXISTS presence (
    name TEXT NOT NULL, replica TEXT NOT NULL, boot TEXT NOT NULL, until_ns INTEGER NOT NULL,
    document BLOB NOT NULL, PRIMARY KEY (name, replica));
"""


class SqliteStore:
    """A metadata store in a file: `martlet.server.metadata.store.MetadataStore`.

    Args:
        clock_ns: the machine's monotonic clock.
        boot_id: of this boot of the machine.
    """

    def __init__(
        self,
        path: Path,
        name: str,
        *,
        clock_ns: Callable[[], int] = time.monotonic_ns,
        boot_id: str | None = None,
    ) -> None:
        self._path = path
        self._name = name
        self._clock_ns = clock_ns
        self._boot_id = read_boot_id() if boot_id is None else boot_id
        self._presences = path.with_name(f"{path.name}.presences")
        self._connection: sqlite3.Connection | None = None
        self._lock = threading.Lock()
        self._announcing = threading.Lock()

    async def read(self) -> Seen:
        """As `MetadataStore.read`."""

        def read(connection: sqlite3.Connection) -> Seen:
            row = connection.execute(
                "SELECT version, document FROM replica_set WHERE name = ?", (self._name,)
            ).fetchone()
            # Replicas of earlier versions keep their presences in a table.
            presences: list[tuple[str, bytes]] = connection.execute(
                "SELECT replica, document FROM presence"
                " WHERE name = ? AND boot = ? AND until_ns > ?",
                (self._name, self._boot_id, self._clock_ns()),
            ).fetchall()
            alive = readable([*presences, *self._announced()])
            if row is None:
                return Seen(None, 0, alive)
            version, document = row
            return Seen(ReplicaSet.unpack(document), version, alive)

        return await self._read(read)

    async def swap(self, replica_set: ReplicaSet, version: int) -> int | None:
        """As `MetadataStore.swap`."""

        def write(connection: sqlite3.Connection) -> int | None:
            row = connection.execute(
                "SELECT version FROM replica_set WHERE name = ?", (self._name,)
            ).fetchone()
            if (row[0] if row else 0) != version:
                return None
            connection.execute(
                "INSERT OR REPLACE INTO replica_set VALUES (?, ?, ?)",
                (self._name, version + 1, replica_set.pack()),
            )
            return version + 1

        try:
            return await asyncio.to_thread(self._transact, write)
        except (sqlite3.Error, OSError) as error:
            raise SwapUnclear(self._failure(error)) from error

    async def announce(self, name: str, presence: Presence) -> None:
        """As `MetadataStore.announce`."""
        fields = {
            "boot": self._boot_id,
            "until_ns": self._clock_ns() + PRESENCE_S * 1_000_000_000,
            "presence": presence.pack().decode(),
        }

        def write() -> None:
            path = self._presences / f"{self._name}@{name}"
            written = path.with_name(f".{path.name}")
            with self._announcing:
                make_private_folder(self._presences)
                with open(written, "w", encoding="utf-8", opener=private_opener) as file:
                    json.dump(fields, file)
                os.replace(written, path)

        try:
            await asyncio.to_thread(write)
        except OSError as error:
            raise self._unreachable(error) from error

    def _announced(self) -> Iterator[tuple[str, bytes]]:
        """Yield the presences that last. Raises OSError."""
        for path in self._presences.glob(f"{self._name}@*"):
            name = path.name.rpartition("@")[2]
            try:
                fields = json.loads(path.read_bytes())
                if fields["boot"] == self._boot_id and fields["until_ns"] > self._clock_ns():
                    yield name, str(fields["presence"]).encode()
            except (ValueError, KeyError, TypeError, RecursionError):
                continue  # As for a presence that cannot be read.

    async def names(self) -> list[str]:
        """As `MetadataStore.names`."""

        def read(connection: sqlite3.Connection) -> list[str]:
            rows = connection.execute("SELECT name FROM replica_set ORDER BY name")
            return [str(name) for (name,) in rows]

        return await self._read(read)

    async def close(self) -> None:
        """As `MetadataStore.close`."""
        await asyncio.to_thread(self._close)

    async def _read(self, step: Callable[[sqlite3.Connection], _T]) -> _T:
        """Run a step that reads. Raises StoreUnreachable."""
        try:
            return await asyncio.to_thread(self._transact, step, True)
        except (sqlite3.Error, OSError) as error:
            raise self._unreachable(error) from error

    def _unreachable(self, error: Exception) -> StoreUnreachable:
        return StoreUnreachable(self._failure(error))

    def _failure(self, error: Exception) -> str:
        return f"the metadata store {self._path}: {loss(error)}"

    def _transact(self, step: Callable[[sqlite3.Connection], _T], is_read: bool = False) -> _T:
        """Run a step in a transaction of its own, durably."""
        with self._lock:
            if self._connection is None:
                self._connection = self._connect()
            connection = self._connection
            try:
                connection.execute("BEGIN" if is_read else "BEGIN IMMEDIATE")
                try:
                    outcome = step(connection)
                except BaseException:
                    connection.execute("ROLLBACK")
                    raise
                connection.execute("COMMIT")
            except sqlite3.Error:
                self._connection = None
                connection.close()
                raise
            return outcome

    def _connect(self) -> sqlite3.Connection:
        make_private_folder(self._path.parent)
        # SQLite would make it for all to read; its other files get the rights of this one. To close
        # one that exists would drop this process's locks on it.
        if not self._path.exists():
            os.close(private_opener(self._path, os.O_RDWR | os.O_CREAT))
        connection = sqlite3.connect(
            self._path, timeout=_BUSY_S, isolation_level=None, check_same_thread=False
        )
        connection.execute("PRAGMA journal_mode = WAL")
        connection.execute("PRAGMA synchronous = FULL")
        connection.executescript(_SCHEMA)
        return connection

    def _close(self) -> None:
        with self._lock:
            if self._connection is not None:
                self._connection.close()
                self._connection = None
