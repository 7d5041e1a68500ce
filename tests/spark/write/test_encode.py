"""Rows as blocks: what a broker reads of them is what the rows said, each once and in order."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import pyarrow as pa
import pytest
from crc32c import crc32c
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from martlet.client.transactions.bulk import MessageBlock
from martlet.properties.block import entries_of
from martlet.properties.model import BadProperties, KeyHash, Properties, text_or_bytes
from martlet.protocol.nsq.bulk import split_bodies
from martlet.spark.write import encode
from martlet.spark.write.encode import Encoder, KeyQueues
from martlet.spark.write.options import NullValues

pytestmark = pytest.mark.spark

EARLY, MIXED = KeyHash
QUEUES = {
    "one": KeyQueues(1, MIXED),
    "two": KeyQueues(2, EARLY),
    "four": KeyQueues(4, MIXED),
    "five": KeyQueues(5, MIXED),
}
HEADERS = pa.list_(
    pa.struct([pa.field("key", pa.string(), nullable=False), pa.field("value", pa.binary())])
)
SCHEMA = pa.schema(
    [
        ("value", pa.binary()),
        ("topic", pa.string()),
        ("key", pa.binary()),
        ("partition", pa.int32()),
        ("headers", HEADERS),
        ("tag", pa.string()),
        ("keys", pa.list_(pa.string())),
        ("deliver_at", pa.timestamp("us", "UTC")),
        ("priority", pa.int32()),
    ]
)
words = st.text("abcäß漢", min_size=1, max_size=5)
rows = st.fixed_dictionaries(
    {
        "value": st.binary(min_size=1, max_size=40),
        "topic": st.sampled_from(sorted(QUEUES)),
        "key": st.none() | words.map(str.encode) | st.binary(min_size=1, max_size=5),
        "partition": st.none() | st.integers(0, 1),
        "headers": st.none()
        | st.lists(
            st.builds(lambda k, v: {"key": k, "value": v}, words, st.none() | st.binary(max_size=5))
        ),
        "tag": st.none() | st.just("") | words,
        "keys": st.none() | st.lists(words, max_size=3),
        "deliver_at": st.none() | st.integers(0, 5).map(lambda ms: ms * 1000),
        "priority": st.none() | st.integers(0, 9),
    }
)


def encoder(**settings: Any) -> Encoder:
    defaults: dict[str, Any] = {
        "topic": None,
        "key_queues": QUEUES.__getitem__,
        "block_bytes": 200,
        "max_message_bytes": 100,
    }
    return Encoder(**(defaults | settings))


def read(blocks: Iterable[MessageBlock]) -> list[tuple[str, int | None, bytes, Properties, int]]:
    """Read blocks as a broker does: topic, queue, body, properties and time of each message."""
    messages = []
    for block in blocks:
        data = bytearray(block.bodies)
        bodies = split_bodies(data, 0, len(data), block.message_count, 1 << 20)
        assert bodies is not None
        entries = entries_of(block.properties, block.message_count) if block.properties else []
        properties = {number: Properties.unpack(entry) for number, entry in entries}
        times = [ms for ms, count in block.times for _ in range(count)] or [0] * len(bodies)
        assert len(times) == len(bodies)
        for number, body in enumerate(bodies):
            carried = properties.get(number, Properties())
            assert carried.priority == block.priority
            messages.append((block.topic, block.queue, bytes(body), carried, times[number]))
    return messages


def message_of(row: dict[str, Any]) -> tuple[str, int | None, bytes, Properties, int]:
    key, (queues, key_hash) = row["key"], QUEUES[row["topic"]]
    queue = key_hash.of(crc32c(key)) % queues if key and queues > 1 else None
    if row["partition"] is not None:
        queue = row["partition"]
    priority = 4 if row["priority"] is None else row["priority"]
    if priority != 4:
        queue = None
    headers = {h["key"]: text_or_bytes(h["value"] or b"") for h in row["headers"] or ()}
    order_key, keys = text_or_bytes(key or b""), tuple(row["keys"] or ())
    properties = Properties(row["tag"] or "", keys, headers, order_key, priority=priority)
    time_ms = (row["deliver_at"] or 0) // 1000
    return row["topic"], queue, row["value"], properties, time_ms


@given(st.lists(st.lists(rows, max_size=12), max_size=4), st.integers(0, 3))
@settings(max_examples=40, suppress_health_check=list(HealthCheck))
def test_blocks_hold_the_values_of_the_rows(batches: list[list[dict[str, Any]]], cut: int) -> None:
    made = encoder()
    blocks: list[MessageBlock] = []
    for batch in batches:
        # A slice of a longer one, as Arrow hands them out.
        longer = pa.RecordBatch.from_pylist(batch[:cut] + batch, SCHEMA)
        blocks += made.add(longer.slice(min(cut, len(batch))))
    blocks += made.rest()
    messages = read(blocks)
    expected = [message_of(row) for batch in batches for row in batch]

    def by_place(messages: Any) -> dict[Any, list[Any]]:
        places: dict[Any, list[Any]] = {}
        for topic, queue, *rest in messages:
            places.setdefault((topic, queue, rest[1].priority), []).append(rest)
        return places

    # Within a block those of one time stay in order, and times rise.
    assert {place: sorted(some, key=repr) for place, some in by_place(messages).items()} == {
        place: sorted(some, key=repr) for place, some in by_place(expected).items()
    }
    if not any(row["deliver_at"] for batch in batches for row in batch):
        assert by_place(messages) == by_place(expected)


def values(*bodies: bytes | None, **more: Any) -> pa.RecordBatch:
    columns = {"value": pa.array(bodies, pa.binary())}
    return pa.RecordBatch.from_pydict(columns | more)


def test_blocks_are_as_large_as_they_are_to_be() -> None:
    made = encoder(topic="one", block_bytes=100, max_message_bytes=1000)
    sizes = [4, 30, 300, 1, 90, 96, 97]
    blocks = [*made.add(values(*(bytes([65]) * size for size in sizes)))]
    blocks += made.rest()
    assert [len(bytes(block.bodies)) for block in blocks] == [42, 304, 99, 100, 101]
    assert [len(body) for _, _, body, _, _ in read(blocks)] == sizes


def test_many_small_rows_are_cut_by_their_number(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(encode, "MAX_ROWS", 10)
    made = encoder(topic="one", block_bytes=1 << 20)
    blocks = [*made.add(values(*[b"x"] * 25)), *made.rest()]
    assert [block.message_count for block in blocks] == [10, 10, 5]


def test_pending_bytes_of_many_topics_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(encode, "MAX_PENDING_BYTES", 300)
    made = encoder(block_bytes=1000, key_queues=lambda topic: QUEUES["one"])
    blocks: list[MessageBlock] = []
    for number in range(60):
        topic = f"t{number % 20}"
        blocks += made.add(values(b"0123456789", topic=pa.array([topic])))
        assert made._pending_bytes <= 300
    blocks += made.rest()
    assert sorted(topic for topic, *_ in read(blocks)) == sorted(f"t{n % 20}" for n in range(60))
    assert (made._pending_bytes, made._pending) == (0, {})


def test_a_topic_option_overrides_the_column() -> None:
    made = encoder(topic="one")
    blocks = [*made.add(values(b"x", topic=pa.array(["two"]))), *made.rest()]
    assert [block.topic for block in blocks] == ["one"]


def test_queues_are_asked_for_once_and_only_where_there_are_keys() -> None:
    requested: list[str] = []

    def ask(topic: str) -> KeyQueues:
        requested.append(topic)
        return KeyQueues(3, EARLY)

    made = encoder(topic="one", key_queues=ask)
    assert [*made.add(values(b"x", key=pa.array([None], pa.string())))] == []
    assert requested == []
    for _ in range(3):
        assert [*made.add(values(b"x", b"y", key=pa.array(["k", None])))] == []
    assert requested == ["one"]
    assert {block.queue for block in made.rest()} == {None, crc32c(b"k") % 3}


@pytest.mark.parametrize(
    ("kind", "array"),
    [
        ("binary", pa.array([b"one", b"two"], pa.binary())),
        ("text", pa.array(["one", "two"])),
        ("large", pa.array([b"one", b"two"], pa.large_binary())),
        ("large text", pa.array(["one", "two"], pa.large_string())),
    ],
)
def test_bodies_of_any_type(kind: str, array: pa.Array) -> None:
    made = encoder(topic="one")
    blocks = [*made.add(pa.RecordBatch.from_pydict({"value": array})), *made.rest()]
    assert [body for _, _, body, _, _ in read(blocks)] == [b"one", b"two"]


def test_headers_in_a_map() -> None:
    maps = pa.array(
        [[("a", "1"), ("b", None)], None, [], [("c", "3")]], pa.map_(pa.string(), pa.string())
    )
    made = encoder(topic="one")
    made_of = values(b"w", b"x", b"y", b"z", headers=maps).slice(0)
    messages = read([*made.add(made_of), *made.rest()])
    assert [p.headers for _, _, _, p, _ in messages] == [{"a": "1", "b": ""}, {}, {}, {"c": "3"}]
    messages = read([*made.add(made_of.slice(3)), *made.rest()])
    assert [p.headers for _, _, _, p, _ in messages] == [{"c": "3"}]


@pytest.mark.parametrize(
    ("array", "times"),
    [
        (pa.array([5, None, 12], pa.int32()), [(0, 1), (10, 1), (20, 1)]),
        (pa.array([5_000, None, 12_001], pa.duration("us")), [(0, 1), (10, 1), (20, 1)]),
        (pa.array([7, 7, 8], pa.int64()), [(10, 3)]),
    ],
)
def test_delays_are_rounded_up(array: pa.Array, times: list[tuple[int, int]]) -> None:
    made = encoder(topic="one", delay_step_ms=10)
    (block,) = [*made.add(values(b"x", b"y", b"z", delay=array)), *made.rest()]
    assert (block.times, block.are_delays) == (times, True)


@pytest.mark.parametrize(
    ("columns", "error_text"),
    [
        ({"value": pa.array([b"x", None])}, "'value' is null in row 1 .*option nullValue=tombst"),
        ({"value": pa.array(["x", ""])}, "'value' is empty in row 1 .*topic 'two'.*nullValue=drop"),
        ({"value": pa.array([None, ""], pa.string())}, "row 0 .* and in 1 more of its 2 rows"),
        ({"priority": pa.array([4, 10])}, "the priority '10'.*0 .the lowest. to 9"),
        ({"priority": pa.array([-1, 4])}, "the priority '-1'"),
        ({"value": pa.array(["x" * 101, "x"])}, "101 bytes in a row.* 100 in one.*max-msg-size"),
        ({"topic": pa.array(["one", None])}, "'topic' is null in 1 of 2 rows"),
        ({"topic": pa.array(["one", "no name!"])}, "'no name!', which is not a topic name"),
        ({"partition": pa.array([0, -1])}, "'partition' has -1: queues count from 0"),
        (
            {"partition": pa.array([0, 2**63 - 1])},
            "has 9223372036854775807: no topic has that many queues",
        ),
        ({"delay": pa.array([0, -1])}, "'delay' is below 0"),
        ({"keys": pa.array([[b"\xff"], []])}, "a key that is not UTF-8"),
        ({"key": pa.array(["x" * 1025, "x"])}, "a key of 1025 bytes, the maximum is 1024"),
        ({"tag": pa.array(["a", "a|b"])}, r"the tag 'a\|b'"),
        ({"keys": pa.array([["a", ""], []])}, "a key that is null or empty"),
        ({"keys": pa.array([["a", None], []])}, "a key that is null or empty"),
        ({"keys": pa.array([["a"] * 65, []])}, "keys has 65 of a row, the maximum is 64"),
        (
            {"headers": pa.array([[{"key": "", "value": b""}], None], HEADERS)},
            "a header's name takes 0 bytes",
        ),
        (
            {"headers": pa.array([[{"key": "x", "value": b"y" * 70_000}], None], HEADERS)},
            "a header's value takes 70000 bytes",
        ),
        (
            {"headers": pa.array([[{"key": "x", "value": b"y" * 33_000}], None], HEADERS)},
            "of a row take 33005 bytes, the maximum is 32768",
        ),
    ],
)
def test_rows_that_cannot_be_messages(columns: dict[str, Any], error_text: str) -> None:
    ground = {"value": pa.array(["x", "y"]), "topic": pa.array(["two", "two"])}
    batch = pa.RecordBatch.from_pydict(ground | columns)
    with pytest.raises((ValueError, BadProperties), match=error_text):
        list(encoder().add(batch))


def queues_of(batch: pa.RecordBatch, **settings: Any) -> list[int | None]:
    made = encoder(topic="four", **settings)
    return [queue for _, queue, *_ in read([*made.add(batch), *made.rest()])]


@pytest.mark.parametrize("column", ["offset", "timestampType", "message_id", "broker"])
def test_a_partition_beside_other_columns_of_a_source_chooses_no_queue(column: str) -> None:
    wish = values(b"x", b"y", partition=pa.array([3, 2], pa.int32()))
    assert sorted(queues_of(wish), key=str) == [2, 3]
    of_source = wish.append_column(column, pa.array([1, 2]))
    assert queues_of(of_source) == [None, None]
    assert sorted(queues_of(of_source, uses_partition=True), key=str) == [2, 3]
    assert queues_of(wish, uses_partition=False) == [None, None]


NO_VALUES = [b"x", None, b"", b"y"]


def test_rows_without_a_value_are_left_out_where_that_is_wanted() -> None:
    made = encoder(topic="one", null_values=NullValues.DROP)
    batch = values(*NO_VALUES, key=pa.array([b"1", b"2", b"3", b"4"]))
    messages = read([*made.add(batch), *made.add(batch.slice(1, 2)), *made.rest()])
    assert [(body, properties.order_key) for _, _, body, properties, _ in messages] == [
        (b"x", "1"),
        (b"y", "4"),
    ]


HEADER_LISTS = pa.array([[{"key": "h", "value": b"1"}], None, [], None], HEADERS)
HEADER_MAPS = pa.array([[("h", "1")], None, [], None], pa.map_(pa.string(), pa.string()))


@pytest.mark.parametrize("headers", [None, HEADER_LISTS, HEADER_MAPS])
def test_a_row_without_a_value_is_marked_by_a_header(headers: pa.Array | None) -> None:
    made = encoder(topic="one", null_values=NullValues.TOMBSTONE)
    batch = values(*NO_VALUES, **({} if headers is None else {"headers": headers}))
    own = {} if headers is None else {"h": "1"}
    assert [(body, p.headers) for _, _, body, p, _ in read([*made.add(batch), *made.rest()])] == [
        (b"x", own),
        (b"null", {"martlet-value": "null"}),
        (b" ", {"martlet-value": "empty"}),
        (b"y", {}),
    ]


@pytest.mark.parametrize("policy", NullValues)
def test_a_row_of_the_source_that_is_marked_is_written_whatever_is_wanted(
    policy: NullValues,
) -> None:
    marks = [[("martlet-value", word)] if word else None for word in ("", "null", "empty", "")]
    headers = pa.array(marks, pa.map_(pa.string(), pa.string()))
    made = encoder(topic="one", null_values=policy)
    messages = read([*made.add(values(*NO_VALUES, headers=headers)), *made.rest()])
    assert [body for _, _, body, _, _ in messages] == [b"x", b"null", b" ", b"y"]
    assert [list(p.headers.values()) for _, _, _, p, _ in messages] == [[], ["null"], ["empty"], []]


def test_more_delivery_times_than_a_block_has_are_several_blocks() -> None:
    count = 2 * encode.MAX_TIMES + 1
    bodies = [b"%d" % number for number in range(count)]
    times = pa.array([1000 * (count - number) for number in range(count)], pa.timestamp("us"))
    made = encoder(topic="one", block_bytes=1 << 20)
    blocks = [*made.add(values(*bodies, deliver_at=times)), *made.rest()]
    assert [len(block.times) for block in blocks] == [encode.MAX_TIMES, encode.MAX_TIMES, 1]
    assert [(body, at) for _, _, body, _, at in read(blocks)] == [
        (body, number + 1) for number, body in enumerate(reversed(bodies))
    ]
