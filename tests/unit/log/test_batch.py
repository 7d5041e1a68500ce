"""Batches: however messages are added, the frames are those that one would write by hand."""

import struct
from itertools import accumulate

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from martlet.log.batch import FIRST_CAPACITY, LogBatch
from martlet.log.record import HEADER_BYTES, RecordFlag, align8

MASK = (1 << 64) - 1


def by_hand(bodies: list[bytes], first_id: int, stored_at_ns: int) -> bytes:
    frames = []
    for number, body in enumerate(bodies):
        id = b"%016x" % ((first_id + number) & MASK)
        frames.append(struct.pack(">IIqH16s", 30 + len(body), 2, stored_at_ns, 1, id) + body)
    return b"".join(frames)


def ends_by_hand(bodies: list[bytes]) -> list[int]:
    return list(accumulate(34 + len(body) for body in bodies))


def check(batch: LogBatch, bodies: list[bytes], first_id: int) -> None:
    record, flags = batch.finish()
    assert batch.count == len(bodies)
    frames = bytes(record[HEADER_BYTES : HEADER_BYTES + batch.payload_length])
    assert frames == by_hand(bodies, first_id, batch.stored_at_ns)
    ends_at = align8(HEADER_BYTES + batch.payload_length)
    assert np.frombuffer(record, "<u4", len(bodies), ends_at).tolist() == ends_by_hand(bodies)
    assert len(record) == align8(ends_at + 4 * len(bodies))
    assert not any(record[ends_at + 4 * len(bodies) :])
    assert bool(flags & RecordFlag.UNIFORM) == (len(set(map(len, bodies))) == 1)


first_ids = st.one_of(
    st.integers(0, MASK), st.integers(MASK - 30, MASK), st.integers(65_500, 65_540)
)
lists = st.lists(st.binary(min_size=1, max_size=40), min_size=1, max_size=20)
matrices = st.tuples(st.integers(1, 20), st.integers(1, 30), st.binary(min_size=600, max_size=600))


@given(first_ids, st.lists(st.one_of(lists, matrices), min_size=1, max_size=5))
def test_any_mixture_of_ways_gives_the_frames_by_hand(
    first_id: int, parts: list[list[bytes] | tuple[int, int, bytes]]
) -> None:
    batch = LogBatch()
    batch.begin(first_id, 1234)
    bodies: list[bytes] = []
    for part in parts:
        if isinstance(part, list):
            bodies += part
            if len(part) == 1:
                batch.add(part[0])
            else:
                batch.add_many(part)
        else:
            count, size, data = part
            matrix = np.frombuffer(data, np.uint8, count * size).reshape(count, size)
            batch.add_matrix(matrix)
            bodies += [row.tobytes() for row in matrix]
    check(batch, bodies, first_id)


@pytest.mark.parametrize("count", [65_535, 65_536, 70_000, 140_000])
@pytest.mark.parametrize("as_matrix", [True, False])
def test_more_messages_than_the_last_digits_count(count: int, as_matrix: bool) -> None:
    batch = LogBatch()
    first_id = 0x1_0000_FFF0
    batch.begin(first_id, 1)
    bodies = [b"%06d" % number for number in range(count)]
    if as_matrix:
        batch.add_matrix(np.frombuffer(b"".join(bodies), np.uint8).reshape(count, 6))
    else:
        batch.add_many(bodies)
    check(batch, bodies, first_id)


def test_bodies_are_taken_out_of_the_middle_of_a_buffer() -> None:
    buffer = bytearray(b"HEADabcHEADdefHEADghi")
    matrix: np.ndarray[tuple[int, int], np.dtype[np.uint8]] = np.ndarray(
        (3, 3), np.uint8, buffer, 4, (7, 1)
    )
    batch = LogBatch()
    batch.begin(0, 0)
    batch.add_matrix(matrix)
    buffer[:] = bytes(len(buffer))
    check(batch, [b"abc", b"def", b"ghi"], 0)


def test_a_batch_grows_and_is_used_again_without_leaving_anything_behind() -> None:
    batch = LogBatch()
    big = [b"x" * 5000] * 40
    batch.begin(0, 0)
    batch.add(b"first")
    batch.add_many(big)
    check(batch, [b"first", *big], 0)
    assert len(batch.scratch) > FIRST_CAPACITY
    batch.begin(9, 5)
    batch.add_many([b"a", b"bb"])
    check(batch, [b"a", b"bb"], 9)


def test_messages_keep_their_own_times() -> None:
    batch = LogBatch()
    batch.begin(0, 5)
    bodies = [b"x" * size for size in (1, 0, 9)] + [b"yy"] * 30
    batch.add(bodies[0])
    batch.add_many(bodies[1:3])
    batch.add_many(bodies[3:])
    times_ns = np.arange(len(bodies)) * 10**17 + 1
    batch.stamp(times_ns)
    record, _ = batch.finish()
    at = HEADER_BYTES
    for body, time_ns in zip(bodies, times_ns.tolist(), strict=True):
        assert int.from_bytes(record[at : at + 4], "big") == 30 + len(body)
        assert int.from_bytes(record[at + 8 : at + 16], "big") == time_ns
        assert record[at + 34 : at + 34 + len(body)] == body
        at += 34 + len(body)


def test_a_body_that_just_does_not_fit() -> None:
    for size in range(FIRST_CAPACITY - HEADER_BYTES - 60, FIRST_CAPACITY - HEADER_BYTES - 20):
        batch = LogBatch()
        batch.begin(0, 0)
        batch.add(b"x" * size)
        check(batch, [b"x" * size], 0)
