"""The handshake, against brokers that answer by a script."""

from __future__ import annotations

import asyncio
import json
import math
import ssl
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from tests.unit.client.consumer.consuming import refused
from tests.unit.client.scripted_broker import Command, Script, ScriptedBroker, at, frame

from martlet.addresses import Address
from martlet.client import (
    AuthRefused,
    Backoff,
    ConnectFailed,
    ConnectRefused,
    Consumer,
    Identity,
    Producer,
    Tls,
)
from martlet.client.transport import dialer
from martlet.client.transport.connection import Connection
from martlet.client.transport.discovery import Discovery, _Answer

FAST = Backoff(first_s=0.01, max_s=0.02)


def answering(*frames: bytes) -> Script:
    """Answers IDENTIFY with these frames, in one piece."""
    return at("IDENTIFY", act=lambda peer: peer.send(b"".join(frames)))


def agreed(**features: object) -> bytes:
    return frame(0, json.dumps(features).encode())


async def open_one(broker: ScriptedBroker, **identity: Any) -> Connection:
    address = Address.parse(broker.address)
    return await Connection.open(address, Identity(**identity), timeout_s=2)


async def test_a_feature_missing_from_the_answer_is_not_offered() -> None:
    async with ScriptedBroker() as broker:
        for wishes, says in (
            ({"tls": True}, "does not offer TLS"),
            ({"compression": "snappy"}, "does not offer snappy"),
            ({"compression": "deflate"}, "does not offer deflate"),
        ):
            with pytest.raises(ConnectRefused, match=says):
                await open_one(broker, **wishes)
        assert [identity["tls_v1"] for identity in broker.identities] == [True, False, False]
        assert [identity["snappy"] for identity in broker.identities] == [False, True, False]
    async with ScriptedBroker(answering(frame(0, b"OK"))) as old:
        with pytest.raises(ConnectRefused, match="does not offer TLS"):
            await open_one(old, tls=True)


async def test_nothing_that_came_before_tls_is_read_as_if_it_came_in_it() -> None:
    """Otherwise an attacker on the way could answer in the broker's place."""
    async with ScriptedBroker(answering(agreed(tls_v1=True), frame(0, b"OK"))) as broker:
        with pytest.raises(ConnectRefused, match="tls: "):
            await open_one(broker, tls=Tls(verify=False))


@pytest.mark.parametrize(
    ("frames", "says"),
    [
        ([frame(0, b"yes")], "the answer to IDENTIFY is no JSON object: b'yes'"),
        ([frame(0, b"[" * 100_000)], "the answer to IDENTIFY is no JSON object"),
        ([agreed(msg_timeout=None)], "msg_timeout is None, no whole number"),
        ([agreed(msg_timeout=0)], "msg_timeout is 0, which is not from 1 to"),
        ([agreed(msg_timeout=-60_000)], "msg_timeout is -60000, which is not from 1 to"),
        ([agreed(msg_timeout=10**400)], "msg_timeout is 10{39}, which is not from 1 to"),
        ([agreed(msg_timeout=float("nan"))], "msg_timeout is nan, no whole number"),
        ([agreed(max_msg_timeout=-1)], "max_msg_timeout is -1, which is not from 1 to"),
        ([agreed(max_rdy_count=-1)], "max_rdy_count is -1, which is not from 0 to"),
        ([agreed(max_rdy_count=2**63)], "max_rdy_count is 9223372036854775808, which is not from"),
        ([agreed(sample_rate=-5)], "sample_rate is -5, which is not from 0 to 100"),
        ([frame(2, b"x" * 30)], "a message, before any was asked for"),
        ([b"HTTP/1.1 400 Bad Request\r\n\r\n"], "that is an HTTP port"),
        ([b"\x7f\xff\xff\xff\0\0\0\0"], "above the limit"),
        ([agreed(auth_required=True), frame(0, b"OK")], "the answer to AUTH is no JSON object"),
    ],
)
async def test_a_bad_answer_is_a_failure(frames: list[bytes], says: str) -> None:
    async with ScriptedBroker(answering(*frames)) as broker:
        with pytest.raises(ConnectFailed, match=says) as caught:
            await open_one(broker, auth_secret="x")
        assert not isinstance(caught.value, ConnectRefused), "another attempt may do"


async def test_an_expired_certificate_is_reported(tmp_path: Path) -> None:
    trustme = pytest.importorskip("trustme")
    authority = trustme.CA()
    authority.cert_pem.write_to_path(tmp_path / "authority.pem")
    leaf = authority.issue_cert("127.0.0.1", not_after=datetime(2020, 1, 1, tzinfo=UTC))
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    leaf.configure_cert(context)

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"}")
        writer.write(agreed(tls_v1=True))
        with suppress(ssl.SSLError, ConnectionError):
            await writer.start_tls(context)
        writer.close()

    async with await asyncio.start_server(serve, "127.0.0.1", 0) as server:
        address = Address(*server.sockets[0].getsockname())
        identity = Identity(tls=Tls(ca_file=tmp_path / "authority.pem"))
        with pytest.raises(ConnectRefused, match=r"certificate has expired$"):
            await Connection.open(address, identity, timeout_s=5)


async def test_heartbeats_in_the_handshake_are_answered_and_lose_nothing() -> None:
    async def script(command: Command) -> bool:
        if command.name == "AUTH":
            assert command.bodies == [b"s\xe4cret"]
            command.peer.answer(b"_heartbeat_")
            command.peer.answer(b'{"identity": "anna"}')
            command.peer.answer(b"_heartbeat_")
        return command.name == "AUTH"

    async with ScriptedBroker(script, auth_required=True) as broker:
        connection = await open_one(broker, auth_secret=b"s\xe4cret")
        await broker.until(lambda: broker.nops == 2)
        assert connection.features.auth_identity == "anna"
        connection.close()
        await connection.wait_lost()


async def test_a_broker_that_hangs_up_is_tried_again() -> None:
    script = at("IDENTIFY", act=lambda peer: peer.hang_up(), times=2)
    async with (
        ScriptedBroker(script) as broker,
        Producer(broker.address, backoff=FAST, timeout_s=5) as producer,
    ):
        await producer.publish("t", b"one")
    assert len(broker.identities) == 3


@pytest.mark.parametrize("tls", [False, True])
async def test_a_broker_that_says_nothing_is_given_up(tls: bool) -> None:
    async def deaf(command: Command) -> bool:
        command.peer.send(agreed(tls_v1=True) if tls else b"")
        await asyncio.Event().wait()
        return True

    async with ScriptedBroker(deaf) as broker:
        with pytest.raises(ConnectFailed, match=r"within 0\.1 s"):
            await Connection.open(Address.parse(broker.address), Identity(tls=tls), timeout_s=0.1)


async def test_a_refusal_is_hopeless_only_when_all_refuse() -> None:
    async with (
        ScriptedBroker(auth_required=True) as strict,
        ScriptedBroker() as other,
        Producer([strict.address, other.address], backoff=FAST) as producer,
    ):
        await producer.publish("t", b"one")
    assert other.bodies() == [b"one"]
    async with ScriptedBroker(auth_required=True) as strict:
        await refused(
            Producer(strict.address, backoff=FAST), AuthRefused, "there is no auth_secret"
        )
        assert len(strict.peers) == 1


async def test_a_client_that_was_accepted_before_is_patient(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(dialer, "PATIENCE_S", 0.2)
    async with ScriptedBroker() as broker, Producer(broker.address, backoff=FAST) as producer:
        for refusals in (3, math.inf):
            broker.script = at(
                "IDENTIFY",
                act=lambda peer: peer.fail(b"E_BAD_BODY IDENTIFY no"),
                times=refusals,
            )
            broker.peers[-1].hang_up()
            if refusals == 3:
                await broker.until(lambda: len(broker.identities) == 5)
                await producer.publish("t", b"one")
        for body in (b"two", b"three"):
            with pytest.raises(ConnectRefused, match="E_BAD_BODY"):
                await producer.publish("t", body)


async def test_a_broker_that_was_found_and_refuses_is_done_without(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async with ScriptedBroker(auth_required=True) as strict, ScriptedBroker() as other:
        named = [strict, other]

        async def ask(_discovery: Discovery, _url: str) -> _Answer:
            return _Answer([Address.parse(broker.address) for broker in named], True)

        monkeypatch.setattr(Discovery, "_ask", ask)
        async with Consumer("t", "c", lookup="127.0.0.1:1", backoff=FAST) as consumer:
            await other.until(lambda: other.named("RDY"))
            assert consumer.connected_count == 1
            other.deliver(1)
            assert (await anext(consumer)).body == b"body 1"
        named.remove(other)
        with pytest.raises(AuthRefused):
            async with Consumer("t", "c", lookup="127.0.0.1:1", backoff=FAST):
                pass


def test_settings_are_checked(tmp_path: Path) -> None:
    context = ssl.create_default_context()
    for settings, says in (
        ({"key_file": "x"}, "cert_file"),
        ({"server_name": ""}, "server_name"),
        ({"context": context, "ca_file": "x"}, "ca_file"),
        ({"context": context, "verify": False}, "verify"),
    ):
        with pytest.raises(ValueError, match=says):
            Tls(**settings)
    for identity, says in (
        ({"compression": "zstd"}, "'snappy' or 'deflate'"),
        ({"compression": "deflate", "deflate_level": 0}, "from 1 to 9"),
        ({"auth_secret": ""}, "auth_secret is empty"),
    ):
        with pytest.raises(ValueError, match=says):
            Identity(**identity)
    with pytest.raises(TypeError, match="SSLContext"):
        Identity(tls="yes")  # type: ignore[arg-type]
    secret = Identity(auth_secret="hush", tls=Tls(cert_file="c", key_password="hush"))
    assert "hush" not in repr(secret)
    assert Identity(tls=context).tls_settings == Tls(context=context)
    changed = secret.secured(True, "snappy", None)
    assert (changed.tls, changed.compression, changed.secret) == (True, "snappy", b"hush")


def test_files_are_read_again_once_they_have_changed(tmp_path: Path) -> None:
    trustme = pytest.importorskip("trustme")
    path = tmp_path / "authority.pem"
    tls = Tls(ca_file=path)
    trustme.CA().cert_pem.write_to_path(path)
    first = tls.ssl_context()
    assert tls.ssl_context() is first
    trustme.CA().cert_pem.write_to_path(path)
    second = tls.ssl_context()
    assert second.get_ca_certs() != first.get_ca_certs()


def test_an_encrypted_key_without_its_password_does_not_prompt(tmp_path: Path) -> None:
    trustme = pytest.importorskip("trustme")
    serialization = pytest.importorskip("cryptography.hazmat.primitives.serialization")
    leaf = trustme.CA().issue_cert("client.example")
    key = serialization.load_pem_private_key(leaf.private_key_pem.bytes(), None)
    path = tmp_path / "both.pem"
    path.write_bytes(
        leaf.cert_chain_pems[0].bytes()
        + key.private_bytes(
            serialization.Encoding.PEM,
            serialization.PrivateFormat.PKCS8,
            serialization.BestAvailableEncryption(b"open sesame"),
        )
    )
    with pytest.raises(OSError, match=r"Tls\(cert_file='.*both\.pem'\).*key_password"):
        Tls(cert_file=path).ssl_context()
    Tls(cert_file=path, key_password="open sesame").ssl_context()


async def test_a_package_that_is_missing_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    import sys

    monkeypatch.setitem(sys.modules, "cramjam", None)
    async with ScriptedBroker(snappy=True) as broker:
        with pytest.raises(ConnectRefused, match="'snappy' needs the package cramjam: pip install"):
            await open_one(broker, compression="snappy")
