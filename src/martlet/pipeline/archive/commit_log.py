"""The commit log: what makes a batch of an archive be there, all of it or nothing.

In the archive's folder lies a folder that readers of Parquet skip, as its name begins with ``_``::

    out/topic=orders/date=2026-11-22/hour=13/3f0a-0-00000000000000000000-9c41.parquet
    out/_martlet/staged/<run>/<batch>/...     what tasks have written, and nobody has committed
    out/_martlet/log/00000000000000000007.json      the commits, the latest hundred of them
    out/_martlet/applied                      the last one whose files are all in their places
    out/_martlet/lock                         held while one is made

A commit is one file, which is there or not.  It tells how far all queues are archived with it, and
which staged files go where; or which files of a folder give way to which.  Then that is done.  Who
finds a commit that is not applied, because its maker was killed, does it before anything else; to
do it again does no harm.  So the last commit says all there is to say, and the log never grows.

A run begins with a commit of its own and takes the archive over by that: what another run that
still lives commits later is refused.
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, field, replace
from datetime import UTC, datetime

from martlet.pipeline.archive.position import Position
from martlet.pipeline.archive.store import Store
from martlet.spark.read.offsets import flatten, nested

FOLDER = "_martlet"
STAGED = f"{FOLDER}/staged"
_LOG = f"{FOLDER}/log"
_APPLIED = f"{FOLDER}/applied"
KEPT = 100


class ArchiveDamagedError(Exception):
    """What the archive's log tells and what is in its folder do not fit."""


class TakenOverError(Exception):
    """Another run has begun on the same archive, which ends this one."""


@dataclass(frozen=True)
class Swap:
    """Files of one folder that give way to others, with the same rows.

    Attributes:
        folder: where they are.
        new: the staged folder that takes its place where folders can be exchanged, else the one
            from which `outputs` are moved.
        inputs, outputs: the names of the files that go and that come.
    """

    folder: str
    new: str
    inputs: list[str]
    outputs: list[str]


@dataclass(frozen=True)
class Commit:
    """One entry of the log, and with it the state of the archive.

    Attributes:
        version: its number, from 0.
        run: whose archive it is.
        kind: begin, start, batch or compaction.
        position: how far each queue is archived; None until it is known where to start.
        rows: how many rows it adds.
        moves: staged files and where they go.
        swaps: what a compaction changes.
        at: when, in ISO 8601.
    """

    version: int
    run: str
    kind: str
    position: Position | None
    rows: int = 0
    moves: list[tuple[str, str]] = field(default_factory=list)
    swaps: list[Swap] = field(default_factory=list)
    at: str = field(default_factory=lambda: datetime.now(UTC).isoformat(timespec="milliseconds"))

    def format(self) -> bytes:
        """The content of its file."""
        position = None if self.position is None else nested(self.position)
        fields = asdict(replace(self, position=None)) | {"position": position}
        return json.dumps(fields, separators=(",", ":")).encode()

    @classmethod
    def parse(cls, content: bytes, name: str) -> Commit:
        """Read one.

        Raises:
            ArchiveDamagedError: it is none.
        """
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
            raise ArchiveDamagedError(f"{name} is no commit of an archive: {error}") from error


class ArchiveCommitLog:
    """The log of one archive. All that changes it wants the store's lock.

    Args:
        store: the archive's folder.
    """

    def __init__(self, store: Store) -> None:
        self._store = store
        self._applied = -1

    def latest(self) -> Commit | None:
        """The last commit; None where there is no archive yet."""
        name = max(self._names(), default=None)
        while name is not None:
            content = self._store.read(name)
            if content is not None:
                return Commit.parse(content, self._store.path(name))
            # Another process has committed meanwhile, and let go of this one.
            name = max(self._names(), default=None)
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
        """Commit, and put the files in their places.

        Args:
            run: who commits; None for one that leaves the archive with whom it is.
            position: None for the one that was.

        Raises:
            TakenOverError: the archive is another run's.
            ArchiveDamagedError: the last commit cannot be applied.
        """
        before = self.apply_latest()
        if kind != "begin" and run is not None and (before is None or before.run != run):
            raise TakenOverError(
                f"another archive job has begun on {self._store.root}, so this one ends; each"
                " message is archived once all the same"
            )
        known = before.position if before else None
        commit = Commit(
            version=before.version + 1 if before else 0,
            run=run or (before.run if before else ""),
            kind=kind,
            position=known if position is None else position,
            rows=rows,
            moves=moves or [],
            swaps=swaps or [],
        )
        if not self._store.create(self._name(commit.version), commit.format()):
            raise TakenOverError(
                f"another process has committed to {self._store.root} in the same moment; this one"
                " ends, and can be started again"
            )
        self._apply(commit)
        self._prune(commit.version)
        return commit

    def apply_latest(self) -> Commit | None:
        """Finish what the last commit says, if its maker did not come to that; return it.

        Raises:
            ArchiveDamagedError: it cannot be finished, or later ones were there.
        """
        latest = self.latest()
        version = latest.version if latest is not None else -1
        if self._applied < 0 or version > self._applied:
            applied = self._store.read(_APPLIED)
            self._applied = int(applied) if applied and applied.isdigit() else -1
            if version < self._applied:
                last = f"the last one there is {version}" if latest else "there is none"
                raise ArchiveDamagedError(
                    f"commit {self._applied} has gone from {self._store.path(_LOG)}, where {last}:"
                    " what was archived with it would be archived again. Bring it back from a copy,"
                    " or archive to an empty folder"
                )
            if latest is not None and version > self._applied:
                self._apply(latest)
        return latest

    def _apply(self, commit: Commit) -> None:
        store = self._store
        try:
            for source, target in commit.moves:
                store.move(source, target)
        except FileNotFoundError as error:
            raise ArchiveDamagedError(
                f"commit {commit.version} of {store.root} is not complete, and cannot be"
                f" completed: {error}"
            ) from error
        for swap in commit.swaps:
            self._swap(swap)
        store.replace(_APPLIED, b"%d" % commit.version)
        self._applied = commit.version

    def _swap(self, swap: Swap) -> None:
        """Let the new files be there in place of the old ones, unless they are already."""
        store = self._store
        here, staged = set(store.files(swap.folder)), set(store.files(swap.new))
        outputs = {f"{swap.new}/{name}": f"{swap.folder}/{name}" for name in swap.outputs}
        inputs = [f"{swap.folder}/{name}" for name in swap.inputs]
        if not here.issuperset(outputs.values()):
            if not all(new in staged or old in here for new, old in outputs.items()):
                if here.issuperset(inputs):
                    return  # What was to come is not there, and what was to go still is.
                raise ArchiveDamagedError(
                    f"{store.path(swap.folder)} misses {', '.join(swap.outputs)}"
                )
            if not here or not store.swap(swap.new, swap.folder):
                # Readers may miss these rows for a moment; they never find them twice.
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
        if version % KEPT == 0:
            for name in self._names():
                if name < self._name(version - KEPT):
                    self._store.remove(name)

    @staticmethod
    def _name(version: int) -> str:
        return f"{_LOG}/{version:020d}.json"
