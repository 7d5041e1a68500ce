"""An archive of plain Parquet files, which whoever reads Parquet can read, and its commits."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from martlet.pipeline.archive.commit_log import STAGED, ArchiveCommitLog, Swap
from martlet.pipeline.archive.manifest import Manifest
from martlet.pipeline.archive.position import Position, advanced, started
from martlet.pipeline.archive.store import Store
from martlet.spark.read.offsets import QueueKey


class ParquetTable:
    """See `martlet.pipeline.archive.table.Table`.

    Args:
        store: its folder.
    """

    def __init__(self, store: Store) -> None:
        self.store = store
        self._log = ArchiveCommitLog(store)

    def begin(self, run: str) -> None:
        """Take the table over, once what another run has committed is in its place."""
        with self.store.lock():
            self._log.add("begin", run=run)
            for folder in self.store.folders(STAGED):
                self.store.remove_tree(folder)

    def position(self, queues: Iterable[QueueKey] = ()) -> Position | None:
        """How far each queue is archived."""
        latest = self._log.latest()
        return latest.position if latest else None

    def start(self, run: str, start: Position) -> None:
        """Say where to start."""
        with self.store.lock():
            before = self.position()
            position = started(before or {}, start)
            if position != before:
                self._log.add("start", run=run, position=position)

    def stage(self, run: str, batch: str) -> str:
        """The folder for what is written of a batch."""
        return f"{STAGED}/{run}/{batch}"

    def commit(self, run: str, manifests: Sequence[Manifest]) -> int:
        """Let a batch be there."""
        if not manifests:
            return 0
        rows = sum(manifest.rows for manifest in manifests)
        with self.store.lock():
            position = advanced(self.position() or {}, [manifest.stretch for manifest in manifests])
            self._require_staged(manifests)
            moves = [(file.staged, file.name) for m in manifests for file in m.files]
            self._log.add("batch", run=run, position=position, rows=rows, moves=moves)
        # What is left there was written by attempts that failed.
        for folder in {manifest.folder for manifest in manifests}:
            self.store.remove_tree(folder)
        return rows

    def _require_staged(self, manifests: Sequence[Manifest]) -> None:
        wanted = [file.staged for manifest in manifests for file in manifest.files]
        missing = self.store.missing(wanted)
        if missing:
            raise FileNotFoundError(
                f"a task has written {missing[0]}, which is not to be seen from the driver: all"
                f" machines of the cluster have to share {self.store.root}, or give a URL"
            )

    def files(self, folder: str = "", *, recursive: bool = False) -> dict[str, int]:
        """The files that readers see, and their sizes in bytes."""
        return {
            name: size
            for name, size in self.store.files(folder, recursive=recursive).items()
            if name.endswith(".parquet") and not any(p[0] in "_." for p in name.split("/"))
        }

    def compacted(self, swaps: Sequence[Swap], run: str | None) -> list[Swap]:
        """Let compacted files be there in place of those that they were made from.

        Args:
            swaps: what was made. One whose inputs are not all there any more is left out.
            run: whose the archive must be; None if it does not matter.

        Returns:
            Those that were done.
        """
        with self.store.lock():
            self._log.apply_latest()
            good = [swap for swap in swaps if self._stands(swap)]
            for swap in good:
                others = set(self.files(swap.folder)) - {f"{swap.folder}/{n}" for n in swap.inputs}
                if self.store.is_local:
                    for name in others:
                        self.store.link(name, f"{swap.new}/{name.rpartition('/')[2]}")
            if good:
                self._log.add("compaction", run=run, swaps=good)
        return good

    def _stands(self, swap: Swap) -> bool:
        """Whether both what is to go and what is to come are there."""
        inputs = {f"{swap.folder}/{name}" for name in swap.inputs}
        outputs = {f"{swap.new}/{name}" for name in swap.outputs}
        return inputs <= set(self.files(swap.folder)) and outputs <= set(self.store.files(swap.new))
