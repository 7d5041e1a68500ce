"""Plain HTTP against a real broker: leases, receipts, crashes, and NSQ's consumers beside."""

from __future__ import annotations

import asyncio
import json
import re
import socket
import threading
import time
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from tests import brokers
from tests.crash.wire import Wire, message, pub
from tests.interop.asking import ask, until
from tests.interop.http_client import NDJSON, HttpClient

from martlet.testing import BrokerProcess

pytestmark = pytest.mark.interop


broker = brokers.process()


class ChannelClient(HttpClient):
    """A client of a channel, which it makes."""

    def __init__(self, broker: BrokerProcess, topic: str, channel: str = "c") -> None:
        super().__init__(broker.http_address, topic, channel)
        self.broker = broker
        self.topic = topic
        self.names = {"topic": topic, "channel": channel}
        assert self.receive() == []

    def stats(self) -> dict[str, int]:
        path = f"/stats?format=json&topic={self.topic}&channel={self.names['channel']}"
        (channel,) = ask(self.broker.http_address, path)["topics"][0]["channels"]
        assert isinstance(channel, dict)
        return channel

    def configure(self, **policy: object) -> None:
        call = json.dumps({**self.names, "policy": policy}).encode()
        ask(self.broker.http_address, "/call/channel.configure", "POST", call)

    def kill_broker(self) -> None:
        self.broker.kill()
        self.broker.restart()


@pytest.fixture
def client(broker: BrokerProcess, request: pytest.FixtureRequest) -> ChannelClient:
    """A client of a topic of the test's own."""
    case = request.node.name.partition("[")[2].rstrip("]")
    text = f"{request.node.originalname[5:50]}-{case}" if case.isalpha() else request.node.name
    return ChannelClient(broker, re.sub("[^a-z0-9-]", "_", text)[:64])


@pytest.fixture
def lone_client(tmp_path: Path) -> Iterator[ChannelClient]:
    """A client of a broker of its own."""
    with BrokerProcess(tmp_path / "data") as process:
        yield ChannelClient(process, "t")


def bodies(messages: list[dict[str, str]]) -> list[str]:
    return [message["body"] for message in messages]


def test_a_message_has_all_its_properties(client: ChannelClient) -> None:
    fields: dict[str, Any] = {
        "tag": "card",
        "keys": ["order-1041", "köy"],
        "headers": {"currency": "EUR"},
        "order_key": "customer-7",
    }
    stored = client.publish("17.50 €", **fields)
    assert stored.status == 200
    assert stored.json | {"id": ""} == {
        "status": "OK", "queue": 0, "offset": 0, "count": 1, "id": "",
    }  # fmt: skip
    (message,) = client.receive()
    assert message.items() >= {"body": "17.50 €", "attempts": 1, "offset": 0, **fields}.items()
    assert message["id"] == stored.json["id"]
    assert abs(message["timestamp_ms"] - time.time() * 1000) < 60_000
    assert client.answer("finish", [message]) == ["OK"]
    assert client.receive() == []


def test_many_are_stored_in_order_and_each_answer_says_where(client: ChannelClient) -> None:
    lines = [json.dumps({"body": f"m{n}", "priority": 9 if n == 3 else 4}) for n in range(5)]
    lines.append(json.dumps({"body_base64": "/wA=", "defer_ms": 3_600_000}))
    answer = client.post("messages", "\n".join(lines).encode(), NDJSON)
    stored = answer.json["messages"]
    assert [(message["queue"], message["offset"]) for message in stored] == [
        (0, 0), (0, 1), (0, 2), (1, 0), (0, 3), (0, None),
    ]  # fmt: skip
    messages = client.receive(max=10)
    assert [message["body"] for message in messages] == ["m3", "m0", "m1", "m2", "m4"]
    assert {message["id"] for message in messages} == {message["id"] for message in stored[:5]}
    assert client.answer("finish", messages) == ["OK"] * 5


def test_a_wrong_line_stores_nothing_and_is_named(client: ChannelClient) -> None:
    for wrong, text in (
        ('{"body": "x", "tga": "y"}', "message 2: unknown argument 'tga'; there are body,"),
        ('{"body": ""}', "message 2: the body is empty"),
        ('{"body": 1}', "message 2: 'body' must be a text"),
        ('{"tag": "x"}', "message 2: give the body as 'body'"),
        ('{"body": "x", "body_base64": "AA=="}', "message 2: give the body as"),
        ('{"body_base64": "?"}', "'body_base64' is no base64"),
        ('{"body": "x", "keys": [1]}', "'keys' must have texts only"),
        ('{"body": "x", "headers": {"a": "\\ud800"}}', "'headers' must have texts only"),
        ('{"body": "x", "priority": 10}', "'priority' must be a whole number from 0 to 9"),
        ('{"body": "x", "priority": "9"}', "from 0 to 9, not '9'"),
        ('{"body": "x", "priority": null}', "'priority' of message 2 is null: leave it out"),
        ('{"body": "x", "queue": 7}', "has no queue 7"),
        ('{"body": "x", "queue": 0, "order_key": "k"}', "both choose a queue: give one"),
        ('{"body": "x", "defer_ms": 1, "deliver_at_ms": 1}', "both set the time: give one"),
        ('{"body": "x", "defer_ms": 40000000000}', "(--max-delay)"),
        ('{"body": "x", "tag": "a|b"}', "INVALID_PROPERTIES: message 2: "),
        ("[1]", "message 2 must be a JSON object"),
        ("{", "message 2 is not valid"),
    ):
        answer = client.post("messages", b'{"body": "good"}\n' + wrong.encode(), NDJSON)
        assert answer.status == 400, wrong
        assert text in answer.json["message"], wrong
        assert str(1 << 62) not in answer.json["message"], "no limit that a client can meet"
    big = client.publish("x" * (1 << 20) + "y")
    assert big.status == 413
    assert "1048577 bytes, the limit is 1048576 (--max-msg-size)" in big.json["message"]
    assert client.post("messages", b"x", "text/plain").status == 415
    assert client.receive(max=10) == []


@pytest.mark.parametrize(
    ("path", "text"),
    [
        ("channels/c/receive?max=1001", "'max' must be a whole number from 1 to 1000, not '1001'"),
        ("channels/c/receive?max=x", "'max' must be"),
        ("channels/c/receive?wait=61", "'wait' must be a number of seconds from 0 to 60, not '61'"),
        ("channels/c/receive?wait=nan", "'wait' must be"),
        ("channels/c/receive?visibility=901", "from 0.1 to 900 (--max-msg-timeout), not '901'"),
        ("channels/c/receive?visibility=0", "'visibility' must be"),
        ("channels/c/receive?mx=1", "unknown argument 'mx'; there are: max, wait, visibility"),
        ("channels/c%20d/receive", "channel 'c d' is not a valid name: 1 to 64"),
        ("channels/c%23ephemeral/receive", "take a name without that suffix"),
        ("channels/c/finish", "is not valid"),
        ("channels/c/finish?x=1", "unknown argument 'x'; there are: none"),
    ],
)
def test_a_wrong_argument_is_named_with_its_limit(
    client: ChannelClient, path: str, text: str
) -> None:
    answer = client.post(path)
    assert answer.status == 400
    assert text in answer.json["message"]


def test_a_wrong_acknowledgement_is_named(client: ChannelClient) -> None:
    for verb, body, text in (
        ("finish", '{"receipts": []}', "'receipts' must be a list of 1 to 1000 receipts"),
        ("finish", '{"receipts": ["x"], "delay": 1}', "unknown argument 'delay'"),
        ("requeue", '{"receipts": ["x"], "delay": 3601}', "to 3600 (--max-req-timeout), not"),
        ("requeue", '{"receipts": ["x"], "delay": "1"}', "'delay' must be a number"),
        ("requeue", '{"receipts": ["x"], "delay": true}', "'delay' must be a number"),
        ("reject", '{"receipts": ["x"], "error": 1}', "'error' must be a text of at most 1000"),
        ("touch", '{"receipts": ["x"], "visibility": 1e9}', "(--max-msg-timeout)"),
    ):
        answer = client.post(f"channels/c/{verb}", body.encode())
        assert answer.status == 400
        assert text in answer.json["message"]
    results = client.post("channels/c/finish", b'{"receipts": ["x", 7]}')
    assert results.status == 409
    assert [result["status"] for result in results.json["results"]] == ["BAD_RECEIPT"] * 2
    assert client.post("channels/none/finish", b'{"receipts": ["x"]}').status == 404


def test_a_long_poll_ends_with_the_first_message_or_its_time(client: ChannelClient) -> None:
    began_s = time.monotonic()
    assert client.receive(wait=0.3) == []
    assert time.monotonic() - began_s >= 0.3
    with ThreadPoolExecutor(1) as pool:
        polling = pool.submit(client.receive, wait=30, max=10)
        time.sleep(0.2)
        assert not polling.done()
        client.publish("now")
        assert bodies(polling.result(10)) == ["now"]


def test_a_lease_that_ends_gives_the_message_to_another(client: ChannelClient) -> None:
    client.publish("a", "b")
    first = client.receive(max=2, visibility=0.3)
    assert bodies(first) == ["a", "b"]
    assert client.receive() == []
    again = client.receive(max=1, wait=10)
    again += client.receive(max=1, wait=10)
    assert sorted(bodies(again)) == ["a", "b"]
    assert {message["attempts"] for message in again} == {2}
    # The first one's receipts are stale: another client has the messages.
    for verb in ("finish", "requeue", "touch", "reject"):
        assert client.answer(verb, first) == ["NOT_IN_FLIGHT"] * 2
    assert "delivered again" in client.results("finish", first)[0]["text"]
    assert client.answer("finish", again) == ["OK"] * 2
    assert client.answer("finish", again) == ["NOT_IN_FLIGHT"] * 2
    stats = client.stats()
    assert (stats["timeout_count"], stats["in_flight_count"], stats["client_count"]) == (2, 0, 0)


def test_a_message_whose_lease_has_ended_may_be_finished_until_it_is_delivered_again(
    client: ChannelClient,
) -> None:
    client.publish("late")
    late = client.receive(visibility=0.1)
    until(lambda: client.stats()["timeout_count"] == 1)
    assert client.answer("touch", late) == ["NOT_IN_FLIGHT"]
    assert client.answer("finish", late) == ["OK"]
    assert client.receive() == []


def test_touch_extends_a_lease(client: ChannelClient) -> None:
    client.publish("slow")
    held = client.receive(visibility=0.5)
    (touched,) = client.results("touch", held, visibility=60)
    assert touched["lease_ends_ms"] > time.time() * 1000 + 50_000
    assert client.receive(wait=1) == []
    assert client.answer("finish", held) == ["OK"]


def test_requeue_waits_for_its_delay_and_reject_makes_a_dead_letter(client: ChannelClient) -> None:
    client.publish("x")
    held = client.receive()
    assert client.answer("requeue", held, delay=0.5, error="busy") == ["OK"]
    assert client.receive() == []
    held = client.receive(wait=10)
    assert held[0]["attempts"] == 2
    assert client.answer("reject", held, error="broken") == ["OK"]
    assert client.answer("reject", held) == ["NOT_IN_FLIGHT"]
    until(lambda: client.stats()["dead_letter_count"] == 1)
    call = json.dumps(client.names).encode()
    letters = ask(client.broker.http_address, "/call/dead_letters.show", "POST", call)
    assert "broken" in json.dumps(letters)


def test_a_client_that_leaves_a_long_poll_gets_nothing_and_costs_no_attempt(
    client: ChannelClient,
) -> None:
    """A poll of a client that is gone takes no message, though it was there before."""
    host, port = client.broker.http_address.split(":")
    for _ in range(3):
        with socket.create_connection((host, int(port)), 10) as raw:
            raw.sendall(
                f"POST /v1/topics/{client.topic}/channels/c/receive?wait=60 HTTP/1.1\r\n"
                "Host: x\r\nContent-Length: 0\r\n\r\n".encode()
            )
            until(lambda: client.stats()["client_count"] == 1)
        until(lambda: client.stats()["client_count"] == 0)
    client.publish("kept")
    (message,) = client.receive()
    assert (message["body"], message["attempts"]) == ("kept", 1)


def test_receipts_survive_a_killed_broker(lone_client: ChannelClient) -> None:
    client = lone_client
    client.publish("a", "b", "c")
    held = client.receive(max=2)
    (retried,) = client.receive()
    client.answer("requeue", [retried])
    (retried,) = client.receive()
    assert retried["attempts"] == 2
    client.kill_broker()
    # Nobody has received them since, so they are finished, and not delivered again.
    assert client.answer("finish", [*held, retried]) == ["OK"] * 3
    client.kill_broker()
    assert client.receive(max=10, wait=0.5) == []
    assert client.answer("finish", held) == ["NOT_IN_FLIGHT"] * 2


def test_a_receipt_from_before_a_kill_is_stale_once_the_message_was_delivered_again(
    lone_client: ChannelClient,
) -> None:
    client = lone_client
    client.publish("a")
    before = client.receive()
    client.kill_broker()
    after = client.receive()
    assert (bodies(after), after[0]["attempts"]) == (["a"], 2)
    assert client.answer("finish", before) == ["NOT_IN_FLIGHT"]
    assert client.answer("requeue", after) == ["OK"]
    assert client.answer("finish", before) == ["NOT_IN_FLIGHT"]
    assert client.answer("finish", client.receive()) == ["OK"]


def test_a_finish_that_was_answered_survives_a_kill(lone_client: ChannelClient) -> None:
    for number in range(5):
        lone_client.publish(str(number))
        assert lone_client.answer("finish", lone_client.receive()) == ["OK"]
        lone_client.kill_broker()
        assert lone_client.receive() == []


def test_a_restart_by_an_operator_keeps_receipts_and_redelivers_the_rest(
    lone_client: ChannelClient,
) -> None:
    lone_client.publish("a", "b")
    held = lone_client.receive(max=2)
    lone_client.broker.restart()
    assert lone_client.answer("finish", held[:1]) == ["OK"]
    (message,) = lone_client.receive(max=2)
    assert (message["body"], message["attempts"]) == ("b", 2)


async def test_nsqs_consumers_and_http_share_a_channel(client: ChannelClient) -> None:
    count = 400
    wire = await Wire.subscribed(client.broker.tcp_address, client.topic, "c")
    wire.send(b"RDY 5\n")
    seen: Counter[str] = Counter()
    by_nsq = 0
    stopping = threading.Event()

    def work() -> list[str]:
        received: list[str] = []
        while not stopping.is_set():
            messages = client.receive(max=5, wait=0.2)
            if messages:
                assert client.answer("finish", messages) == ["OK"] * len(messages)
                received += bodies(messages)
        return received

    workers = [asyncio.create_task(asyncio.to_thread(work)) for _ in range(4)]
    publishing = asyncio.create_task(
        asyncio.to_thread(lambda: [client.publish(str(n)) for n in range(count)])
    )
    while True:
        stats = await asyncio.to_thread(client.stats)
        if publishing.done() and not stats["depth"] and not stats["in_flight_count"]:
            break
        try:
            frame = await asyncio.wait_for(wire.answer(), 0.2)
        except TimeoutError:
            continue
        seen[message(frame).body.decode()] += 1
        by_nsq += 1
        wire.send(b"FIN %b\n" % message(frame).id)
    stopping.set()
    for received in await asyncio.gather(*workers):
        seen.update(received)
    wire.close()
    assert seen == Counter(map(str, range(count)))
    assert 0 < by_nsq < count


def test_many_clients_get_each_message_once(client: ChannelClient) -> None:
    count = 600

    def work() -> list[str]:
        received: list[str] = []
        while messages := client.receive(max=7, wait=2):
            assert set(client.answer("finish", messages)) == {"OK"}
            received += bodies(messages)
        return received

    with ThreadPoolExecutor(20) as pool:
        working = [pool.submit(work) for _ in range(20)]
        for start in range(0, count, 50):
            client.publish(*map(str, range(start, start + 50)))
        seen = Counter(body for worker in working for body in worker.result(60))
    assert seen == Counter(map(str, range(count)))


@pytest.mark.parametrize("order", ["key", "queue"])
def test_an_ordered_channel_has_one_message_of_a_key_in_flight(
    client: ChannelClient, order: str
) -> None:
    ordered = ChannelClient(client.broker, client.topic, f"by-{order}")
    ordered.configure(order=order)
    for number in range(3):
        client.publish(f"{order}{number}", order_key="k")
    first = ordered.receive(max=10, visibility=0.5)
    assert bodies(first) == [f"{order}0"]
    assert ordered.receive() == []
    # Its lease ends, and it comes again before all others.
    again = ordered.receive(max=10, wait=10)
    assert (bodies(again), again[0]["attempts"]) == ([f"{order}0"], 2)
    with ThreadPoolExecutor(1) as pool:
        polling = pool.submit(ordered.receive, wait=30)
        time.sleep(0.2)
        assert not polling.done()
        assert ordered.answer("finish", again) == ["OK"]
        # The end of one message wakes the poll that waits for the next of its key.
        second = polling.result(10)
    assert bodies(second) == [f"{order}1"]
    ordered.answer("finish", second)
    third = ordered.receive()
    assert bodies(third) == [f"{order}2"]
    ordered.answer("finish", third)


def test_a_filter_by_tag_is_the_channels(client: ChannelClient) -> None:
    client.configure(tags=["card"])
    for number in range(4):
        client.publish(str(number), tag="card" if number % 2 else "cash")
    messages = client.receive(max=10)
    assert [(message["body"], message["tag"]) for message in messages] == [
        ("1", "card"),
        ("3", "card"),
    ]
    client.answer("finish", messages)


def test_a_topic_that_grows_while_a_poll_waits_is_received_from_all_queues(
    client: ChannelClient,
) -> None:
    client.publish("before")
    held = client.receive()
    with ThreadPoolExecutor(1) as pool:
        polling = pool.submit(client.receive, wait=30)
        until(lambda: client.stats()["client_count"] == 2)
        path = f"/topic/create?topic={client.topic}&queues=3"
        ask(client.broker.http_address, path, "POST")
        client.publish("third", queue=2)
        messages = polling.result(10)
    assert [(message["body"], message["queue"], message["offset"]) for message in messages] == [
        ("third", 2, 0)
    ]
    assert client.answer("finish", [*held, *messages]) == ["OK"] * 2


def test_a_large_backlog_is_answered_in_pieces(client: ChannelClient) -> None:
    """An answer has 8 MiB of bodies at most: the rest is for others, at its first attempt."""
    for _ in range(12):
        client.publish("x" * 1_000_000)
    first = client.receive(max=100)
    assert len(first) == 8
    second = client.receive(max=100)
    assert len(second) == 4
    assert {message["attempts"] for message in first + second} == {1}
    assert client.answer("finish", first + second) == ["OK"] * 12


def test_a_deleted_channel_ends_its_polls(client: ChannelClient) -> None:
    with ThreadPoolExecutor(1) as pool:
        polling = pool.submit(client.post, "channels/c/receive?wait=30")
        until(lambda: client.stats()["client_count"] == 1)
        path = f"/channel/delete?topic={client.topic}&channel=c"
        ask(client.broker.http_address, path, "POST")
        assert polling.result(10).status == 404


def test_a_receipt_is_of_one_channel(client: ChannelClient) -> None:
    client.publish("x")
    (held,) = client.receive()
    client.post("channels/d/receive")
    body = json.dumps({"receipts": [held["receipt"]]}).encode()
    answer = client.post("channels/d/finish", body)
    assert (answer.status, answer.json["results"][0]["text"]) == (
        409,
        "it is the receipt of another channel",
    )
    assert client.answer("finish", [held]) == ["OK"]


def test_a_retry_policy_counts_leases_that_ended_and_requeues(client: ChannelClient) -> None:
    client.configure(max_attempts=2, retry_delays_ms=[10])
    client.publish("poison")
    client.receive(visibility=0.1)
    held = client.receive(wait=10)
    assert held[0]["attempts"] == 2
    assert client.answer("requeue", held, error="again") == ["OK"]
    until(lambda: client.stats()["dead_letter_count"] == 1)
    assert client.receive() == []


@pytest.mark.parametrize("beside", ["http", "nsq"])
async def test_a_message_published_by_tcp_wakes_a_poll(client: ChannelClient, beside: str) -> None:
    """Also one that comes alone, which the broker may handle in its extension in C."""
    address, topic = client.broker.tcp_address, client.topic
    wire, consumer = await Wire.open(address), await Wire.open(address)
    if beside == "nsq":
        consumer.send(f"SUB {topic} other\nRDY 100\n".encode())
        await consumer.ok()
    for number in range(5):
        poll = asyncio.create_task(asyncio.to_thread(lambda: client.receive(wait=30)))
        while (await asyncio.to_thread(client.stats))["client_count"] != 1:
            pass
        wire.send(pub(topic, b"%d" % number))
        await wire.answer()
        messages = await poll
        assert bodies(messages) == [str(number)]
        assert await asyncio.to_thread(client.answer, "finish", messages) == ["OK"]
    wire.close()
    consumer.close()
