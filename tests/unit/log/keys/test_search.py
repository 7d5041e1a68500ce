"""The search by key finds what a reader of the whole log would find, by indexes or without them."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.unit.log.keys.keyed_log import KeyedLog, bodies_of

from martlet.log.keys import entries, index_file
from martlet.log.keys.entries import key_hash
from martlet.log.keys.index_file import build_index, index_path
from martlet.log.keys.search import END_OF_LOG, KeyQuery, KeySearch, LogPosition
from martlet.properties.model import NONE, Properties, Sent

KEYS = ["a", "b", "ä-öü", "order-17", "order-18", "x" * 8, "x" * 9, "y" * 300]
keys = st.sampled_from(KEYS)
properties = st.one_of(
    st.just(NONE),
    st.just(Properties(sent=Sent(b"p" * 16, 1))),
    st.builds(
        Properties,
        tag=st.sampled_from(["", "red"]),
        keys=st.lists(keys, max_size=4).map(tuple),
        headers=st.dictionaries(st.sampled_from(KEYS[:4]), keys, max_size=2),
        order_key=st.one_of(st.just(""), keys),
        system=st.dictionaries(st.just("id"), keys, max_size=1),
    ),
)
batches = st.tuples(st.sampled_from([1, 2]), st.lists(properties, min_size=1, max_size=6))
appends = st.one_of(batches, st.lists(batches, min_size=1, max_size=3))


@pytest.fixture
def log(tmp_path: Path) -> Iterator[KeyedLog]:
    log = KeyedLog(tmp_path)
    yield log
    log.close()


@given(
    st.lists(appends, min_size=1, max_size=60),
    st.integers(1, 32),
    st.sets(st.integers(0, 20)),
    st.sampled_from([1, 3, 512]),
    st.booleans(),
    st.data(),
)
@settings(max_examples=100)
def test_a_search_finds_what_a_read_of_all_messages_finds(
    appended: list[Any],
    bits: int,
    unindexed: set[int],
    block: int,
    notes: bool,
    data: st.DataObject,
) -> None:
    with TemporaryDirectory() as name, pytest.MonkeyPatch.context() as patch:
        patch.setattr(index_file, "BLOCK_ENTRIES", block)
        patch.setattr(index_file, "CHUNK_ENTRIES", 4 * block)
        patch.setattr(entries, "PIECE_BYTES", 1 << 11)
        patch.setattr(os, "fsync", lambda fd: None)  # Which is all that takes time.
        log = KeyedLog(Path(name))
        for messages in appended:
            if isinstance(messages, list):
                log.bundle(messages)
            else:
                log.publish(*messages)
        for number, path in enumerate(log.full):
            if number not in unindexed:
                build_index(path, bits=bits)
        times = st.integers(1000, log.now_ns + 1)
        topics = data.draw(st.sampled_from([None, {1}, {1, 2}, {3}]))
        since_ns, until_ns = data.draw(st.one_of(st.just(0), times)), data.draw(times)
        before = data.draw(st.sampled_from([message.at for message in log.stored]))
        for key in [*KEYS, "order-1", "missing"]:
            query = KeyQuery(key, topics, since_ns, until_ns, notes)
            search = KeySearch(log.folder, query, log.log.position, bits=bits)
            assert bodies_of(search) == log.scanned(query)
            assert search.reached is None
            assert bodies_of(search, before) == log.scanned(query, before)
        log.close()


def test_the_hash_of_a_key_is_that_of_its_entry(log: KeyedLog) -> None:
    log.publish(1, [Properties(keys=(key,)) for key in KEYS])
    with entries.SegmentFile(log.folder / "log" / f"{0:020d}.log") as file:
        (piece,) = entries.SegmentScan(file, log.log.position).pieces()
    assert piece["hash"].tolist() == [key_hash(key.encode()) for key in KEYS]
    assert piece["number"].tolist() == list(range(len(KEYS)))
    assert piece["word"].tolist() == [0] * len(KEYS)


def in_rounds(search: KeySearch, log: KeyedLog, query: KeyQuery) -> list[int]:
    """Search until all is found. Returns how many messages each round found."""
    bodies: list[bytes] = []
    counts: list[int] = []
    before: LogPosition | None = END_OF_LOG
    while before is not None:
        more = bodies_of(search, before)
        counts.append(len(more))
        bodies += more
        before = search.reached
    assert bodies == log.scanned(query)
    return counts


def test_a_search_ends_between_messages_and_goes_on_there(log: KeyedLog) -> None:
    for _ in range(200):
        log.publish(1, [Properties(keys=("k",))] * 3)
    log.build()
    query = KeyQuery("k")
    answers = iter([False] * 4)
    search = KeySearch(log.folder, query, log.log.position, lambda: next(answers, True))
    assert max(in_rounds(search, log, query)) <= 5


def test_a_search_that_has_no_time_searches_one_segment_at_least(log: KeyedLog) -> None:
    log.fill(segments=4)
    log.build()
    query = KeyQuery("k-0")
    search = KeySearch(log.folder, query, log.log.position, lambda: True)
    assert len(in_rounds(search, log, query)) <= 5


def test_messages_behind_the_visible_end_are_not_found(log: KeyedLog) -> None:
    log.fill(segments=3)
    log.build()
    end = log.stored[-5].at.position
    assert bodies_of(KeySearch(log.folder, KeyQuery(f"k-{len(log.stored) - 1}"), end)) == []
    assert bodies_of(KeySearch(log.folder, KeyQuery(f"k-{len(log.stored) - 6}"), end)) != []
    inside = log.stored[5].at.position
    assert bodies_of(KeySearch(log.folder, KeyQuery("k-4"), inside)) == [log.stored[4].body]
    assert bodies_of(KeySearch(log.folder, KeyQuery("k-5"), inside)) == []


def test_a_segment_that_is_removed_meanwhile_is_left_out(log: KeyedLog) -> None:
    log.fill(segments=4)
    log.build()
    search = KeySearch(log.folder, KeyQuery("k-0"), log.log.position)
    for path in log.full[:2]:
        path.unlink()
        index_path(path).unlink()
    assert bodies_of(search) == []
    assert search.not_indexed == []


def test_segments_before_the_span_of_time_are_not_read(log: KeyedLog) -> None:
    log.fill(segments=5)
    since_ns = next(
        message.stored_at_ns for message in log.stored if message.at.position >= 3 << 13
    )
    search = KeySearch(log.folder, KeyQuery("k-0", since_ns=since_ns), log.log.position)
    assert bodies_of(search) == []
    assert log.full[0] not in search.not_indexed
