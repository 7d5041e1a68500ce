"""Transactions over the wire: what plain NSQ consumers see of them, and who is asked."""

from __future__ import annotations

import asyncio
import json
import shutil
from pathlib import Path
from typing import Any, Self

import pytest
from tests.crash.wire import Wire
from tests.interop.connections import connect

from martlet.client.errors import CallRefused
from martlet.client.transport.connection import Connection
from martlet.protocol.nsq import commands
from martlet.testing import Broker
from martlet.text import MILLISECOND_NS


async def add(
    connection: Connection, id: str, number: int, topic: str, *bodies: bytes, **options: Any
) -> dict[str, Any]:
    fields = {"transaction": id, "branch": "b", "number": number, **options}
    return dict(json.loads(await connection.ask(commands.send(topic, list(bodies), fields))))


class Plain(Wire):
    """A consumer that speaks NSQ's protocol and nothing else."""

    @classmethod
    async def of(cls, broker: Broker, topic: str) -> Self:
        plain = await cls.subscribed(broker.tcp_address, topic, "plain")
        plain.send(b"RDY 100\n")
        return plain

    async def next(self) -> bytes:
        """The next message's body; it is finished."""
        message = await self.message()
        self.send(b"FIN %b\n" % message.id)
        return message.body


def asking_often(checks: int) -> Broker:
    """A broker whose transactions are silent soon."""
    return Broker(
        transaction_check_after_ns=20 * MILLISECOND_NS,
        transaction_check_interval_ns=20 * MILLISECOND_NS,
        transaction_checks=checks,
    )


async def test_a_plain_consumer_sees_committed_messages_only(
    broker: Broker, connection: Connection
) -> None:
    plain = await Plain.of(broker, "orders")
    for id in ("kept", "dropped"):
        added = await add(connection, id, 0, "orders", id.encode(), b"2", begin={})
        assert added == {"status": "OK", "count": 2}
        assert (await add(connection, id, 1, "mails", b"3"))["status"] == "OK"
    assert (await connection.call("transaction.rollback", id="dropped")).fields == {
        "state": "rolled-back"
    }
    await connection.ask(commands.publish("orders", b"between"))
    prepared = await connection.call("transaction.prepare", id="kept", branches={"b": 3})
    assert prepared.fields == {"state": "prepared"}
    assert broker.server.broker.log.durable_position > 0
    for _ in range(2):
        answer = await connection.call("transaction.commit", id="kept", branches={"b": 3})
        assert answer.fields == {"state": "committed"}
    assert [await plain.next() for _ in range(3)] == [b"between", b"kept", b"2"]
    mails = await Plain.of(broker, "mails")
    assert await mails.next() == b"3"
    await connection.ask(commands.publish("orders", b"last"))
    await connection.ask(commands.publish("mails", b"last"))
    assert await plain.next() == b"last"
    assert await mails.next() == b"last"
    for client in (plain, mails):
        client.close()


@pytest.mark.parametrize("flush", ["async", "sync"])
async def test_a_decision_before_a_crash_is_answered_after_it(tmp_path: Path, flush: str) -> None:
    """A rollback that was asked for again was never answered."""
    options: dict[str, Any] = {"flush": flush, "max_bytes_per_file": 1 << 20}
    async with Broker(tmp_path / "before", **options) as broker:
        connection = await connect(broker)
        for id in ("kept", "dropped"):
            await add(connection, id, 0, "orders", b"one", begin={})
        await connection.call("transaction.commit", id="kept")
        await connection.call("transaction.rollback", id="dropped")
        # What a kill -9 would leave.
        shutil.copytree(tmp_path / "before", tmp_path / "after")
        connection.close()
    async with Broker(tmp_path / "after", **options) as broker, asyncio.timeout(50):
        connection = await connect(broker)
        again = await connection.call("transaction.commit", id="kept")
        assert again.fields["state"] == "committed"
        again = await connection.call("transaction.rollback", id="dropped")
        assert again.fields["state"] == "rolled-back"
        again = await connection.call("transaction.begin", id="kept")
        assert again.fields["state"] == "committed"
        connection.close()


async def test_refusals_say_why(connection: Connection) -> None:
    answer = await add(connection, "t", 0, "orders", b"one")
    assert answer["status"] == "NOT_FOUND"
    assert "'t'" in answer["text"]
    assert (await add(connection, "t", 0, "orders", b"one", begin={}))["status"] == "OK"
    assert (await add(connection, "t", 2, "orders", b"one"))["status"] == "INCOMPLETE"
    assert (await add(connection, "t", 1, "orders", b"x", deliver_at_ms=5))["status"] == (
        "BAD_ARGUMENT"
    )
    with pytest.raises(CallRefused, match="has 1 message, and the commit says 2") as refused:
        await connection.call("transaction.commit", id="t", branches={"b": 2})
    assert refused.value.code == "INCOMPLETE"
    await connection.call("transaction.commit", id="t")
    with pytest.raises(CallRefused, match="cannot be rolled back") as refused:
        await connection.call("transaction.rollback", id="t")
    assert refused.value.code == "CONFLICT"
    assert refused.value.fields["state"] == "committed"
    assert (await add(connection, "t", 1, "orders", b"one", begin={}))["status"] == "CONFLICT"
    with pytest.raises(CallRefused, match="BAD_ARGUMENT"):
        await connection.call("transaction.checks", group="")
    both = await add(connection, "u", 0, "orders", b"one", commit=True)
    assert both["status"] == "BAD_ARGUMENT"
    assert "'branch'" in both["text"]
    assert (await add(connection, "u", 0, "orders", b"one", begin={}))["status"] == "OK"
    whole = commands.send("orders", [b"one"], {"transaction": "u", "commit": True})
    assert json.loads(await connection.ask(whole))["status"] == "CONFLICT"


async def test_a_repeated_commit_of_one_request_is_answered_whatever_became_of_its_topic(
    broker: Broker, connection: Connection
) -> None:
    core = broker.server.broker
    whole = commands.send("orders", [b"one"], {"transaction": "t", "commit": True, "queue": 0})
    again = commands.send("orders", [b"one"], {"transaction": "t", "commit": True, "queue": 7})
    answers = [json.loads(await connection.ask(whole))]
    core.delete_topic("orders")
    core.log.refuse_writes("for a test")
    answers += [json.loads(await connection.ask(command)) for command in (whole, again)]
    assert answers == [{"status": "OK", "count": 1}] * 3
    assert "orders" not in core.topics
    core.log.accept_writes()


async def test_one_request_commits_after_a_rollback_and_never_what_is_undecided(
    broker: Broker, connection: Connection
) -> None:
    core = broker.server.broker
    whole = commands.send("orders", [b"whole"], {"transaction": "t", "commit": True})
    assert (await add(connection, "t", 0, "orders", b"half", begin={}))["status"] == "OK"
    for step in ("prepare", "rollback"):
        answer = json.loads(await connection.ask(whole))
        assert (answer["status"], answer["state"]) == ("CONFLICT", core.transactions.state("t"))
        await connection.call(f"transaction.{step}", id="t")
    for _ in range(2):
        assert json.loads(await connection.ask(whole)) == {"status": "OK", "count": 1}
    with pytest.raises(CallRefused, match="cannot be rolled back"):
        await connection.call("transaction.rollback", id="t")
    plain = await Plain.of(broker, "orders")
    assert await plain.next() == b"whole"
    assert core.topics["orders"].queue.end_offset == 1
    plain.close()


async def test_a_producer_that_waits_is_asked_and_another_when_it_is_gone() -> None:
    async with asking_often(checks=10_000) as broker:
        first, second = await connect(broker), await connect(broker)
        await add(first, "t", 0, "orders", b"one", begin={"group": "billing"})
        checked = await checks(first)
        assert checked | {"begun_at_ms": 0, "bytes": 0} == {
            "id": "t",
            "group": "billing",
            "state": "silent",
            "begun_at_ms": 0,
            "messages": 1,
            "bytes": 0,
            "topics": {"orders": 1},
            "branches": {"b": 1},
            "checks": 1,
        }
        waiting = [asyncio.create_task(checks(producer)) for producer in (first, second)]
        first.close()
        # A remaining producer is asked, and so is one that connects only now.
        assert (await waiting[1])["id"] == "t"
        assert (await checks(second))["checks"] > 1
        await second.call("transaction.commit", id="t")
        await asyncio.gather(*waiting, return_exceptions=True)
        second.close()


async def checks(connection: Connection) -> dict[str, Any]:
    """The transaction that a producer of the group is asked about."""
    async with asyncio.timeout(50):
        answer = await connection.call("transaction.checks", group="billing")
    (checked,) = answer.fields["transactions"]
    return dict(checked)


async def test_a_transaction_set_aside_is_shown_and_committed_by_hand() -> None:
    async with asking_often(checks=2) as broker:
        connection = await connect(broker)
        await add(connection, "t", 0, "orders", b"one", b"two", begin={})
        aside = await Plain.of(broker, "transactions-set-aside")
        assert [await aside.next(), await aside.next()] == [b"one", b"two"]
        listed = (await connection.call("transaction.list", state="set-aside")).fields
        assert [row["id"] for row in listed["transactions"]] == ["t"]
        shown = (await connection.call("transaction.show", id="t", max_body_bytes=2)).fields
        assert shown["messages"] == [
            {"topic": "orders", "body_bytes": 3, "body_base64": "b24="},
            {"topic": "orders", "body_bytes": 3, "body_base64": "dHc="},
        ]
        assert (await connection.call("transaction.list", group="other")).fields["count"] == 0
        await connection.call("transaction.commit", id="t")
        plain = await Plain.of(broker, "orders")
        assert [await plain.next(), await plain.next()] == [b"one", b"two"]
        assert (await connection.call("transaction.show", id="t")).fields["state"] == "committed"
        for client in (connection, plain, aside):
            client.close()


async def test_a_producer_that_hung_up_over_http_is_asked_nothing() -> None:
    async with Broker(transaction_check_after_ns=20 * MILLISECOND_NS) as broker:
        _reader, writer = await asyncio.open_connection(*broker.http_address.split(":"))
        body = b'{"group": "g", "wait_ms": 60000}'
        head = b"POST /call/transaction.checks HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\n\r\n"
        writer.write(head % len(body) + body)
        calls = broker.server.calls.methods["transaction.checks"].__self__  # type: ignore[attr-defined]
        async with asyncio.timeout(50):
            while "g" not in calls._waiting:  # noqa: ASYNC110
                await asyncio.sleep(0.001)
            writer.close()
            await writer.wait_closed()
            transactions = broker.server.broker.transactions
            transactions.begin("t", "g")
            while "g" in calls._waiting or transactions.open["t"].state != "silent":  # noqa: ASYNC110
                await asyncio.sleep(0.001)
        assert transactions.open["t"].checks == 0
        connection = await connect(broker)
        checked = (await connection.call("transaction.checks", group="g")).fields["transactions"]
        assert [(row["id"], row["checks"]) for row in checked] == [("t", 1)]
        connection.close()
        await connection.wait_lost()
