"""Records are read back as written, and bytes that are no record of their position are refused."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from martlet.log.batch import LogBatch
from martlet.log.record import (
    HEADER,
    HEADER_BYTES,
    MAX_LONE_BODY_BYTES,
    BadRecord,
    Contents,
    Lone,
    RecordFlag,
    RecordKind,
    align8,
    frame_ends,
    journal_record,
    lone_length,
    payload,
    read_header,
    read_record,
    record_length,
    seal,
    seal_again,
)

U32 = st.integers(0, (1 << 32) - 1)
U62 = st.integers(0, (1 << 62) - 1)
IDS = st.integers(0, (1 << 65) - 1)
BODIES = st.binary(min_size=1, max_size=600) | st.integers(1, MAX_LONE_BODY_BYTES).map(bytes)


def entry(content: bytes = b"some entry", position: int = 4096) -> bytearray:
    return journal_record(
        RecordKind.CURSOR, content, position=position, epoch=3, topic=7, stored_at_ns=11
    )


def test_a_journal_record_reads_back() -> None:
    record = entry()
    header, view = read_record(record, 0, 4096)
    assert bytes(payload(header, view)) == b"some entry"
    assert header.length == len(record) == align8(HEADER_BYTES + 10)
    assert (header.kind, header.epoch, header.topic, header.stored_at_ns) == (
        RecordKind.CURSOR,
        3,
        7,
        11,
    )
    assert header.next_position == 4096 + len(record)


def test_numpy_reads_the_same_header() -> None:
    record = entry()
    row = np.frombuffer(record, HEADER, 1)[0]
    header = read_header(record, 0, 4096)
    assert tuple(row.item()) == tuple(header)


def test_every_flipped_bit_is_noticed() -> None:
    record = entry(b"x")
    for byte in range(len(record)):
        for bit in (1, 16, 128):
            broken = bytearray(record)
            broken[byte] ^= bit
            with pytest.raises(BadRecord):
                read_record(broken, 0, 4096)


@pytest.mark.parametrize(
    ("change", "text"),
    [
        (lambda record: record[:40], "only 40 bytes left"),
        (lambda record: record[:-8], "cut at"),
        (lambda record: bytes(len(record)), "no record"),
        (lambda record: record[:12] + b"\x09" + record[13:], "version 9"),
        (lambda record: record[:8] + b"\x10" + record[9:], "length 16, parts need"),
    ],
)
def test_the_error_of_a_bad_record_says_why(change: object, text: str) -> None:
    assert callable(change)
    with pytest.raises(BadRecord, match=text):
        read_record(change(entry()), 0, 4096)


def test_a_record_of_another_position_is_refused() -> None:
    with pytest.raises(BadRecord, match="a record of position 4096"):
        read_record(entry(), 0, 8192)


def test_a_record_sealed_again_names_its_new_position() -> None:
    record = entry()
    seal_again(record, position=1 << 40, epoch=9, flags=RecordFlag.RELOCATED)
    header, _ = read_record(record, 0, 1 << 40)
    assert (header.epoch, header.flags, header.topic) == (9, RecordFlag.RELOCATED, 7)


def test_lengths_leave_everything_at_multiples_of_8() -> None:
    for payload_bytes in range(40):
        for count in range(5):
            assert record_length(payload_bytes, count) % 8 == 0
    assert record_length(0, 0) == HEADER_BYTES
    assert record_length(35, 1) == HEADER_BYTES + 40 + 8
    assert record_length(35, 1, 9) == HEADER_BYTES + 40 + 8 + 16


def test_ends_stand_where_the_header_says() -> None:
    batch = LogBatch()
    batch.begin(5, 77)
    batch.add(b"a")
    batch.add(b"bcd")
    record, _ = batch.finish()
    header = read_header(
        journal_record(RecordKind.BATCH, b"", position=0, epoch=0, topic=0, stored_at_ns=0), 0, 0
    )._replace(count=2, payload_length=batch.payload_length)
    assert frame_ends(header, record).tolist() == [35, 35 + 37]


@given(bodies=st.lists(BODIES, min_size=1, max_size=3), id=IDS, offset=U62, topic=U32, now_ns=U62)
def test_a_lone_message_is_stored_as_a_batch_of_one_would_be(
    bodies: list[bytes], id: int, offset: int, topic: int, now_ns: int
) -> None:
    """Also where the buffer still holds the message before."""
    lone = Lone()
    for body in bodies:
        batch = LogBatch()
        batch.begin(id & (1 << 64) - 1, now_ns)
        batch.add(body)
        record, flags = batch.finish()
        kind, position = int(RecordKind.BATCH), offset & ~7
        contents = Contents(topic, 3, 1, offset, now_ns, 0, batch.payload_length)
        seal(record, kind, flags, position, 7, contents)
        assert lone_length(len(body)) == len(record)
        built = lone.record(memoryview(body), id, position, 7, topic, 3, offset, now_ns)
        assert bytes(built) == bytes(record)
