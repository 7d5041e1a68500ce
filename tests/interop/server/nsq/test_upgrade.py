"""TLS, snappy and deflate, as they are negotiated in IDENTIFY. Martlet and, where there is one,
nsqd get the same input, and must answer alike.
"""

from __future__ import annotations

import itertools
import json
import os
import ssl
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import ExitStack

import pytest
from tests.crash.wire import Frame, message, pub, u32
from tests.interop.certificates import Certificates
from tests.interop.nsqd_process import NO_NSQD, NSQD, NsqdProcess
from tests.interop.server.nsq.test_clients import stats
from tests.interop.upgraded_wire import OK, Deflated, Snapped, UpgradedWire, identify

from martlet.testing import BrokerProcess
from martlet.testing.ports import free_port

pytestmark = pytest.mark.interop

Start = Callable[..., BrokerProcess]
COMPRESSIONS: list[dict[str, object]] = [{}, {"snappy": True}, {"deflate": True}]


class Brokers:
    """Servers of one kind; who asks for the same flags gets the same one."""

    def __init__(self, kind: type[BrokerProcess]) -> None:
        self._kind = kind
        self._running: dict[tuple[str, ...], BrokerProcess] = {}
        self._stack = ExitStack()
        self.https: dict[BrokerProcess, str] = {}
        """Where each serves HTTPS."""

    def __call__(self, *flags: str) -> BrokerProcess:
        if flags not in self._running:
            https = f"127.0.0.1:{free_port()}"
            process = self._kind(None, *flags, f"--https-address={https}")
            self._running[flags] = self._stack.enter_context(process)
            self.https[process] = https
        return self._running[flags]

    def close(self) -> None:
        self._stack.close()


@pytest.fixture(scope="module")
def kept() -> Iterator[dict[str, Brokers]]:
    brokers = {"martlet": Brokers(BrokerProcess), "nsqd": Brokers(NsqdProcess)}
    yield brokers
    for each in brokers.values():
        each.close()


@pytest.fixture(params=["martlet", "nsqd"])
def start(request: pytest.FixtureRequest, kept: dict[str, Brokers]) -> Start:
    """Gives a server with the flags given; the topics of other tests may be there."""
    if request.param == "nsqd" and NSQD is None:
        pytest.skip(NO_NSQD)
    return kept[request.param]


@pytest.fixture
def start_martlet(kept: dict[str, Brokers]) -> Start:
    return kept["martlet"]


@pytest.fixture
def topic() -> str:
    """A topic of the test's own."""
    return f"t{next(_numbers)}"


_numbers = itertools.count()


def trusting(certificates: Certificates, **limits: ssl.TLSVersion) -> ssl.SSLContext:
    context = ssl.create_default_context(cafile=certificates.authority)
    for name, version in limits.items():
        setattr(context, name, version)
    return context


@pytest.mark.parametrize("tls", [False, True])
@pytest.mark.parametrize("compression", COMPRESSIONS)
def test_each_step_is_answered_in_its_new_form_and_messages_pass(
    start: Start, certificates: Certificates, tls: bool, compression: dict[str, object], topic: str
) -> None:
    broker = start(*certificates.flags)
    body = os.urandom(50_000) + b"compressible" * 10_000
    with UpgradedWire(broker.tcp_address) as wire:
        answer = wire.identify(tls_v1=tls, client_id="me", user_agent="test/1", **compression)
        assert list(answer) == [
            *("max_rdy_count", "version", "max_msg_timeout", "msg_timeout", "tls_v1", "deflate"),
            *("deflate_level", "max_deflate_level", "snappy", "sample_rate", "auth_required"),
            *("output_buffer_size", "output_buffer_timeout"),
        ]
        assert answer["tls_v1"] is tls
        assert answer["snappy"] is ("snappy" in compression)
        assert answer["deflate"] is ("deflate" in compression)
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
    assert client["snappy"] is ("snappy" in compression)
    assert client["deflate"] is ("deflate" in compression)
    assert client["tls"] is tls
    assert client["tls_version"] == ("TLS1.3" if tls else "")
    assert client["tls_cipher_suite"].startswith("Unknown 486") is tls
    assert client["tls_negotiated_protocol"] == ""
    assert client["tls_negotiated_protocol_is_mutual"] is tls


def test_the_stats_name_the_cipher_suites_that_nsqd_names(
    start: Start, certificates: Certificates, topic: str
) -> None:
    broker = start(*certificates.flags)
    context = trusting(certificates, maximum_version=ssl.TLSVersion.TLSv1_2)
    context.set_ciphers("ECDHE-ECDSA-AES128-GCM-SHA256")
    with UpgradedWire(broker.tcp_address) as wire:
        wire.upgrade(wire.identify(tls_v1=True), context)
        wire.send(pub(topic, b"one"))
        assert wire.frame() == OK
        (client,) = [
            client
            for client in stats(broker, topic)["producers"]
            if client.get("pub_counts") == [{"topic": topic, "count": 1}]
        ]
    assert client["tls_version"] == "TLS1.2"
    assert client["tls_cipher_suite"] == "TLS_ECDHE_ECDSA_WITH_AES_128_GCM_SHA256"


def test_snappy_and_deflate_exclude_each_other(start: Start) -> None:
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
    start: Start, flags: list[str], asked: dict[str, object], got: int, topic: str
) -> None:
    with UpgradedWire(start(*flags).tcp_address) as wire:
        answer = wire.identify(**asked)
        assert answer["deflate_level"] == got
        wire.upgrade(answer)
        wire.send(pub(topic, b"one"))
        assert wire.frame() == OK


def test_features_that_are_off_are_not_offered(start: Start, topic: str) -> None:
    broker = start("--snappy=false", "--deflate=false")
    with UpgradedWire(broker.tcp_address) as wire:
        answer = wire.identify(snappy=True, deflate=True, tls_v1=True)
        assert (answer["snappy"], answer["deflate"], answer["tls_v1"]) == (False, False, False)
        wire.send(pub(topic, b"one"))
        assert wire.frame() == OK


def test_a_client_that_negotiates_nothing_stays_as_it_is(
    start: Start, certificates: Certificates, topic: str
) -> None:
    with UpgradedWire(start(*certificates.flags).tcp_address) as wire:
        wire.send(identify(feature_negotiation=False, snappy=True, tls_v1=True))
        assert wire.frame() == OK
        wire.send(pub(topic, b"one"))
        assert wire.frame() == OK


def test_a_bad_handshake_is_refused_in_plain_text(start: Start, certificates: Certificates) -> None:
    with UpgradedWire(start(*certificates.flags).tcp_address) as wire:
        assert wire.identify(tls_v1=True)["tls_v1"]
        wire.send(b"NOP\n" * 20)
        assert wire.frame().data.startswith(b"E_IDENTIFY_FAILED IDENTIFY failed tls: ")
        assert wire.ends()


@pytest.mark.parametrize("policy", ["require-verify", "require"])
@pytest.mark.parametrize("version", [ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_3])
def test_a_client_has_to_show_its_certificate(
    start: Start, certificates: Certificates, policy: str, version: ssl.TLSVersion, topic: str
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
        context = trusting(certificates, **limits)
        context.load_cert_chain(certificates.client, certificates.client_key)
        wire.upgrade(wire.identify(tls_v1=True), context)
        wire.send(pub(topic, b"one"))
        assert wire.frame() == OK
    for kind in ("nobody's", "a stranger's"):
        context = trusting(certificates, **limits)
        if kind == "a stranger's":
            context.load_cert_chain(certificates.stranger, certificates.stranger_key)
        with UpgradedWire(broker.tcp_address) as wire:
            answer = wire.identify(tls_v1=True)
            if kind == "a stranger's" and policy == "require":
                wire.upgrade(answer, context)
                wire.send(pub(topic, b"two"))
                assert wire.frame() == OK
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
    context = trusting(certificates, minimum_version=number, maximum_version=number)
    context.load_cert_chain(certificates.stranger, certificates.stranger_key)
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


def test_a_handshake_in_pieces_or_broken_off_harms_no_other_client(
    start: Start, certificates: Certificates, topic: str
) -> None:
    """A handshake byte by byte, one that ends in the middle, and one of garbage."""
    pytest.importorskip("OpenSSL")
    broker = start(*certificates.flags, "--tls-client-auth-policy=require")
    context = trusting(certificates)
    context.load_cert_chain(certificates.stranger, certificates.stranger_key)
    incoming, outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
    session = context.wrap_bio(incoming, outgoing, server_hostname="localhost")
    with pytest.raises(ssl.SSLWantReadError):
        session.do_handshake()
    hello = outgoing.read()
    for sent in (hello[: len(hello) // 2], b"\x16\x03\x01\x00\x05nonsense"):
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
        wire.send(pub(topic, b"one"))
        assert wire.frame() == OK


@pytest.mark.parametrize("flag", ["--tls-required", "--tls-client-auth-policy=whatever"])
def test_nothing_passes_without_tls_where_it_is_required(
    start: Start, certificates: Certificates, flag: str, topic: str
) -> None:
    broker = start(*certificates.flags, flag)
    for command, name in ((pub(topic, b"one"), "PUB"), (b"NOP\n", "NOP"), (b"what\n", "what")):
        with UpgradedWire(broker.tcp_address) as wire:
            wire.identify()
            wire.send(command)
            assert wire.refusal() == f"E_INVALID cannot {name} in current state (TLS required)"
    with UpgradedWire(broker.tcp_address) as wire:
        wire.upgrade(wire.identify(tls_v1=True), trusting(certificates))
        wire.send(pub(topic, b"one"))
        assert wire.frame() == OK


def test_tcp_https_leaves_http_open(start: Start, certificates: Certificates, topic: str) -> None:
    broker = start(*certificates.flags, "--tls-required=tcp-https")
    with UpgradedWire(broker.tcp_address) as wire:
        wire.send(pub(topic, b"one"))
        said = wire.refusal()
    assert said == "E_INVALID cannot PUB in current state (TLS required)"
    assert stats(broker, topic)["topics"] is None


def test_http_is_served_in_tls_and_says_so_where_it_is_required(
    start: Brokers, certificates: Certificates
) -> None:
    broker = start(*certificates.flags, "--tls-client-auth-policy=whatever")
    https = start.https[broker]
    with pytest.raises(urllib.error.HTTPError) as caught:
        urllib.request.urlopen(f"http://{broker.http_address}/ping", timeout=10)
    with caught.value as error:
        assert error.code == 403
        answer = json.load(error)
    assert answer == {"message": "TLS_REQUIRED", "https_port": int(https.rpartition(":")[2])}
    with urllib.request.urlopen(
        f"https://{https}/ping", timeout=10, context=trusting(certificates)
    ) as response:
        assert response.read() == b"OK"


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
    start: Start,
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
        wire.send(pub(topic, b"one"))
        assert wire.frame() == OK


@pytest.mark.parametrize("compression", COMPRESSIONS)
@pytest.mark.parametrize("tls", [False, True])
def test_heartbeats_come_in_the_new_form(
    start: Start, certificates: Certificates, tls: bool, compression: dict[str, object]
) -> None:
    broker = start(*certificates.flags)
    with UpgradedWire(broker.tcp_address) as wire:
        answer = wire.identify(tls_v1=tls, heartbeat_interval=1000, **compression)
        wire.upgrade(answer, trusting(certificates))
        assert wire.frame() == Frame(0, b"_heartbeat_")


@pytest.mark.parametrize("garbage", [{"snappy": True}, {"deflate": True}])
def test_input_that_cannot_be_decompressed_ends_the_connection(
    start: Start, garbage: dict[str, object], topic: str
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
    start_martlet: Start, certificates: Certificates, topic: str
) -> None:
    broker = start_martlet(*certificates.flags)
    with UpgradedWire(broker.tcp_address) as wire:
        wire.send(identify(tls_v1=True) + pub(topic, b"in"))
        assert json.loads(wire.frame().data)["tls_v1"]
        assert wire.refusal().startswith("E_IDENTIFY_FAILED IDENTIFY failed tls: ")
    assert stats(broker, topic)["topics"] is None


@pytest.mark.parametrize("compression", COMPRESSIONS[1:])
def test_compressed_input_before_the_answer_counts(
    start_martlet: Start, compression: dict[str, object], topic: str
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
    start_martlet: Start,
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
        wire.send(pub(topic, b"two"))
        assert wire.frame() == OK
    assert stats(broker, topic)["topics"][0]["message_count"] == 2


def test_features_are_agreed_on_once(start_martlet: Start) -> None:
    with UpgradedWire(start_martlet().tcp_address) as wire:
        wire.upgrade(wire.identify(deflate=True))
        assert wire.identify(msg_timeout=5000)["msg_timeout"] == 5000
        wire.send(identify(deflate=True))
        assert wire.frame().data == b"E_IDENTIFY_FAILED IDENTIFY failed: upgraded already"


@pytest.mark.parametrize(
    ("flags", "says"),
    [
        (["--tls-cert={certificate}"], "--tls-cert needs --tls-key too"),
        (["--tls-key={key}"], "--tls-key needs --tls-cert too"),
        (["--tls-cert=/none", "--tls-key={key}"], "--tls-cert=/none: No such file"),
        (["--tls-cert={authority}", "--tls-key={key}"], "do not make a pair"),
        (["--tls-root-ca-file={key}"], "holds no certificate in PEM"),
        (["--tls-required"], "cannot require TLS client connections without TLS key and cert"),
        (["--tls-client-auth-policy=x"], "cannot require TLS client connections without TLS key"),
    ],
)
def test_the_error_of_an_impossible_start(
    start_martlet: Start, certificates: Certificates, flags: list[str], says: str
) -> None:
    with pytest.raises(RuntimeError, match=says.replace("(", r"\(")):
        start_martlet(*(flag.format(**vars(certificates)) for flag in flags))


def publish_some(wire: UpgradedWire, topic: str, count: int) -> None:
    body = os.urandom(1000)
    for _ in range(count // 100):
        inner = u32(100) + (u32(len(body)) + body) * 100
        wire.send(f"MPUB {topic}\n".encode() + u32(len(inner)) + inner)
        assert wire.frame() == OK


@pytest.mark.parametrize("tls", [False, True])
@pytest.mark.parametrize("compression", COMPRESSIONS)
def test_a_consumer_that_reads_late_gets_everything(
    start: Start, certificates: Certificates, tls: bool, compression: dict[str, object], topic: str
) -> None:
    broker = start(*certificates.flags)
    context = trusting(certificates)
    with UpgradedWire(broker.tcp_address) as wire, UpgradedWire(broker.tcp_address) as producer:
        wire.upgrade(wire.identify(tls_v1=tls, **compression), context)
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
