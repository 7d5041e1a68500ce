"""Data folders as earlier versions of the broker wrote them, and ledgers of their content.

::

    git worktree add /tmp/old COMMIT
    PYTHONPATH=/tmp/old/src:. python -m tests.data.old_folder tests/data/data_folder_COMMIT.tar.xz

has the broker of that commit write a folder, kills it in the middle of its work, and puts the
folder into an archive with a ledger: `look` of it by the same version.  Today's version must see
the same in it.

Only public names of the client, calls over HTTP and `martlet log` are used here, which every
version has.
"""

from __future__ import annotations

import asyncio
import json
import shutil
import subprocess
import sys
import tarfile
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from tests.crash.wire import Message, Wire, drain, http, http_now, until

from martlet.client import Producer, PullConsumer
from martlet.testing import BrokerProcess

FLAGS = (
    "--max-bytes-per-file=16384",
    "--min-free-bytes=0",
    "--segment-spare=0",
    "--journal-interval=5ms",
    "--checkpoint-interval=600ms",
    "--transaction-check-after=1h",
    "--msg-timeout=10m",
    "--log-level=info",
)
FAR_S = 20 * 24 * 3600
GROUP = {"kind": "offsets", "retry_delays_ms": [10, 20], "max_attempts": 3}
TOPICS = (
    "plain",
    "wide",
    "later",
    "far",
    "grouped",
    "failing",
    "orders",
    "mails",
    "paused",
    "traced",
)
CHANNELS = [
    ("plain", "c"),
    ("plain", "idle"),
    ("wide", "keyed"),
    ("wide", "tagged"),
    ("later", "c"),
    ("far", "c"),
    ("failing", "c"),
    ("failing.c.dead", "see"),
    ("orders", "c"),
    ("mails", "c"),
    ("traced", "c"),
]
ENDED = ("committed", "rolled-back", "job-7")


def call(address: str, method: str, **fields: object) -> dict[str, Any]:
    """A call over HTTP."""
    found: dict[str, Any] = json.loads(
        http_now(address, f"/call/{method}", json.dumps(fields).encode())
    )
    return found


# writing


async def write(broker: BrokerProcess) -> list[str]:
    """Have a broker do all that its folder can hold, and kill it. Returns the ids of messages that
    channel c of topic plain has finished.
    """
    address = broker.http_address
    finished: list[str] = []
    call(address, "topic.create", topic="wide", queues=3)
    for topic, channel in CHANNELS:
        await http(address, f"/topic/create?topic={topic}", b"")
        await http(address, f"/channel/create?topic={topic}&channel={channel}", b"")
    _configure(address)
    async with Producer(broker.tcp_address, group="billing") as producer:
        await _publish(producer)
        wires = [await _plain(broker, finished), await _failing(broker)]
        await _grouped(broker)
        await _transactions(producer, address)
        await http(address, "/channel/pause?topic=plain&channel=idle", b"")
        await http(address, "/topic/pause?topic=paused", b"")
        await http(address, "/topic/empty?topic=paused", b"")
        await producer.publish_many("paused", [b"after it was emptied"])
        position = (broker.data_path / "checkpoint").stat().st_mtime_ns
        await until(lambda: _has_newer_checkpoint(broker, position))
        # What comes now stands behind the checkpoint.
        wires.append(await _plain(broker, finished))
        await producer.publish_many("plain", [b"last %d" % number for number in range(5)])
        await asyncio.sleep(0.2)
        broker.kill()
    for wire in wires:
        wire.close()
    return finished


async def _has_newer_checkpoint(broker: BrokerProcess, position: int) -> bool:
    return (broker.data_path / "checkpoint").stat().st_mtime_ns > position


def _configure(address: str) -> None:
    call(address, "topic.configure", topic="traced", policy={"trace": "on"})
    policies: dict[tuple[str, str], dict[str, object]] = {
        ("wide", "keyed"): {"order": "key"},
        ("wide", "tagged"): {"tags": ["red", "blue"]},
        ("failing", "c"): {"max_attempts": 2, "retry_delays_ms": [10]},
        ("orders", "c"): {"retry_delays_ms": [30, 60]},
    }
    for (topic, channel), policy in policies.items():
        call(address, "channel.configure", topic=topic, channel=channel, policy=policy)


async def _publish(producer: Producer) -> None:
    for number in range(40):
        await producer.publish_many("plain", [b"%d.%d " % (number, n) * 40 for n in range(3)])
    for number in range(30):
        options = {"tag": ("red", "blue", "green")[number % 3], "keys": (f"k{number}", "all")}
        headers = {"number": str(number), "unit": "\u00b5m"}
        body, key = b"wide %d" % number, f"key {number % 5}"
        await producer.send("wide", body, order_key=key, headers=headers, **options)  # type: ignore[arg-type]
    now_s = time.time()
    for number in range(6):
        await producer.send("later", b"soon %d" % number, deliver_at=now_s + 1 + number / 10)
    for number in range(4):
        await producer.send("far", b"far %d" % number, deliver_at=now_s + FAR_S + number)
    for topic in ("grouped", "failing", "paused", "traced"):
        await producer.publish_many(topic, [b"%s %d" % (topic.encode(), n) for n in range(20)])


async def _plain(broker: BrokerProcess, finished: list[str]) -> Wire:
    """Finish some messages, requeue some, and keep others in flight."""
    wire = await Wire.subscribed(broker.tcp_address, "plain", "c")
    wire.send(b"RDY 12\n")
    got = [await wire.message() for _ in range(12)]
    wire.send(b"RDY 0\n")
    for message in (*got[:5], got[8]):
        wire.send(b"FIN %b\n" % message.id)
        finished.append(message.id.decode())
    wire.send(b"REQ %b 0\nREQ %b 900\n" % (got[5].id, got[6].id))
    return wire


async def _failing(broker: BrokerProcess) -> Wire:
    """Have messages fail until they are dead letters, and one fail once."""
    wire = await Wire.subscribed(broker.tcp_address, "failing", "c")
    wire.send(b"RDY 1\n")
    for _ in range(5):
        message = await wire.message()
        wire.send(b"REQ %b 0\n" % message.id)
    for _ in range(3):
        message = await wire.message()
        wire.send(b"FIN %b\n" % message.id)
    wire.send(b"RDY 0\n")
    traced = await Wire.subscribed(broker.tcp_address, "traced", "c")
    traced.send(b"RDY 10\n")
    for number in range(10):
        message = await traced.message()
        traced.send((b"FIN %b\n" if number % 3 else b"REQ %b 0\n") % message.id)
    await asyncio.sleep(0.1)
    traced.close()
    return wire


async def _grouped(broker: BrokerProcess) -> None:
    """Fetch messages as a group and commit some of its offsets."""
    async with PullConsumer("grouped", "g", broker.tcp_address, start="first") as consumer:
        taken = 0
        async for message in consumer:
            message.finish()
            taken += 1
            if taken == 7:
                break
    call(broker.http_address, "channel.configure", topic="grouped", channel="g", policy=GROUP)


async def _transactions(producer: Producer, address: str) -> None:
    async with producer.transaction("committed") as transaction:
        await transaction.publish("orders", b"committed", keys=("k",))
        await transaction.publish_many("mails", [b"committed 1", b"committed 2"])
    for name, end in (("rolled-back", "rollback"), ("prepared", "prepare"), ("open", "")):
        transaction = producer.transaction(name)
        await transaction.begin()
        await transaction.publish_many("orders", [b"%s %d" % (name.encode(), n) for n in range(3)])
        if end:
            await getattr(transaction, end)()
    series = {"series": "job", "series_number": 7}
    call(address, "transaction.begin", id="job-7", disposable=True, **series)
    call(address, "transaction.commit", id="job-7", **series)


# looking


def look(folder: Path) -> dict[str, Any]:
    """All that a version says of a copy of a folder: of its log, and of what a broker makes of it.

    All that is due is due by then, whenever that is.
    """
    with tempfile.TemporaryDirectory(prefix="martlet-old-") as scratch:
        copy = Path(scratch) / "data"
        shutil.copytree(folder, copy)
        log = list(_dumped(copy))
        topics = {row["topic"] for row in log if row["kind"] == "batch"}
        messages = {topic: list(_dumped(copy, topic)) for topic in sorted(topics)}
        found: dict[str, Any] = {"log": log, "messages": messages}
        with BrokerProcess(copy, *FLAGS) as broker:
            found |= asyncio.run(_asked(broker, messages["traced"][0]["id"]))
            broker.stop()
    return json.loads(json.dumps(found))  # type: ignore[no-any-return]


def _dumped(folder: Path, topic: str = "") -> Iterator[dict[str, Any]]:
    command = [sys.executable, "-m", "martlet", "log", "dump", "--json", str(folder)]
    command += ["--topic", topic] if topic else []
    done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=120)
    yield from map(json.loads, done.stdout.splitlines())


async def _asked(broker: BrokerProcess, traced_id: str) -> dict[str, Any]:
    address = broker.http_address
    await until(lambda: _is_due(address))
    found: dict[str, Any] = {}
    for topic in TOPICS:
        if topic != "far":
            found[f"topic {topic}"] = call(address, "topic.describe", topic=topic)
    stats = json.loads(await http(address, "/stats?format=json"))
    found["paused"] = sorted(
        [topic["topic_name"], each.get("channel_name", "")]
        for topic in stats["topics"]
        for each in (topic, *topic["channels"])
        if each["paused"]
    )
    found["depths"] = {
        f"{topic['topic_name']} {channel['channel_name']}": sum(
            channel[name] for name in ("depth", "in_flight_count", "deferred_count")
        )
        for topic in stats["topics"]
        for channel in topic["channels"]
    }
    group = call(address, "group.describe", topic="grouped", group="g")
    fields = ("queue", "offset", "start_offset", "end_offset", "lag")
    found["group"] = [[queue[name] for name in fields] for queue in group["queues"]]
    found["trace"] = call(address, "trace.find", id=traced_id)
    found["open"] = [
        {name: each[name] for name in ("id", "group", "state", "topics")}
        for each in call(address, "transaction.list")["transactions"]
    ]
    for id in (*ENDED, "open", "prepared"):
        found[f"transaction {id}"] = call(address, "transaction.show", id=id)["state"]
    found["series"] = call(address, "transaction.series", series="job")
    found["dead letters"] = call(address, "dead_letters.show", topic="failing", channel="c")
    found |= await _consumed(broker)
    return found


async def _is_due(address: str) -> bool:
    """Whether all delayed messages have come to their topic that were not for long."""
    return not call(address, "delay.list", topic="later")["messages"]


async def _consumed(broker: BrokerProcess) -> dict[str, Any]:
    """Return the messages of each channel, and those that come after transactions are decided."""
    address = broker.http_address
    await http(address, "/channel/unpause?topic=plain&channel=idle", b"")
    await http(address, "/topic/unpause?topic=paused", b"")
    for id in ("open", "prepared"):
        call(address, "transaction.commit", id=id)
    found: dict[str, Any] = {}
    for topic, channel in [*CHANNELS, ("paused", "first")]:
        if topic == "far":  # Its messages may be due by now, or not.
            continue
        await http(address, f"/channel/create?topic={topic}&channel={channel}", b"")
        got = await drain(broker.tcp_address, address, topic, channel)
        found[f"delivered {topic} {channel}"] = sorted(_as_fields(message) for message in got)
    return found


def _as_fields(message: Message) -> list[object]:
    return [message.body.decode(), message.attempts, message.id.decode()]


# the archive


@contextmanager
def unpacked(archive: Path) -> Iterator[tuple[Path, dict[str, Any]]]:
    """The folder in an archive, and what its version said of it."""
    with tempfile.TemporaryDirectory(prefix="martlet-old-") as scratch:
        with tarfile.open(archive) as found:
            # As the manual has it for versions of Python that know no filter.
            found.extraction_filter = getattr(tarfile, "data_filter", lambda member, _: member)
            found.extractall(scratch)
        yield Path(scratch) / "data", json.loads((Path(scratch) / "ledger.json").read_text())


def main(archive: Path) -> None:
    """Make an archive by the version that is imported."""
    with tempfile.TemporaryDirectory(prefix="martlet-old-") as scratch:
        data, ledger = Path(scratch) / "data", Path(scratch) / "ledger.json"
        with BrokerProcess(data, *FLAGS) as broker:
            finished = asyncio.run(write(broker))
        ledger.write_text(json.dumps({"finished": finished, "seen": look(data)}, indent=0))
        with tarfile.open(archive, "w:xz", preset=9) as made:
            made.add(data, "data")
            made.add(ledger, "ledger.json")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
