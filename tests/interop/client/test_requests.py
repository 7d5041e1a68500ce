"""Requests and replies, with real brokers, several brokers, and workers that are killed."""

from __future__ import annotations

import asyncio
import itertools
import subprocess
import sys
import threading
import urllib.request
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager, contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest
from tests.crash.wire import Wire
from tests.interop.asking import ask
from tests.interop.auth_server import Answer, AuthServer, allowed
from tests.interop.http_client import HttpClient
from tests.interop.lookup_process import LookupProcess
from tests.interop.nsqd_process import NEEDS_NSQD, NsqdProcess
from tests.polling import until
from tests.unit.client.request_handlers import shout

from martlet.client import (
    AlreadyAnswered,
    Backoff,
    BadBody,
    Closed,
    Consumer,
    Limits,
    Message,
    NoRequest,
    NotSupported,
    Outgoing,
    Producer,
    ProducerFull,
    Properties,
    Reject,
    RequestFailed,
    RequestTimeout,
    Requeue,
    SubscribeRefused,
    sync,
)
from martlet.client.admin import Admin
from martlet.client.requests import outgoing
from martlet.testing import Broker, BrokerProcess

pytestmark = [pytest.mark.interop, pytest.mark.timeout(60)]

ROOT = Path(__file__).parents[3]
SOON = Backoff(first_s=0.02, max_s=0.05)
PATIENT_S = 600.0
"""Of requests that are answered: `tests.time_limit` ends what hangs."""
_numbers = itertools.count()
Handler = Callable[[Message], Awaitable[object] | object]


@pytest.fixture
def topic() -> str:
    return f"jobs{next(_numbers)}"


@asynccontextmanager
async def worker(
    topic: str, addresses: Any, handler: Handler, channel: str = "workers", **options: Any
) -> AsyncIterator[Consumer]:
    """Handle requests meanwhile."""
    place = options.pop("on", "loop")
    async with Consumer(topic, channel, addresses, backoff=SOON, **options) as consumer:
        running = asyncio.create_task(consumer.run(handler, concurrency=4, on=place))
        try:
            yield consumer
        finally:
            consumer.stop()
            await running


async def names(admin: Admin) -> list[str]:
    """The names of all topics."""
    return [item.topic for some in (await admin.topics.list()).values.values() for item in some]


async def echo(message: Message) -> None:
    message.reply(b"re: " + message.body, headers={"seen": message.properties.headers["name"]})


async def test_a_request_gets_its_reply(broker: Broker, topic: str) -> None:
    async with worker(topic, broker.tcp_address, echo), Producer(broker.tcp_address) as producer:
        requests = [
            producer.request(topic, b"%d" % n, headers={"name": f"n{n}"}, tag="t")
            for n in range(100)
        ]
        replies = await asyncio.gather(*requests)
        assert producer.stats.waiting_requests == 0
        own = Outgoing(b"one", Properties(headers={"name": "own"}, keys=("k",)))
        replies.append(await producer.request(topic, own))
    assert [reply.body for reply in replies] == [b"re: %d" % n for n in range(100)] + [b"re: one"]
    seen = [reply.properties.headers["seen"] for reply in replies]
    assert seen == [f"n{n}" for n in range(100)] + ["own"]


def test_blocking_clients_request_and_reply(topic: str) -> None:
    with BrokerProcess(None) as broker, sync.Consumer(topic, "c", broker.tcp_address) as consumer:
        handling = threading.Thread(
            target=consumer.run, args=(lambda message: message.reply(message.body * 2),)
        )
        handling.start()
        with sync.Producer(broker.tcp_address) as producer:
            assert producer.request(topic, b"ab", timeout_s=PATIENT_S).body == b"abab"
            consumer.stop()
            handling.join()
            iterating = threading.Thread(target=reply_to_one, args=(topic, broker.tcp_address))
            iterating.start()
            assert producer.request(topic, b"cd", timeout_s=PATIENT_S).body == b"one of a loop"
            iterating.join()
            assert depth_of(broker, topic) == (0, 0)
            with pytest.raises(RequestTimeout):
                producer.request(topic, b"cd", timeout_s=0.1)


def depth_of(broker: BrokerProcess, topic: str) -> tuple[int, int]:
    """The messages of a topic's channel that wait, and those in flight."""
    report = ask(broker.http_address, f"/stats?format=json&topic={topic}")
    channel = report["topics"][0]["channels"][0]
    return channel["depth"], channel["in_flight_count"]


def reply_to_one(topic: str, address: str) -> None:
    with sync.Consumer(topic, "c", address) as consumer:
        for message in consumer:
            message.reply(b"one of a loop")
            return


@pytest.mark.parametrize("place", ["threads", "processes"])
async def test_a_handler_elsewhere_returns_its_reply(
    broker: Broker, topic: str, place: str
) -> None:
    async with (
        worker(topic, broker.tcp_address, shout, on=place),  # type: ignore[arg-type]
        Producer(broker.tcp_address) as producer,
    ):
        assert (await producer.request(topic, b"quiet", timeout_s=PATIENT_S)).body == b"QUIET"
        with pytest.raises(RequestFailed, match="not this one"):
            await producer.request(topic, b"fail", timeout_s=PATIENT_S)


async def test_the_error_of_a_handler_reaches_the_requester(broker: Broker, topic: str) -> None:
    tries = 0

    async def handle(message: Message) -> None:
        nonlocal tries
        tries += 1
        if message.body == b"reject":
            raise Reject("unreadable")
        if message.body == b"later":
            if message.attempts == 1:
                raise Requeue(0)
            message.reply(b"at last")
            return
        raise KeyError("missing " * 600)

    async with worker(topic, broker.tcp_address, handle), Producer(broker.tcp_address) as producer:
        with pytest.raises(RequestFailed) as caught:
            await producer.request(topic, b"x")
        assert caught.value.kind == "KeyError"
        assert caught.value.error.startswith("'missing missing")
        assert len(caught.value.error) == 4000
        assert str(caught.value).startswith("KeyError: 'missing")
        assert tries == 1
        with pytest.raises(RequestFailed, match="Reject: unreadable"):
            await producer.request(topic, b"reject")
        assert (await producer.request(topic, b"later")).body == b"at last"
        assert producer.stats.late_replies == 0
    async with Admin(broker.http_address) as admin:
        assert f"{topic}.workers.dead" in await names(admin)


async def test_a_watching_channel_stays_silent(broker: Broker, topic: str) -> None:
    async def fail(_message: Message) -> None:
        raise ValueError("in the audit")

    async def slow(message: Message) -> None:
        await asyncio.sleep(0.2)
        message.reply(b"done")

    async with (
        worker(topic, broker.tcp_address, fail, channel="audit", answers_requests=False),
        worker(topic, broker.tcp_address, slow),
        Producer(broker.tcp_address) as producer,
    ):
        assert (await producer.request(topic, b"x")).body == b"done"


async def test_a_second_reply_is_dropped_and_counted(broker: Broker, topic: str) -> None:
    async def handle(message: Message) -> None:
        message.reply(b"done")

    async with (
        worker(topic, broker.tcp_address, handle, channel="one") as one,
        worker(topic, broker.tcp_address, handle, channel="two") as two,
        Producer(broker.tcp_address) as producer,
    ):
        assert (await producer.request(topic, b"x")).body == b"done"
        await until(lambda: producer.stats.late_replies == 1)
        await until(lambda: one.counts.finished + two.counts.finished == 2)


async def test_without_a_worker_the_timeout_says_so_and_a_late_reply_is_dropped(
    broker: Broker, topic: str
) -> None:
    async with Producer(broker.tcp_address) as producer:
        with pytest.raises(
            RequestTimeout, match=f"no reply from a consumer of topic {topic!r}"
        ) as e:
            await producer.request(topic, b"x", timeout_s=0.2)
        assert isinstance(e.value, TimeoutError)
        assert broker.tcp_address in str(e.value)
        assert producer.stats.waiting_requests == 0
        async with worker(topic, broker.tcp_address, lambda message: message.reply(b"late")):
            await until(lambda: producer.stats.late_replies == 1)


async def test_without_a_broker_the_timeout_says_so(topic: str) -> None:
    async with Broker() as broker:
        producer = await Producer(broker.tcp_address, backoff=SOON).__aenter__()
    await until(lambda: "refused" in str(producer.stats.brokers[0].last_error))
    with pytest.raises(RequestTimeout, match=r"has no answer of a broker within 0\.3 s: .*refused"):
        await producer.request(topic, b"x", timeout_s=0.3)
    await producer.close()


async def test_a_cancelled_request_and_a_closed_producer(broker: Broker, topic: str) -> None:
    producer = await Producer(broker.tcp_address).__aenter__()
    cancelled = asyncio.create_task(producer.request(topic, b"x"))
    waiting = asyncio.create_task(producer.request(topic, b"y"))
    await until(lambda: producer.stats.stored == 2)
    cancelled.cancel()
    with suppress(asyncio.CancelledError):
        await cancelled
    assert producer.stats.waiting_requests == 1
    await producer.close()
    with pytest.raises(Closed, match="before the reply came"):
        await waiting


async def test_limits_and_bad_input(broker: Broker, topic: str) -> None:
    errors: list[Exception] = []

    def handle(message: Message) -> None:
        for body, options in (
            (b"", {}),
            (b"x" * 2_000_000, {}),
            ("text", {}),
            (b"x", {"headers": {"martlet-error": "mine"}}),
        ):
            try:
                message.reply(body, **options)  # type: ignore[arg-type]
            except Exception as error:
                errors.append(error)
        message.reply(b"x")
        with pytest.raises(AlreadyAnswered):
            message.reply(b"x")

    async with Producer(broker.tcp_address, limits=Limits(max_waiting_requests=1)) as producer:
        waiting = asyncio.create_task(producer.request(topic, b"x"))
        await asyncio.sleep(0)
        with pytest.raises(ProducerFull, match="1 requests wait for their reply, the maximum is 1"):
            await producer.request(topic, b"y")
        async with worker(topic, broker.tcp_address, handle):
            await waiting
            assert [type(error) for error in errors] == [BadBody, BadBody, TypeError, ValueError]
            assert "reply of 2000000 bytes is above the broker's --max-msg-size" in str(errors[1])
        for options, text in (
            ({"headers": {"martlet-reply-to": "me"}}, "'martlet-reply-to' is set by request"),
            ({"defer_ms": 5}, "a request is delivered at once"),
            ({"timeout_s": 0}, "timeout_s=0 must be above 0"),
        ):
            with pytest.raises(ValueError, match=text):
                await producer.request(topic, b"x", **options)
        with pytest.raises(BadBody):
            await producer.request(topic, b"")
        with pytest.raises(TypeError, match="request\\(\\) has no keyword argument 'nope'"):
            await producer.request(topic, b"x", nope=1)  # type: ignore[call-arg]
        assert producer.stats.waiting_requests == 0
        await producer.publish(topic, b"plain")
    async with Consumer(topic, "workers", broker.tcp_address) as consumer:
        async for message in consumer:
            assert not message.is_request
            with pytest.raises(NoRequest, match="no client waits"):
                message.reply(b"x")
            break


async def test_a_reply_topic_is_gone_with_its_producer(
    broker: Broker, topic: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(outgoing, "CLAIM_MS", 200)

    async def reply_topics() -> list[str]:
        async with Admin(broker.http_address) as admin:
            return [name for name in await names(admin) if name.startswith("reply.")]

    async with Producer(broker.tcp_address) as producer:
        with pytest.raises(RequestTimeout):
            await producer.request(topic, b"x", timeout_s=0.1)
        assert len(await reply_topics()) == 1

    async def reply_topics_are(count: int) -> None:
        async with asyncio.timeout(50):
            while len(await reply_topics()) != count:  # noqa: ASYNC110, the broker changes it
                await asyncio.sleep(0.01)

    await reply_topics_are(0)
    async with worker(topic, broker.tcp_address, lambda message: message.reply(b"late")):
        await reply_topics_are(1)
    await reply_topics_are(0)


@contextmanager
def hanging_worker(topic: str, address: str) -> Iterator[subprocess.Popen[str]]:
    """Run a worker in a process that never ends its first request."""
    module = "tests.interop.agents.request_worker"
    with subprocess.Popen(
        [sys.executable, "-m", module, topic, address],
        cwd=ROOT,
        stdout=subprocess.PIPE,
        text=True,
    ) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
        try:
            yield process
        finally:
            process.kill()


async def test_a_request_of_a_killed_worker_comes_back_from_another(
    broker: Broker, topic: str
) -> None:
    with hanging_worker(topic, broker.tcp_address) as first:
        assert first.stdout is not None
        async with Producer(broker.tcp_address) as producer:
            request = asyncio.create_task(producer.request(topic, b"job", timeout_s=PATIENT_S))
            assert await asyncio.to_thread(first.stdout.readline) == "job\n"

            def handle(message: Message) -> None:
                message.reply(b"attempt %d" % message.attempts)

            async with worker(topic, broker.tcp_address, handle):
                first.kill()
                assert (await request).body == b"attempt 2"
            assert producer.stats.late_replies == 0


async def test_requests_go_on_after_a_restart_of_the_broker(topic: str, tmp_path: Path) -> None:
    with BrokerProcess(tmp_path) as broker:
        held = asyncio.Event()
        begun = asyncio.Event()

        async def handle(message: Message) -> None:
            begun.set()
            await held.wait()
            if not message.is_answered:
                message.reply(b"done")

        async with (
            Producer(broker.tcp_address, backoff=SOON) as producer,
            worker(topic, broker.tcp_address, handle),
        ):
            request = asyncio.create_task(producer.request(topic, b"x", timeout_s=PATIENT_S))
            await begun.wait()
            broker.kill()
            held.set()
            await asyncio.to_thread(broker.start)
            assert (await request).body == b"done"
            assert (await producer.request(topic, b"y", timeout_s=PATIENT_S)).body == b"done"


async def test_requests_over_several_brokers_by_lookup(topic: str) -> None:
    with LookupProcess() as lookup:
        flags = (f"--lookupd-tcp-address={lookup.tcp_address}", "--broadcast-address=127.0.0.1")
        with BrokerProcess(None, *flags) as one, BrokerProcess(None, *flags) as two:
            async with Admin([one.http_address, two.http_address]) as admin:
                await admin.topics.create(topic)
            seen: set[str] = set()
            both = [one.tcp_address, two.tcp_address]
            async with (
                worker(topic, both, lambda message: message.reply(message.body)),
                Producer(lookup=lookup.http_address, lookup_poll_s=0.2) as producer,
            ):
                await until(lambda: producer.stats.connected == 2)
                for round_number in range(3):
                    bodies = [b"%d" % n for n in range(200)]
                    request = partial(producer.request, topic, timeout_s=PATIENT_S)
                    replies = await asyncio.gather(*map(request, bodies))
                    assert [reply.body for reply in replies] == bodies
                    await asyncio.sleep(0)
                    seen |= {broker.address for broker in producer.stats.brokers if broker.stored}
                    if round_number == 0:
                        one.kill()
                        one.start()
            assert seen == set(both)


async def test_a_plain_client_of_nsq_replies_by_http(broker: Broker, topic: str) -> None:
    """It knows no headers, and peeks at those of the message that it has."""
    wire = await Wire.subscribed(broker.tcp_address, topic, "workers")
    wire.send(b"RDY 1\n")
    async with Producer(broker.tcp_address) as producer:
        request = asyncio.create_task(producer.request(topic, b"ab", timeout_s=PATIENT_S))
        received = await wire.message()
        path = f"/channel/peek?topic={topic}&channel=workers&state=in_flight"
        (peeked,) = (await asyncio.to_thread(ask, broker.http_address, path))["messages"]
        assert peeked["id"] == received.id.decode()
        headers = peeked["properties"]["headers"]
        reply = urllib.request.Request(
            f"http://{broker.http_address}/pub?topic={quote(headers['martlet-reply-to'])}",
            received.body * 2,
            {"X-Martlet-Header": f"martlet-correlation-id={headers['martlet-correlation-id']}"},
        )
        await asyncio.to_thread(lambda: urllib.request.urlopen(reply, timeout=10).close())
        assert (await request).body == b"abab"
    wire.close()


def test_a_client_over_http_reads_the_headers_and_replies(topic: str) -> None:
    with BrokerProcess(None) as broker, sync.Producer(broker.tcp_address) as producer:
        worker = HttpClient(broker.http_address, topic, "workers")
        with ThreadPoolExecutor(1) as pool:
            replying = pool.submit(producer.request, topic, b"ab", timeout_s=PATIENT_S)
            (message,) = worker.receive(wait=20)
            headers = message["headers"]
            replies = HttpClient(broker.http_address, quote(headers["martlet-reply-to"]))
            correlation_id = headers["martlet-correlation-id"]
            answer = replies.publish("abab", headers={"martlet-correlation-id": correlation_id})
            assert answer.status == 200
            assert replying.result(PATIENT_S).body == b"abab"


@NEEDS_NSQD
async def test_an_nsqd_has_no_requests(topic: str) -> None:
    with NsqdProcess(None) as nsqd:
        async with Producer(nsqd.tcp_address) as producer:
            with pytest.raises(NotSupported):
                await producer.request(topic, b"x")
            await producer.publish(topic, b"x")


async def test_a_refused_reply_topic_stops_requests_and_nothing_else(topic: str) -> None:
    rights = {"topic": topic, "channels": [".*"], "permissions": ["publish", "subscribe"]}
    with (
        AuthServer({"s": Answer(allowed(rights))}) as auth,
        BrokerProcess(None, f"--auth-http-address={auth.address}") as broker,
    ):
        async with Producer(
            broker.tcp_address, auth_secret="s", backoff=SOON, timeout_s=10
        ) as producer:
            for _ in range(2):
                with pytest.raises(SubscribeRefused, match="is refused to this client"):
                    await producer.request(topic, b"x")
            await producer.publish(topic, b"x")
