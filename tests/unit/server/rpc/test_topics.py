"""The calls about topics and channels: what they answer and refuse, and what the clients make."""

from __future__ import annotations

import asyncio
import inspect
import json
from collections.abc import AsyncIterator
from typing import Any

import pytest
from tests.admin_page import change
from tests.crash.wire import http

from martlet.client import Admin, AdminError, InvalidName, Producer, sync
from martlet.client.admin import TopicDescription
from martlet.names import NAME_RULE
from martlet.properties.model import KeyHash
from martlet.schema.read import read_answer
from martlet.testing import Broker

TC = {"topic": "t", "channel": "c"}
EMPTIED = {"queue": 0, "offset": 0, "end_offset": 3, "unfinished": []}


@pytest.fixture
async def broker() -> AsyncIterator[Broker]:
    async with Broker() as found:
        await change(found.http_address, "/topic/create?topic=t")
        await change(found.http_address, "/channel/create?topic=t&channel=c")
        yield found


async def call(broker: Broker, name: str, **fields: Any) -> Any:
    async with Admin(broker.http_address) as admin:
        return await admin.http.call(f"http://{broker.http_address}", name, fields)


async def test_a_description_has_all_fields_also_where_they_are_empty(broker: Broker) -> None:
    answer = await call(broker, "topic.describe", topic="t")
    (queue,) = answer["queues"]
    assert answer == {
        "topic": "t",
        "key_hash": "crc32c-fmix32",
        "queues": [queue],
        "channels": ["c"],
        "policy": {},
        "channel_policies": {"c": {}},
    }
    assert queue == {
        "queue": 0, "id_base": queue["id_base"], "start_offset": 0, "end_offset": 0
    }  # fmt: skip
    broker.server.broker.find_topic("t").key_hash = KeyHash.CRC32C  # as 0.1.0 has made it
    assert (await call(broker, "topic.describe", topic="t"))["key_hash"] == "crc32c"


async def test_a_created_topic_is_described(broker: Broker) -> None:
    answer = await call(broker, "topic.create", topic="new", queues=3)
    assert [queue["queue"] for queue in answer["queues"]] == [0, 1, 2]
    assert await call(broker, "topic.create", topic="new") == answer
    with pytest.raises(AdminError, match="has 3 queues"):
        await call(broker, "topic.create", topic="new", queues=2)


def test_a_description_of_an_earlier_broker_is_read() -> None:
    described = read_answer(TopicDescription, {"topic": "t", "queues": [], "channels": []})
    assert (described.key_hash, described.policy, described.channel_policies) == ("crc32c", {}, {})


@pytest.mark.parametrize(
    ("name", "fields", "code", "text"),
    [
        ("topic.describe", {"topic": "a b"}, "BAD_NAME", f"topic 'a b' is not valid: {NAME_RULE}"),
        ("topic.describe", {"topic": "u"}, "NOT_FOUND", "there is no topic"),
        ("topic.create", {"topic": "u", "queues": 0}, "BAD_ARGUMENT", "from 1 to 1024, not 0"),
        ("topic.create", {"topic": "u", "queues": 1025}, "BAD_ARGUMENT", "to 1024, not 1025"),
        ("topic.configure", {"topic": "t", "policy": {"x": 1}}, "BAD_ARGUMENT", "no setting 'x'"),
        ("channel.configure", {**TC, "policy": {"order": "x"}}, "BAD_ARGUMENT", "order must be"),
        ("channel.configure", {**TC, "channel": "d", "policy": {}}, "NOT_FOUND", "no channel 'd'"),
        (
            "channel.configure",
            {**TC, "policy": {"dead_letter_topic": "t"}},
            "BAD_ARGUMENT",
            "name another one",
        ),
        ("channel.want", {**TC, "policy": {"order": "x"}}, "BAD_ARGUMENT", "order must be"),
        ("channel.want", {**TC, "policy": {"kind": "offsets", "order": "key"}}, "CONFLICT", ""),
        ("channel.restore", {**TC, "queues": ["x"]}, "BAD_ARGUMENT", "queues has 'x', which is"),
    ],
)
async def test_what_is_wrong_is_refused(
    broker: Broker, name: str, fields: dict[str, Any], code: str, text: str
) -> None:
    with pytest.raises(AdminError) as refusal:
        await call(broker, name, **fields)
    assert refusal.value.code == code
    assert text in refusal.value.why


@pytest.fixture
async def filled(broker: Broker) -> Broker:
    async with Producer(broker.tcp_address) as producer:
        await producer.publish_many("t", [b"1", b"2", b"3"])
    return broker


async def test_the_answer_of_an_empty_is_taken(filled: Broker) -> None:
    empty = "/channel/empty?topic=t&channel=c"
    emptied = json.loads(await http(filled.http_address, f"{empty}&undo=true", b""))
    assert emptied["queues"] == [EMPTIED]
    assert await call(filled, "channel.restore", **TC, queues=[EMPTIED]) == {"depth": 3}
    assert await http(filled.http_address, empty, b"") == b"", "as nsqd"


@pytest.mark.parametrize(
    "queue",
    [
        *(None, 1, "x", [], {}, {"queue": 0}),
        *({**EMPTIED, "queue": "0"}, {**EMPTIED, "offset": -1}, {**EMPTIED, "offset": 1.5}),
        *({**EMPTIED, "offset": True}, {**EMPTIED, "offset": 1 << 70}),
        *({**EMPTIED, "unfinished": rows} for rows in (None, 3, [1], [[1]], [["a", "b", 1, 0, 0]])),
        {**EMPTIED, "unfinished": [[2, 1, 1, 0, 0]]},
        {**EMPTIED, "unfinished": [[0, 2, 1, 0, 0], [1, 3, 1, 0, 0]]},
        {**EMPTIED, "unfinished": [[0, 1, 1 << 20, 0, 0]]},
        {**EMPTIED, "offset": 1 << 40, "unfinished": [[0, 1 << 40, 1, 0, 0]]},
    ],
)
async def test_what_no_empty_answers_is_refused(filled: Broker, queue: Any) -> None:
    with pytest.raises(AdminError) as refusal:
        await call(filled, "channel.restore", **TC, queues=[queue])
    assert refusal.value.code == "BAD_ARGUMENT"


@pytest.mark.parametrize(
    ("queues", "code", "text"),
    [
        ([{**EMPTIED, "offset": 4}], "CONFLICT", "ends at offset 3"),
        ([{**EMPTIED, "queue": 7}], "NOT_FOUND", "7"),
        ([EMPTIED, EMPTIED], "BAD_ARGUMENT", "twice"),
    ],
)
async def test_places_that_are_not_there_are_refused(
    filled: Broker, queues: list[Any], code: str, text: str
) -> None:
    with pytest.raises(AdminError, match=text) as refusal:
        await call(filled, "channel.restore", **TC, queues=queues)
    assert refusal.value.code == code


async def test_null_resets_a_field_of_a_policy(broker: Broker) -> None:
    policy: dict[str, Any] = {"retention_ms": 5, "trace": "on"}
    assert await call(broker, "topic.configure", topic="t", policy=policy) == {"policy": policy}
    answer = await call(broker, "topic.configure", topic="t", policy={"trace": None})
    assert answer == {"policy": {"retention_ms": 5}}
    policy = {"max_attempts": 3, "tags": ["a"]}
    assert await call(broker, "channel.configure", **TC, policy=policy) == {"policy": policy}
    answer = await call(broker, "channel.configure", **TC, policy=dict.fromkeys(policy))
    assert answer == {"policy": {}}


async def test_both_clients_refuse_names_that_are_none(broker: Broker) -> None:
    nothing: Any = None

    def block() -> None:
        with sync.Admin(broker.http_address) as blocking:
            (described,) = blocking.topics.describe("t").values.values()
            assert described.fields["channels"] == ["c"]
            with pytest.raises(InvalidName, match="topic 'a b' is not valid"):
                blocking.topics.describe("a b")
            with pytest.raises(ValueError, match="the argument channel is missing"):
                blocking.channels.configure("t", nothing, max_attempts=1)

    async with Admin(broker.http_address) as admin:
        assert list(inspect.signature(admin.topics.describe).parameters) == ["topic"]
        (described,) = (await admin.topics.describe("t")).values.values()
        assert (described.channels, described.queues[0].priority) == (("c",), 4)
        with pytest.raises(InvalidName, match="channel 'a b' is not valid"):
            await admin.channels.configure("t", "a b")
        with pytest.raises(ValueError, match="the argument channel is missing"):
            await admin.channels.configure("t", nothing, max_attempts=1)
        assert (await call(broker, "topic.describe", topic="t"))["channel_policies"] == {"c": {}}
    await asyncio.to_thread(block)
