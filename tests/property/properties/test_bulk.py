"""Blocks that are checked at once: what passes is what the check of single entries lets pass."""

from __future__ import annotations

import tracemalloc
from collections.abc import Sequence

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from martlet.broker.idempotence import marked
from martlet.log.batch import LogBatch
from martlet.properties import block as packed
from martlet.properties.block import (
    Block,
    Entry,
    Packed,
    entries_of,
    join,
    pack_block,
    pack_entries,
    packed_bytes,
    read,
    read_at_once,
)
from martlet.properties.model import BadProperties, Properties, Sent, hash_of

words = st.text("ab |*~", min_size=1, max_size=6)
plain = st.text("abc~", min_size=1, max_size=6)
carried = st.builds(
    Properties,
    tag=plain | st.just(""),
    keys=st.lists(words | st.just("ä"), max_size=3).map(tuple),
    headers=st.dictionaries(words, words | st.just(""), max_size=3),
    order_key=words | st.just(""),
).filter(bool)
ascii_carried = st.builds(
    Properties,
    tag=plain | st.just(""),
    keys=st.lists(plain, max_size=3).map(tuple),
    headers=st.dictionaries(plain, words | st.just(""), max_size=3),
    order_key=plain | st.just(""),
).filter(bool)
quick = settings(max_examples=60, suppress_health_check=list(HealthCheck))


def block_of(some: Sequence[Properties], gap: int = 2) -> bytes:
    return pack_block([(gap * n, properties.pack()) for n, properties in enumerate(some)])


@given(st.lists(ascii_carried, min_size=packed._FEW + 1, max_size=30))
@quick
def test_a_good_block_is_read_at_once(some: list[Properties]) -> None:
    data = block_of(some)
    packed_block = read_at_once(data, 100)
    assert packed_block is not None
    assert list(packed_block) == entries_of(data, 100)
    assert packed_block[-1] == packed_block[len(packed_block) - 1]
    assert packed_block[1:3] == list(packed_block)[1:3]


@given(
    st.lists(carried, min_size=packed._FEW + 1, max_size=24),
    st.lists(st.tuples(st.integers(0, 4000), st.integers(0, 255)), max_size=3),
    st.integers(30, 60),
)
@quick
def test_an_accepted_block_is_good(
    some: list[Properties], changes: list[tuple[int, int]], count: int
) -> None:
    data = bytearray(block_of(some))
    for at, byte in changes:
        data[at % len(data)] = byte
    try:
        packed_block = read_at_once(bytes(data), count)
    except BadProperties:
        packed_block = None
    if packed_block is not None:
        expected = entries_of(bytes(data), count)
        assert list(packed_block) == expected
        # Its tags can be believed: a filter looks at nothing else.
        assert pack_block(expected) == bytes(data)


def test_a_tag_behind_other_fields_is_refused_as_one_by_one() -> None:
    tag, key = Properties(tag="red").pack(), Properties(keys=("k",)).pack()
    entries = [tag + key, key + tag] * packed._FEW
    columns = np.frombuffer(pack_block(list(enumerate(entries))), "<u4", 3 * len(entries), 4)
    hashes = columns.copy()
    # Those of the tags that are there.
    hashes[-len(entries) :] = hash_of(tag)
    head = len(entries).to_bytes(4, "little")
    for tags in (columns, hashes):
        data = b"".join([head, tags.tobytes(), *entries])
        for how in (read, entries_of):
            with pytest.raises(BadProperties, match="stands behind other fields"):
                how(data, len(entries))


@pytest.mark.parametrize("kind", ["all as large as the first", "one over the other"])
def test_a_bad_block_takes_no_more_memory_than_it_has_bytes(kind: str) -> None:
    count, size = 2000, 50_000
    ends = np.full(count, size, "<u4")
    if kind == "one over the other":
        ends[::2] = 0
    head = count.to_bytes(4, "little") + np.arange(count, dtype="<u4").tobytes()
    data = b"".join([head, ends.tobytes(), bytes(4 * count), bytes(size)])
    tracemalloc.start()
    try:
        with pytest.raises(BadProperties):
            read(data, count)
        assert tracemalloc.get_traced_memory()[1] < 40 * len(data)
    finally:
        tracemalloc.stop()


few = st.lists(carried, min_size=1, max_size=2)
"""Of which many messages have one each: all the same, or in turns."""
longer = st.integers(1, 2 * packed._FEW)


@given(few, longer, st.booleans())
@quick
def test_entries_of_all_messages_are_packed_as_one_by_one(
    some: list[Properties], count: int, gaps: bool
) -> None:
    kinds = [properties.pack() for properties in some] + [b""] * gaps
    entries = [kinds[n % len(kinds)] for n in range(count)]
    assert pack_entries(entries) == pack_block([(n, e) for n, e in enumerate(entries) if e])


@given(
    few,
    longer,
    st.lists(st.tuples(st.integers(0, 4000), st.integers(0, 255)), max_size=2),
    st.integers(0, 2),
)
@quick
def test_a_block_is_read_as_one_by_one(
    some: list[Properties], count: int, changes: list[tuple[int, int]], more: int
) -> None:
    data = bytearray(pack_entries([some[n % len(some)].pack() for n in range(count)]))
    for at, byte in changes:
        data[at % len(data)] = byte
    try:
        expected = entries_of(bytes(data), count + more)
    except BadProperties:
        with pytest.raises(BadProperties):
            read(bytes(data), count + more)
    else:
        assert list(read(bytes(data), count + more)) == expected


@given(few, longer, st.booleans(), st.binary(min_size=16, max_size=16))
@quick
def test_a_marked_send_is_stored_as_one_by_one(
    some: list[Properties], count: int, is_late: bool, producer: bytes
) -> None:
    entries = [(n + is_late, some[n % len(some)].pack()) for n in range(count)]
    sent = Sent(producer, 7, count + is_late)
    ways: list[Sequence[Entry]] = [entries, read(pack_block(entries), count + is_late)]
    records = []
    for properties in ways:
        batch = LogBatch()
        batch.begin(0, 0)
        batch.add(b"before")
        for _ in range(2):
            batch.set_properties(batch.count, marked(properties, sent))
            batch.add_many([b"x"] * (count + is_late))
        records.append(bytes(batch.finish()[0]))
    assert records[0] == records[1]


@given(st.lists(st.lists(ascii_carried, max_size=20), min_size=1, max_size=4), st.booleans())
@quick
def test_a_batch_holds_all_that_was_added(parts: list[list[Properties]], mixed: bool) -> None:
    batch = LogBatch()
    batch.begin(0, 0)
    expected: list[tuple[int, bytes]] = []
    added: list[tuple[int, Sequence[tuple[int, bytes]]]] = []
    for number, some in enumerate(parts):
        first = batch.count
        batch.add_many([b"x"] * (2 * len(some) + 1))
        entries = [(2 * n, properties.pack()) for n, properties in enumerate(some)]
        is_packed = bool(entries) and not (mixed and number % 2)
        # As half messages lie: behind one that describes them.
        shifted = pack_block([(n + 1, entry) for n, entry in entries])
        given = Packed(Block(shifted), -1) if is_packed else entries
        if given:
            batch.set_properties(first, given)
            added.append((first, given))
        expected += [(first + n, entry) for n, entry in entries]
    record, _ = batch.finish()
    block = pack_block(expected)
    assert batch.properties_length == len(block)
    assert block in bytes(record)
    assert packed_bytes([entries for _, entries in added]) == len(block)
    if added:
        assert join(added) == block


@given(st.lists(ascii_carried, min_size=1, max_size=20), st.integers(0, 40), st.integers(0, 40))
@quick
def test_a_part_of_it(some: list[Properties], first: int, more: int) -> None:
    packed_block = Packed(Block(block_of(some)), -1)
    stop = first + more
    expected = [(n - first, entry) for n, entry in packed_block if first <= n < stop]
    cut = packed_block.block.cut(first + 1, stop + 1)
    assert list(packed_block.cut(first, stop) if cut else []) == expected
