"""A publish that is refused leaves no topic, and says what to write instead."""

from __future__ import annotations

import json
from typing import Any

import aiohttp
import pytest

from martlet.client import Producer, PublishRefused
from martlet.testing import Broker

pytestmark = pytest.mark.interop

MESSAGES = "/v1/topics/t/messages"


async def ask(broker: Broker, method: str, path: str, **more: Any) -> tuple[int, str]:
    async with (
        aiohttp.ClientSession(f"http://{broker.http_address}") as session,
        session.request(method, path, **more) as answer,
    ):
        return answer.status, await answer.text()


@pytest.mark.parametrize("path", ["/pub?topic=t", "/mpub?topic=t", "/mpub?topic=t&binary=true"])
@pytest.mark.parametrize("header", ["Priority: 99", "Deliver-At: abc", "Tag: a|b", "Header: x"])
async def test_a_refused_header_leaves_no_topic(broker: Broker, path: str, header: str) -> None:
    name, _, value = header.partition(": ")
    headers = {f"X-Martlet-{name}": value}
    assert (await ask(broker, "POST", path, data=b"x", headers=headers))[0] == 400
    assert not broker.server.broker.topics


@pytest.mark.parametrize("method", ["publish", "send"])
async def test_a_queue_that_is_not_there_leaves_no_topic(broker: Broker, method: str) -> None:
    async with Producer(broker.tcp_address) as producer:
        with pytest.raises(PublishRefused, match="topic 't' has no queue 7: it has 1 queue"):
            await getattr(producer, method)("t", b"x", queue=7)
    assert not broker.server.broker.topics


async def test_a_refused_message_over_plain_http_leaves_no_topic(broker: Broker) -> None:
    status, text = await ask(broker, "POST", MESSAGES, json={"body": "x", "queue": 3})
    assert (status, "has no queue 3" in text) == (400, True)
    assert not broker.server.broker.topics


async def test_a_priority_of_another_type_is_named(broker: Broker) -> None:
    async with Producer(broker.tcp_address) as producer:
        with pytest.raises(ValueError, match="'9': a priority is a whole number, 0"):
            await producer.send("t", b"x", priority="9")  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("content_type", "data"),
    [
        ("application/x-ndjson", '[{"body": "a"}]'),
        ("application/json", '[{"body": "a"}]'),
        ("application/json", '{"body": "a"}\n{"body": "b"}'),
    ],
)
async def test_several_messages_in_another_form_get_the_right_one_named(
    broker: Broker, content_type: str, data: str
) -> None:
    headers = {"Content-Type": content_type}
    status, text = await ask(broker, "POST", MESSAGES, data=data, headers=headers)
    assert status == 400
    message = json.loads(text)["message"]
    assert message.startswith("INVALID_JSON: ")
    assert "application/x-ndjson" in message


@pytest.mark.parametrize(
    ("method", "path", "status", "text"),
    [
        ("GET", "/v1", 404, "/v1/openapi.json"),
        ("GET", "/v1/nope", 404, "/v1/openapi.json"),
        ("GET", "/v1/topics/t/messages", 405, "POST, not GET"),
        ("DELETE", "/v1/topics/t/messages", 405, "POST, not DELETE"),
    ],
)
async def test_a_route_of_plain_http_that_is_not_there_names_the_way_out(
    broker: Broker, method: str, path: str, status: int, text: str
) -> None:
    answered, body = await ask(broker, method, path)
    assert (answered, text in json.loads(body)["message"]) == (status, True)


async def test_a_person_at_the_root_learns_where_the_page_is(broker: Broker) -> None:
    status, text = await ask(broker, "GET", "/", headers={"Accept": "text/html,*/*"})
    assert (status, "martlet admin" in text) == (404, True)
    status, text = await ask(broker, "GET", "/")
    assert (status, json.loads(text)) == (404, {"message": "NOT_FOUND"})
