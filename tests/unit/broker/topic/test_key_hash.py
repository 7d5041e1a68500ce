"""A topic keeps the key hash that it was made with, wherever its journal is read again."""

from __future__ import annotations

import json
from random import Random

import pytest
from tests.property.log.feed import feed
from tests.unit.broker.core import SEGMENT_BYTES, Core

from martlet.broker.broker import BrokerCore
from martlet.broker.journal.entries import TopicEntry, TopologyEntry, decode, encode, json_of
from martlet.broker.recovery.restore import BrokerRecovery, promote
from martlet.broker.topic.topic import Topic
from martlet.log.copy import open_copy
from martlet.log.record import BadRecord, RecordKind
from martlet.properties.model import KeyHash
from martlet.testing import SimulatedClock, SimulatedStorage

KEYS = [b"%d" % number for number in range(1000, 1020)]
WAYS = ["killed", "power cut", "stopped", "compacted", "failed over"]


def queues_of(broker: BrokerCore) -> list[int]:
    return [broker.topics["t"].queue_for_key(key).number for key in KEYS]


def made(core: Core, key_hash: KeyHash, queues: int = 4) -> Topic:
    """Make a topic, by today's version or as an early one did: its entries name no key hash."""
    core.broker.set_queues("t", queues)
    topic = core.topic()
    if key_hash is KeyHash.CRC32C:
        entries: list[TopologyEntry] = []
        for part in topic.at_queues:
            part.key_hash = key_hash
            entries.append(TopicEntry(part.describe()))
            assert "key_hash" not in json_of(encode(entries[-1]))["topic"]
        topic.journal(entries)
    return topic


def again(core: Core, way: str) -> BrokerCore:
    """The broker after a restart, or another one after a failover."""
    core.publish("t", b"some")
    core.flush()
    if way == "failed over":
        return fail_over(core)
    if way == "compacted":
        # The segment with the topic's creation goes.
        core.channel("t")
        core.fill("t", 3)
        core.broker.empty_channel(core.topic(), "c")
        core.checkpoint(2)
        assert core.broker.log.segments[0].base > 0
    if way == "stopped":
        core.stop()
    else:
        core.kill(power=way == "power cut")
    return core.broker


def fail_over(core: Core) -> BrokerCore:
    """Have a standby save a checkpoint, start again, and take over."""
    copy, _ = open_copy(SimulatedStorage(Random(1)))
    feed(core.broker.log, copy, Random(1))
    recovery = BrokerRecovery(copy.storage, copy.segments, SEGMENT_BYTES, copy=copy)
    recovery.follow(copy.end_position)
    core.fill("filler", 1)
    feed(core.broker.log, copy, Random(1))
    recovery.follow(copy.end_position)
    checkpoint = recovery.take_checkpoint(copy.end_position)
    assert checkpoint is not None
    checkpoint.save(copy.storage)
    copy, _ = open_copy(copy.storage.crash())  # type: ignore[attr-defined]
    recovery = BrokerRecovery(copy.storage, copy.segments, SEGMENT_BYTES, copy=copy)
    assert recovery.checkpoint_position
    clock, random = SimulatedClock(), Random(1)
    return promote(copy, recovery, 2, clock, random, segment_bytes=SEGMENT_BYTES)[0]


@pytest.mark.parametrize("key_hash", KeyHash)
@pytest.mark.parametrize("way", WAYS)
def test_keys_lead_to_the_same_queues_ever_after(core: Core, way: str, key_hash: KeyHash) -> None:
    made(core, key_hash)
    before = queues_of(core.broker)
    # The early hash leaves half of the queues empty.
    assert len(set(before)) == {KeyHash.CRC32C: 2, KeyHash.CRC32C_FMIX32: 4}[key_hash]
    broker = again(core, way)
    assert queues_of(broker) == before
    assert {part.key_hash for part in broker.topics["t"].at_queues} == {key_hash}


@pytest.mark.parametrize("key_hash", KeyHash)
def test_further_queues_have_the_hash_of_the_topic(core: Core, key_hash: KeyHash) -> None:
    made(core, key_hash, queues=1)
    for queues in (2, 4):
        core.broker.set_queues("t", queues)
        core.broker.queue_of_priority(core.topic(), queues)
        assert {part.key_hash for part in core.topic().at_queues} == {key_hash}
        assert {part.key_hash for part in again(core, "killed").topics["t"].at_queues} == {key_hash}
    assert (
        len(set(queues_of(core.broker))) == {KeyHash.CRC32C: 2, KeyHash.CRC32C_FMIX32: 4}[key_hash]
    )


def test_each_part_finds_the_queue_of_a_key() -> None:
    topic = made(Core(), KeyHash.CRC32C_FMIX32)
    for key in KEYS:
        assert len({part.queue_for_key(key).number for part in topic.at_queues}) == 1


def test_a_topic_that_is_made_again_has_the_newest_hash(core: Core) -> None:
    made(core, KeyHash.CRC32C)
    core.broker.delete_topic("t")
    core.broker.set_queues("t", 4)
    assert len(set(queues_of(core.broker))) == 4
    assert len(set(queues_of(again(core, "killed")))) == 4


def test_a_key_hash_of_a_later_version_is_refused(core: Core) -> None:
    entry = json.loads(encode(TopicEntry(core.broker.topic("t").describe())))
    assert entry["topic"]["key_hash"] == "crc32c-fmix32"
    entry["topic"]["key_hash"] = "later"
    with pytest.raises(
        BadRecord,
        match=r"'topic\.key_hash' must be one of crc32c, crc32c-fmix32, not 'later'",
    ):
        decode(RecordKind.TOPOLOGY, json.dumps(entry).encode())
