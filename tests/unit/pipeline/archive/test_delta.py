"""An archive as a table of Delta Lake, as its own readers see it."""

from __future__ import annotations

from pathlib import Path

import pytest
from deltalake import DeltaTable as Reader
from tests.unit.pipeline.archive.test_commit import KEY, messages

from martlet.pipeline.archive import rows
from martlet.pipeline.archive.delta_table import DeltaTable, compact, delta_location
from martlet.pipeline.archive.position import Manifest, TwoWritersError
from martlet.pipeline.archive.rows import Shape
from martlet.pipeline.archive.store import LocalStore
from martlet.pipeline.archive.table import open_table
from martlet.pipeline.archive.writing import Writing
from martlet.reader.offsets import Span


@pytest.fixture
def writing(tmp_path: Path) -> Writing:
    shape = Shape(("topic", "date", "hour"))
    return Writing(str(tmp_path), shape, flush=False, in_place=True)


def write(writing: Writing, first: int, last: int) -> Manifest:
    store = LocalStore(Path(writing.location))
    return writing.write([messages(first, last)], Span(KEY, first, last), "", store)


def begun(writing: Writing) -> DeltaTable:
    table = open_table(writing)
    assert isinstance(table, DeltaTable)
    table.begin("run")
    assert table.position([KEY]) is None
    table.start("run", {KEY: 0})
    assert table.position([KEY]) == {KEY: 0}
    return table


def seen(writing: Writing) -> list[int]:
    offsets: list[int] = Reader(writing.location).to_pyarrow_table()["offset"].to_pylist()
    return sorted(offsets)


def test_a_batch_and_how_far_it_goes_are_committed_together(writing: Writing) -> None:
    table = begun(writing)
    manifests = [write(writing, 0, 5), write(writing, 5, 9)]
    assert seen(writing) == []
    assert table.commit("run", manifests) == 9
    assert seen(writing) == list(range(9))
    again = open_table(writing)
    again.begin("next")
    again.start("next", {KEY: 0, KEY._replace(queue=1): 3})
    assert again.position([KEY, KEY._replace(queue=1)]) == {KEY: 9, KEY._replace(queue=1): 3}
    with pytest.raises(TwoWritersError, match="offset 5 is archived already, up to 9"):
        again.commit("next", [write(writing, 5, 9)])
    assert seen(writing) == list(range(9))


def test_files_of_attempts_that_failed_are_not_seen(writing: Writing) -> None:
    table = begun(writing)
    write(writing, 0, 5)
    table.commit("run", [write(writing, 0, 5)])
    assert seen(writing) == list(range(5))


def test_joined_it_is_the_same(writing: Writing) -> None:
    table = begun(writing)
    table.commit("run", [write(writing, 0, 5)])
    table.commit("run", [write(writing, 5, 9)])
    columns = Reader(writing.location).to_pyarrow_table().to_pydict()
    assert set(columns["hour"]) == {500_000 % 24 + number for number in range(3)}
    done = compact(writing.location, 1 << 20)
    assert (done.files, done.into) == (2, 1)
    assert seen(writing) == list(range(9))
    assert table.position([KEY]) == {KEY: 9}
    table.commit("run", [write(writing, 9, 11)])
    assert seen(writing) == list(range(11))


def test_a_table_of_a_version_without_priorities_gets_their_column(
    writing: Writing, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as earlier:
        columns = [name for name in rows._COLUMNS if name != rows.PRIORITY]
        earlier.setattr(rows, "_COLUMNS", columns)
        begun(writing).commit("run", [write(writing, 0, 5)])
    for number in range(2):
        again = open_table(writing)
        again.begin(f"next {number}")
        again.commit(f"next {number}", [write(writing, 5 + number, 6 + number)])
    table = Reader(writing.location).to_pyarrow_table().sort_by("offset")
    assert table["offset"].to_pylist() == list(range(7))
    assert table["priority"].to_pylist() == [None] * 5 + [7, 7]


def test_a_folder_without_a_table_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="holds no Delta table"):
        compact(str(tmp_path), 1 << 20)


def test_where_a_url_leads() -> None:
    url = "s3://bucket/a?endpoint_override=127.0.0.1:9000&scheme=http&region=eu"
    assert delta_location(url) == (
        "s3://bucket/a",
        {
            "AWS_REGION": "eu",
            "AWS_ENDPOINT_URL": "http://127.0.0.1:9000",
            "AWS_ALLOW_HTTP": "true",
        },
    )
