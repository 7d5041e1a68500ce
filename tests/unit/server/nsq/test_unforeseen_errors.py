"""An error that nobody foresaw ends its connection, and no client waits for ever for its answer."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pytest
from tests.crash.wire import ERROR, GONE, RESPONSE, Frame, Wire, pub, u32
from tests.interop.auth_server import EVERYTHING, Answer, AuthServer, allowed
from tests.polling import until

from martlet.broker.errors import WritesRefused
from martlet.broker.queue.queue_log import Receipt
from martlet.protocol.nsq import commands, v2
from martlet.protocol.nsq.authorization import Authorizations
from martlet.server import clock
from martlet.server.nsq import authorizer
from martlet.server.nsq.calls import ConnectedCaller
from martlet.server.nsq.client_io import DeferredReply
from martlet.server.nsq.connection import ClientConnection
from martlet.testing import Broker

AUTH = b"AUTH\n" + u32(1) + b"s"


@pytest.fixture
async def errors() -> list[str]:
    """The types of the errors that the loop has logged."""
    heard: list[str] = []
    loop = asyncio.get_running_loop()
    loop.set_exception_handler(lambda _, context: heard.append(type(context["exception"]).__name__))
    return heard


@pytest.fixture
async def guarded() -> AsyncIterator[Broker]:
    """A broker with an auth server."""
    with AuthServer({"s": Answer(allowed(EVERYTHING))}) as server:
        async with Broker(auth_http_addresses=[server.address]) as broker:
            yield broker


async def connected(broker: Broker) -> tuple[Wire, ClientConnection]:
    before = set(broker.server.connections)
    wire = await Wire.open(broker.tcp_address)
    await until(lambda: broker.server.connections - before)
    (connection,) = broker.server.connections - before
    await until(lambda: connection.greeted)
    return wire, connection


async def is_ended(wire: Wire) -> bool:
    with pytest.raises(GONE):
        await wire.answer()
    wire.close()
    return True


def fail(*_: object) -> Any:
    raise ZeroDivisionError


def fail_to_import(*_: object) -> Any:
    raise ModuleNotFoundError("No module named 're2'")


def tracebacks(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [each.getMessage() for each in caplog.records if each.exc_info]


@pytest.mark.parametrize("step", ["read_answer", "load_aiohttp"])
async def test_an_error_while_an_auth_server_is_asked_fails_the_auth(
    guarded: Broker, step: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(f"{authorizer.__name__}.{step}", fail_to_import)
    wire, connection = await connected(guarded)
    wire.send(AUTH)
    assert await wire.answer() == Frame(ERROR, b"E_AUTH_FAILED AUTH failed")
    assert await is_ended(wire)
    about = f"PROTOCOL(V2): [{connection.remote_address}] AUTH failed"
    assert [each for each in caplog.messages if each.startswith(about)] == [about]
    assert tracebacks(caplog) == [about]
    monkeypatch.undo()
    wire, _ = await connected(guarded)
    wire.send(AUTH)
    assert (await wire.answer()).type == RESPONSE
    wire.close()


@pytest.mark.parametrize("command", [pub("t", b"x"), b"SUB t c\n"])
async def test_an_error_while_permissions_are_renewed_ends_the_connection(
    guarded: Broker,
    command: bytes,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    wire, connection = await connected(guarded)
    wire.send(AUTH)
    assert (await wire.answer()).type == RESPONSE
    assert connection.guard is not None
    connection.guard._expires_ns = 0
    monkeypatch.setattr(authorizer, "read_answer", fail)
    wire.send(command)
    assert await wire.answer() == Frame(ERROR, b"E_AUTH_FAILED AUTH failed")
    assert await is_ended(wire)
    assert len(tracebacks(caplog)) == 1
    assert not guarded.server.broker.topics


async def test_an_answer_of_auth_that_cannot_be_encoded_ends_the_connection(
    guarded: Broker, errors: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Authorizations, "answer", fail)
    wire, _ = await connected(guarded)
    wire.send(AUTH + b"NOP\n")
    assert await is_ended(wire)
    assert errors == ["ZeroDivisionError"]


async def test_an_error_of_a_command_that_waited_for_its_turn_ends_the_connection(
    broker: Broker, errors: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The commands before it were handled again with the client's next bytes."""
    monkeypatch.setattr(clock, "SLICE_NS", 0)
    wire, connection = await connected(broker)
    handled: list[object] = []

    def handle(*arguments: object) -> None:
        handled.append(arguments)
        if len(handled) == 30:
            fail()

    connection._commands = {**connection._commands, v2.Nop: handle}
    wire.send(b"NOP\n" * 60)
    assert await is_ended(wire)
    assert (len(handled), errors) == (30, ["ZeroDivisionError"])
    await until(lambda: not broker.server.connections)


class Unforeseen(DeferredReply):
    def stored(self) -> bytes:
        raise ZeroDivisionError

    def refused(self, error: WritesRefused) -> bytes:
        raise ZeroDivisionError


@pytest.mark.parametrize("flush", ["async", "sync"])
async def test_an_answer_that_fails_leaves_the_others_of_its_turn(
    flush: str, errors: list[str]
) -> None:
    """All connections behind it in the turn waited for ever."""
    async with Broker(flush=flush) as broker:
        bad, connection = await connected(broker)
        good, other = await connected(broker)
        receipt = Receipt()
        receipt.position = 1
        connection.replies.promise(receipt, "SEND", Unforeseen(waits=True))
        topic = broker.server.broker.topic("t")
        other.replies.promise(topic.stage([b"x"]), "PUB", 1)
        broker.server.commits.ticks.note_input()
        await good.ok()
        assert await is_ended(bad)
        assert errors == ["ZeroDivisionError"]
        good.send(pub("t", b"x"))
        await good.ok()
        good.close()


async def test_an_answer_of_a_call_that_cannot_be_sent_ends_the_connection(
    broker: Broker, errors: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    for method in ("topic.create", "transaction.checks"):
        wire, connection = await connected(broker)
        connection.decoder.extended = True
        with monkeypatch.context() as context:
            context.setattr(ConnectedCaller, "answer", fail)
            fields = {"topic": "t"} if method == "topic.create" else {"group": "g", "wait_ms": 0}
            wire.send(commands.call(1, method, fields))
            assert await is_ended(wire)
    assert errors == ["ZeroDivisionError"] * 2


async def test_an_error_once_the_client_reads_again_ends_the_connection(
    broker: Broker, errors: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    wire, connection = await connected(broker)
    wire.send(b"SUB t c\n")
    await wire.ok()
    connection.pause_writing()
    channel, _ = connection.subscribed()
    monkeypatch.setattr(channel, "set_blocked", fail)
    connection.resume_writing()
    assert await is_ended(wire)
    assert errors == ["ZeroDivisionError"]
