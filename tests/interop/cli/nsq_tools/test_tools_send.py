"""to-http and relay, which send messages on and finish them only when they were taken."""

from __future__ import annotations

import asyncio
import logging
import re
import socket
import subprocess
import threading
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager, suppress
from itertools import count
from typing import Any

import pytest
from tests import brokers
from tests.interop.asking import ask, until
from tests.interop.cli.nsq_tools.http_sink import HttpSink
from tests.interop.cli.tools import channels, command, fill, left, martlet, running, stored_all
from tests.interop.nsqd_process import NEEDS_NSQD, NsqdProcess

from martlet.cli.nsq_tools import relay as relay_module
from martlet.cli.nsq_tools.relay import Relay, RelayOptions
from martlet.cli.nsq_tools.to_http import ToHttp, ToHttpOptions
from martlet.options import OptionError
from martlet.testing import BrokerProcess

pytestmark = pytest.mark.interop

LINES = [b"%d" % number for number in range(300)]
AT_ONCE = ("backoff_multiplier,1ms", "max_backoff_duration,2ms", "default_requeue_delay,10ms")


broker = brokers.process()


@asynccontextmanager
async def at_work(tool: ToHttp | Relay) -> AsyncIterator[None]:
    """A tool while it runs; it ends well."""
    task = asyncio.create_task(tool.run())
    try:
        yield
    finally:
        tool.stop()
        async with asyncio.timeout(50):
            await task


async def done(broker: BrokerProcess, topic: str, channel: str) -> None:
    """Return when the channel has nothing left."""
    await asyncio.to_thread(until, lambda: not left(broker, topic, channel))


def to_http(broker: BrokerProcess, topic: str, **options: Any) -> ToHttp:
    return ToHttp(
        ToHttpOptions(
            topics=(topic,),
            nsqd_tcp_addresses=(broker.tcp_address,),
            **({"consumer_opts": AT_ONCE} | options),
        )
    )


async def posted(
    broker: BrokerProcess, topic: str, messages: Sequence[bytes], *urls: str, **options: Any
) -> None:
    """Have these messages posted, until all were taken."""
    fill(broker, topic, messages, "nsq_to_http")
    async with at_work(to_http(broker, topic, post_urls=urls, **options)):
        await done(broker, topic, "nsq_to_http")


@asynccontextmanager
async def serving(
    serve: Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]],
    host: str = "127.0.0.1",
) -> AsyncIterator[str]:
    """A server that answers as it likes. Yields its URL."""
    async with await asyncio.start_server(serve, host, 0) as server:
        yield f"http://{host}:{server.sockets[0].getsockname()[1]}/"


def errors_in(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [record.getMessage() for record in caplog.records if record.levelno == logging.ERROR]


async def test_cookies_are_not_kept(broker: BrokerProcess) -> None:
    """Each made the next request larger, until a server would refuse them all."""
    heads: list[bytes] = []

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with suppress(asyncio.IncompleteReadError):
            while True:
                heads.append(await reader.readuntil(b"\r\n\r\n"))
                await reader.readexactly(1)
                writer.write(
                    b"HTTP/1.1 200 OK\r\nSet-Cookie: k%d=v; Path=/\r\n" % len(heads)
                    + b"Content-Length: 0\r\n\r\n"
                )
        writer.close()

    async with serving(serve, "localhost") as url:  # An address has no cookies.
        await posted(broker, "cookies", [b"x"] * 20, url, publishers=1)
    assert len(heads) == 20
    assert not any(b"cookie" in head.lower() for head in heads)


async def test_an_answer_that_ends_early_is_a_failure(
    broker: BrokerProcess, caplog: pytest.LogCaptureFixture
) -> None:
    """The error quoted what had come of the answer, however long."""
    answers = [b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n", b"HTTP/1.1 200 " + b"a" * 20_000]
    complete = b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n"

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(answers.pop(0) if answers else complete)
        writer.close()

    async with serving(serve) as url:
        await posted(broker, "early", [b"x"], url)
    first, second = errors_in(caplog)
    assert "it hung up without a complete answer; attempt 1" in first
    assert "attempt 2" in second
    assert len(second) < 400


@pytest.mark.parametrize("status", [301, 302, 303, 307, 308])
async def test_a_redirect_of_a_post_has_the_message_with_it(
    broker: BrokerProcess, caplog: pytest.LogCaptureFixture, status: int
) -> None:
    """A 302 made it a GET of another page without a body, and that page's 200 finished it."""
    with HttpSink() as to, HttpSink() as moved:
        moved.answer = lambda taken: status if len(moved.asked) < 3 else 200
        moved.location = to.url + "/moved"
        await posted(broker, f"redirect{status}", [b"x"], moved.url)
        errors = errors_in(caplog)
        if status in (307, 308):
            assert [(one.method, one.path, one.body) for one in to.asked] == [
                ("POST", "/moved", b"x")
            ]
            assert errors == []
        else:
            assert to.asked == []
            assert moved.messages == [b"x"]
            assert len(errors) == 2
            message = f"POST {moved.url}: status {status} to '{to.url}/moved', which would get no"
            assert errors[0].startswith(message)


async def test_a_get_follows_redirects(broker: BrokerProcess) -> None:
    fill(broker, "follow", [b"x"], "nsq_to_http")
    with HttpSink() as to, HttpSink(lambda taken: 302) as moved:
        moved.location = to.url + "/?m=x"
        async with at_work(to_http(broker, "follow", get_urls=(moved.url + "/?m=%s",))):
            await done(broker, "follow", "nsq_to_http")
        assert to.messages == [b"x"]


async def until_cut(writer: asyncio.StreamWriter, answer: bytes) -> int:
    """Write this again and again; how many bytes were, until it cut the connection."""
    sent = 0
    with suppress(ConnectionError):
        while sent < 1 << 26:
            writer.write(answer * 1000)
            await writer.drain()
            sent += 1000 * len(answer)
    writer.close()
    return sent


async def test_interim_answers_without_end_are_cut_off(
    broker: BrokerProcess, caplog: pytest.LogCaptureFixture
) -> None:
    """They were read for as long as a request may take, a hundred megabytes a connection."""
    loop = asyncio.get_running_loop()
    cuts: list[asyncio.Future[int]] = [loop.create_future() for _ in range(2)]
    numbers = count()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        number = next(numbers)  # The next request may come before this cut is seen.
        if number < len(cuts):
            cuts[number].set_result(await until_cut(writer, b"HTTP/1.1 102 Processing\r\n\r\n"))
            return
        for _ in range(20):
            writer.write(b"HTTP/1.1 102 Processing\r\n\r\n")
        writer.write(b"HTTP/1.1 204 No Content\r\n\r\n")
        writer.close()

    async with serving(serve) as url:
        await posted(broker, "interim", [b"x"], url)
        assert max(await asyncio.gather(*cuts)) < 1 << 24
    assert caplog.text.count(f"POST {url}: more than 100 answers to one request") == 2


async def test_unwanted_answers_are_cut_off(broker: BrokerProcess) -> None:
    """They were kept, for as long as the connection had nothing else to do."""
    cut: asyncio.Future[int] = asyncio.get_running_loop().create_future()
    is_taken = asyncio.Event()
    answer = b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n"

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(answer)
        await is_taken.wait()
        cut.set_result(await until_cut(writer, answer))

    fill(broker, "unasked", [b"x"], "nsq_to_http")
    async with (
        serving(serve) as url,
        at_work(to_http(broker, "unasked", post_urls=(url,))),
    ):
        await done(broker, "unasked", "nsq_to_http")
        is_taken.set()
        assert await cut < 1 << 24


async def test_each_message_is_posted_until_it_is_taken(broker: BrokerProcess) -> None:
    refused: set[bytes] = set()

    def answer(taken: Any) -> int:
        if taken.body.endswith(b"7") and taken.body not in refused:
            refused.add(taken.body)
            return 503 if taken.body.endswith(b"17") else 404
        return 204

    with HttpSink(answer) as sink:
        options = {"content_type": "text/plain", "headers": ("X-Key: a b", "X-Other:1")}
        await posted(broker, "post", LINES, sink.url + "/in", **options)
        assert sorted(sink.messages) == sorted(LINES)
        assert len(refused) == 30
        one = sink.taken[0]
        assert (one.method, one.path) == ("POST", "/in")
        assert one.headers["Content-Type"] == "text/plain"
        assert (one.headers["X-Key"], one.headers["X-Other"]) == ("a b", "1")


async def test_a_message_that_is_never_accepted_is_given_up_only_on_request(
    broker: BrokerProcess,
) -> None:
    opts = (*AT_ONCE, "max_attempts,3")
    with HttpSink(lambda taken: 500 if taken.body == b"bad" else 200) as sink:
        await posted(broker, "poison", [b"good", b"bad"], sink.url, consumer_opts=opts)
        assert sink.messages == [b"good"]
        assert [taken.body for taken in sink.asked].count(b"bad") == 3


async def test_a_get_has_the_message_where_it_is_asked_for(broker: BrokerProcess) -> None:
    bodies = [b"a b&c=d", b"100%", b"\xff\x00/?#+", "ä".encode()]
    for body in bodies:
        ask(broker.http_address, "/pub?topic=get", "POST", body)
    with HttpSink() as sink:
        url = sink.url + "/x%20y?k=1&m=%s"
        async with at_work(to_http(broker, "get", channel="get", get_urls=(url,), publishers=2)):
            await asyncio.to_thread(until, lambda: len(sink.taken) == len(bodies))
            await done(broker, "get", "get")
        assert sorted(sink.messages) == sorted(bodies)
        assert all(taken.path.startswith("/x%20y?k=1&m=") for taken in sink.taken)


async def test_round_robin_takes_turns_and_multicast_sends_to_all(broker: BrokerProcess) -> None:
    for mode in ("round-robin", "multicast"):
        with HttpSink() as one, HttpSink() as two:
            await posted(broker, mode, LINES, one.url, two.url, mode=mode)
            if mode == "multicast":
                assert sorted(one.messages) == sorted(two.messages) == sorted(LINES)
            else:
                assert sorted(one.messages + two.messages) == sorted(LINES)
                assert len(one.messages) == len(two.messages)


@pytest.mark.parametrize("mode", ["hostpool", "epsilon-greedy"])
async def test_a_url_that_fails_is_left_alone(broker: BrokerProcess, mode: str) -> None:
    with HttpSink(lambda taken: 500) as bad, HttpSink() as good:
        urls = (bad.url, good.url, "http://127.0.0.1:1/")
        await posted(broker, f"pool-{mode}", LINES, *urls, mode=mode, publishers=4)
        assert sorted(good.messages) == sorted(LINES)
        assert len(bad.asked) <= 4, "as many as were on their way at once"


async def test_a_slow_answer_is_a_failure_and_a_sample_leaves_the_rest_out(
    broker: BrokerProcess, caplog: pytest.LogCaptureFixture
) -> None:
    fill(broker, "slow", LINES[:1], "nsq_to_http")
    release = threading.Event()

    def answer(taken: Any) -> int:
        if len(sink.asked) == 1:
            release.wait(10)
        return 200

    with HttpSink(answer) as sink:
        options = {"post_urls": (sink.url,), "request_timeout_ns": 100_000_000}
        async with at_work(to_http(broker, "slow", **options)):
            await asyncio.to_thread(until, lambda: len(sink.asked) == 2)
            await done(broker, "slow", "nsq_to_http")
            release.set()
        assert f"POST {sink.url}: no answer in time; attempt 1, again in" in caplog.text
    caplog.set_level(logging.INFO, "martlet")
    with HttpSink() as sink:
        await posted(broker, "sample", LINES, sink.url, sample=0.5, status_every=20)
        assert 90 < len(sink.messages) < 210
        assert "[aggregate]: finished 20 requests - 99th: " in caplog.text


def relay(source: BrokerProcess, topic: str, *to: str, **options: Any) -> Relay:
    return Relay(
        RelayOptions(
            topics=(topic,),
            nsqd_tcp_addresses=(source.tcp_address,),
            destination_addresses=to,
            consumer_opts=AT_ONCE,
            **options,
        )
    )


async def test_relay_and_to_http_keep_a_rate_over_all_topics(broker: BrokerProcess) -> None:
    lines, rate_per_s = LINES[:15], 50.0
    for channel in ("nsq_to_http", "nsq_to_nsq"):
        for topic in ("rate1", "rate2"):
            fill(broker, topic, lines, channel)
    least_s = (2 * len(lines) - 5) / rate_per_s
    brokers = (broker.tcp_address,)
    with HttpSink() as sink, BrokerProcess() as to:
        options = {"topics": ("rate1", "rate2"), "nsqd_tcp_addresses": brokers, "rate": rate_per_s}
        for channel, tool in (
            ("nsq_to_http", ToHttp(ToHttpOptions(post_urls=(sink.url,), **options))),  # type: ignore[arg-type]
            ("nsq_to_nsq", Relay(RelayOptions(destination_addresses=(to.tcp_address,), **options))),  # type: ignore[arg-type]
        ):
            began_s = time.monotonic()
            async with at_work(tool):
                for topic in ("rate1", "rate2"):
                    await done(broker, topic, channel)
            assert time.monotonic() - began_s >= least_s


async def test_messages_are_relayed_and_filtered(broker: BrokerProcess) -> None:
    lines = [
        *(b'{"kind": "a", "n": %d, "x": null}' % number for number in range(50)),
        *(b'{"kind": "b", "n": %d}' % number for number in range(50)),
        *(b'{"n": 1}', b"no json", b"[1]", b'{"kind": "a", "n": NaN}'),
    ]
    fill(broker, "from", lines, "nsq_to_nsq")
    with BrokerProcess() as to:
        filters = {"require_json_field": "kind", "require_json_value": "a"}
        tool = relay(
            broker,
            "from",
            to.tcp_address,
            destination_topic="passed",
            whitelist_json_fields=("n", "kind"),
            **filters,
        )
        async with at_work(tool):
            await done(broker, "from", "nsq_to_nsq")
        assert stored_all(to, "passed") == [b'{"kind":"a","n":%d}' % number for number in range(50)]
        fill(broker, "same", LINES, "nsq_to_nsq")
        async with at_work(relay(broker, "same", to.tcp_address)):
            await done(broker, "same", "nsq_to_nsq")
        assert stored_all(to, "same") == LINES


async def test_a_destination_that_dies_is_left_for_the_other(
    broker: BrokerProcess, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(relay_module, "TIMEOUT_S", 0.5)
    fill(broker, "two", LINES, "nsq_to_nsq")
    with BrokerProcess() as one, BrokerProcess() as two:
        addresses = ("127.0.0.1:1", one.tcp_address, two.tcp_address)
        async with at_work(relay(broker, "two", *addresses, max_in_flight=20)):
            await asyncio.to_thread(until, lambda: left(broker, "two", "nsq_to_nsq") < 200)
            one.kill()
            fill(broker, "two", [b"more"] * 100, "nsq_to_nsq")
            await done(broker, "two", "nsq_to_nsq")
        one.start()
        there = stored_all(two, "two")
        assert set(stored_all(one, "two") + there) == {*LINES, b"more"}
        assert there.count(b"more") >= 100


async def test_a_server_that_is_down_is_logged_once_however_many_messages_wait(
    broker: BrokerProcess, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each batch, or each message, had a line or two of its own."""
    monkeypatch.setattr(relay_module, "TIMEOUT_S", 0.05)
    caplog.set_level(logging.INFO, "martlet")
    with socket.socket() as closed:
        closed.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{closed.getsockname()[1]}"
        fill(broker, "down", LINES, "nsq_to_nsq")
        fill(broker, "down-http", LINES, "nsq_to_http")
        url = f"http://{address}/"
        for tool, topic, channel, prefix in (
            (relay(broker, "down", address), "down", "nsq_to_nsq", f"cannot publish to {address}"),
            (
                to_http(broker, "down-http", post_urls=(url,)),
                *("down-http", "nsq_to_http", f"cannot connect to {url}"),
            ),
        ):
            caplog.clear()

            def requeued(topic: str = topic, channel: str = channel) -> int:
                return int(channels(broker, topic)[channel]["requeue_count"])

            async with at_work(tool):
                await asyncio.to_thread(until, lambda: requeued() > 20)
            lines = [line for line in caplog.messages if line.startswith(f"{prefix}: ")]
            assert len(lines) == 1
            assert "connection refused; is a " in lines[0]
            assert not [record for record in caplog.records if record.levelno >= logging.ERROR]


async def test_one_message_that_is_refused_does_not_hold_up_the_others(
    broker: BrokerProcess,
) -> None:
    big = b"x" * 5000
    fill(broker, "big", [*LINES[:50], big, *LINES[50:100]], "nsq_to_nsq")
    with BrokerProcess(None, "--max-msg-size=4096") as to:
        async with at_work(relay(broker, "big", to.tcp_address)):
            await asyncio.to_thread(until, lambda: left(broker, "big", "nsq_to_nsq") == 1)
        assert set(stored_all(to, "big")) == set(LINES[:100])
        peeked = ask(broker.http_address, "/channel/peek?topic=big&channel=nsq_to_nsq")
        assert [message["body_bytes"] for message in peeked["messages"]] == [5000]


@NEEDS_NSQD
async def test_from_and_to_an_nsqd(broker: BrokerProcess) -> None:
    with NsqdProcess() as nsqd, HttpSink() as sink:
        fill(broker, "there", LINES, "nsq_to_nsq")
        async with at_work(relay(broker, "there", nsqd.tcp_address, destination_topic="back")):
            await done(broker, "there", "nsq_to_nsq")
            async with at_work(to_http(nsqd, "back", post_urls=(sink.url,))):
                await asyncio.to_thread(until, lambda: len(sink.taken) >= len(LINES))
                await done(nsqd, "back", "nsq_to_http")
        assert sorted(sink.messages) == sorted(LINES)


def test_killed_and_started_again_they_lose_nothing(broker: BrokerProcess) -> None:
    lines = [b"%d" % number for number in range(900)]
    fill(broker, "kill", lines, "nsq_to_http")
    ask(broker.http_address, "/channel/create?topic=kill&channel=nsq_to_nsq", "POST")
    ask(broker.http_address, "/channel/replay?topic=kill&channel=nsq_to_nsq&beginning=true", "POST")
    with HttpSink() as sink:
        source = f"--nsqd-tcp-address={broker.tcp_address}"
        sender = command("to-http", "--topic=kill", source, f"--post={sink.url}", "-n", "8")
        passer = command(
            *("relay", "--topic=kill", source, "--max-in-flight=50"),
            *(f"--destination-nsqd-tcp-address={broker.tcp_address}", "--destination-topic=killed"),
        )
        first = [
            subprocess.Popen(command, stderr=subprocess.DEVNULL) for command in (sender, passer)
        ]
        until(lambda: len(sink.taken) > 50)
        for process in first:
            process.kill()
            process.wait()
        assert len(sink.taken) < len(lines)
        with running(*sender[3:]), running(*passer[3:]):
            until(lambda: not left(broker, "kill", "nsq_to_http"))
            until(lambda: not left(broker, "kill", "nsq_to_nsq"))
        assert set(sink.messages) == set(lines)
        assert set(stored_all(broker, "killed")) == set(lines)


SOURCE: dict[str, Any] = {"topics": ("t",), "nsqd_tcp_addresses": ("127.0.0.1:1",)}
HTTP: dict[str, Any] = {**SOURCE, "post_urls": ("http://h/",)}
RELAY: dict[str, Any] = {**SOURCE, "destination_addresses": ("127.0.0.1:2",)}
GETS: dict[str, Any] = {"post_urls": (), "get_urls": ("http://h/%s",)}


@pytest.mark.parametrize(
    ("kind", "options", "text"),
    [
        *(
            (ToHttpOptions, HTTP | options, text)
            for options, text in (
                ({"topics": ()}, "--topic and --channel are needed"),
                ({"post_urls": ()}, "either with --post or with --get"),
                ({"get_urls": ("http://h/%s",)}, "exclude each other: give one"),
                ({"post_urls": ("host:80",)}, "'host:80' is no URL"),
                (GETS | {"get_urls": ("http://h/",)}, "needs %s once"),
                ({"content_type": ""}, "--content-type needs a value"),
                (GETS | {"content_type": "text/plain"}, "--content-type goes with --post"),
                ({"sample": 1.5}, "--sample=1.5 must be from 0 to 1"),
                ({"rate": -1.0}, "--rate=-1.0: must be from 0.001 to 1,000,000,000"),
                ({"rate": 1e12}, "must be from 0.001 to 1,000,000,000"),
                ({"headers": ("nothing",)}, "--header='nothing' is none"),
                ({"headers": ("A: b\r\nC: d",)}, "is none; write NAME:VALUE"),
                ({"mode": "all"}, "--mode is 'all'"),
                ({"publishers": 0}, "--n is 0"),
                ({"nsqd_tcp_addresses": ()}, "name the source of the messages"),
            )
        ),
        *(
            (RelayOptions, RELAY | options, text)
            for options, text in (
                ({"topics": ()}, "--topic and --channel are needed"),
                ({"topics": ("$",)}, "--topic=$ is not valid"),
                ({"destination_topic": "$"}, "--destination-topic=$ is not valid"),
                ({"channel": "$"}, "--channel=$ is not valid"),
                ({"destination_addresses": ()}, "--destination-nsqd-tcp-address is missing"),
                ({"require_json_value": "1"}, "--require-json-value needs a --require-json-field"),
                ({"destination_addresses": ("127.0.0.1:1",)}, "round in a circle: 127.0.0.1:1"),
            )
        ),
    ],
)
def test_wrong_options_are_refused(
    kind: Callable[..., object], options: dict[str, Any], text: str
) -> None:
    with pytest.raises(OptionError, match=re.escape(text)):
        kind(**options)


def test_tools_find_the_port_of_a_broker_that_is_named_by_its_http_address(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with BrokerProcess(None) as broker:
        by_http = f"--address={broker.http_address}"
        assert martlet("pub", "--topic=t", by_http, input=b"one\n").returncode == 0
        monkeypatch.setenv("MARTLET_ADDRESS", f"http://{broker.http_address}")
        shown = martlet("tail", "--topic=t", "--channel=c", "-n=1")
        assert (shown.returncode, shown.stdout) == (0, b"one\n")
        wrong = martlet("tail", "--topic=t", f"--address={broker.tcp_address}")
        assert wrong.returncode == 1
        assert b"is not the HTTP address of a broker" in wrong.stderr
        assert b"--nsqd-tcp-address" in wrong.stderr
