"""TLS, snappy and deflate, as they are negotiated in IDENTIFY. Martlet and, where there is one,
nsqd get the same input, and must answer alike.
"""

from __future__ import annotations

import json
import os
import ssl
import urllib.request

import pytest
from tests.crash.wire import Frame, message, pub, u32
from tests.interop.certificates import Certificates
from tests.interop.server.conftest import Brokers, trusting
from tests.interop.server.nsq.test_clients import stats
from tests.interop.upgraded_wire import OK, Deflated, Snapped, UpgradedWire, identify

pytestmark = pytest.mark.interop

COMPRESSIONS: list[dict[str, object]] = [{}, {"snappy": True}, {"deflate": True}]


def publish(wire: UpgradedWire, topic: str) -> None:
    wire.send(pub(topic, b"one"))
    assert wire.frame() == OK


def test_each_step_is_answered_in_its_new_form_and_messages_pass(
    start: Brokers, certificates: Certificates, form: dict[str, object], topic: str
) -> None:
    broker = start(*certificates.flags)
    body = os.urandom(50_000) + b"compressible" * 10_000
    with UpgradedWire(broker.tcp_address) as wire:
        answer = wire.identify(client_id="me", user_agent="test/1", **form)
        assert list(answer) == [
            *("max_rdy_count", "version", "max_msg_timeout", "msg_timeout", "tls_v1", "deflate"),
            *("deflate_level", "max_deflate_level", "snappy", "sample_rate", "auth_required"),
            *("output_buffer_size", "output_buffer_timeout"),
        ]
        features = {"tls_v1": False, "snappy": False, "deflate": False, **form}
        assert answer.items() >= features.items()
        wire.upgrade(answer, trusting(certificates))
        wire.send(f"SUB {topic} billing\n".encode())
        assert wire.frame() == OK
        wire.send(b"RDY 10\n")
        wire.send(pub(topic, body) + pub(topic, b"small"))
        seen = [wire.frame() for _ in range(4)]
        assert seen.count(OK) == 2
        messages = [message(frame) for frame in seen if frame != OK]
        assert sorted(each.body for each in messages) == sorted([body, b"small"])
        (client,) = stats(broker, topic)["topics"][0]["channels"][0]["clients"]
        for each in messages:
            wire.send(b"FIN " + each.id + b"\n")
        wire.send(b"NOP\nFIN 0123456789abcdef\n")
        assert wire.frame().data.startswith(b"E_FIN_FAILED FIN 0123456789abcdef")
        (channel,) = stats(broker, topic)["topics"][0]["channels"]
    assert (channel["in_flight_count"], channel["clients"][0]["finish_count"]) == (0, 2)
    assert (client["client_id"], client["user_agent"]) == ("me", "test/1")
    tls = features["tls_v1"]
    assert (client["tls"], client["snappy"], client["deflate"]) == tuple(features.values())
    assert client["tls_version"] == ("TLS1.3" if tls else "")
    assert client["tls_cipher_suite"].startswith("Unknown 486") is tls
    assert client["tls_negotiated_protocol"] == ""
    assert client["tls_negotiated_protocol_is_mutual"] is tls


def test_the_stats_name_the_cipher_suites_that_nsqd_names(
    start: Brokers, certificates: Certificates, topic: str
) -> None:
    broker = start(*certificates.flags)
    context = trusting(certificates, maximum_version=ssl.TLSVersion.TLSv1_2)
    context.set_ciphers("ECDHE-ECDSA-AES128-GCM-SHA256")
    with UpgradedWire(broker.tcp_address) as wire:
        wire.upgrade(wire.identify(tls_v1=True), context)
        publish(wire, topic)
        (client,) = [
            client
            for client in stats(broker, topic)["producers"]
            if client.get("pub_counts") == [{"topic": topic, "count": 1}]
        ]
    assert client["tls_version"] == "TLS1.2"
    assert client["tls_cipher_suite"] == "TLS_ECDHE_ECDSA_WITH_AES_128_GCM_SHA256"


def test_snappy_and_deflate_exclude_each_other(start: Brokers) -> None:
    with UpgradedWire(start().tcp_address) as wire:
        wire.send(identify(snappy=True, deflate=True))
        said = wire.refusal()
    assert said == "E_IDENTIFY_FAILED cannot enable both deflate and snappy compression"


@pytest.mark.parametrize(
    ("flags", "asked", "got"),
    [
        ([], {"deflate": True}, 6),
        ([], {"deflate": True, "deflate_level": 1}, 1),
        ([], {"deflate": True, "deflate_level": 9}, 6),
        ([], {"deflate": True, "deflate_level": -1}, 6),
        ([], {"deflate_level": 3}, 6),
        (["--max-deflate-level=9"], {"deflate": True, "deflate_level": 9}, 9),
        (["--max-deflate-level=3"], {"deflate": True}, 3),
        (["--max-deflate-level=3"], {}, 3),
    ],
)
def test_the_level_of_deflate_has_its_limit(
    start: Brokers, flags: list[str], asked: dict[str, object], got: int, topic: str
) -> None:
    with UpgradedWire(start(*flags).tcp_address) as wire:
        answer = wire.identify(**asked)
        assert answer["deflate_level"] == got
        wire.upgrade(answer)
        publish(wire, topic)


def test_features_that_are_off_are_not_offered(start: Brokers, topic: str) -> None:
    broker = start("--snappy=false", "--deflate=false")
    with UpgradedWire(broker.tcp_address) as wire:
        answer = wire.identify(snappy=True, deflate=True, tls_v1=True)
        assert (answer["snappy"], answer["deflate"], answer["tls_v1"]) == (False, False, False)
        publish(wire, topic)


def test_a_client_that_negotiates_nothing_stays_as_it_is(
    start: Brokers, certificates: Certificates, topic: str
) -> None:
    with UpgradedWire(start(*certificates.flags).tcp_address) as wire:
        wire.send(identify(feature_negotiation=False, snappy=True, tls_v1=True))
        assert wire.frame() == OK
        publish(wire, topic)


def test_a_bad_handshake_is_refused_in_plain_text(
    start: Brokers, certificates: Certificates
) -> None:
    with UpgradedWire(start(*certificates.flags).tcp_address) as wire:
        assert wire.identify(tls_v1=True)["tls_v1"]
        wire.send(b"NOP\n" * 20)
        assert wire.frame().data.startswith(b"E_IDENTIFY_FAILED IDENTIFY failed tls: ")
        assert wire.ends()


@pytest.mark.parametrize("policy", ["require-verify", "require"])
@pytest.mark.parametrize("version", [ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_3])
def test_a_client_has_to_show_its_certificate(
    start: Brokers, certificates: Certificates, policy: str, version: ssl.TLSVersion, topic: str
) -> None:
    if policy == "require":
        pytest.importorskip("OpenSSL")
    broker = start(
        *certificates.flags,
        f"--tls-root-ca-file={certificates.authority}",
        f"--tls-client-auth-policy={policy}",
    )
    limits = {"minimum_version": version, "maximum_version": version}
    with UpgradedWire(broker.tcp_address) as wire:
        context = trusting(certificates, "client", **limits)
        wire.upgrade(wire.identify(tls_v1=True), context)
        publish(wire, topic)
    for shows in ("", "stranger"):
        context = trusting(certificates, shows, **limits)
        with UpgradedWire(broker.tcp_address) as wire:
            answer = wire.identify(tls_v1=True)
            if shows and policy == "require":
                wire.upgrade(answer, context)
                publish(wire, topic)
                continue
            with pytest.raises(ssl.SSLError, match=r"(?i)alert"):
                wire.upgrade(answer, context)


@pytest.mark.parametrize("compression", COMPRESSIONS)
@pytest.mark.parametrize("version", ["TLS1.2", "TLS1.3"])
def test_where_any_certificate_does_all_else_is_as_without(
    start: Brokers,
    certificates: Certificates,
    compression: dict[str, object],
    version: str,
    topic: str,
) -> None:
    pytest.importorskip("OpenSSL")
    broker = start(*certificates.flags, "--tls-client-auth-policy=require")
    number = ssl.TLSVersion[version.replace("TLS", "TLSv").replace(".", "_")]
    limits = {"minimum_version": number, "maximum_version": number}
    context = trusting(certificates, "stranger", **limits)
    body = os.urandom(200_000) + b"compressible" * 30_000
    with UpgradedWire(broker.tcp_address) as wire:
        wire.upgrade(wire.identify(tls_v1=True, **compression), context)
        wire.send(pub(topic, body) + b"SUB %b c\nRDY 1\n" % topic.encode())
        assert [wire.frame(), wire.frame()] == [OK, OK]
        assert message(wire.frame()).body == body
        url = f"https://{start.https[broker]}/stats?format=json&topic={topic}"
        with urllib.request.urlopen(url, timeout=10, context=context) as response:
            (client,) = json.load(response)["topics"][0]["channels"][0]["clients"]
    assert client["tls"]
    assert client["tls_version"] == version
    assert client["tls_cipher_suite"].startswith(("TLS_ECDHE_", "Unknown 4")), client


@pytest.mark.parametrize("policy", ["", "require"])
def test_a_handshake_in_pieces_or_broken_off_harms_no_other_client(
    start: Brokers, certificates: Certificates, policy: str, topic: str
) -> None:
    """A handshake byte by byte, one that ends in the middle, and some of garbage."""
    if policy:
        pytest.importorskip("OpenSSL")
    broker = start(*certificates.flags, f"--tls-client-auth-policy={policy}")
    context = trusting(certificates, "stranger")
    incoming, outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
    session = context.wrap_bio(incoming, outgoing, server_hostname="localhost")
    with pytest.raises(ssl.SSLWantReadError):
        session.do_handshake()
    hello = outgoing.read()
    for sent in (b"", hello[: len(hello) // 2], b"\x16\x03\x01\0\5nonsense", os.urandom(500)):
        with UpgradedWire(broker.tcp_address) as wire:
            wire.identify(tls_v1=True)
            wire.send(sent)
    with UpgradedWire(broker.tcp_address) as wire:
        wire.identify(tls_v1=True)
        for byte in hello:
            wire.send(bytes([byte]))
        assert wire.socket.recv(1) == b"\x16"
    with UpgradedWire(broker.tcp_address) as wire:
        wire.upgrade(wire.identify(tls_v1=True), context)
        publish(wire, topic)


@pytest.mark.parametrize("flag", ["--tls-required", "--tls-client-auth-policy=whatever"])
def test_nothing_passes_without_tls_where_it_is_required(
    start: Brokers, certificates: Certificates, flag: str, topic: str
) -> None:
    broker = start(*certificates.flags, flag)
    for command, name in ((pub(topic, b"one"), "PUB"), (b"NOP\n", "NOP"), (b"what\n", "what")):
        with UpgradedWire(broker.tcp_address) as wire:
            wire.identify()
            wire.send(command)
            assert wire.refusal() == f"E_INVALID cannot {name} in current state (TLS required)"
    with UpgradedWire(broker.tcp_address) as wire:
        wire.upgrade(wire.identify(tls_v1=True), trusting(certificates))
        publish(wire, topic)


def test_tcp_https_leaves_http_open(start: Brokers, certificates: Certificates, topic: str) -> None:
    broker = start(*certificates.flags, "--tls-required=tcp-https")
    with UpgradedWire(broker.tcp_address) as wire:
        wire.send(pub(topic, b"one"))
        said = wire.refusal()
    assert said == "E_INVALID cannot PUB in current state (TLS required)"
    assert stats(broker, topic)["topics"] is None


@pytest.mark.parametrize(
    ("lowest", "highest", "passes"),
    [
        ("tls1.3", ssl.TLSVersion.TLSv1_2, False),
        ("tls1.2", ssl.TLSVersion.TLSv1_2, True),
        ("tls1.2", ssl.TLSVersion.TLSv1_1, False),
        ("tls1.0", ssl.TLSVersion.TLSv1, True),
    ],
)
@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_the_oldest_tls_version_is_that_of_the_flag(
    start: Brokers,
    certificates: Certificates,
    lowest: str,
    highest: ssl.TLSVersion,
    passes: bool,
    topic: str,
) -> None:
    context = trusting(certificates)
    context.set_ciphers("DEFAULT:@SECLEVEL=0")
    context.minimum_version = ssl.TLSVersion.TLSv1
    context.maximum_version = highest
    broker = start(*certificates.flags, f"--tls-min-version={lowest}")
    with UpgradedWire(broker.tcp_address) as wire:
        answer = wire.identify(tls_v1=True)
        if not passes:
            with pytest.raises((ssl.SSLError, ConnectionError)):
                wire.upgrade(answer, context)
            return
        wire.upgrade(answer, context)
        publish(wire, topic)


def test_heartbeats_come_in_the_new_form(
    start: Brokers, certificates: Certificates, form: dict[str, object]
) -> None:
    broker = start(*certificates.flags)
    with UpgradedWire(broker.tcp_address) as wire:
        answer = wire.identify(heartbeat_interval=1000, **form)
        wire.upgrade(answer, trusting(certificates))
        assert wire.frame() == Frame(0, b"_heartbeat_")


@pytest.mark.parametrize("garbage", [{"snappy": True}, {"deflate": True}])
def test_input_that_cannot_be_decompressed_ends_the_connection(
    start: Brokers, garbage: dict[str, object], topic: str
) -> None:
    broker = start()
    with UpgradedWire(broker.tcp_address) as wire, UpgradedWire(broker.tcp_address) as other:
        wire.upgrade(wire.identify(**garbage))
        wire.socket.sendall(b"\xff" * 100)
        assert wire.ends()
        other.send(pub(topic, b"one"))
        assert other.frame() == OK
    assert "failed to read command - " + ("snappy: " if "snappy" in garbage else "flate: ") in (
        broker.log()
    )


def test_no_command_is_slipped_in_before_the_handshake(
    start_martlet: Brokers, certificates: Certificates, topic: str
) -> None:
    broker = start_martlet(*certificates.flags)
    with UpgradedWire(broker.tcp_address) as wire:
        wire.send(identify(tls_v1=True) + pub(topic, b"in"))
        assert json.loads(wire.frame().data)["tls_v1"]
        assert wire.refusal().startswith("E_IDENTIFY_FAILED IDENTIFY failed tls: ")
    assert stats(broker, topic)["topics"] is None


@pytest.mark.parametrize("compression", COMPRESSIONS[1:])
def test_compressed_input_before_the_answer_counts(
    start_martlet: Brokers, compression: dict[str, object], topic: str
) -> None:
    """nsqd loses what it has received with IDENTIFY."""
    with UpgradedWire(start_martlet().tcp_address) as wire:
        request = identify(**compression)
        codec = Snapped() if "snappy" in compression else Deflated()
        wire.socket.sendall(request + codec.encode(pub(topic, b"early")))
        answer = json.loads(wire.frame().data)
        wire.upgrade(answer)
        assert wire.frame() == OK


@pytest.mark.parametrize("flush", ["async", "sync"])
@pytest.mark.parametrize("compression", COMPRESSIONS)
def test_publishes_before_the_upgrade_are_answered_before_it(
    start_martlet: Brokers,
    certificates: Certificates,
    flush: str,
    compression: dict[str, object],
    topic: str,
) -> None:
    broker = start_martlet(*certificates.flags, f"--flush={flush}")
    with UpgradedWire(broker.tcp_address) as wire:
        wire.send(pub(topic, b"one") + identify(tls_v1=True, **compression))
        assert wire.frame() == OK
        wire.upgrade(json.loads(wire.frame().data), trusting(certificates))
        publish(wire, topic)
    assert stats(broker, topic)["topics"][0]["message_count"] == 2


def test_features_are_agreed_on_once(start_martlet: Brokers) -> None:
    with UpgradedWire(start_martlet().tcp_address) as wire:
        wire.upgrade(wire.identify(deflate=True))
        assert wire.identify(msg_timeout=5000)["msg_timeout"] == 5000
        wire.send(identify(deflate=True))
        assert wire.frame().data == b"E_IDENTIFY_FAILED IDENTIFY failed: upgraded already"


def publish_some(wire: UpgradedWire, topic: str, count: int) -> None:
    body = os.urandom(1000)
    for _ in range(count // 100):
        inner = u32(100) + (u32(len(body)) + body) * 100
        wire.send(f"MPUB {topic}\n".encode() + u32(len(inner)) + inner)
        assert wire.frame() == OK


def test_a_consumer_that_reads_late_gets_everything(
    start: Brokers, certificates: Certificates, form: dict[str, object], topic: str
) -> None:
    broker = start(*certificates.flags)
    context = trusting(certificates)
    with UpgradedWire(broker.tcp_address) as wire, UpgradedWire(broker.tcp_address) as producer:
        wire.upgrade(wire.identify(**form), context)
        wire.send(f"SUB {topic} billing\n".encode())
        assert wire.frame() == OK
        wire.send(b"RDY 2500\n")
        publish_some(producer, topic, 5000)
        for _ in range(5000):
            wire.send(b"FIN " + message(wire.frame()).id + b"\n")
        wire.send(b"CLS\n")
        assert wire.frame().data == b"CLOSE_WAIT"
        (channel,) = stats(broker, topic)["topics"][0]["channels"]
    assert (channel["depth"], channel["in_flight_count"]) == (0, 0)
