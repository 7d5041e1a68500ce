"""Where a message has been, as `martlet trace` shows it: of real clients, and after a kill."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest
from tests import brokers
from tests.crash.wire import HttpRefused, http, http_now
from tests.interop.asking import ask

from martlet.cli.main import main
from martlet.client import (
    Consumer,
    Identity,
    Message,
    Producer,
    PullConsumer,
    PulledMessage,
    Reject,
)
from martlet.client.sync import Producer as SyncProducer
from martlet.testing import BrokerProcess

broker = brokers.process(
    "--trace", "--journal-interval=20ms", "--max-bytes-per-file=4MiB", scope="function"
)


async def failing_twice(broker: BrokerProcess) -> Message:
    """A message with a key that fails twice, and is finished then."""
    async with Producer(broker.tcp_address) as producer:
        await producer.send("orders", b"tea", keys=["order-17"], tag="eu")
    identity = Identity(client_id="till-3")
    async with Consumer("orders", "billing", broker.tcp_address, identity=identity) as consumer:
        for attempt in (1, 2):
            message = await anext(consumer)
            assert message.attempts == attempt
            message.requeue(10 * attempt, backoff=False)
        message = await anext(consumer)
        message.finish()
    return message


def shown(capfd: pytest.CaptureFixture[str], *arguments: str) -> str:
    assert main(["trace", *arguments]) == 0
    return capfd.readouterr().out


async def trace_of(broker: BrokerProcess, id: str) -> Any:
    body = json.dumps({"id": id}).encode()
    return json.loads(await http(broker.http_address, "/call/trace.find", body))["messages"][0]


@pytest.mark.parametrize("names", [("limit", "time_limit_ms"), ("most", "limit_ms")])
def test_a_search_takes_present_and_former_names(
    broker: BrokerProcess, names: tuple[str, str]
) -> None:
    with SyncProducer(broker.tcp_address) as producer:
        for body in (b"1", b"2", b"3"):
            producer.send("named", body, keys=["key"])
    fields = {"key": "key", "topic": "named", names[0]: 2, names[1]: 5000}
    body = json.dumps(fields).encode()
    answer = ask(broker.http_address, "/call/trace.find", "POST", body)
    assert len(answer["messages"]) == 2
    assert answer["complete"] is False


async def finished(broker: BrokerProcess, id: str) -> Any:
    """The trace of a message, once it is known to be finished."""
    while (trace := await trace_of(broker, id))["channels"][0]["state"] != "done":
        pass
    return trace


def test_a_message_that_failed_twice_and_was_finished(
    broker: BrokerProcess, capfd: pytest.CaptureFixture[str]
) -> None:
    message = asyncio.run(failing_twice(broker))
    id = message.id.decode()
    trace = asyncio.run(finished(broker, id))
    events = [(e["event"], e["attempt"], e["delay_ms"]) for e in trace["events"]]
    assert events == [
        ("delivered", 1, 0),
        ("requeued", 1, 10),
        ("delivered", 2, 0),
        ("requeued", 2, 20),
        ("delivered", 3, 0),
        ("finished", 0, 0),
    ]
    assert all(e["client"].startswith("till-3 127.0.0.1:") for e in trace["events"])
    times = [trace["stored_at_ns"], *(e["time_ns"] for e in trace["events"])]
    assert times == sorted(times)
    assert trace["properties"] == {"tag": "eu", "keys": ["order-17"]}

    address = f"--nsqd-http-address={broker.http_address}"
    text = shown(capfd, "--key=order-17", "--topic=orders", address)
    assert f"message {id} of topic orders, offset 0: 3 bytes, key order-17, tag eu" in text
    assert "channel billing: done" in text
    assert "requeued by till-3 127.0.0.1:" in text
    assert ", redelivery in 10 ms" in text
    assert "attempt 3" in text

    broker.kill()
    folder = f"--data-path={broker.data_path}"
    assert json.loads(shown(capfd, id, folder, "--json"))["events"] == trace["events"]
    assert shown(capfd, "--key=order-17", folder) == text
    assert main(["log", "verify", str(broker.data_path)]) == 0
    capfd.readouterr()
    assert main(["log", "dump", str(broker.data_path), "--json"]) == 0
    records = map(json.loads, capfd.readouterr().out.splitlines())
    traces = [record for record in records if record.get("kind") == "trace"]
    assert {trace["channel"] for trace in traces} == {"billing"}


async def test_after_a_kill_the_trace_is_true(broker: BrokerProcess) -> None:
    """The last moment may be missing; each event happened, and each redelivery is an event."""
    async with Producer(broker.tcp_address) as producer:
        await producer.publish("orders", b"tea")
    consumer = Consumer("orders", "billing", broker.tcp_address)
    async with consumer:
        message = await anext(consumer)
        id = message.id.decode()
        while not any(e["event"] == "delivered" for e in (await trace_of(broker, id))["events"]):
            pass
        broker.kill()
    broker.start()
    async with Consumer("orders", "billing", broker.tcp_address) as again:
        second = await anext(again)
        assert second.attempts == 2
        second.finish()
    trace = await finished(broker, id)
    kinds = [(e["event"], e["attempt"]) for e in trace["events"]]
    assert kinds == [("delivered", 1), ("delivered", 2), ("finished", 0)]
    assert len(trace["starts_ns"]) == 1


async def one_given_up(broker: BrokerProcess) -> list[Any]:
    """The traces of two messages of a group, the first of which its member can not handle."""
    async with Producer(broker.tcp_address) as producer:
        sent = [await producer.send("orders", b"%d" % n, keys=(f"k{n}",)) for n in range(2)]
    ids = [message.id.decode() for message in sent if message.id is not None]
    tried = asyncio.Event()
    identity = Identity(client_id="till-3")

    async def handle(message: PulledMessage) -> None:
        if message.offset:
            tried.set()
        else:
            raise Reject("no such article")

    options: dict[str, Any] = {"identity": identity, "start": "first", "commit_every_s": 0.05}
    async with PullConsumer("orders", "billing", broker.tcp_address, **options) as consumer:
        running = asyncio.create_task(consumer.run(handle))
        await tried.wait()
        while (await trace_of(broker, ids[1]))["channels"][0]["state"] != "done":
            pass
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)
    return [await trace_of(broker, id) for id in ids]


def test_a_trace_names_the_group_members_and_their_dead_letters(
    broker: BrokerProcess, capfd: pytest.CaptureFixture[str]
) -> None:
    first, second = asyncio.run(one_given_up(broker))
    assert [e["event"] for e in second["events"]] == ["fetched", "committed"]
    assert [e["event"] for e in first["events"]] == ["fetched", "given_up", "committed"]
    assert all(e["client"].startswith("till-3 127.0.0.1:") for e in first["events"])
    assert "no such article" in first["events"][1]["reason"]
    address = f"--nsqd-http-address={broker.http_address}"
    text = shown(capfd, "--key=k0", "--topic=orders", address)
    assert "group billing: committed past it" in text
    assert "not tried again after 1 attempt by till-3" in text
    assert "rejected -> orders.billing.dead" in text


def test_wrong_requests_and_missing_messages_are_reported(
    broker: BrokerProcess, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    address = f"--nsqd-http-address={broker.http_address}"

    def error(*arguments: str) -> str:
        code: object = 0
        try:
            code = main(["trace", *arguments])
        except SystemExit as ended:
            code = ended.code
        assert code in (1, 2)
        return capfd.readouterr().err

    for request, why in (
        ("{}", "give either a message's 'id' or a 'key'"),
        ('{"key": "k", "most": 1, "limit": 1}', "'most' is 'limit' now: give one of them"),
    ):
        with pytest.raises(HttpRefused, match=why):
            http_now(broker.http_address, "/call/trace.find", request.encode())
    unknown = "0123456789abcdef"
    assert f"no message of this broker has the id {unknown}" in error(unknown, address)
    assert "there is no topic 'gone'" in error("--key=k", "--topic=gone", address)
    assert "no message with the key 'k'" in error("--key=k", address)
    assert "is not a folder" in error("--key=k", f"--data-path={tmp_path / 'none'}")
    assert "not both" in error("--key=k", "--data-path=x", address)
    assert "--time-limit is 10m1s; it must be between" in error(
        "--key=k", "--time-limit=601s", address
    )
