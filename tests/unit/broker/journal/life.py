"""A broker's life that writes each kind of journal entry, on a simulated clock and disk.

``python -m tests.unit.broker.journal.life > golden.txt`` writes down the bytes of a version.
"""

from __future__ import annotations

from contextlib import suppress
from dataclasses import replace

from tests.unit.broker.core import SECOND_NS, Core

from martlet.broker.idempotence import ProducerSend, marked
from martlet.broker.policy import ChannelPolicy, TopicPolicy
from martlet.broker.retry import StartedRange
from martlet.broker.topic.rewind import channel_from, replay
from martlet.broker.transactions.state import CommitSequence, StillCommitting, TransactionLimits
from martlet.log import checkpoint_file
from martlet.log.record import FRAME_HEADER_BYTES, RecordKind, entry_of, payload
from martlet.log.recovery import RecoveryReport, scan
from martlet.properties.model import Sent

HALF_LIFE_NS = 1000 * SECOND_NS
JOURNAL = {
    RecordKind.TOPOLOGY,
    RecordKind.TRANSACTION,
    RecordKind.EPOCH,
    RecordKind.CURSOR,
    RecordKind.MARKS,
    RecordKind.PRODUCERS,
}
TEXT = {
    RecordKind.TOPOLOGY,
    RecordKind.TRANSACTION,
    RecordKind.BUNDLE,
    RecordKind.BATCH,
    RecordKind.EPOCH,
}


def live() -> Core:
    """Have a broker do all that its journal records."""
    limits = TransactionLimits(check_after_ns=SECOND_NS, max_checks=1)
    core = Core(segment_bytes=1 << 16, transactions=limits)
    _topics(core)
    _channels(core)
    _delayed(core)
    _transactions(core)
    _producers(core)
    core.broker.write_journal()
    core.broker.begin_segment()
    core.checkpoint()
    _damaged(core)
    _large(core)
    return core


def _damaged(core: Core) -> None:
    """Start again with a half message damaged, so that a transaction has gaps."""
    transactions = core.broker.transactions
    transactions.add("open", "b", 1, "orders", [b"damaged"])
    half = core.broker.transactions.half
    assert half is not None
    position = half.queue.index.row(half.queue.index.end_row - 1).position
    transactions.add("open", "b", 2, "orders", [b"behind it"])
    core.damage(position)
    core.kill()
    core.broker.begin_segment()


def _topics(core: Core) -> None:
    broker = core.broker
    core.publish("plain", b"0", b"1", b"2")
    broker.topics["plain"].set_paused(True)
    core.publish("plain", b"3")
    broker.empty_topic("plain")
    broker.topics["plain"].set_paused(False)
    broker.topics["plain"].configure(TopicPolicy(retention_ms=5000, trace="on"))
    broker.topics["plain"].configure(TopicPolicy())
    core.publish("gone", b"0")
    broker.delete_topic("gone")
    broker.set_queues("wide", 2)
    core.channel("wide", "each")
    broker.topics["wide"].pause_channel("each", True)
    broker.set_queues("wide", 3)
    broker.topics["wide"].delete_channel("each")
    broker.topics["wide"].set_paused(True)
    core.publish("brief#ephemeral", b"0")


def _channels(core: Core) -> None:
    broker = core.broker
    client = core.client("plain", "c").ready(10)
    core.publish("plain", *(b"%d" % number for number in range(8)))
    client.finish(0, 1, 3)
    client.requeue(4, 5 * SECOND_NS)
    topic = broker.topics["plain"]
    topic.configure_channel("c", ChannelPolicy(max_attempts=3, retry_delays_ms=(100, 2000)))
    core.publish("plain", b"later", delay_ns=60 * SECOND_NS)
    broker.write_journal()
    client.finish(5)
    client.channel.requeue(client.consumer, client.offset(6), SECOND_NS, "does not parse: \u00e9")
    broker.write_journal()
    client.leave()
    replay(topic, "c", {0: 4})
    channel_from(topic, "from", {0: 2})
    topic.pause_channel("from", True)
    core.channel("plain", "emptied")
    core.publish("plain", b"8")
    broker.empty_channel(topic, "emptied")
    topic.delete_channel("emptied")
    topic.channel("voided", 6, [(7, 9)], ChannelPolicy(tags=("a", "b")))
    _group(core)


def _group(core: Core) -> None:
    topic = core.broker.topic("grouped")
    topic.channel("g")
    policy = ChannelPolicy(kind="offsets", retry_delays_ms=(100, 1000), max_attempts=3)
    topic.configure_channel("g", policy)
    core.publish("grouped", *(b"%d" % number for number in range(9)))
    group = topic.channels["g"].group
    assert group is not None
    group.commit(2)
    members = group.members
    members.resize(replace(members.allocated, count=1))
    member = members.join("m", lease_ns=60 * SECOND_NS)
    member.started[0] = StartedRange(((2, 5),), False)
    members.lose(member)


def _delayed(core: Core) -> None:
    broker = core.broker
    topic = broker.topic("plain")
    now_ns = core.clock.now_ns
    first = broker.delays.publish(topic, [b"a", b"b"], now_ns + 40 * SECOND_NS)
    broker.delays.publish(topic, [b"c"], now_ns + HALF_LIFE_NS)
    broker.commit()
    broker.delays.cancel(topic, [first[0].queue.message_id(0)])
    core.flush()
    core.wait(50 * SECOND_NS)


def _transactions(core: Core) -> None:
    broker = core.broker
    transactions = broker.transactions
    transactions.begin("committed", "billing", 9 * SECOND_NS, CommitSequence("job", 7))
    transactions.add("committed", "b", 0, "orders", [b"one", b"two"])
    later_ns = core.clock.now_ns + 20 * SECOND_NS
    transactions.add("committed", "b", 1, "orders", [b"x", b"y"], (), 0, [(later_ns, 2)])
    transactions.prepare("committed", {"b": 4, "none": 0})
    transactions.commit("committed")
    transactions.begin("rolled back", is_disposable=True)
    transactions.rollback("rolled back")
    transactions.begin("aside", "g")
    transactions.add("aside", "b", 0, "orders", [b"three"])
    core.wait(2 * SECOND_NS)
    transactions.take_due("g")
    core.wait(100 * SECOND_NS)
    core.wait(100 * SECOND_NS)
    transactions.begin("prepared", "g", 10_000 * SECOND_NS)
    transactions.add("prepared", "b", 0, "orders", [b"four"], (), 0, [(later_ns * 2, 1)])
    transactions.add("prepared", "other", 0, "orders", [b"five"])
    transactions.prepare("prepared")
    transactions.begin("open", "", 10_000 * SECOND_NS, CommitSequence("job", 8), True)
    transactions.add("open", "b", 0, "orders", [b"six"])


def _large(core: Core) -> None:
    """A large transaction whose commit has published the first of two batches."""
    transactions = core.broker.transactions
    transactions.limits = replace(transactions.limits, bundle_bytes=1)
    transactions.begin("large", "", 10_000 * SECOND_NS)
    for number in range(2):
        transactions.add("large", "b", number, "orders", [b"large"])
    core.flush()
    with suppress(StillCommitting):
        transactions.commit("large")
    core.broker.begin_segment()


def _producers(core: Core) -> None:
    topic = core.broker.topic("orders")
    sent = Sent(bytes(range(16)), 1, 2)
    offset = topic.next_offset
    receipt = topic.stage([b"seven", b"eight"], 0, marked([], sent))
    core.broker.producers.add(sent, ProducerSend(receipt, topic.id, offset, 2), core.clock.now_ns)
    core.broker.commit()
    core.flush()


def entries(core: Core) -> list[tuple[str, RecordKind, int, bytes]]:
    """The entries of its log and of its checkpoint: where, kind, topic, bytes.

    Among them are those that batches of half messages begin with, as of the kind BATCH.
    """
    half = core.broker.transactions.half
    entries: list[tuple[str, RecordKind, int, bytes]] = []
    for header, record in scan(core.broker.log.segments, 0, RecoveryReport()):
        kind = RecordKind(header.kind)
        entry = bytes(payload(header, record))
        if kind is RecordKind.BUNDLE:
            entry = entry_of(header, record)
        elif half is not None and header.topic == half.id and kind is RecordKind.BATCH:
            entry = entry[FRAME_HEADER_BYTES : 4 + int.from_bytes(entry[:4], "big")]
        elif kind not in JOURNAL:
            continue
        entries.append(("log", kind, header.topic, entry))
    loaded = checkpoint_file.load(core.storage)
    assert not isinstance(loaded, str)
    return [*entries, *(("checkpoint", *entry) for entry in loaded.entries)]


def line(where: str, kind: RecordKind, topic: int, entry: bytes) -> str:
    """An entry as a readable line: JSON as it is, and binary content, or content behind
    a zero byte, as hexadecimal digits.
    """
    text, zero, packed = entry.partition(b"\0") if kind in TEXT else (b"", b"", entry)
    digits = f" {packed.hex()}" if zero else packed.hex()
    return f"{where} {kind.name} {topic} {text.decode()}{digits}"


def entry_of_line(text: str) -> tuple[str, RecordKind, int, bytes]:
    """The other way."""
    where, name, topic, entry = text.split(" ", 3)
    kind = RecordKind[name]
    if kind not in TEXT:
        return where, kind, int(topic), bytes.fromhex(entry)
    end = entry.rfind("}") + 1 or len(entry)
    head, digits = entry[:end].encode(), entry[end:]
    packed = b"\0" + bytes.fromhex(digits) if digits else b""
    return where, kind, int(topic), head + packed


if __name__ == "__main__":
    for entry in entries(live()):
        print(line(*entry))
