"""The client with all that IDENTIFY negotiates, and AUTH: TLS, snappy and deflate, on Martlet and,
where there is one, on nsqd.
"""

from __future__ import annotations

import asyncio
import itertools
import os
import ssl
from collections.abc import Callable, Iterator
from contextlib import AsyncExitStack, ExitStack
from pathlib import Path
from typing import Any, Literal

import pytest
from tests.interop.asking import ask
from tests.interop.auth_server import EVERYTHING, Answer, AuthServer, allowed
from tests.interop.certificates import Certificates
from tests.interop.client.kit import BOTH, take
from tests.interop.nsqd_process import NsqdProcess
from tests.unit.client.consumer.consuming import refused

from martlet.addresses import Address
from martlet.client import (
    AuthRefused,
    Backoff,
    ConnectFailed,
    ConnectRefused,
    Consumer,
    Identity,
    Producer,
    PublishRefused,
    SubscribeRefused,
    Tls,
)
from martlet.client.transport import dialer
from martlet.client.transport.connection import Connection
from martlet.testing import BrokerProcess
from martlet.testing.ports import free_port

pytestmark = [pytest.mark.interop, pytest.mark.timeout(60)]

FAST = Backoff(first_s=0.02, max_s=0.1)
COMPRESSIONS: list[Literal["snappy", "deflate"] | None] = [None, "snappy", "deflate"]

Start = Callable[..., BrokerProcess]


@pytest.fixture(scope="module")
def auth() -> Iterator[AuthServer]:
    with AuthServer({"all": Answer(allowed(EVERYTHING))}) as server:
        yield server


@pytest.fixture(scope="module", params=BOTH)
def start(request: pytest.FixtureRequest) -> Iterator[Start]:
    """Gives a server with the flags given, the same one for the same flags."""
    running: dict[tuple[str, ...], BrokerProcess] = {}

    def start_one(*flags: str) -> BrokerProcess:
        if flags not in running:
            https = f"--https-address=127.0.0.1:{free_port()}"
            running[flags] = stack.enter_context(request.param(None, *flags, https))
        return running[flags]

    with ExitStack() as stack:
        yield start_one


@pytest.fixture
def broker(start: Start, certificates: Certificates) -> BrokerProcess:
    """One that offers TLS and compression."""
    return start(*certificates.flags, "--max-deflate-level=3")


@pytest.fixture
def strict(start: Start, certificates: Certificates, auth: AuthServer) -> BrokerProcess:
    """One that wants TLS, a certificate and AUTH."""
    return start(
        *certificates.flags,
        f"--tls-root-ca-file={certificates.authority}",
        "--tls-client-auth-policy=require-verify",
        "--tls-required=tcp-https",
        f"--auth-http-address={auth.address}",
    )


@pytest.fixture
def topic() -> str:
    """A topic of the test's own."""
    return f"t{next(_numbers)}"


_numbers = itertools.count()


def clients(broker: BrokerProcess, topic: str) -> list[dict[str, Any]]:
    """The topic's consumer, and its producer."""
    stats = ask(broker.http_address, f"/stats?format=json&topic={topic}")
    (topic_stats,) = stats["topics"]
    consumers = [item for channel in topic_stats["channels"] for item in channel["clients"]]
    return consumers + [
        stat
        for stat in stats["producers"] or ()
        if topic in [count["topic"] for count in stat.get("pub_counts", ())]
    ]


def connection_of(consumer: Consumer) -> Connection:
    """The only one."""
    (subscription,) = consumer._brokers.sessions
    assert subscription.connection is not None
    return subscription.connection


@pytest.mark.parametrize("compression", COMPRESSIONS)
@pytest.mark.parametrize("tls", [False, True])
async def test_messages_pass_in_every_form(
    broker: BrokerProcess,
    certificates: Certificates,
    tls: bool,
    compression: Literal["snappy", "deflate"] | None,
    topic: str,
) -> None:
    identity = Identity(
        client_id="me",
        user_agent="test/1",
        tls=Tls(ca_file=certificates.authority) if tls else False,
    )
    bodies = [os.urandom(70_000), b"compressible" * 60_000, *(b"%d" % n for n in range(3000))]
    async with (
        Consumer(
            topic, "c", broker.tcp_address, identity=identity, compression=compression
        ) as consumer,
        Producer(broker.tcp_address, identity=identity, compression=compression) as producer,
    ):
        await producer.publish_many(topic, bodies)
        await asyncio.gather(*(producer.publish(topic, b"single %d" % n) for n in range(100)))
        received = await take(consumer, len(bodies) + 100)
        assert sorted(message.body for message in received) == sorted(
            [*bodies, *(b"single %d" % n for n in range(100))]
        )
        connected = await asyncio.to_thread(clients, broker, topic)
    assert len(connected) == 2
    for client in connected:
        assert (client["client_id"], client["user_agent"]) == ("me", "test/1")
        assert client["tls"] is tls
        assert client["tls_version"].startswith("TLS1." if tls else "")
        assert client["snappy"] is (compression == "snappy")
        assert client["deflate"] is (compression == "deflate")


async def test_an_own_context_and_no_verification_do_too(
    broker: BrokerProcess, certificates: Certificates, topic: str
) -> None:
    context = ssl.create_default_context(cafile=certificates.authority)
    forms: list[Tls | ssl.SSLContext] = [
        context,
        Tls(context=context, server_name="localhost"),
        Tls(verify=False),
        Tls(ca_file=certificates.authority, min_version=ssl.TLSVersion.TLSv1_3),
    ]
    for tls in forms:
        async with Producer(broker.tcp_address, tls=tls) as producer:
            await producer.publish(topic, b"one")


@pytest.mark.parametrize(
    ("wrong", "says"),
    [
        ({}, r"self.signed certificate.*Tls\(ca_file=\.\.\.\)|local issuer.*Tls\(ca_file=\.\.\.\)"),
        ({"ca_file": "stranger"}, r"verify certificate.*Tls\(ca_file=\.\.\.\)"),
        (
            {"ca_file": "authority", "server_name": "other.example"},
            r"(?i)hostname mismatch.*other\.example.*Tls\(server_name=\.\.\.\)",
        ),
        ({"ca_file": "missing"}, r"Tls\(ca_file='.*missing'\): No such file or directory"),
        ({"ca_file": "key"}, r"Tls\(ca_file='.*server\.key'\): no certificate or crl found"),
        (
            {"ca_file": "authority", "cert_file": "client", "key_file": "stranger_key"},
            r"Tls\(cert_file='.*client\.pem', key_file='.*stranger\.key'\): key values mismatch",
        ),
    ],
)
async def test_an_untrusted_certificate_is_refused_at_once(
    broker: BrokerProcess,
    certificates: Certificates,
    wrong: dict[str, str],
    says: str,
    caplog: pytest.LogCaptureFixture,
) -> None:
    paths = {**vars(certificates), "missing": certificates.authority.with_name("missing")}
    tls = Tls(**{name: paths.get(item, item) for name, item in wrong.items()})
    async with asyncio.timeout(50):
        await refused(Producer(broker.tcp_address, tls=tls), ConnectRefused, says)
        assert "trying again" not in caplog.text
        await refused(Consumer("t", "c", broker.tcp_address, tls=tls), ConnectRefused, says)


@pytest.mark.parametrize(
    ("wishes", "says"),
    [
        ({"tls": True}, r"does not offer TLS.*--tls-cert"),
        ({"compression": "snappy"}, r"does not offer snappy.*--snappy"),
        ({"compression": "deflate"}, r"does not offer deflate.*--deflate"),
        (
            {"identity": Identity(heartbeat_interval_ms=70_000)},
            "E_BAD_BODY IDENTIFY heartbeat interval",
        ),
    ],
)
async def test_a_feature_that_the_broker_lacks_is_reported_at_once(
    start: Start, wishes: dict[str, Any], says: str
) -> None:
    broker = start("--snappy=false", "--deflate=false")
    await refused(Producer(broker.tcp_address, **wishes), ConnectRefused, says)


async def test_a_client_shows_its_certificate(
    strict: BrokerProcess, certificates: Certificates, tmp_path: Path, topic: str
) -> None:
    both = tmp_path / "both.pem"
    both.write_bytes(certificates.client.read_bytes() + certificates.client_key.read_bytes())
    for certificate, key in ((certificates.client, certificates.client_key), (both, None)):
        tls = Tls(ca_file=certificates.authority, cert_file=certificate, key_file=key)
        async with Producer(strict.tcp_address, tls=tls, auth_secret="all") as producer:
            await producer.publish(topic, b"one")
    await refused(
        Consumer(topic, "c", strict.tcp_address, auth_secret="all"), AuthRefused, "TLS required"
    )
    identity = Identity(tls=Tls(ca_file=certificates.authority))
    with pytest.raises(ConnectFailed, match=r"wants? a certificate"):
        await Connection.open(Address.parse(strict.tcp_address), identity, timeout_s=50)


async def test_heartbeats_are_answered_in_every_form(
    broker: BrokerProcess, certificates: Certificates, topic: str
) -> None:
    """A client that answers none is left by the broker after two of them."""
    tls = Tls(ca_file=certificates.authority)
    forms: list[tuple[Tls | bool, Any]] = [(tls, compression) for compression in COMPRESSIONS]
    forms.append((False, None))
    async with AsyncExitStack() as stack:
        connections = []
        for secured, compression in forms:
            identity = Identity(heartbeat_interval_ms=1000, tls=secured, compression=compression)
            consumer = Consumer(topic, "c", broker.tcp_address, identity=identity)
            connections.append(connection_of(await stack.enter_async_context(consumer)))
        await asyncio.sleep(2.3)
        assert not any(connection.lost.done() for connection in connections)


async def test_the_level_of_deflate_is_limited_by_the_broker(
    broker: BrokerProcess, topic: str
) -> None:
    identity = Identity(compression="deflate", deflate_level=9)
    async with Consumer(topic, "c", broker.tcp_address, identity=identity) as consumer:
        features = connection_of(consumer).features
        assert (features.deflate, features.deflate_level) == (True, 3)


async def test_the_broker_knows_the_settings_of_identify(broker: BrokerProcess, topic: str) -> None:
    identity = Identity(
        client_id="me",
        hostname="here",
        user_agent="test/2",
        sample_rate=42,
        message_timeout_ms=5000,
        output_buffer_bytes=1 << 15,
        output_buffer_timeout_ms=100,
        topology_region="north",
        topology_zone="shelf",
    )
    async with Consumer(topic, "c", broker.tcp_address, identity=identity) as consumer:
        features = connection_of(consumer).features
        assert (features.sample_rate, features.message_timeout_ms) == (42, 5000)
        (client,) = await asyncio.to_thread(clients, broker, topic)
    assert (client["client_id"], client["hostname"]) == ("me", "here")
    assert (client["user_agent"], client["sample_rate"]) == ("test/2", 42)


# AUTH.


async def test_an_authorized_client_may_do_all(start: Start, auth: AuthServer, topic: str) -> None:
    broker = start(f"--auth-http-address={auth.address}")
    async with (
        Consumer(topic, "c", broker.tcp_address, auth_secret="all") as consumer,
        Producer(broker.tcp_address, auth_secret=b"all") as producer,
    ):
        await producer.publish(topic, b"one")
        assert [item.body for item in await take(consumer, 1)] == [b"one"]
        features = connection_of(consumer).features
        assert features.auth_identity == "anna"
        assert features.auth_identity_url == "https://example.com/anna"


async def test_a_broker_without_auth_does_not_get_the_secret(
    broker: BrokerProcess, topic: str
) -> None:
    async with Producer(broker.tcp_address, auth_secret="all") as producer:
        await producer.publish(topic, b"one")


@pytest.mark.parametrize(
    ("secret", "code", "says"),
    [
        (None, "E_AUTH_FIRST", "the broker wants AUTH, and there is no auth_secret"),
        ("nobody's", "E_AUTH_FAILED", "does not know the auth_secret, or could not be asked"),
        ("nothing's", "E_UNAUTHORIZED", "allows nothing"),
    ],
)
async def test_an_unauthorized_client_is_refused_at_once(
    start: Start, auth: AuthServer, secret: str | None, code: str, says: str
) -> None:
    auth.answers["nothing's"] = Answer(allowed())
    broker = start(f"--auth-http-address={auth.address}")
    async with asyncio.timeout(50):
        caught = await refused(Producer(broker.tcp_address, auth_secret=secret), AuthRefused, says)
        assert caught.code == code
        await refused(Consumer("t", "c", broker.tcp_address, auth_secret=secret), AuthRefused, says)


async def test_a_client_without_the_permission_is_refused_at_once(
    start: Start, auth: AuthServer, topic: str
) -> None:
    auth.answers["some"] = Answer(
        allowed({"topic": "^other$", "channels": [".*"], "permissions": ["subscribe", "publish"]})
    )
    broker = start(f"--auth-http-address={auth.address}")
    await refused(
        Consumer(topic, "c", broker.tcp_address, auth_secret="some"),
        SubscribeRefused,
        "E_UNAUTHORIZED AUTH failed for SUB",
    )
    async with Producer(broker.tcp_address, auth_secret="some", backoff=FAST) as producer:
        with pytest.raises(PublishRefused, match="E_UNAUTHORIZED AUTH failed for PUB"):
            await producer.publish(topic, b"one")
        await producer.publish("other", b"one")


async def test_a_producer_outlasts_an_auth_server_that_is_away(
    start: Start, auth: AuthServer, topic: str
) -> None:
    """Permissions end after their time, and the broker asks again with the next publish."""
    auth.answers["short"] = Answer(allowed(EVERYTHING, ttl=1))
    broker = start(f"--auth-http-address={auth.address}")
    async with Producer(broker.tcp_address, auth_secret="short", backoff=FAST) as producer:
        await producer.publish(topic, b"one")
        auth.answers["short"] = Answer(b"out of order", 500)
        await asyncio.sleep(1.1)
        ask_count = auth.count("short")
        late = asyncio.create_task(producer.publish(topic, b"two"))
        while auth.count("short") < ask_count + 3:
            await asyncio.sleep(0.02)
            assert not late.done()
        auth.answers["short"] = Answer(allowed(EVERYTHING))
        async with asyncio.timeout(50):
            await late


async def test_a_client_that_loses_authorization_is_refused_after_a_while(
    start: Start, auth: AuthServer, monkeypatch: pytest.MonkeyPatch, topic: str
) -> None:
    monkeypatch.setattr(dialer, "PATIENCE_S", 0.3)
    auth.answers["dismissed"] = Answer(allowed(EVERYTHING, ttl=1))
    broker = start(f"--auth-http-address={auth.address}")
    settings: dict[str, Any] = {"auth_secret": "dismissed", "backoff": FAST}
    async with (
        Consumer(topic, "c", broker.tcp_address, **settings) as consumer,
        Producer(broker.tcp_address, **settings) as producer,
    ):
        await producer.publish(topic, b"one")
        await take(consumer, 1)
        auth.answers["dismissed"] = Answer(b"go away", 403)
        await asyncio.sleep(1.1)
        async with asyncio.timeout(50):
            with pytest.raises(AuthRefused, match="E_AUTH_FAILED"):
                await producer.publish(topic, b"two")
            with pytest.raises(AuthRefused, match="E_AUTH_FAILED"):
                await producer.publish(topic, b"three")
            connection_of(consumer).abort()  # Who consumes is not asked again before that.
            with pytest.raises(AuthRefused, match="E_AUTH_FAILED"):
                await anext(consumer)


# All of it together, with a kill.


async def test_all_of_it_is_there_again_after_a_kill(
    strict: BrokerProcess, certificates: Certificates, topic: str
) -> None:
    identity = Identity(
        tls=Tls(
            ca_file=certificates.authority,
            cert_file=certificates.client,
            key_file=certificates.client_key,
        ),
        auth_secret="all",
    )
    bodies = [b"%d" % number for number in range(40)]
    # What an nsqd held in memory is lost.
    expected = set(bodies[-1:] if isinstance(strict, NsqdProcess) else bodies)
    some = asyncio.Event()

    async def publish(producer: Producer) -> None:
        for body in bodies:
            await producer.publish(topic, body)
            if body == b"20":
                some.set()
                await asyncio.sleep(0)

    async def publish_last(producer: Producer) -> None:
        while True:
            await producer.publish(topic, bodies[-1])
            await asyncio.sleep(0.2)

    settings: dict[str, Any] = {"identity": identity, "backoff": FAST}
    async with (
        Producer(strict.tcp_address, compression="snappy", **settings) as producer,
        Consumer(topic, "c", strict.tcp_address, compression="deflate", **settings) as consumer,
        asyncio.timeout(50),
    ):
        publishing = asyncio.create_task(publish(producer))
        await some.wait()
        strict.kill()
        await asyncio.to_thread(strict.start)
        again: asyncio.Task[None] | None = None
        if isinstance(strict, NsqdProcess):
            # It may have taken all of them before it was killed; and its disk queue drops what it
            # took since, where a reader is ahead of what is written.
            await publishing
            again = asyncio.create_task(publish_last(producer))
        async for message in consumer:
            message.finish()
            expected.discard(message.body)
            if not expected:
                break
        if again is not None:
            again.cancel()
        await publishing
        consumers = await asyncio.to_thread(clients, strict, topic)
    assert [(client["tls"], client["authed"]) for client in consumers] == [(True, True)] * 2
    assert sorted((client["snappy"], client["deflate"]) for client in consumers) == [
        (False, True),
        (True, False),
    ]
