"""A publish that is refused leaves no topic, and says what to write instead."""

from __future__ import annotations

import json

import aiohttp
import pytest

from martlet.client import Producer, PublishRefused
from martlet.testing import Broker

pytestmark = pytest.mark.interop


@pytest.mark.parametrize("path", ["/pub?topic=t", "/mpub?topic=t", "/mpub?topic=t&binary=true"])
@pytest.mark.parametrize("header", ["Priority: 99", "Deliver-At: abc", "Tag: a|b", "Header: x"])
async def test_a_refused_header_leaves_no_topic(broker: Broker, path: str, header: str) -> None:
    name, _, value = header.partition(": ")
    async with (
        aiohttp.ClientSession(f"http://{broker.http_address}") as session,
        session.post(path, data=b"x", headers={f"X-Martlet-{name}": value}) as answer,
    ):
        assert answer.status == 400
    assert not broker.server.broker.topics


@pytest.mark.parametrize("method", ["publish", "send"])
async def test_a_queue_that_is_not_there_leaves_no_topic(broker: Broker, method: str) -> None:
    async with Producer(broker.tcp_address) as producer:
        with pytest.raises(PublishRefused, match="topic 't' has no queue 7: it has 1 queue"):
            await getattr(producer, method)("t", b"x", queue=7)
    assert not broker.server.broker.topics


async def test_a_refused_message_over_plain_http_leaves_no_topic(broker: Broker) -> None:
    url = f"http://{broker.http_address}/v1/topics/t/messages"
    async with (
        aiohttp.ClientSession() as session,
        session.post(url, json={"body": "x", "queue": 3}) as answer,
    ):
        assert (answer.status, "has no queue 3" in await answer.text()) == (400, True)
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
    url = f"http://{broker.http_address}/v1/topics/t/messages"
    headers = {"Content-Type": content_type}
    async with (
        aiohttp.ClientSession() as session,
        session.post(url, data=data, headers=headers) as answer,
    ):
        assert answer.status == 400
        message = (await answer.json())["message"]
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
    url = f"http://{broker.http_address}{path}"
    async with aiohttp.ClientSession() as session, session.request(method, url) as answer:
        assert answer.status == status
        message = json.loads(await answer.text())["message"]
    assert text in message


async def test_a_person_at_the_root_learns_where_the_page_is(broker: Broker) -> None:
    url = f"http://{broker.http_address}/"
    async with aiohttp.ClientSession() as session:
        async with session.get(url, headers={"Accept": "text/html,*/*"}) as answer:
            assert (answer.status, "martlet admin" in await answer.text()) == (404, True)
        async with session.get(url) as answer:
            assert (answer.status, await answer.json()) == (404, {"message": "NOT_FOUND"})
