"""Filters: which parts of a topic are planned, and which rows come."""

from __future__ import annotations

import pickle
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.spark.folder import EPOCH_NS, Folder
from tests.spark.log_server import LogServer, serving

from martlet import arrow
from martlet.properties.model import Properties
from martlet.reader import split as splits
from martlet.reader.batch_plan import batch_tasks
from martlet.reader.filters import RowFilter, filter_of, parse_filter
from martlet.reader.options import ReadOptions

SECOND_NS = 1_000_000_000
EPOCH = datetime.fromtimestamp(EPOCH_NS / SECOND_NS, UTC)
Row = dict[str, Any]
field = pc.field


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LogServer]:
    """Two queues of 500 messages each, a batch of 10 a second; each third batch has tags."""
    folder = Folder(tmp_path_factory.mktemp("filters") / "data")
    for number in range(100):
        tagged = [(0, Properties(tag="new", order_key="ann").pack())] if number % 3 == 0 else []
        bodies = [b"%d" % (10 * number + n) for n in range(10)]
        time_ns = EPOCH_NS + number * SECOND_NS
        folder.append("t", bodies, queue=number % 2, stored_at_ns=time_ns, properties=tagged)
    with serving(LogServer(folder)) as server:
        yield server


@pytest.fixture(scope="module")
def all_rows(server: LogServer) -> list[Row]:
    rows: list[Row] = arrow.read("t", addresses=server.address).read_all().to_pylist()
    assert len(rows) == 1000
    return rows


def options_of(server: LogServer) -> ReadOptions:
    return ReadOptions.parse({"addresses": server.address, "topic": "t"}, "batch")


def planned(server: LogServer, wanted: RowFilter) -> list[tuple[int, int, int]]:
    """The queue, start and end of each split."""
    tasks = batch_tasks(options_of(server), wanted)
    return sorted((s.key.queue, s.start, s.end) for task in tasks for s in task.splits)


AT_90_S = EPOCH + timedelta(seconds=90)


@pytest.mark.parametrize(
    ("terms", "parts"),
    [
        ([("offset", ">", 480)], [(0, 481, 500), (1, 481, 500)]),
        ([("offset", "<=", 3)], [(0, 0, 4), (1, 0, 4)]),
        ([("offset", ">", 480), ("tag", "=", "new")], [(0, 481, 500), (1, 481, 500)]),
        (
            [("offset", "in", [3, 477])],
            [(0, 3, 10), (0, 470, 478), (1, 3, 10), (1, 470, 478)],
        ),
        ([("timestamp", ">=", AT_90_S)], [(0, 450, 500), (1, 450, 500)]),
        ([("timestamp", ">", AT_90_S)], [(0, 460, 500), (1, 450, 500)]),
        ([("partition", "=", 1)], [(1, 0, 500)]),
        ([("partition", "!=", 1), ("offset", ">=", 495)], [(0, 495, 500)]),
        ([("topic", "in", ["t", "u"]), ("partition", "in", [1, 7])], [(1, 0, 500)]),
        ([("topic", "=", "u")], []),
        ([("broker", "=", "x")], []),
        ([("offset", "=", None)], []),
        (
            [[("partition", "=", 0), ("offset", "<", 3)], [("partition", "=", 1)]],
            [(0, 0, 10), (1, 0, 500)],
        ),
        ([("value", "=", b"17")], [(0, 0, 500), (1, 0, 500)]),
    ],
)
def test_a_plan_has_what_can_match(
    server: LogServer, terms: Any, parts: list[tuple[int, int, int]]
) -> None:
    assert planned(server, filter_of(terms)) == parts


@pytest.mark.parametrize(
    ("wanted", "holds"),
    [
        (field("offset") > 480, lambda row: row["offset"] > 480),
        (~(field("offset") > 20), lambda row: row["offset"] <= 20),
        (field("tag") == "new", lambda row: row["tag"] == "new"),
        (field("tag") != "new", lambda row: False),
        (field("tag").is_null(), lambda row: row["tag"] is None),
        (field("key") == b"ann", lambda row: row["key"] == b"ann"),
        (pc.starts_with(field("value"), "99"), lambda row: row["value"].startswith(b"99")),
        (
            (field("partition") == 1) | (field("offset") < 3),
            lambda row: row["partition"] == 1 or row["offset"] < 3,
        ),
        (field("timestamp") > AT_90_S, lambda row: row["timestamp"] > AT_90_S),
        (
            (field("timestamp") < AT_90_S) & (field("offset") > 440),
            lambda row: row["timestamp"] < AT_90_S and row["offset"] > 440,
        ),
        (field("message_id") == f"{7:016x}", lambda row: row["message_id"] == f"{7:016x}"),
        (pc.scalar(True), lambda row: True),
    ],
    ids=lambda value: "" if callable(value) else str(value),
)
def test_a_read_has_the_rows_that_match(
    server: LogServer, all_rows: list[Row], wanted: pc.Expression, holds: Callable[[Row], bool]
) -> None:
    rows = arrow.read("t", addresses=server.address, filter=wanted).read_all().to_pylist()
    assert rows == [row for row in all_rows if holds(row)]
    values = arrow.read("t", addresses=server.address, columns=["value"], filter=wanted).read_all()
    assert values["value"].to_pylist() == [row["value"] for row in rows]


@given(
    edges=st.lists(st.integers(-2, 502), min_size=1, max_size=6),
    signs=st.lists(st.sampled_from(["<", "<=", ">", ">=", "=", "!="]), min_size=6, max_size=6),
    any_of=st.booleans(),
)
def test_no_offset_is_left_out(
    server: LogServer,
    all_rows: list[Row],
    edges: list[int],
    signs: list[str],
    any_of: bool,
) -> None:
    terms = [("offset", sign, edge) for sign, edge in zip(signs, edges, strict=False)]
    wanted: Any = [[term] for term in terms] if any_of else terms
    options = options_of(server)
    scan = arrow.TopicScan(options, filter_of(wanted))
    matches = {"<": int.__lt__, "<=": int.__le__, ">": int.__gt__, ">=": int.__ge__}
    matches |= {"=": int.__eq__, "!=": int.__ne__}
    every = any if any_of else all
    expected = [
        row["offset"]
        for row in all_rows
        if every(matches[sign](row["offset"], edge) for _, sign, edge in terms)
    ]
    assert scan.to_table(["offset"])["offset"].to_pylist() == expected


def test_a_message_older_than_its_batch_is_found(tmp_path: Path) -> None:
    """As delayed messages are, and those that were imported."""
    folder = Folder(tmp_path / "data")
    folder.append("t", [b"a"], stored_at_ns=EPOCH_NS)
    late_ns = EPOCH_NS + 100 * SECOND_NS
    folder.append("t", [b"delayed"], stored_at_ns=late_ns, published_at_ns=EPOCH_NS + SECOND_NS)
    folder.append("t", [b"b"], stored_at_ns=late_ns)
    with serving(LogServer(folder)) as server:
        early = arrow.read(
            "t", addresses=server.address, filter=[("timestamp", "<", EPOCH + timedelta(seconds=9))]
        )
        assert early.read_all()["value"].to_pylist() == [b"a", b"delayed"]
        late = arrow.read("t", addresses=server.address, filter=[("timestamp", ">", AT_90_S)])
        assert late.read_all()["value"].to_pylist() == [b"b"]


def test_a_time_is_looked_up_before_the_index_of_many_offsets_is_read(
    server: LogServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(splits, "_MANY_OFFSETS", 100)
    del server.requests[:]
    parts = planned(server, filter_of([("timestamp", ">=", AT_90_S)]))
    assert parts == [(0, 450, 500), (1, 450, 500)]
    assert server.requests == ["/log/topics", "/log/offset", "/log/offset", "/log/index"]
    monkeypatch.undo()
    del server.requests[:]
    planned(server, filter_of([("topic", "=", "u")]))
    assert server.requests == ["/log/topics"]


def test_a_gap_before_a_batch_that_can_match_is_a_loss(tmp_path: Path) -> None:
    folder = Folder(tmp_path / "data")
    for _ in range(5):
        folder.append("t", [b"x"] * 10)
    del folder.entries["t", 0][2]
    with serving(LogServer(folder, data_path="/nowhere")) as server:
        wanted = [("offset", ">", 35)]
        rows = arrow.read("t", addresses=server.address, filter=wanted).read_all()
        assert rows["offset"].to_pylist() == list(range(36, 50))
        with pytest.raises(Exception, match="data loss by retention"):
            arrow.read("t", addresses=server.address, filter=[("offset", ">", 25)]).read_all()


def test_a_view_of_batches_is_filtered(server: LogServer) -> None:
    rows = arrow.read(
        "t",
        addresses=server.address,
        view="batches",
        columns=["count"],
        filter=[("offset", ">=", 480)],
    )
    assert rows.read_all().to_pylist() == [{"count": 10}] * 4


def test_a_filter_travels_to_its_task() -> None:
    wanted = pickle.loads(pickle.dumps(filter_of([("tag", "=", "new"), ("offset", ">", 5)])))
    assert wanted.columns == ("offset", "tag")
    table = pa.table({"tag": ["new", "new", None], "offset": [5, 6, 7]})
    assert wanted.mask(table).tolist() == [False, True, False]


@pytest.mark.parametrize(
    ("wanted", "error"),
    [
        ("tag = 'new'", "neither an expression"),
        ([], "neither an expression"),
        ([("tag", "=")], "neither an expression"),
        ([("colour", "=", "red")], "no column 'colour'; there are key, value"),
        ([("offset", ">", "a")], "'a' is no int64"),
        ([("offset", "~", 1)], "offset ~ 1 is no term"),
        ([("offset", "in", 1)], "offset in 1 is no term"),
        ([("timestamp", ">", datetime(2026, 1, 1))], "has no zone"),
        ([("timestamp", ">", "yesterday")], "'yesterday'"),
        (field("offset"), "is of type int64, and no condition"),
        (field("colour") == "red", "No match for FieldRef"),
        (field("offset") > "a", "no kernel"),
        (field(4) > 1, "do not number"),
    ],
    ids=str,
)
def test_a_wrong_filter_is_named(wanted: Any, error: str) -> None:
    with pytest.raises(ValueError, match="filter") as raised:
        filter_of(wanted)
    assert error in str(raised.value)
    assert "\n" not in str(raised.value)


def test_the_option_is_json() -> None:
    assert parse_filter('[["tag", "=", "new"]]').columns == ("tag",)
    for text, error in (
        ("tag = 'new'", "is no JSON"),
        ('[["colour", "=", 1]]', "no column"),
        ("3", "neither"),
    ):
        with pytest.raises(ValueError, match=f"option filter.*{error}"):
            parse_filter(text)
