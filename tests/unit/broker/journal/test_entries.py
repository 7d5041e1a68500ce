"""The journal's format: the bytes of each entry, those of earlier versions, and wrong ones.

``golden.txt`` was written by ``python -m tests.unit.broker.journal.life`` and says what a broker's
data folder holds: it changes with the format alone.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, get_args

import pytest
from tests.unit.broker.journal.life import TEXT, entries, entry_of_line, line, live

from martlet.broker.journal.cursors import channel_of, number_of
from martlet.broker.journal.entries import (
    AllTransactionsEntry,
    ChannelDeletedEntry,
    ChannelEntry,
    ChannelRecord,
    CommittedEntry,
    HalfBatch,
    HalfBatchEntry,
    PreparedEntry,
    SetAsideEntry,
    SnapshotEntry,
    TogetherEntry,
    TopicEntry,
    TransactionEntry,
    TransactionRecord,
    UnknownTransactionEntry,
    checkpoint_head,
    decode,
    decode_passed,
    encode,
    json_of,
)
from martlet.log.checkpoint_file import Checkpoint
from martlet.log.record import BadRecord, RecordKind
from martlet.properties.model import KeyHash

GOLDEN = (Path(__file__).parent / "golden.txt").read_text().splitlines()
JSON = [
    (kind, entry)
    for _, kind, _, entry in map(entry_of_line, GOLDEN)
    if kind in TEXT and kind is not RecordKind.EPOCH
]
RECORD = {"id": 1, "name": "t", "id_base": 9, "paused_at": None, "backlog_offset": 0, "voids": []}


def packed(fields: object) -> bytes:
    return json.dumps(fields).encode()


def test_a_broker_writes_the_same_bytes_as_ever() -> None:
    assert [line(*entry) for entry in entries(live())] == GOLDEN


@pytest.mark.parametrize(("kind", "entry"), JSON)
def test_an_entry_that_is_read_and_written_is_the_same(kind: RecordKind, entry: bytes) -> None:
    assert encode(decode(kind, entry)) == entry  # type: ignore[call-overload]


def test_each_op_is_among_the_bytes() -> None:
    ops = {json_of(entry).get("op") for _, entry in JSON} - {None}
    assert ops == {kind.op for kind in get_args(TransactionEntry)} | {
        "snapshot",
        "topic",
        "topic_deleted",
        "channel",
        "channel_replayed",
        "channel_deleted",
        "together",
    }


def test_entries_that_the_golden_file_lacks() -> None:
    assert encode(SetAsideEntry("x")) == b'{"op":"set_aside","id":"x"}'
    record = TransactionRecord(
        id="x",
        group="",
        begun_at_ns=1,
        check_after_ns=2,
        state="in-doubt",
        checks=3,
        gaps=("a", "b"),
        chosen={"c": 1},
        branches={"c": (HalfBatch(7, 1, "t", -1, 99),)},
    )
    entry = AllTransactionsEntry(transactions=(record,), outcomes_bytes=2, packed=b"\0\1\2")
    assert encode(entry) == (
        b'{"op":"all","transactions":[{"id":"x","group":"","begun_at_ns":1,"check_after_ns":2,'
        b'"state":"in-doubt","checks":3,"gaps":["a","b"],"chosen":{"c":1},'
        b'"branches":{"c":[[7,1,"t",-1,99,0]]}}],"outcomes_bytes":2}\0\0\1\2'
    )
    assert decode(RecordKind.TRANSACTION, encode(entry)) == entry


# earlier versions, and later ones


def test_a_channel_of_an_early_version_has_neither_start_nor_limit() -> None:
    channel = {"id": 2, "name": "c", "paused": True}
    entry = packed({"op": "channel", "topic_id": 1, "channel": channel})
    record = ChannelRecord(id=2, name="c", paused=True)
    assert decode(RecordKind.TOPOLOGY, entry) == ChannelEntry(1, record)
    deleted = packed({"op": "channel_deleted", "topic_id": 1, "id": 2})
    assert decode(RecordKind.TOPOLOGY, deleted) == ChannelDeletedEntry(1, 2, None)


def test_a_channel_at_a_new_queue_once_had_a_list_of_no_voids() -> None:
    channel = {"id": 2, "name": "c", "paused": False, "start": 0, "limit": 0, "voids": []}
    entry = decode(
        RecordKind.TOPOLOGY, packed({"op": "channel", "topic_id": 1, "channel": channel})
    )
    assert isinstance(entry, ChannelEntry)
    assert entry.channel.voids == ()


def test_a_snapshot_of_an_early_version_has_no_stored_offsets() -> None:
    entry = decode(RecordKind.TOPOLOGY, packed({"op": "snapshot", "topics": [], "last_id": 0}))
    assert entry == SnapshotEntry(topics=(), last_id=0)


def test_a_batch_of_an_early_version_has_no_times_and_outcomes_had_no_length() -> None:
    transaction = {
        "id": "x",
        "group": "",
        "begun_at_ns": 1,
        "check_after_ns": 2,
        "state": "open",
        "checks": 0,
        "branches": {"b": [[7, 1, "t", -1, 99]]},
    }
    entry = packed({"op": "all", "transactions": [transaction]}) + b"\0outcomes"
    decoded = decode(RecordKind.TRANSACTION, entry)
    assert isinstance(decoded, AllTransactionsEntry)
    assert decoded.transactions[0].branches == {"b": (HalfBatch(7, 1, "t", -1, 99, 0),)}
    assert (decoded.outcomes_bytes, decoded.packed) == (None, b"outcomes")


def test_a_topic_of_an_early_version_has_the_first_key_hash() -> None:
    entry = decode(RecordKind.TOPOLOGY, packed({"op": "topic", "topic": RECORD}))
    assert isinstance(entry, TopicEntry)
    assert entry.topic.key_hash is KeyHash.CRC32C


def test_fields_of_a_later_version_are_passed_over() -> None:
    topic = RECORD | {"colour": "blue", "policy": {"later": 1}}
    entry = decode(RecordKind.TOPOLOGY, packed({"op": "topic", "topic": topic, "x": [1]}))
    assert isinstance(entry, TopicEntry)
    assert entry.topic.policy == {"later": 1}


def test_a_transactions_op_of_a_later_version_counts_only_for_its_topics() -> None:
    entry = decode(RecordKind.BUNDLE, packed({"op": "later", "id": "x", "topics": [RECORD]}))
    assert isinstance(entry, UnknownTransactionEntry)
    assert [topic.name for topic in entry.topics] == ["t"]


# errors


@pytest.mark.parametrize(
    ("kind", "fields", "text"),
    [
        (RecordKind.TOPOLOGY, {"op": "later", "id": 1}, "unknown op"),
        (RecordKind.TOPOLOGY, {"id": 1}, "unknown op"),
        (RecordKind.TOPOLOGY, [1], "unknown op"),
        (RecordKind.TOPOLOGY, {"op": "topic"}, "'topic', field 'topic' is missing"),
        (
            RecordKind.TOPOLOGY,
            {"op": "topic", "topic": RECORD | {"id": "1"}},
            "'topic', field 'topic.id' must be a whole number, not '1'",
        ),
        (
            RecordKind.TOPOLOGY,
            {"op": "topic", "topic": RECORD | {"voids": [[0, 1], [2, None]]}},
            "'topic', field 'topic.voids.1.1' must be a whole number, not None",
        ),
        (
            RecordKind.TOPOLOGY,
            {"op": "topic", "topic": RECORD | {"voids": [[0]]}},
            r"'topic', field 'topic.voids.0' must be a list of 2, not \[0\]",
        ),
        (
            RecordKind.TOPOLOGY,
            {"op": "together", "ops": [{"op": "topic_deleted", "id": True}]},
            "'together', field 'ops.0.id' must be a whole number, not True",
        ),
        (
            RecordKind.TOPOLOGY,
            {"op": "together", "ops": [{"op": "later"}]},
            "'together', field 'ops.0' must be an entry of a known op",
        ),
        (
            RecordKind.TOPOLOGY,
            {"op": "snapshot", "topics": [], "last_id": 1, "indexes": {"a": [0, 0, 0]}},
            "'snapshot', field 'indexes' must be an object by whole numbers",
        ),
        (
            RecordKind.TRANSACTION,
            {"op": "prepared", "id": "x", "branches": {"b": 1.5}},
            "'prepared', field 'branches.b' must be a whole number, not 1.5",
        ),
        (RecordKind.TRANSACTION, {"op": "checked", "ids": "x"}, "'ids' must be a list, not 'x'"),
        (
            RecordKind.BUNDLE,
            {"op": "committed", "id": "x", "at_ns": 1, "topics": [], "series": ["s"]},
            "'committed', field 'series' must be a list of 2",
        ),
        (RecordKind.BATCH, {"transaction": 1}, "'HalfBatchEntry', field 'transaction' must be a"),
    ],
)
def test_wrong_fields_are_named(kind: Any, fields: object, text: str) -> None:
    with pytest.raises(BadRecord, match=text):
        decode(kind, packed(fields))


def test_bad_json_is_refused() -> None:
    for kind in (RecordKind.TOPOLOGY, RecordKind.TRANSACTION, RecordKind.BATCH):
        with pytest.raises(BadRecord, match="no JSON"):
            decode(kind, b"{")


def test_a_checkpoint_begins_with_a_snapshot_and_its_position() -> None:
    for head in (TogetherEntry(()), SnapshotEntry(topics=(), last_id=0)):
        with pytest.raises(BadRecord, match="snapshot and its position"):
            checkpoint_head(Checkpoint([(RecordKind.TOPOLOGY, 0, encode(head))]))


# partial reads


def test_the_head_of_a_cursor_entry() -> None:
    cursors = [entry for _, kind, _, entry in map(entry_of_line, GOLDEN) if kind.name == "CURSOR"]
    assert (channel_of(cursors[0]), number_of(cursors[0])) == ((8, False), 1)


def test_the_json_of_an_entry_is_as_it_stands_there() -> None:
    entry = CommittedEntry("x", 1, (), ("s", 2))
    assert json_of(encode(entry)) == {
        "op": "committed", "id": "x", "at_ns": 1, "topics": [], "series": ["s", 2],
    }  # fmt: skip
    assert json_of(encode(PreparedEntry("x", None)) + b"\0\xff") == {
        "op": "prepared", "id": "x", "branches": None,
    }  # fmt: skip
    assert isinstance(decode(RecordKind.BATCH, JSON_OF_HALF), HalfBatchEntry)


JSON_OF_HALF = next(entry for kind, entry in JSON if kind is RecordKind.BATCH)


def test_the_note_of_a_start_may_be_empty() -> None:
    assert decode_passed(b"") == []
    assert decode_passed(b"[[1,2],[3,4]]") == [(1, 2), (3, 4)]
