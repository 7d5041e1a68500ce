"""The stats of a broker of many topics: others have their turn meanwhile."""

import asyncio
import json
import urllib.request
from collections.abc import AsyncIterator

import pytest

from martlet.server import nsq_api, stats
from martlet.testing import Broker

TOPICS = 200


@pytest.fixture
async def broker() -> AsyncIterator[Broker]:
    async with Broker() as broker:
        for number in range(TOPICS):
            broker.server.broker.topic(f"t{number:03}").channel("c")
        yield broker


async def fetch(broker: Broker, target: str) -> str:
    def get() -> str:
        with urllib.request.urlopen(f"http://{broker.http_address}{target}") as answer:
            return str(answer.read().decode())

    return await asyncio.to_thread(get)


@pytest.mark.parametrize("target", ["/stats?format=json", "/stats"])
async def test_the_loop_goes_on_between_topics(
    broker: Broker, monkeypatch: pytest.MonkeyPatch, target: str
) -> None:
    seen: list[int] = []
    rounds = 0

    async def count() -> None:
        nonlocal rounds
        while True:
            rounds += 1
            await asyncio.sleep(0)

    real = stats._topic

    def noted(*arguments: object) -> stats.Report:
        seen.append(rounds)
        return real(*arguments)  # type: ignore[arg-type]

    monkeypatch.setattr(nsq_api, "_SLICE_NS", 0)
    monkeypatch.setattr(stats, "_topic", noted)
    counting = asyncio.create_task(count())
    text = await fetch(broker, target)
    counting.cancel()
    assert len(set(seen)) == TOPICS  # a round of the loop for each
    if target == "/stats":
        assert text.count("[t") == TOPICS
    else:
        names = [topic["topic_name"] for topic in json.loads(text)["topics"]]
        assert names == [f"t{number:03}" for number in range(TOPICS)]


async def test_a_topic_that_goes_meanwhile_is_left_out(broker: Broker) -> None:
    reports = stats.topic_reports(broker.server, "", "", include_clients=True)
    assert reports is not None
    assert next(reports)["topic_name"] == "t000"
    broker.server.broker.delete_topic("t001")
    broker.server.broker.delete_topic("t003")
    broker.server.broker.topic("t003")  # another one of that name
    assert [report["topic_name"] for report in reports][:2] == ["t002", "t004"]
