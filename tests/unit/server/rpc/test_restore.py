"""The call that undoes an empty: what it takes, and what it refuses."""

from __future__ import annotations

from typing import Any

import aiohttp
import pytest

from martlet.client import Producer
from martlet.testing import Broker

GOOD = {"queue": 0, "offset": 0, "end_offset": 3, "unfinished": []}


async def restore(broker: Broker, *queues: Any) -> tuple[int, Any]:
    async with (
        aiohttp.ClientSession() as session,
        session.post(
            f"http://{broker.http_address}/call/channel.restore",
            json={"topic": "t", "channel": "c", "queues": list(queues)},
        ) as answer,
    ):
        return answer.status, await answer.json()


async def post(broker: Broker, path: str) -> Any:
    url = f"http://{broker.http_address}{path}"
    async with aiohttp.ClientSession() as session, session.post(url) as answer:
        assert answer.status == 200
        return await answer.read()


@pytest.fixture
async def broker() -> Any:
    async with Broker() as found:
        await post(found, "/topic/create?topic=t")
        await post(found, "/channel/create?topic=t&channel=c")
        async with Producer(found.tcp_address) as producer:
            await producer.publish_many("t", [b"1", b"2", b"3"])
        yield found


async def test_the_answer_of_an_empty_is_taken(broker: Broker) -> None:
    assert await post(broker, "/channel/empty?topic=t&channel=c&undo=true") != b""
    assert await restore(broker, GOOD) == (200, {"depth": 3})
    assert await post(broker, "/channel/empty?topic=t&channel=c") == b"", "as nsqd"


@pytest.mark.parametrize(
    "queue",
    [
        *(None, 1, "x", [], {}, {"queue": 0}, {**GOOD, "queue": "0"}, {**GOOD, "offset": -1}),
        *({**GOOD, "offset": 1.5}, {**GOOD, "offset": True}, {**GOOD, "offset": 1 << 70}),
        *({**GOOD, "unfinished": each} for each in (None, 3, [1], [[1]], [["a", "b", 1, 0, 0]])),
        {**GOOD, "unfinished": [[2, 1, 1, 0, 0]]},
        {**GOOD, "unfinished": [[0, 2, 1, 0, 0], [1, 3, 1, 0, 0]]},
        {**GOOD, "unfinished": [[0, 1, 1 << 20, 0, 0]]},
        {**GOOD, "offset": 1 << 40, "unfinished": [[0, 1 << 40, 1, 0, 0]]},
    ],
)
async def test_what_no_empty_answers_is_refused(broker: Broker, queue: Any) -> None:
    status, answer = await restore(broker, queue)
    assert status == 400
    assert "BAD_ARGUMENT" in str(answer)


async def test_places_that_are_not_there_are_refused(broker: Broker) -> None:
    status, answer = await restore(broker, {**GOOD, "offset": 4})
    assert (status, "ends at offset 3" in str(answer)) == (409, True)
    status, answer = await restore(broker, {**GOOD, "queue": 7})
    assert (status, "7" in str(answer)) == (404, True)
    status, answer = await restore(broker, GOOD, GOOD)
    assert (status, "twice" in str(answer)) == (400, True)
