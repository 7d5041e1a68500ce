"""The indexer: indexes what is full and has keys, and what a search has missed."""

from __future__ import annotations

import errno
import logging
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.unit.log.keys.keyed_log import KeyedLog

from martlet.log.keys.index_file import index_path
from martlet.log.storage import StorageFull
from martlet.properties.model import NONE, Properties, Sent
from martlet.server.key_indexer import KeyIndexer


class IndexedLog(KeyedLog):
    """A log with an indexer."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self.indexer = KeyIndexer(self.storage, logging.getLogger("martlet"))

    def settle(self) -> None:
        """Wait until the indexer has nothing to do."""
        self.indexer._thread.submit(lambda: None).result()

    @property
    def indexed(self) -> list[Path]:
        self.settle()
        return [
            path
            for path in sorted((self.folder / "log").glob("*.log"))
            if index_path(path).exists()
        ]

    def fill_with(self, properties: Properties, segments: int) -> None:
        while len(self.log.segments) < segments:
            self.publish(1, [properties] * 5)

    def close(self) -> None:
        self.indexer.close()
        super().close()


@pytest.fixture
def log(tmp_path: Path) -> Iterator[IndexedLog]:
    log = IndexedLog(tmp_path)
    yield log
    log.close()


def test_messages_without_keys_cost_no_file_and_no_thread(log: IndexedLog) -> None:
    log.fill_with(NONE, 4)
    assert not log.indexer._thread._threads
    log.fill_with(Properties(sent=Sent(b"p" * 16, 1)), 6)
    assert log.indexed == []
    assert sorted(log.folder.glob("log/*.keys*")) == []


def test_from_the_first_keys_on_each_full_segment_has_an_index(log: IndexedLog) -> None:
    log.fill_with(NONE, 3)
    log.fill(segments=5)
    log.settle()
    log.fill_with(NONE, 8)
    assert log.indexed == log.full[2:]
    keyed = next(each for each in log.stored if each.properties)
    assert log.search(*keyed.properties.keys) == ([keyed.body], log.full[1::-1])


def test_what_a_search_has_missed_is_indexed_even_without_keys(log: IndexedLog) -> None:
    log.fill_with(NONE, 4)
    _, missed = log.search("k")
    assert missed == log.full[::-1]
    log.indexer.missed(missed)
    assert log.indexed == log.full
    assert log.search("k") == ([], [])
    index_path(log.full[1]).write_bytes(b"damaged")
    _, missed = log.search("k")
    assert missed == [log.full[1]]
    log.indexer.missed(missed)
    log.settle()
    assert log.search("k") == ([], [])


def test_a_damaged_segment_is_tried_once(log: IndexedLog, caplog: pytest.LogCaptureFixture) -> None:
    log.fill(segments=3)
    log.settle()
    path = log.full[0]
    index_path(path).unlink()
    with open(path, "r+b") as file:
        file.seek(log.stored[20].at.position)
        file.write(b"\xff" * 40)
    with caplog.at_level(logging.INFO, "martlet"):
        for _ in range(2):
            log.indexer.missed([path])
            log.settle()
    assert [record.getMessage() for record in caplog.records] == [
        f"LOG: the keys of {path.name} are not indexed: {path.name} is damaged"
    ]


def test_a_segment_that_has_gone_is_no_error(
    log: IndexedLog, caplog: pytest.LogCaptureFixture
) -> None:
    log.indexer.missed([log.folder / "log" / f"{8:020d}.log"])
    log.settle()
    assert caplog.records == []


def test_a_full_disk_is_reported_and_the_segment_is_tried_again(
    log: IndexedLog, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    has_room = log.storage.check_room

    def full(size_bytes: int, thing: str = "a segment") -> int:
        if thing == "a segment":
            return has_room(size_bytes)
        raise StorageFull(errno.ENOSPC, f"no room for {thing} of {size_bytes} bytes")

    monkeypatch.setattr(log.storage, "check_room", full)
    log.fill(segments=2)
    log.settle()
    (record,) = caplog.records
    assert "each search by key reads it" in record.getMessage()
    assert "no room for an index of keys" in record.getMessage()
    monkeypatch.undo()
    log.indexer.missed(log.full)
    assert log.indexed == log.full


def test_a_closed_indexer_begins_nothing(log: IndexedLog) -> None:
    log.indexer.close()
    log.fill(segments=3)
    log.indexer.missed(log.full)
    assert sorted(log.folder.glob("log/*.keys*")) == []
