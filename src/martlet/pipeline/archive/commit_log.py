"""The commit log: makes each batch of an archive visible atomically.

The archive's folder contains a folder that Parquet readers skip, as its name begins with ``_``::

    out/topic=orders/date=2026-11-22/hour=13/3f0a-0-00000000000000000000-9c41.parquet
    out/_martlet/staged/<run>/<batch>/...     files that tasks have written, not committed yet
    out/_martlet/log/00000000000000000007.json      the commits, at least the latest hundred
    out/_martlet/applied                      the last commit whose files are all in place
    out/_martlet/lock                         held during a commit

A commit is one file, so it exists or not.  It records the archived offset of each queue, and the
target of each staged file; or, for a compaction, which files replace which.  The process that wrote
it then applies it, or the next one if that was killed; to apply it twice is harmless.

A run takes the archive over by a commit of its own: later commits of an earlier run that is still
alive are refused.
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, field, replace
from datetime import UTC, datetime

import pyarrow.parquet as pq

from martlet.pipeline.archive.partition import refitted
from martlet.pipeline.archive.position import Position
from martlet.pipeline.archive.store import LocalStore, Store
from martlet.pipeline.archive.writing import parquet_writer, with_full_values
from martlet.reader.offsets import flatten, nested

FOLDER = "_martlet"
STAGED = f"{FOLDER}/staged"
_LOG = f"{FOLDER}/log"
_APPLIED = f"{FOLDER}/applied"
KEPT_COMMITS = 100


class ArchiveDamagedError(Exception):
    """The archive's log contradicts the files in its folder."""


class TakenOverError(Exception):
    """Another run has taken the archive over."""


def in_folder(folder: str, name: str) -> str:
    """Return the path of a file in a folder, which is empty without partition columns."""
    return f"{folder}/{name}" if folder else name


@dataclass(frozen=True)
class Swap:
    """Replaces files of one folder by others with the same rows."""

    folder: str
    new: str
    """The staged folder, to exchange with it, or else to move `outputs` from."""
    inputs: list[str]
    outputs: list[str]

    def path(self, name: str) -> str:
        """Return the path of a file in the folder."""
        return in_folder(self.folder, name)


@dataclass(frozen=True)
class Commit:
    """One entry of the log, with the complete state of the archive."""

    version: int
    run: str
    kind: str
    """One of begin, start, batch and compaction."""
    position: Position | None
    """The first offset of each queue that is not archived; None before a start."""
    rows: int = 0
    moves: list[tuple[str, str]] = field(default_factory=list)
    swaps: list[Swap] = field(default_factory=list)
    at: str = field(default_factory=lambda: datetime.now(UTC).isoformat(timespec="milliseconds"))

    def format(self) -> bytes:
        """Encode the commit as the content of its file."""
        position = None if self.position is None else nested(self.position)
        fields = asdict(replace(self, position=None)) | {"position": position}
        return json.dumps(fields, separators=(",", ":")).encode()

    @classmethod
    def parse(cls, content: bytes, name: str) -> Commit:
        """Decode the content of a commit's file. Raises ArchiveDamagedError."""
        try:
            fields = json.loads(content)
            return cls(
                **fields
                | {
                    "position": None if fields["position"] is None else flatten(fields["position"]),
                    "moves": [(source, target) for source, target in fields["moves"]],
                    "swaps": [Swap(**swap) for swap in fields["swaps"]],
                }
            )
        except (ValueError, KeyError, TypeError) as error:
            raise ArchiveDamagedError(f"{name} is not a commit of an archive: {error}") from error


class ArchiveCommitLog:
    """The log of one archive; callers hold the store's lock while they change it."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._applied = -1

    def latest(self) -> Commit | None:
        """Read the last commit; None if there is no archive yet."""
        while (name := max(self._names(), default=None)) is not None:
            content = self._store.read(name)
            if content is not None:
                return Commit.parse(content, self._store.path(name))
            # Another process has committed meanwhile and removed this one.
        return None

    def add(
        self,
        kind: str,
        *,
        run: str | None = None,
        position: Position | None = None,
        rows: int = 0,
        moves: list[tuple[str, str]] | None = None,
        swaps: list[Swap] | None = None,
    ) -> Commit:
        """Write a commit and apply it. Without a `run` the owner of the archive stays, without a
        `position` the one before.

        Raises:
            TakenOverError: another run owns the archive.
            ArchiveDamagedError: the last commit cannot be applied.
        """
        before = self.apply_latest()
        if kind != "begin" and run is not None and (before is None or before.run != run):
            raise TakenOverError(
                f"another archive job has begun on {self._store.root}, so this one ends; each"
                " message is archived once all the same"
            )
        reached = before.position if before else None
        commit = Commit(
            version=before.version + 1 if before else 0,
            run=run or (before.run if before else ""),
            kind=kind,
            position=reached if position is None else position,
            rows=rows,
            moves=moves or [],
            swaps=swaps or [],
        )
        if not self._store.create(self._name(commit.version), commit.format()):
            raise TakenOverError(
                f"another process has committed to {self._store.root} at the same moment; this one"
                " ends, and can be started again"
            )
        self._apply(commit)
        self._prune(commit.version)
        return commit

    def apply_latest(self) -> Commit | None:
        """Apply the last commit, unless that is done, and return it. Raises ArchiveDamagedError."""
        latest = self.latest()
        version = latest.version if latest is not None else -1
        if self._applied < 0 or version > self._applied:
            applied = self._store.read(_APPLIED)
            self._applied = int(applied) if applied and applied.isdigit() else -1
            if version < self._applied:
                last = f"the last one is {version}" if latest else "there is none"
                raise ArchiveDamagedError(
                    f"commit {self._applied} is missing from {self._store.path(_LOG)}, where"
                    f" {last}: its messages would be archived again. Restore it from a copy, or"
                    " archive to an empty folder"
                )
            if latest is not None and version > self._applied:
                self._apply(latest)
        return latest

    def _apply(self, commit: Commit) -> None:
        store = self._store
        try:
            for source, target in commit.moves:
                self._move(source, target)
        except FileNotFoundError as error:
            raise ArchiveDamagedError(
                f"commit {commit.version} of {store.root} is not complete, and cannot be"
                f" completed: {error}"
            ) from error
        for swap in commit.swaps:
            self._swap(swap)
        store.replace(_APPLIED, b"%d" % commit.version)
        self._applied = commit.version

    def _move(self, source: str, target: str) -> None:
        """Move a staged file, also to a folder that an older version could not make."""
        store = self._store
        folder, slash, name = target.rpartition("/")
        fit, values = refitted(folder, store.max_folder_bytes)
        if not values or store.missing([source]):
            store.move(source, f"{fit}{slash}{name}")
            return
        rows = pq.read_table(store.path(source), filesystem=store.system, partitioning=None)
        rows = with_full_values(rows, values)
        full = f"{source}.full"
        with store.sink(full) as sink, parquet_writer(sink, rows.schema, "snappy") as writer:
            writer.write_table(rows)
        store.flush(full)
        store.move(full, f"{fit}{slash}{name}")
        store.remove(source)

    def _swap(self, swap: Swap) -> None:
        """Replace the old files by the new ones, unless that is done already."""
        store = self._store
        here, staged = set(store.files(swap.folder)), set(store.files(swap.new))
        outputs = {f"{swap.new}/{name}": swap.path(name) for name in swap.outputs}
        inputs = [swap.path(name) for name in swap.inputs]
        if not here.issuperset(outputs.values()):
            if not all(new in staged or old in here for new, old in outputs.items()):
                if here.issuperset(inputs):
                    return  # The new files are lost, but all of the old ones are there.
                raise ArchiveDamagedError(
                    f"{store.path(swap.folder)} lacks {', '.join(swap.outputs)}"
                )
            if not (here and isinstance(store, LocalStore) and store.swap(swap.new, swap.folder)):
                # Readers may miss these rows for a moment, but never read them twice.
                for name in inputs:
                    store.remove(name)
                for new, old in outputs.items():
                    store.move(new, old)
        for name in inputs:
            store.remove(name)
        store.remove_tree(swap.new)

    def _names(self) -> list[str]:
        return [name for name in self._store.files(_LOG) if name.endswith(".json")]

    def _prune(self, version: int) -> None:
        if version % KEPT_COMMITS == 0:
            for name in self._names():
                if name < self._name(version - KEPT_COMMITS):
                    self._store.remove(name)

    @staticmethod
    def _name(version: int) -> str:
        return f"{_LOG}/{version:020d}.json"
