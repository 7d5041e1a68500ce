"""Which folders rows go to."""

from __future__ import annotations

import pyarrow as pa
import pyarrow.dataset as ds
import pyarrow.parquet as pq
import pytest

from martlet.pipeline.archive.partition import Partitioning, TooManyFoldersError, folder_of
from martlet.pipeline.archive.rows import Shape

HOUR_US = 3_600_000_000


def table(hours: list[int], **fields: pa.Array) -> pa.Table:
    stamps = pa.array([hour * HOUR_US + 5 for hour in hours]).cast(pa.timestamp("us", "UTC"))
    return pa.table({"timestamp": stamps, "number": list(range(len(hours))), **fields})


def divided(rows: pa.Table, *names: str) -> dict[str, list[int]]:
    fields = frozenset(names) & set(rows.column_names)
    groups = Partitioning(names, fields, "timestamp").divide(rows, "t")
    return {folder_of(values): part["number"].to_pylist() for values, part in groups}


def test_by_topic_date_and_hour_in_utc() -> None:
    assert divided(table([0, 5, 5, 23, 24]), "topic", "date", "hour") == {
        "topic=t/date=1970-01-01/hour=00": [0],
        "topic=t/date=1970-01-01/hour=05": [1, 2],
        "topic=t/date=1970-01-01/hour=23": [3],
        "topic=t/date=1970-01-02/hour=00": [4],
    }


def test_by_date_alone() -> None:
    assert divided(table([23, 24, 47]), "date") == {
        "date=1970-01-01": [0],
        "date=1970-01-02": [1, 2],
    }


def test_rows_that_are_mixed_keep_their_order_within_a_folder() -> None:
    rows = table([1, 0, 1, 0, 1], origin=pa.array(["b", "a", "b", None, "a"]))
    assert divided(rows, "origin", "hour") == {
        "origin=a/hour=00": [1],
        "origin=a/hour=01": [4],
        "origin=b/hour=01": [0, 2],
        "origin=__HIVE_DEFAULT_PARTITION__/hour=00": [3],
    }


def test_without_partitions_all_is_in_one_place() -> None:
    assert divided(table([1, 2])) == {"": [0, 1]}


@pytest.mark.parametrize(
    ("value", "name"), [("a/b", "a%2Fb"), ("50%=x", "50%25%3Dx"), ("é ü", "é ü"), ("..", "..")]
)
def test_values_are_escaped_as_hive_does(value: str, name: str, tmp_path: object) -> None:
    assert folder_of({"c": value}) == f"c={name}"


def test_escaped_values_are_read_back(tmp_path: object) -> None:
    values = ["a/b", "50%=x", "a:b?", "{}[]^", 'quo"te', "new\nline"]
    for value in values:
        folder = f"{tmp_path}/{folder_of({'c': value})}"
        pq.write_to_dataset(pa.table({"n": [1]}), folder)
    rows = ds.dataset(str(tmp_path), partitioning="hive").to_table()
    assert sorted(rows["c"].to_pylist()) == sorted(values)


def test_far_too_many_folders_are_refused() -> None:
    rows = table([0] * 1001, origin=pa.array([str(number) for number in range(1001)]))
    with pytest.raises(TooManyFoldersError, match="more than 1000 folders"):
        divided(rows, "origin")


@pytest.mark.parametrize(
    ("fields", "partition_by", "wrong"),
    [
        (None, ("value",), "binary cannot name folders"),
        (None, ("origin",), "cannot partition by origin: there are key, value, topic"),
        (None, ("topic", "topic"), "a name is there twice"),
        ([("_offset", pa.int64())], ("topic",), "may not have _offset"),
        ([("x", pa.float64())], ("x",), "double cannot name folders"),
    ],
)
def test_impossible_partitions_are_refused(
    fields: list[tuple[str, pa.DataType]] | None, partition_by: tuple[str, ...], wrong: str
) -> None:
    with pytest.raises(ValueError, match=wrong):
        Shape(partition_by, pa.schema(fields) if fields else None)
