"""An archive as plain Parquet files for any Parquet reader, with a commit log."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from martlet.pipeline.archive.commit_log import STAGED, ArchiveCommitLog, Swap
from martlet.pipeline.archive.position import Manifest, Position, advanced, started
from martlet.pipeline.archive.store import LocalStore, Store
from martlet.reader.offsets import QueueKey


class ParquetTable:
    """A table of Parquet files; implements `martlet.pipeline.archive.table.ArchiveTable`."""

    def __init__(self, store: Store) -> None:
        self.store = store
        self._log = ArchiveCommitLog(store)

    def begin(self, run: str) -> None:
        """Apply the last commit, take the table over, and remove staged files."""
        with self.store.lock():
            self._log.add("begin", run=run)
            for folder in self.store.folders(STAGED):
                self.store.remove_tree(folder)

    def position(self, queues: Iterable[QueueKey] = ()) -> Position | None:
        """Read the archived offset of each queue."""
        latest = self._log.latest()
        return latest.position if latest else None

    def start(self, run: str, start: Position) -> None:
        """Record the starting offsets of new queues."""
        with self.store.lock():
            before = self.position()
            position = started(before or {}, start)
            if position != before:
                self._log.add("start", run=run, position=position)

    def stage(self, run: str, batch: str) -> str:
        """Return the staged folder of a batch."""
        return f"{STAGED}/{run}/{batch}"

    def commit(self, run: str, manifests: Sequence[Manifest]) -> int:
        """Commit the files of a batch."""
        if not manifests:
            return 0
        rows = sum(manifest.rows for manifest in manifests)
        with self.store.lock():
            position = advanced(self.position() or {}, [manifest.stretch for manifest in manifests])
            self._require_staged(manifests)
            moves = [(file.staged, file.name) for m in manifests for file in m.files]
            self._log.add("batch", run=run, position=position, rows=rows, moves=moves)
        # Files that are left there are from failed attempts of tasks.
        for folder in {manifest.folder for manifest in manifests}:
            self.store.remove_tree(folder)
        return rows

    def _require_staged(self, manifests: Sequence[Manifest]) -> None:
        staged = [file.staged for manifest in manifests for file in manifest.files]
        missing = self.store.missing(staged)
        if missing:
            raise FileNotFoundError(
                f"a task has written {missing[0]}, which the driver cannot see: all machines of"
                f" the cluster must share {self.store.root}, or give a URL"
            )

    def files(self, folder: str = "", *, recursive: bool = False) -> dict[str, int]:
        """List the files that readers see, and their sizes in bytes."""
        return {
            name: size
            for name, size in self.store.files(folder, recursive=recursive).items()
            if name.endswith(".parquet") and not any(p[0] in "_." for p in name.split("/"))
        }

    def compacted(self, swaps: Sequence[Swap], run: str | None) -> list[Swap]:
        """Commit compacted files in place of those that they were merged from, except where one is
        missing; return what was replaced. With a `run`, that must own the archive.
        """
        with self.store.lock():
            self._log.apply_latest()
            good = [swap for swap in swaps if self._is_possible(swap)]
            for swap in good:
                others = set(self.files(swap.folder)) - set(map(swap.path, swap.inputs))
                if isinstance(self.store, LocalStore):
                    for name in others:
                        self.store.link(name, f"{swap.new}/{name.rpartition('/')[2]}")
            if good:
                self._log.add("compaction", run=run, swaps=good)
        return good

    def _is_possible(self, swap: Swap) -> bool:
        inputs = set(map(swap.path, swap.inputs))
        outputs = {f"{swap.new}/{name}" for name in swap.outputs}
        return inputs <= set(self.files(swap.folder)) and outputs <= set(self.store.files(swap.new))
