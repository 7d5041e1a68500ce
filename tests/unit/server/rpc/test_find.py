"""The call that finds messages by a key: those that the topic has, each once."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from tests.unit.broker.disk_core import DiskCore

from martlet.broker.errors import NotFound
from martlet.log.keys.search import KeyQuery, KeySearch
from martlet.properties.model import Properties
from martlet.server.data_folder import DataFolder
from martlet.server.key_indexer import KeyIndexer
from martlet.server.rpc.find import FindCalls
from martlet.server.rpc.registry import CallArguments, CallError, reply_of

CALLER: Any = SimpleNamespace(may=lambda *_: None)


class Finder:
    """The call on a core."""

    def __init__(self, path: Path) -> None:
        self.core = DiskCore(path)
        self.keys = KeyIndexer(self.core.disk, logging.getLogger("martlet"))
        self._calls = FindCalls(self.core.broker, DataFolder(path, self.core.disk, "id", self.keys))

    async def find(self, **fields: object) -> tuple[int, bytes, str]:
        """The count of messages found, their bytes, and where the next request goes on."""
        call: Any = self._calls.methods()["topic.find"]
        described, data = reply_of(await call(CALLER, CallArguments(fields)))
        count, following = described["count"], described["next"]
        assert isinstance(count, int)
        return count, data, str(following)


@pytest.fixture
def finder(tmp_path: Path) -> Iterator[Finder]:
    finder = Finder(tmp_path / "data")
    yield finder
    finder.keys.close()
    finder.core.disk.close()


async def test_a_message_that_cleaning_has_copied_is_found_once(finder: Finder) -> None:
    core = finder.core
    core.keyed("t", b"a", "k")
    queue, log = core.broker.topics["t"].queue, core.broker.log
    row = queue.index.row(0)
    record = log.view(row.position, row.length)
    assert record is not None
    copied = log.append_again(bytearray(record))
    query = KeyQuery("k")
    assert [m.header.position for m in KeySearch(core.path, query, log.position).find()] == [
        copied,
        row.position,
    ]
    for _ in range(2):
        count, data, following = await finder.find(topic="t", key="k")
        assert (count, following) == (1, "")
        assert data.endswith(b"a")
        queue.index.move(row.first_offset, copied)


async def test_messages_of_other_topics_and_delayed_ones_are_not_found(finder: Finder) -> None:
    core = finder.core
    core.keyed("other", b"a", "k")
    core.broker.topic("t")
    core.broker.delays.publish(
        core.broker.topic("t"),
        [b"b"],
        core.clock.now_ns + 10**12,
        [(0, Properties(keys=("k",)).pack())],
    )
    assert await finder.find(topic="t", key="k") == (0, b"", "")
    assert (await finder.find(topic="other", key="k"))[0] == 1


async def test_an_answer_ends_at_its_limits_and_the_next_goes_on(finder: Finder) -> None:
    for number in range(10):
        finder.core.keyed("t", b"%d" % number, "k")
    sizes: list[int] = []
    after = ""
    while True:
        limits = {"limit": 3} if len(sizes) < 2 else {"max_bytes": 100}
        count, _, after = await finder.find(topic="t", key="k", after=after, **limits)
        sizes.append(count)
        if not after:
            break
    assert sizes[:3] == [3, 3, 2]
    assert sum(sizes) == 10


@pytest.mark.parametrize(
    ("fields", "text"),
    [
        ({"key": "k", "after": "7"}, "after '7': it is the 'next' of an answer"),
        ({"key": "k", "after": "7-\u0664\u00b2"}, "it is the 'next' of an answer"),
        ({"key": "k", "after": "1-" + "0" * 38}, "it is the 'next' of an answer"),
    ],
)
async def test_bad_arguments_are_refused(
    finder: Finder, fields: dict[str, object], text: str
) -> None:
    finder.core.broker.topic("t")
    with pytest.raises(CallError, match=text):
        await finder.find(**{"topic": "t", **fields})
    with pytest.raises(NotFound, match="there is no topic 'missing'"):
        await finder.find(topic="missing", key="k")
