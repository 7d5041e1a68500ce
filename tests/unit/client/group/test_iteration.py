"""Loops over messages that are left."""

from __future__ import annotations

import asyncio

from martlet.client.group.iteration import Handed, Iteration
from martlet.client.group.queues.ready_queues import ReadyQueues


class Item:
    """A message, or a batch."""

    is_out = True

    def finish(self) -> None:
        raise AssertionError

    def give_back(self) -> None:
        self.is_out = False


async def test_an_iterator_dropped_in_another_thread_gives_its_item_back() -> None:
    """The item stayed with those handed out: a commit finished it while a later handler had it."""
    item = Item()
    handed_out: dict[Handed, None] = {}

    async def take() -> Item:
        return item

    iterators = [Iteration[Item](ReadyQueues(), take, handed_out)]
    assert await anext(iterators[0]) is item
    assert handed_out
    await asyncio.to_thread(iterators.clear)
    await asyncio.sleep(0)
    assert not item.is_out
    assert not handed_out
