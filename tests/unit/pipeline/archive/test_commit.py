"""Commits of an archive: killed at any step, they are there as a whole once they are taken up.

Readers of Parquet, who know nothing of commits, meanwhile see no row twice and none that was not
committed.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.dataset as ds
import pytest

from martlet.pipeline.archive.commit_log import ArchiveDamagedError, Swap, TakenOverError
from martlet.pipeline.archive.compaction import Joining
from martlet.pipeline.archive.parquet_table import ParquetTable
from martlet.pipeline.archive.position import Manifest, TwoWritersError
from martlet.pipeline.archive.rows import Shape, source_schema
from martlet.pipeline.archive.store import LocalStore, Store
from martlet.pipeline.archive.writing import Writing
from martlet.reader.offsets import QueueKey, Span

KEY = QueueKey("b" * 32, "t", 0, 7)
HOUR_US = 3_600_000_000
START_US = 500_000 * HOUR_US


class Killed(BaseException):
    """Stands for kill -9: nothing catches it."""


class Dying(LocalStore):
    """A store whose process is killed before one of its steps.

    Attributes:
        steps: how many there have been.
    """

    def __init__(self, root: Path, dies_at: int, *, swaps: bool = True) -> None:
        super().__init__(root)
        self.steps = 0
        self._dies_at = dies_at
        self._swaps = swaps

    def _step(self) -> None:
        if self.steps == self._dies_at:
            raise Killed
        self.steps += 1

    def create(self, name: str, content: bytes) -> bool:
        self._step()
        return super().create(name, content)

    def replace(self, name: str, content: bytes) -> None:
        self._step()
        super().replace(name, content)

    def move(self, source: str, target: str) -> None:
        self._step()
        super().move(source, target)

    def remove(self, name: str) -> None:
        self._step()
        super().remove(name)

    def remove_tree(self, name: str) -> None:
        self._step()
        super().remove_tree(name)

    def swap(self, new: str, old: str) -> bool:
        self._step()
        return self._swaps and super().swap(new, old)

    def link(self, source: str, target: str) -> None:
        self._step()
        super().link(source, target)


def batch(first: int, bodies: list[bytes], times_us: list[int]) -> pa.RecordBatch:
    """Messages of a queue from an offset on, as the source has them."""
    count = len(bodies)
    names = source_schema().names
    columns: dict[str, list[Any]] = {n: [7 if n == "priority" else None] * count for n in names}
    columns |= {"value": bodies, "topic": ["t"] * count, "partition": [0] * count}
    columns |= {"offset": list(range(first, first + count)), "timestamp": times_us}
    columns |= {"broker": [KEY.broker] * count}
    return pa.RecordBatch.from_pydict(columns, schema=source_schema())


def messages(first: int, last: int) -> pa.RecordBatch:
    """Three an hour."""
    numbers = range(first, last)
    return batch(
        first, [b"%d" % n for n in numbers], [START_US + n * (HOUR_US // 3) for n in numbers]
    )


def write(
    store: Store,
    first: int,
    last: int,
    batch: str,
    table: ParquetTable,
    partition_by: tuple[str, ...] = ("topic", "date", "hour"),
) -> Manifest:
    """Write as a task does."""
    writing = Writing(store.location, Shape(partition_by), flush=False)
    stretch = Span(KEY, first, last)
    folder = table.stage("run", batch)
    return writing.write([messages(first, last)], stretch, folder, store)


def seen(folder: Path) -> list[int]:
    """The offsets that a reader who knows nothing of commits finds."""
    if not any(folder.rglob("hour=*/*.parquet")):
        return []
    offsets = ds.dataset(folder, partitioning="hive").to_table(columns=["offset"])
    return sorted(offsets["offset"].to_pylist())


def begun(store: Store, run: str = "run") -> ParquetTable:
    table = ParquetTable(store)
    table.begin(run)
    table.start(run, {KEY: 0})
    return table


def commit(table: ParquetTable, *offsets: int, run: str = "run") -> None:
    """Commit a batch from each offset to the next."""
    for first, last in pairwise(offsets):
        table.commit(run, [write(table.store, first, last, f"batch {first}", table)])


@pytest.fixture
def table(tmp_path: Path) -> ParquetTable:
    return begun(LocalStore(tmp_path))


def test_a_batch_is_there_once_it_is_committed(table: ParquetTable, tmp_path: Path) -> None:
    store = table.store
    manifests = [write(store, 0, 5, "one", table), write(store, 5, 9, "one", table)]
    write(store, 5, 9, "one", table)  # an attempt that failed
    assert seen(tmp_path) == []
    assert table.commit("run", manifests) == 9
    assert seen(tmp_path) == list(range(9))
    assert table.position() == {KEY: 9}
    assert store.files("_martlet/staged", recursive=True) == {}
    rows = ds.dataset(tmp_path, partitioning="hive").to_table().to_pydict()
    assert set(rows["hour"]) == {(500_000 + number) % 24 for number in range(3)}


def test_a_commit_that_is_killed_at_any_step_is_whole_after_the_next_start(tmp_path: Path) -> None:
    step = 0
    finished = False
    while not finished:
        folder = tmp_path / str(step)
        commit(begun(LocalStore(folder)), 0, 5)
        try:
            commit(ParquetTable(Dying(folder, step)), 5, 12)
            finished = True
        except Killed:
            visible = seen(folder)
            assert visible[:5] == list(range(5))
            assert len(set(visible)) == len(visible)
        # Another run takes over, and finds either nothing of the batch or all of it.
        table = ParquetTable(LocalStore(folder))
        table.begin("next")
        reached = (table.position() or {})[KEY]
        assert reached in (5, 12)
        assert seen(folder) == list(range(reached))
        # Spark does the batch again; only the rest of it is planned.
        if reached == 5:
            commit(table, 5, 12, run="next")
        assert seen(folder) == list(range(12))
        step += 1
    assert step > 5


@pytest.mark.parametrize("swaps", [True, False])
def test_a_compaction_that_is_killed_at_any_step_loses_and_doubles_nothing(
    tmp_path: Path, swaps: bool
) -> None:
    step = 0
    finished = False
    folder = tmp_path
    while not finished:
        folder = tmp_path / str(step)
        commit(begun(LocalStore(folder)), 0, 4, 8, 12)
        dying = Dying(folder, step, swaps=swaps)
        try:
            finished = join(ParquetTable(dying), dying) > 0
        except Killed:
            visible = seen(folder)
            assert len(set(visible)) == len(visible)
            if swaps:
                assert visible == list(range(12))
        table = ParquetTable(LocalStore(folder))
        table.begin("next")
        assert seen(folder) == list(range(12))
        commit(table, 12, 14, run="next")
        assert seen(folder) == list(range(14))
        step += 1
    assert step > 8
    # Of six files of four hours four were joined, and one has come.
    assert len(list(folder.rglob("hour=*/*.parquet"))) == 6 - 2 + 1


def join(table: ParquetTable, store: Store) -> int:
    """Join the first two files of each folder, as a compaction does."""
    swaps = []
    for number, folder in enumerate(
        sorted({n.rpartition("/")[0] for n in table.files(recursive=True)})
    ):
        names = [name.rpartition("/")[2] for name in table.files(folder)][:2]
        new = f"_martlet/staged/c/{number}"
        _, inputs, outputs = Joining(store.location, folder, names, new, "snappy", False).join()
        if outputs:
            swaps.append(Swap(folder, new, inputs, outputs))
    return len(table.compacted(swaps, "run"))


def test_a_file_that_comes_while_others_are_joined_stays(
    table: ParquetTable, tmp_path: Path
) -> None:
    store = table.store
    commit(table, 0, 1, 2)
    (folder,) = {name.rpartition("/")[0] for name in table.files(recursive=True)}
    names = [name.rpartition("/")[2] for name in table.files(folder)]
    new = "_martlet/staged/c/0"
    _, inputs, outputs = Joining(store.root, folder, names, new, "none", True).join()
    commit(table, 2, 3)
    (done,) = table.compacted([Swap(folder, new, inputs, outputs)], "run")
    assert len(done.inputs) == 2
    assert seen(tmp_path) == [0, 1, 2]
    assert len(table.files(recursive=True)) == 2


def test_joined_files_are_left_out_when_their_parts_have_gone(
    table: ParquetTable, tmp_path: Path
) -> None:
    store = table.store
    commit(table, 0, 1, 2, 3)
    ((folder, *_),) = {(name.rpartition("/")[0],) for name in table.files(recursive=True)}
    names = [name.rpartition("/")[2] for name in table.files(folder)]
    swaps = []
    for number in range(2):
        new = f"_martlet/staged/c/{number}"
        _, inputs, outputs = Joining(store.location, folder, names, new, "none", False).join()
        swaps.append(Swap(folder, new, inputs, outputs))
    assert table.compacted(swaps[:1], None) == swaps[:1]
    assert table.compacted(swaps[1:], None) == []
    assert seen(tmp_path) == [0, 1, 2]


def test_an_archive_without_partition_columns_is_compacted(
    table: ParquetTable, tmp_path: Path
) -> None:
    for first in range(3):
        table.commit("run", [write(table.store, first, first + 1, str(first), table, ())])
    assert join(table, table.store) == 1
    assert len(table.files()) == 2
    offsets = ds.dataset([str(tmp_path / name) for name in table.files()]).to_table()["offset"]
    assert sorted(offsets.to_pylist()) == [0, 1, 2]


def test_a_run_that_was_taken_over_commits_no_more(table: ParquetTable, tmp_path: Path) -> None:
    zombie, store = table, table.store
    manifest = write(store, 0, 5, "one", zombie)
    ParquetTable(store).begin("another")
    with pytest.raises((TakenOverError, FileNotFoundError)):
        zombie.commit("run", [manifest])
    manifest = write(store, 0, 5, "one", zombie)
    with pytest.raises(TakenOverError, match="another archive job has begun"):
        zombie.commit("run", [manifest])
    assert seen(tmp_path) == []


def test_messages_are_not_committed_twice(table: ParquetTable, tmp_path: Path) -> None:
    commit(table, 0, 5)
    with pytest.raises(TwoWritersError, match="offset 3 is archived already, up to 5"):
        commit(table, 3, 8)
    assert seen(tmp_path) == list(range(5))


def test_a_topic_that_was_made_anew_begins_at_its_start(table: ParquetTable) -> None:
    commit(table, 0, 5)
    anew = KEY._replace(topic_id=8)
    table.start("run", {anew: 0})
    assert table.position() == {anew: 0}
    table.start("run", {anew: 3})
    assert table.position() == {anew: 0}


def test_the_log_does_not_grow(
    table: ParquetTable, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("martlet.pipeline.archive.commit_log.KEPT_COMMITS", 5)
    for number in range(25):
        table.commit("run", [Manifest(Span(KEY, number, number + 1), "nowhere", [])])
    assert len(list((tmp_path / "_martlet/log").iterdir())) <= 10
    assert table.position() == {KEY: 25}


def test_files_written_on_another_machine_are_reported(table: ParquetTable, tmp_path: Path) -> None:
    manifest = write(LocalStore(tmp_path / "elsewhere"), 0, 5, "one", table)
    with pytest.raises(FileNotFoundError, match="all machines of the cluster must share"):
        table.commit("run", [manifest])
    assert table.position() == {KEY: 0}


def test_a_file_that_is_no_commit_is_reported(table: ParquetTable, tmp_path: Path) -> None:
    (tmp_path / "_martlet/log/00000000000000000002.json").write_text("{}")
    with pytest.raises(ArchiveDamagedError, match="is not a commit of an archive"):
        table.begin("next")


def test_a_user_may_remove_old_files(table: ParquetTable, tmp_path: Path) -> None:
    commit(table, 0, 5)
    for file in tmp_path.rglob("hour=*/*.parquet"):
        file.unlink()
    table = ParquetTable(LocalStore(tmp_path))
    table.begin("next")
    commit(table, 5, 6, run="next")
    assert seen(tmp_path) == [5]


def test_a_task_that_fails_leaves_nothing_open(table: ParquetTable, tmp_path: Path) -> None:

    def broken() -> Iterator[pa.RecordBatch]:
        yield messages(0, 5)
        raise ConnectionError("the broker has gone")

    writing = Writing(str(tmp_path), Shape(("topic", "date", "hour")), flush=False)
    for size in (0, 64 << 20):
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr("martlet.pipeline.archive.writing.ROW_GROUP_BYTES", size)
            with pytest.raises(ConnectionError):
                writing.write(broken(), Span(KEY, 0, 9), table.stage("run", "x"), table.store)
    table.begin("next")
    assert table.store.files("_martlet/staged", recursive=True) == {}


@pytest.mark.parametrize("gone", [1, 4])
def test_a_missing_commit_is_reported_and_nothing_is_archived_twice(
    table: ParquetTable, tmp_path: Path, gone: int
) -> None:
    commit(table, 0, 5, 9)
    for name in sorted((tmp_path / "_martlet/log").iterdir())[-gone:]:
        name.unlink()
    with pytest.raises(ArchiveDamagedError, match=r"commit 3 is missing from .*_martlet/log"):
        begun(LocalStore(tmp_path))
    assert seen(tmp_path) == list(range(9))
