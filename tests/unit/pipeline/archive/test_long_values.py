"""Partition values that no folder can be named after: the rows are archived all the same."""

from __future__ import annotations

import json
from pathlib import Path

import pyarrow as pa
import pyarrow.dataset as ds
import pytest
from tests.unit.pipeline.archive.test_commit import KEY, batch, begun

from martlet.pipeline.archive.commit_log import ArchiveCommitLog
from martlet.pipeline.archive.partition import (
    LONG,
    MAX_NAME_BYTES,
    UnwritableFolderError,
    Values,
    fitted,
    folder_of,
    shortened,
)
from martlet.pipeline.archive.rows import Shape
from martlet.pipeline.archive.store import LocalStore
from martlet.pipeline.archive.writing import Writing
from martlet.reader.offsets import Span

FIELDS = pa.schema([("customer", pa.string()), ("city", pa.string()), ("id", pa.int32())])
SHAPE = Shape(("customer", "city"), FIELDS)
UNWRITABLE = ["L" * 300, "\u00fc" * 130, "/" * 90, "\U0001f600" * 64, "a\0b", "\0" * 200]
STRANGE = [".", "..", "", "\n", "\x7f", "a=b/c%41", "__HIVE_DEFAULT_PARTITION__", "~"]


class SmallStore(LocalStore):
    """A store whose paths are short."""

    max_folder_bytes = 300


def messages(first: int, customers: list[str], city: str) -> pa.RecordBatch:
    count = len(customers)
    bodies = [
        json.dumps({"customer": customer, "city": city, "id": 1}).encode() for customer in customers
    ]
    return batch(first, bodies, [10**15] * count)


def archive(store: LocalStore, run: str, customers: list[str], city: str = "x") -> None:
    """Begin a run, and archive a batch behind all others."""
    table = begun(store, run)
    first = (table.position() or {})[KEY]
    stretch = Span(KEY, first, first + len(customers))
    folder = table.stage(run, f"batch{first}")
    writing = Writing(store.location, SHAPE, flush=False)
    manifest = writing.write([messages(first, customers, city)], stretch, folder, store)
    table.commit(run, [manifest])


def rows(root: Path) -> list[dict[str, object]]:
    """All rows, with full values, by their offset."""
    long = [(f"{LONG}{name}", pa.string()) for name in SHAPE.partition_by]
    values = pa.schema([(name, pa.string()) for name in SHAPE.partition_by])
    schema = pa.schema([*SHAPE.file_schema, *long, *values])
    partitioning = ds.partitioning(values, flavor="hive")
    dataset = ds.dataset(root, schema, partitioning=partitioning, exclude_invalid_files=True)
    return sorted(dataset.to_table().to_pylist(), key=lambda row: int(str(row["_offset"])))


@pytest.mark.parametrize("value", [*UNWRITABLE, *STRANGE])
def test_any_value_is_archived_with_the_others_of_its_batch(value: str, tmp_path: Path) -> None:
    store = LocalStore(tmp_path)
    archive(store, "first", ["good", value, "fine"])
    archive(store, "second", ["later", value])
    archived = rows(tmp_path)
    assert [row["_offset"] for row in archived] == [0, 1, 2, 3, 4]
    assert [row["customer"] for row in archived][::2] == ["good", "fine", archived[1]["customer"]]
    is_short = len(folder_of({"customer": value}).encode()) > MAX_NAME_BYTES
    assert archived[1][f"{LONG}customer"] == (value if is_short else None)
    if is_short:
        assert archived[1]["customer"] == shortened(value)


def test_an_archive_that_an_older_version_could_not_complete_continues(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def not_fitted(partition: Values, max_bytes: int) -> Values:
        return partition

    def stopped(*arguments: object) -> None:
        raise OSError("File name too long")

    store = LocalStore(tmp_path)
    customers = ["good", "L" * 300, "\u00fc/" * 90, "fine"]
    archive(store, "first", ["before"])
    with monkeypatch.context() as patch:
        patch.setattr("martlet.pipeline.archive.writing.fitted", not_fitted)
        patch.setattr(ArchiveCommitLog, "_move", stopped)
        with pytest.raises(OSError, match="too long"):
            archive(store, "second", customers)
    archive(store, "third", ["later"])
    archive(store, "fourth", ["last"])
    archived = rows(tmp_path)
    customers_read = [row[f"{LONG}customer"] or row["customer"] for row in archived]
    assert customers_read == ["before", *customers, "later", "last"]


def test_several_columns_are_shortened_until_the_path_fits(tmp_path: Path) -> None:
    store = SmallStore(tmp_path)
    archive(store, "first", ["c" * 180, "short"], city="d" * 200)
    archived = rows(tmp_path)
    assert [row["city"] for row in archived] == [shortened("d" * 200), "d" * 200]
    assert [row["customer"] for row in archived] == ["c" * 180, "short"]


def test_a_path_that_cannot_be_written_is_refused_before_its_commit(tmp_path: Path) -> None:
    class TinyStore(LocalStore):
        max_folder_bytes = 60

    store = TinyStore(tmp_path)
    archive(store, "first", ["good"])
    with pytest.raises(UnwritableFolderError, match="message 2 of queue 0 of topic t: the values"):
        archive(store, "second", ["fine", "L" * 300])
    archive(store, "third", ["fine"])
    assert [row["customer"] for row in rows(tmp_path)] == ["good", "fine"]


@pytest.mark.parametrize("length", [0, 1, 240, 246, 247, 300])
def test_only_values_that_need_it_are_shortened(length: int) -> None:
    (value,) = fitted({"customer": "v" * length}, 4000).values()
    assert value == ("v" * length if length <= 246 else shortened("v" * length))


def test_a_column_with_too_long_a_name_is_refused_at_the_start() -> None:
    name = "n" * 200
    with pytest.raises(ValueError, match="more than 255 bytes"):
        Shape((name,), pa.schema([(name, pa.string()), ("id", pa.int32())]))
