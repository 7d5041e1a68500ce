"""Commits of a pull consumer when queues go, at a seek, and at its end."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

import pytest
from tests.interop.client.group.test_pull import (
    LIMIT_S,
    call,
    member,
    members_of,
    post_of,
    put,
    with_queues,
)
from tests.interop.client.kit import take
from tests.polling import until

from martlet.client import ClientError
from martlet.client.group.queues.queue_id import QueueId
from martlet.testing import Broker


async def committed(broker: Broker, queue: int = 0) -> int:
    description = await call(broker, "group.describe", topic="t", group="g")
    return int(description["queues"][queue]["offset"])


async def test_a_seek_back_survives_the_death_of_its_member(broker: Broker) -> None:
    put(broker, [b"%d" % n for n in range(10)])
    async with member(broker, auto_commit=False) as consumer:
        await take(consumer, 8)
        await consumer.commit()
        assert await committed(broker) == 8
        await consumer.seek(0, 3)
        assert await committed(broker) == 8
        await consumer.commit()
        assert await committed(broker) == consumer.committed(0) == 3
        # From there on they only rise.
        assert [m.offset for m in await take(consumer, 2)] == [3, 4]
        await consumer.commit()
        assert await committed(broker) == 5
    async with member(broker, commit_every_s=60) as consumer:
        await consumer.seek(0, "first")
    async with member(broker) as other:
        assert [m.offset for m in await take(other, 2)] == [0, 1]


async def test_a_queue_that_goes_to_another_begins_where_its_holder_went_back_to(
    broker: Broker,
) -> None:
    with_queues(broker, 2)
    for queue in (0, 1):
        put(broker, [b"%d" % n for n in range(6)], queue)
    async with member(broker, commit_every_s=60) as one:
        await take(one, 12)
        await one.commit()
        for queue in (0, 1):
            await one.seek(queue, 2)
            one.pause(queue)
        async with member(broker) as two:
            await until(lambda: two.assignment)
            assert two.position(two.assignment[0]) == 2


async def test_a_queue_that_goes_while_it_is_asked_for_its_ends(
    broker: Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    put(broker, [b"one"])
    async with member(broker) as consumer:
        post = post_of(consumer)
        ask = post.ends

        async def ends(number: int) -> tuple[int, int]:
            offsets = await ask(number)
            post._drop(post.held[number])
            return offsets

        monkeypatch.setattr(post, "ends", ends)
        with pytest.raises(ClientError, match=r"queue 0 at .* is going to another member, or has"):
            await consumer.seek(0, "first")


async def test_a_member_that_joins_again_leaves_no_queue_with_its_old_membership(
    broker: Broker,
) -> None:
    with_queues(broker, 2)
    async with member(broker) as consumer:
        post = post_of(consumer)
        members = members_of(broker)
        (before,) = members.members.values()
        post.end("an answer that nobody understands")
        await until(lambda: before.is_gone and len(consumer.assignment) == 2)
        assert list(members.members) == [before.id]


async def test_a_member_that_is_dismissed_often_is_kept_in_mind_once(broker: Broker) -> None:
    put(broker, [b"one"])
    async with member(broker, leave_timeout_s=0.0) as consumer:
        members = members_of(broker)
        for _ in range(3):
            (present,) = members.members.values()
            members.dismiss()
            await until(lambda: len(members) and consumer.assignment)
            assert present.is_gone
        kept = [len(connection.caller.when_gone) for connection in broker.server.connections]
        assert sum(kept) == 1


async def test_a_consumer_that_leaves_is_given_no_more_queues(broker: Broker) -> None:
    events: list[tuple[str, int]] = []
    is_leaving, may_leave = asyncio.Event(), asyncio.Event()

    async def revoked(queues: Sequence[QueueId]) -> None:
        events.extend(("revoked", queue.queue) for queue in queues)
        is_leaving.set()
        await may_leave.wait()

    def assigned(queues: Sequence[QueueId]) -> None:
        events.extend(("assigned", queue.queue) for queue in queues)

    put(broker, [b"one"])
    async with member(broker, on_assigned=assigned, on_revoked=revoked) as consumer:
        members = members_of(broker)
        post = post_of(consumer)
        closing = asyncio.create_task(consumer.close())
        await is_leaving.wait()
        broker.server.broker.set_queues("t", 2)
        await until(lambda: post._generation == members.generation)
        may_leave.set()
        await closing
    assert events == [("assigned", 0), ("revoked", 0)]


async def test_closing_does_not_wait_for_ever_for_the_revoked_hook(broker: Broker) -> None:
    async def revoked(_queues: object) -> None:
        await asyncio.Event().wait()

    put(broker, [b"one"])
    async with (
        asyncio.timeout(LIMIT_S),
        member(broker, on_revoked=revoked, close_timeout_s=0.5) as consumer,
    ):
        await take(consumer, 1)


async def test_an_offset_refused_late_takes_nothing_from_the_new_holder_of_a_queue(
    broker: Broker,
) -> None:
    put(broker, [b"%d" % n for n in range(4)])
    async with member(broker, commit_every_s=60) as consumer:
        post = post_of(consumer)
        before = post.held[0]
        await consumer.seek(0, 0)
        post._on_refused({"refused": {"0": "NOT_HELD"}}, {0: before})
        got = [(m.place, m.offset) for m in await take(consumer, 4)]
        assert got == [(QueueId(broker.tcp_address, 0), n) for n in range(4)]
