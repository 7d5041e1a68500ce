"""Records become columns: against a decoder that does it message by message."""

from __future__ import annotations

from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pyspark.sql.types import StructType
from tests.spark.folder import EPOCH_NS, Folder

from martlet.log.record import BadRecord, frame_ends, payload, read_record
from martlet.properties.model import Properties
from martlet.reader.decode import Columns, LogChunk, chunk_of
from martlet.spark.read.schema import SCHEMA, arrow_schema

BATCHES = st.lists(
    st.lists(st.binary(min_size=1, max_size=40), min_size=1, max_size=6), min_size=1, max_size=6
)


def records_of(folder: Folder, topic: str = "t") -> bytes:
    rows = folder.index(topic)
    return b"".join(folder.record(int(row["position"]), int(row["length"])) for row in rows)


def starts_of(folder: Folder, topic: str = "t") -> np.ndarray:
    lengths = folder.index(topic)["length"].astype(np.int64)
    return np.cumsum(lengths) - lengths


def chunk(folder: Folder, topic: str = "t") -> LogChunk:
    topic_id = folder.topics[topic]
    return chunk_of(records_of(folder, topic), starts_of(folder, topic), topic_id=topic_id, queue=0)


def slowly(folder: Folder) -> list[tuple[int, int, int, str, bytes]]:
    """Offset, timestamp in us, attempts, id and body of each message."""
    rows_of_messages = []
    for row in folder.index("t"):
        position, length = int(row["position"]), int(row["length"])
        header, record = read_record(folder.record(position, length), 0, position)
        frames = bytes(payload(header, record))
        start = 0
        for number, end in enumerate(frame_ends(header, record).tolist()):
            frame = frames[start:end]
            rows_of_messages.append(
                (
                    header.first_offset + number,
                    int.from_bytes(frame[8:16], "big") // 1000,
                    int.from_bytes(frame[16:18], "big"),
                    frame[18:34].decode(),
                    frame[34:],
                )
            )
            start = end
    return rows_of_messages


def rows_of(batch: pa.RecordBatch) -> list[tuple[int, int, int, str, bytes]]:
    micros = batch.column("timestamp").cast(pa.int64())
    columns = [
        batch.column("offset"),
        micros,
        *map(batch.column, ("attempts", "message_id", "value")),
    ]
    return list(zip(*(column.to_pylist() for column in columns), strict=True))


@settings(max_examples=60)
@given(batches=BATCHES, data=st.data())
def test_any_part_of_any_batches_decodes_as_by_a_slow_decoder(
    tmp_path_factory: pytest.TempPathFactory, batches: list[list[bytes]], data: st.DataObject
) -> None:
    folder = Folder(tmp_path_factory.mktemp("folder"))
    for bodies in batches:
        folder.append("t", bodies)
    total = sum(map(len, batches))
    start = data.draw(st.integers(0, total - 1))
    end = data.draw(st.integers(start + 1, total))
    columns = Columns(arrow_schema(SCHEMA), topic="t", queue=0, broker="b")
    batch = columns.batch(chunk(folder), start, end)
    assert batch is not None
    batch.validate(full=True)
    assert rows_of(batch) == slowly(folder)[start:end]


def test_constant_columns(tmp_path: Path) -> None:
    folder = Folder(tmp_path / "f")
    folder.append("t", [b"a", b"bc"], stored_at_ns=EPOCH_NS)
    columns = Columns(arrow_schema(SCHEMA), topic="t", queue=0, broker="b7")
    batch = columns.batch(chunk(folder), 0, 2)
    assert batch is not None
    assert batch.to_pylist()[1] | {"timestamp": None} == {
        "key": None,
        "value": b"bc",
        "topic": "t",
        "partition": 0,
        "offset": 1,
        "timestamp": None,
        "timestampType": 1,
        "headers": None,
        "attempts": 1,
        "message_id": f"{1:016x}",
        "broker": "b7",
        "tag": None,
        "keys": None,
        "priority": 4,
    }
    # More rows than the first time: constants are made anew.
    folder.append("t", [b"x"] * 100)
    more = columns.batch(chunk(folder), 0, 102)
    assert more is not None
    assert more.column("broker").to_pylist() == ["b7"] * 102


def test_nothing_wanted_is_no_batch(tmp_path: Path) -> None:
    folder = Folder(tmp_path / "f")
    folder.append("t", [b"a", b"b"])
    columns = Columns(arrow_schema(SCHEMA), topic="t", queue=0, broker="b")
    assert columns.batch(chunk(folder), 2, 9) is None


def test_other_topics_records_between_are_left_out(tmp_path: Path) -> None:
    folder = Folder(tmp_path / "f")
    for number in range(5):
        folder.append("t", [b"mine %d" % number])
        folder.append("other", [b"not mine"] * 3)
    segment = (tmp_path / "f" / "log" / f"{0:020d}.log").read_bytes()
    rows = folder.index("t")
    chunk = chunk_of(
        segment,
        rows["position"].astype(np.int64),
        topic_id=folder.topics["t"],
        queue=0,
        positions=rows["position"],
    )
    columns = Columns(arrow_schema(SCHEMA), topic="t", queue=0, broker="b")
    batch = columns.batch(chunk, 0, 5)
    assert batch is not None
    assert batch.column("value").to_pylist() == [b"mine %d" % number for number in range(5)]


@pytest.mark.parametrize("byte", [0, 5, 9, 13, 17, 29, 33, 41, 50, 66, 90, 200, 330])
def test_a_changed_byte_anywhere_is_noticed(tmp_path: Path, byte: int) -> None:
    folder = Folder(tmp_path / "f")
    folder.append("t", [b"a" * 100, b"b" * 100])
    record = bytearray(records_of(folder))
    assert byte < len(record)
    record[byte] ^= 4
    positions = folder.index("t")["position"]
    with pytest.raises(BadRecord):
        chunk_of(record, starts_of(folder), topic_id=1, queue=0, positions=positions)


def test_a_cut_record_is_noticed(tmp_path: Path) -> None:
    folder = Folder(tmp_path / "f")
    folder.append("t", [b"a" * 100])
    record = records_of(folder)
    for length in (len(record) - 8, 72):
        with pytest.raises(BadRecord):
            chunk_of(record[:length], starts_of(folder), topic_id=1, queue=0)


def test_another_topics_record_is_refused(tmp_path: Path) -> None:
    folder = Folder(tmp_path / "f")
    folder.append("t", [b"a"])
    with pytest.raises(BadRecord, match="topic 2, queue 0"):
        chunk_of(records_of(folder), starts_of(folder), topic_id=2, queue=0)


TEXTS = st.text("aäß漢", max_size=3)
PROPERTIES = st.none() | st.builds(
    Properties,
    tag=st.just("") | st.text("abä", min_size=1, max_size=3),
    keys=st.lists(TEXTS.filter(bool), max_size=3).map(tuple),
    headers=st.dictionaries(TEXTS.filter(bool), TEXTS | st.binary(max_size=3), max_size=3),
    order_key=TEXTS | st.binary(max_size=3),
    priority=st.integers(0, 9),
)


@given(
    st.lists(st.lists(PROPERTIES, min_size=1, max_size=6), min_size=1, max_size=6),
    st.data(),
)
def test_properties_are_columns_of_the_rows_that_have_them(
    batches: list[list[Properties | None]], data: st.DataObject
) -> None:
    with TemporaryDirectory() as path:
        folder = Folder(Path(path))
        chunk_of_them = _carrying(folder, batches)
    all_of_them = [properties or Properties() for batch in batches for properties in batch]
    start = data.draw(st.integers(0, len(all_of_them) - 1))
    end = data.draw(st.integers(start + 1, len(all_of_them)))
    columns = Columns(arrow_schema(SCHEMA), topic="t", queue=0, broker="b")
    batch = columns.batch(chunk_of_them, start, end)
    assert batch is not None
    batch.validate(full=True)
    expected = all_of_them[start:end]
    assert batch.column("tag").to_pylist() == [p.tag or None for p in expected]
    assert batch.column("keys").to_pylist() == [list(p.keys) or None for p in expected]
    assert batch.column("key").to_pylist() == [_bytes(p.order_key) or None for p in expected]
    assert batch.column("priority").to_pylist() == [p.priority for p in expected]
    assert batch.column("headers").to_pylist() == [
        [{"key": name, "value": _bytes(value)} for name, value in p.headers.items()] or None
        for p in expected
    ]


def _bytes(value: str | bytes) -> bytes:
    return value.encode() if isinstance(value, str) else value


def _carrying(folder: Folder, batches: list[list[Properties | None]]) -> LogChunk:
    for batch in batches:
        entries = [(n, properties.pack()) for n, properties in enumerate(batch) if properties]
        folder.append("t", [b"x"] * len(batch), properties=entries)
    return chunk(folder)


def test_all_headers_of_one_name_are_kept(tmp_path: Path) -> None:
    folder = Folder(tmp_path / "f")
    header = Properties(headers={"h": b"\xff"}).pack()
    folder.append("t", [b"x", b"y"], properties=[(1, header + header)])
    batch = Columns(arrow_schema(SCHEMA), topic="t", queue=0, broker="b").batch(chunk(folder), 0, 2)
    assert batch is not None
    assert batch.column("headers").to_pylist() == [None, [{"key": "h", "value": b"\xff"}] * 2]


def test_a_message_that_stands_for_no_value_is_read_as_that(tmp_path: Path) -> None:
    folder = Folder(tmp_path / "f")
    bodies, marks = {"empty": b" ", "changed": b"new"}, {"changed": "null"}
    for words in (["", "other"], ["null", "", "empty", "changed"], [""]):
        entries = [
            (number, Properties(headers={"a": "b", "martlet-value": marks.get(word, word)}).pack())
            for number, word in enumerate(words)
            if word
        ]
        folder.append("t", [bodies.get(w, b"null") for w in words], properties=entries)
    for names in (["value"], SCHEMA.names):
        schema = arrow_schema(StructType([SCHEMA[name] for name in names]))
        columns = Columns(schema, topic="t", queue=0, broker="b")
        batch = columns.batch(chunk(folder), 1, 7)
        assert batch is not None
        values = batch.column("value").to_pylist()
        assert values == [b"null", None, b"null", b"", b"new", b"null"]
