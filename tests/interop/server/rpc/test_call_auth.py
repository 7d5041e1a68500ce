"""Calls of clients that an auth server lets do some things and not others."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from tests.interop.auth_server import EVERYTHING, Answer, AuthServer, allowed
from tests.interop.calling import caller

from martlet.testing import Broker
from martlet.text import MILLISECOND_NS

SOME = {"topic": "mails", "channels": [".*"], "permissions": ["publish"]}


@pytest.fixture(scope="module")
def server() -> Iterator[AuthServer]:
    answers = {"all": Answer(allowed(EVERYTHING)), "some": Answer(allowed(SOME))}
    with AuthServer(answers) as server:
        yield server


async def test_nothing_can_be_called_before_auth(server: AuthServer) -> None:
    async with (
        Broker(auth_http_addresses=(server.address,)) as broker,
        caller(broker.tcp_address) as stranger,
    ):
        for method in ("transaction.list", "transaction.checks", "topic.describe"):
            answer = await stranger.call(method, group="g")
            assert answer["error"]["code"] == "FORBIDDEN"


async def test_a_transaction_is_visible_to_clients_that_may_publish_its_messages(
    server: AuthServer,
) -> None:
    broker = Broker(
        auth_http_addresses=(server.address,), transaction_check_after_ns=MILLISECOND_NS
    )
    async with (
        broker,
        caller(broker.tcp_address, "all") as boss,
        caller(broker.tcp_address, "some") as clerk,
    ):
        for id, topic in (("a", "orders"), ("b", "mails")):
            begin = {"begin": {"group": "g"}}
            assert (await boss.send(topic, transaction=id, branch="b", number=0, **begin))[
                "status"
            ] == "OK"
        for method in ("prepare", "commit", "rollback"):
            refused = await clerk.call(f"transaction.{method}", id="a")
            assert refused["error"]["code"] == "FORBIDDEN"
        asked = await clerk.call("transaction.checks", group="g")
        assert [each["id"] for each in asked["transactions"]] == ["b"]
        assert not (await clerk.call("transaction.checks", group="g", wait_ms=50))["transactions"]
        asked = await boss.call("transaction.checks", group="g")
        assert [(each["id"], each["checks"]) for each in asked["transactions"]] == [("a", 1)]
