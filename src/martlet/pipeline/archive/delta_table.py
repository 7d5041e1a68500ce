"""An archive as a Delta Lake table, written by the package deltalake, without a JVM.

Tasks write their files to their final folders, since Delta readers see only files that are in
Delta's log.  The driver's commit adds them, together with one application transaction for each
queue, whose version is the first offset that is not archived::

    martlet/<broker id>/<topic>/<queue>/<topic id>  ->  1000

Delta's log keeps these transactions through its checkpoints.  Of two writers that commit the same
queue at once, one fails; a late writer finds that the version is beyond its first offset.
"""

from __future__ import annotations

import json
import time
from collections.abc import Iterable, Mapping, Sequence
from urllib.parse import parse_qs, urlsplit

import pyarrow as pa

from martlet.pipeline.archive.compaction import Compacted
from martlet.pipeline.archive.position import Manifest, Position, Written, advanced
from martlet.pipeline.archive.rows import ADDED
from martlet.pipeline.archive.writing import Writing
from martlet.reader.offsets import QueueKey
from martlet.text import how_to_install

try:
    import deltalake
    from deltalake.exceptions import TableNotFoundError
    from deltalake.transaction import AddAction, RemoveAction
except ImportError as error:
    raise ValueError(
        f"format delta needs the package deltalake: {how_to_install('archive-delta')}"
    ) from error

_STARTED = "martlet/started"
_TYPES = {"topic": pa.string(), "date": pa.date32(), "hour": pa.int32()}
"""The types of the columns that are derived from a message's topic and timestamp."""


class DeltaTable:
    """A Delta table; implements `martlet.pipeline.archive.table.ArchiveTable`."""

    def __init__(self, writing: Writing) -> None:
        self._uri, self._storage = delta_location(writing.location)
        self._partition_by = list(writing.shape.partition_by)
        types = {field.name: field.type for field in writing.shape.schema}
        partitions = [
            pa.field(name, types.get(name) if name in writing.shape.partitioning.fields else kind)
            for name, kind in ((name, _TYPES.get(name)) for name in self._partition_by)
        ]
        self._schema = deltalake.Schema.from_arrow(
            pa.schema([*writing.shape.file_schema, *partitions])
        )

    def begin(self, run: str) -> None:
        """Create the table, if there is none; add columns that one of an earlier version lacks.
        `compact` removes leftovers of failed tasks.
        """
        deltalake.DeltaTable.create(
            self._uri,
            schema=self._schema,
            partition_by=self._partition_by,
            mode="ignore",
            storage_options=self._storage,
        )
        table = self._opened()
        there = {field.name for field in table.schema().fields}
        added = [f for f in self._schema.fields if f.name in ADDED and f.name not in there]
        if added:
            table.alter.add_columns(added)

    def position(self, queues: Iterable[QueueKey]) -> Position | None:
        """Read the archived offset of these queues."""
        return self._position(self._opened(), queues)

    def start(self, run: str, start: Position) -> None:
        """Record the starting offsets of new queues."""
        table = self._opened()
        position = self._position(table, start)
        fresh = {
            _application(key): offset
            for key, offset in start.items()
            if position is None or key not in position
        }
        if position is None:
            fresh[_STARTED] = 1
        if fresh:
            self._commit(table, [], fresh)

    def stage(self, run: str, batch: str) -> str:
        """Return an empty name: Delta needs no staging."""
        return ""

    def commit(self, run: str, manifests: Sequence[Manifest]) -> int:
        """Commit the files of a batch."""
        stretches = [manifest.stretch for manifest in manifests]
        if not stretches:
            return 0
        table = self._opened()
        before = self._position(table, {stretch.key for stretch in stretches})
        after = advanced(before or {}, stretches)
        actions: list[AddAction | RemoveAction] = [
            self._add(file) for manifest in manifests for file in manifest.files
        ]
        reached = {_application(key): offset for key, offset in after.items()}
        self._commit(table, actions, reached)
        return sum(manifest.rows for manifest in manifests)

    def _opened(self) -> deltalake.DeltaTable:
        return deltalake.DeltaTable(self._uri, storage_options=self._storage)

    @staticmethod
    def _position(table: deltalake.DeltaTable, queues: Iterable[QueueKey]) -> Position | None:
        if table.transaction_version(_STARTED) is None:
            return None
        offsets = {key: table.transaction_version(_application(key)) for key in queues}
        return {key: offset for key, offset in offsets.items() if offset is not None}

    def _commit(
        self,
        table: deltalake.DeltaTable,
        actions: list[AddAction | RemoveAction],
        reached: Mapping[str, int],
    ) -> None:
        transactions = [deltalake.Transaction(name, offset) for name, offset in reached.items()]
        table.create_write_transaction(
            actions,
            "append",
            self._schema,
            self._partition_by,
            commit_properties=deltalake.CommitProperties(app_transactions=transactions),
        )

    @staticmethod
    def _add(file: Written) -> AddAction:
        values = dict(file.partition)
        return AddAction(
            file.name,
            file.size_bytes,
            values,
            time.time_ns() // 1_000_000,
            True,
            json.dumps({"numRecords": file.rows}),
        )


def compact(location: str, target_bytes: int) -> Compacted:
    """Merge small files, and remove those that no version of a week uses. Raises ValueError."""
    uri, storage = delta_location(location)
    try:
        table = deltalake.DeltaTable(uri, storage_options=storage)
    except TableNotFoundError as error:
        raise ValueError(f"{location} holds no Delta table") from error
    done = table.optimize.compact(target_size=target_bytes)
    table.vacuum(dry_run=False)
    return Compacted(done["numFilesRemoved"], done["numFilesAdded"])


def delta_files(location: str) -> list[str]:
    """List the files of the table's newest version. Raises TableNotFoundError."""
    uri, storage = delta_location(location)
    return deltalake.DeltaTable(uri, storage_options=storage).file_uris()


def delta_location(location: str) -> tuple[str, dict[str, str]]:
    """Convert a location for deltalake: the URL, and the storage options from its query string."""
    if "://" not in location:
        return location, {}
    url = urlsplit(location)
    query = {name: values[-1] for name, values in parse_qs(url.query).items()}
    options: dict[str, str] = {}
    if "region" in query:
        options["AWS_REGION"] = query["region"]
    if "endpoint_override" in query:
        scheme = query.get("scheme", "https")
        options["AWS_ENDPOINT_URL"] = f"{scheme}://{query['endpoint_override']}"
        options["AWS_ALLOW_HTTP"] = str(scheme == "http").lower()
    return url._replace(query="").geturl(), options


def _application(key: QueueKey) -> str:
    return f"martlet/{key.broker}/{key.topic}/{key.queue}/{key.topic_id}"
