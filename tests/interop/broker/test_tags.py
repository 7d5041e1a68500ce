"""A channel that wants some tags gets messages with those, each once, and lets the others go."""

from __future__ import annotations

from pathlib import Path
from random import Random

import pytest
from tests.interop.broker.consuming import take, visit
from tests.interop.connections import connect

from martlet.client import Consumer, Properties, SubscribeRefused
from martlet.client.transport.connection import Connection
from martlet.properties.block import pack_block
from martlet.properties.model import BadProperties
from martlet.protocol.nsq import commands
from martlet.testing import Broker

TAGS = ("red", "blue", "green", "Aa", "BB", "")
"""Aa and BB have one hash."""


async def send(connection: Connection, tags: list[str], start: int = 0) -> None:
    entries = [(n, Properties(tag=tag).pack()) for n, tag in enumerate(tags) if tag]
    bodies = [b"%d %s" % (start + n, tag.encode()) for n, tag in enumerate(tags)]
    await connection.ask(commands.send("t", bodies, {}, pack_block(entries)))


@pytest.mark.parametrize("in_flight", [1, 7, 1000])
@pytest.mark.parametrize("expression", ["red || blue", "Aa"])
async def test_a_consumer_gets_those_tags_alone(
    broker: Broker, connection: Connection, in_flight: int, expression: str
) -> None:
    random = Random(in_flight)
    sent: list[str] = []
    for _ in range(20):
        tags = random.choices(TAGS, k=random.randrange(1, 30))
        await send(connection, tags, len(sent))
        sent += tags
    sent.append(expression.split(" || ", maxsplit=1)[0])
    await send(connection, sent[-1:], len(sent) - 1)
    expected = [
        b"%d %s" % (n, tag.encode())
        for n, tag in enumerate(sent)
        if tag in expression.split(" || ")
    ]
    consumer = Consumer("t", "c", broker.tcp_address, tags=expression, max_in_flight=in_flight)
    async with consumer:
        assert await take(consumer, len(expected)) == expected


async def test_the_filter_is_the_channels_and_outlives_a_restart(tmp_path: Path) -> None:
    async with Broker(tmp_path) as broker, Consumer("t", "c", broker.tcp_address, tags="red"):
        await visit(Consumer("t", "other", broker.tcp_address))
        refusal = r"CONFLICT .* has tags=red, and .* wants tags=blue"
        with pytest.raises(SubscribeRefused, match=refusal):
            await visit(Consumer("t", "c", broker.tcp_address, tags="blue"))
        await visit(Consumer("t", "c", broker.tcp_address, tags="red||red"))
    async with Broker(tmp_path) as broker:
        connection = await connect(broker)
        await send(connection, ["blue", "red"])
        async with Consumer("t", "c", broker.tcp_address) as consumer:
            assert (await anext(consumer)).properties.tag == "red"
        async with Consumer("t", "other", broker.tcp_address) as consumer:
            assert (await anext(consumer)).properties.tag == "blue"
        answer = await connection.call(
            "channel.configure", topic="t", channel="c", policy={"tags": None}
        )
        assert answer.fields == {"policy": {}}
        connection.close()


async def test_changed_tags_of_an_empty_channel_are_logged(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async with Broker(tmp_path) as broker:
        await visit(Consumer("t", "c", broker.tcp_address, tags="red"))
        caplog.clear()
        await visit(Consumer("t", "c", broker.tcp_address, tags=["blue", "red"]))
        said = [record.getMessage() for record in caplog.records]
        changed = "the tags of channel c of topic t changed from red to blue,red, because no other"
        assert any(changed in line for line in said)
        assert any(
            "changed the channel's tags from ['red'] to ['blue', 'red']" in line for line in said
        )

        # What an operator has set is never changed by a consumer, also after a restart.
        connection = await connect(broker)
        await connection.call(
            "channel.configure", topic="t", channel="c", policy={"tags": ["green"]}
        )
        connection.close()
    async with Broker(tmp_path) as broker:
        with pytest.raises(SubscribeRefused, match=r"has tags=green, .* an operator has set that"):
            await visit(Consumer("t", "c", broker.tcp_address, tags="red"))


async def test_tags_stay_when_only_an_order_is_added(
    broker: Broker, caplog: pytest.LogCaptureFixture
) -> None:
    await visit(Consumer("t", "c", broker.tcp_address, tags="red"))
    caplog.clear()
    await visit(Consumer("t", "c", broker.tcp_address, tags="red", order="key"))
    assert "changed" not in caplog.text
    await visit(Consumer("t", "c", broker.tcp_address))
    with pytest.raises(SubscribeRefused, match=r"CONFLICT .* has order=key"):
        await visit(Consumer("t", "c", broker.tcp_address, order="queue"))


@pytest.mark.parametrize("tags", ["a|b", ["*"], [""], "a || "])
def test_a_bad_tag_is_refused_at_once(tags: str | list[str]) -> None:
    with pytest.raises(BadProperties):
        Consumer("t", "c", tags=tags)
