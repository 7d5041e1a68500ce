"""Messages of JSON as columns: what fits, what does not, and that neither moves to another row."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from martlet.pipeline.archive.json_fields import JsonFields
from martlet.pipeline.archive.rows import Shape, source_schema

FIELDS = pa.schema([("number", pa.int32()), ("origin", pa.string())])
UTC_US = pa.timestamp("us", "UTC")


def parse(bodies: list[bytes], fields: pa.Schema = FIELDS) -> list[tuple[Any, ...]]:
    """Rows of the fields, and behind them the corrupt text and bytes."""
    parsed = JsonFields(fields).parse(pa.array(bodies, pa.binary()))
    columns = [*parsed.columns, parsed.corrupt, parsed.values]
    assert [column.type for column in parsed.columns] == fields.types
    return list(zip(*(column.to_pylist() for column in columns), strict=True))


@pytest.mark.parametrize(
    ("body", "row"),
    [
        (b'{"number": 1, "origin": "EWR", "more": [1, {}]}', (1, "EWR", None, None)),
        (b' {"number":\n3}\r\n', (3, None, None, None)),
        (b"{}", (None, None, None, None)),
        (b'{"number": null}', (None, None, None, None)),
        (b'{"origin": 5}', (None, "5", None, None)),
        (b'{"origin": {"a": [true]}}', (None, '{"a":[true]}', None, None)),
        (b'{"number": "x", "origin": "E"}', (None, "E", '{"number": "x", "origin": "E"}', None)),
        (b'{"number": 3000000000}', (None, None, '{"number": 3000000000}', None)),
        (b'{"number": 3.5}', (None, None, '{"number": 3.5}', None)),
        (b'{"number": true}', (None, None, '{"number": true}', None)),
        (b"no JSON", (None, None, "no JSON", None)),
        (b"", (None, None, "", None)),
        (b"null", (None, None, "null", None)),
        (b"[1]", (None, None, "[1]", None)),
        (b'{"number": 1}{"number": 2}', (None, None, '{"number": 1}{"number": 2}', None)),
        (b'{"number": NaN}', (None, None, '{"number": NaN}', None)),
        (b'{"number": 1', (None, None, '{"number": 1', None)),
        (b'{"a": "\xff"}', (None, None, '{"a": "\ufffd"}', b'{"a": "\xff"}')),
        (b"[" * 100_000, (None, None, "[" * 100_000, None)),
    ],
)
def test_one_message(body: bytes, row: tuple[Any, ...]) -> None:
    good = b'{"number": 7, "origin": "JFK"}'
    assert parse([body]) == [row]
    among = parse([good] * 70 + [body] + [good] * 70)
    assert among == [(7, "JFK", None, None)] * 70 + [row] + [(7, "JFK", None, None)] * 70


def test_a_message_whose_value_is_null_is_no_object() -> None:
    columns: dict[str, list[object]] = {name: [None] * 2 for name in source_schema().names}
    columns |= {"value": [b'{"number": 7}', None], "priority": [4, 9]}
    messages = pa.RecordBatch.from_pydict(columns, schema=source_schema())
    rows = Shape((), FIELDS).rows(messages).to_pylist()
    assert [(row["number"], row["_corrupt_record"], row["_priority"]) for row in rows] == [
        (7, None, 4),
        (None, "null", 9),
    ]


def test_halves_of_two_messages_do_not_make_one() -> None:
    bodies = [b'{"number": 1', b"}", b'{"number": 2}{"number": 3}', b'{"number": [', b"]}"]
    assert [row[2] for row in parse(bodies)] == [body.decode() for body in bodies]


PIECES = st.sampled_from(
    [b'{"number": 4}', b"{", b"}", b"[", b"]", b'"', b",", b'"number":', b"1", b"\n", b" ", b"\xff"]
)


@settings(max_examples=60)
@given(st.lists(st.lists(PIECES, max_size=6).map(b"".join), max_size=8))
def test_all_at_once_is_as_one_by_one(bodies: list[bytes]) -> None:
    assert parse(bodies) == [row for body in bodies for row in parse([body])]


@pytest.mark.parametrize(
    ("kind", "text", "value"),
    [
        (pa.int8(), "5", 5),
        (pa.int64(), str(2**62), 2**62),
        (pa.float32(), "1.5", 1.5),
        (pa.float64(), "2", 2.0),
        (pa.bool_(), "true", True),
        (pa.string(), '"\\u00e9"', "é"),
        (pa.binary(), '"x"', b"x"),
        (pa.list_(pa.int64()), "[1, null]", [1, None]),
        (pa.struct([("x", pa.int32())]), '{"x": 1, "y": 2}', {"x": 1}),
        (pa.map_(pa.string(), pa.int64()), '{"k": 1}', [("k", 1)]),
    ],
)
@pytest.mark.parametrize("others", [0, 100])
def test_types(kind: pa.DataType, text: str, value: Any, others: int) -> None:
    body = b'{"a": %s}' % text.encode()
    rows = parse([body] * (1 + others), pa.schema([("a", kind)]))
    assert rows == [(value, None, None)] * (1 + others)


@pytest.mark.parametrize(
    "text", ["2013-01-01T05:00:00Z", "2013-01-01 05:00:00", "2013-01-01T06:00:00.000+01:00"]
)
def test_times_and_dates(text: str) -> None:
    fields = pa.schema([("at", UTC_US), ("day", pa.date32())])
    body = b'{"at": "%s", "day": "2013-01-01"}' % text.encode()
    wrong = b'{"at": "noon", "day": "2013-01-01"}'
    for rows in (parse([body], fields), parse([body, wrong], fields)[:1]):
        ((at, day, corrupt, _),) = rows
        assert (at.isoformat(), day.isoformat()) == ("2013-01-01T05:00:00+00:00", "2013-01-01")
        assert corrupt is None
