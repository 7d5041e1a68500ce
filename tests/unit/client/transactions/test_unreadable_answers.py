"""Answers of a broker that a transaction, or a check-back, cannot read."""

from __future__ import annotations

import asyncio
import json
from types import SimpleNamespace
from typing import Any, cast

import pytest
from tests.unit.client.scripted_broker import ScriptedBroker, at

from martlet.client import Outcome, PendingTransaction, Producer, TransactionUnclear
from martlet.client.errors import ConnectionLost
from martlet.client.transactions import check_back
from martlet.client.transport.connection import Connection


@pytest.mark.parametrize("answer", [b"OK", b"[]", b'{"text": "no status"}', b"{"])
async def test_a_step_with_an_unreadable_answer_is_unclear(answer: bytes) -> None:
    script = at("SEND", act=lambda peer: peer.answer(answer))
    async with (
        ScriptedBroker(script, martlet={"version": 1}) as broker,
        Producer(broker.address) as producer,
    ):
        transaction = producer.transaction()
        with pytest.raises(TransactionUnclear, match=r"answered .*; it may have been done or not"):
            await transaction.publish("t", b"x")


async def test_check_backs_go_on_after_an_unreadable_answer(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    pending = json.loads(
        '{"id": "a", "group": "g", "state": "prepared", "messages": 1, "topics": {"t": 1},'
        ' "branches": {}, "begun_at_ms": 0, "checks": 1}'
    )
    answers: list[Any] = [
        {},
        {"transactions": None},
        {"transactions": [{"id": "a"}]},
        {"transactions": [{**pending, "begun_at_ms": 1 << 70}]},
        {"transactions": [pending]},
    ]
    ended: list[str] = []

    async def call(method: str, **fields: object) -> object:
        if method != "transaction.checks":
            ended.append(f"{method} {fields['id']}")
        elif not answers:
            raise ConnectionLost("the end of the test")
        return SimpleNamespace(fields=answers.pop(0) if method == "transaction.checks" else {})

    def check(_pending: PendingTransaction) -> Outcome:
        return Outcome.COMMIT

    monkeypatch.setattr(check_back, "_AGAIN_S", 0.0)
    listener = check_back.CheckBackListener("g", check)
    connection = SimpleNamespace(address="a:1", call=call, features=SimpleNamespace(extensions=1))
    listener.connected(cast(Connection, connection))
    async with asyncio.timeout(50):
        await asyncio.gather(*listener._tasks)
    assert ended == ["transaction.commit a"]
    assert caplog.text.count("a:1: check-back of g: ") == 4
