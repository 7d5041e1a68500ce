"""Counters of a channel in the log."""

from __future__ import annotations

import numpy as np
import pytest
from tests.unit.broker.core import SECOND_NS, Core, group_of

from martlet.broker.errors import WritesRefused
from martlet.broker.tracing.counters import (
    FIRST_BUCKET,
    ChannelCount,
    ChannelCounters,
    unpack_accounts,
)
from martlet.log.record import BadRecord, RecordKind, payload
from martlet.log.recovery import RecoveryReport, scan

MILLISECOND_NS = 10**6


def accounts(core: Core) -> list[tuple[int, ChannelCounters]]:
    """Return all counters of the log, each with the number of the broker's run."""
    core.broker.write_journal()
    return [
        (header.epoch, account)
        for header, record in core.records(RecordKind.ACCOUNTS)
        for account in unpack_accounts(record)
    ]


def last(core: Core) -> dict[str, int]:
    """Return the last counts written, with those of the buckets that are not 0."""
    counts = accounts(core)[-1][1].counts
    named = {count.name.lower(): int(counts[count]) for count in ChannelCount}
    named |= {f"bucket {n}": int(c) for n, c in enumerate(counts[FIRST_BUCKET:])}
    return {name: count for name, count in named.items() if count}


def test_counters_of_a_channel_have_its_times(core: Core) -> None:
    client = core.client("t").ready(10)
    core.publish("t", b"a", b"b", b"c")
    core.wait(3 * MILLISECOND_NS)
    client.finish(0, 1)
    client.requeue(2)
    core.wait(40 * MILLISECOND_NS)
    client.finish(3)
    assert last(core) == {
        "delivered": 4, "retried": 1, "requeued": 1, "took_ms": 49, "bucket 3": 2, "bucket 6": 1,
    }  # fmt: skip


def test_counts_go_up_until_the_broker_is_started_anew(core: Core) -> None:
    client = core.client("t").ready(1)
    for _ in range(2):
        core.publish("t", b"a")
        client.finish(len(client.got) - 1)
        core.broker.write_journal()
    core.kill()
    core.client("t").ready(1)
    core.publish("t", b"a")
    rows = [
        (epoch, int(account.counts[ChannelCount.DELIVERED])) for epoch, account in accounts(core)
    ]
    assert rows == [(1, 1), (1, 2), (2, 1)]


def test_timeouts_and_dead_letters_are_counted(core: Core) -> None:
    core.configure("t", retry_delays_ms=(1000,), max_attempts=2)
    core.client("t", timeout_ns=SECOND_NS).ready(1)
    core.publish("t", b"a")
    for _ in range(5):
        core.wait(SECOND_NS)
    last_counts = [a.counts for _, a in accounts(core) if a.channel == core.channel("t").id][-1]
    counted = [
        ChannelCount.DELIVERED,
        ChannelCount.RETRIED,
        ChannelCount.TIMED_OUT,
        ChannelCount.DEAD,
    ]
    assert last_counts[counted].tolist() == [2, 1, 2, 1]


def test_commits_of_a_group_are_counted_by_its_offset(core: Core) -> None:
    channel = core.channel("t")
    core.configure(kind="offsets")
    core.publish("t", *(b"%d" % n for n in range(10)))
    group_of(channel).commit(7)
    group_of(channel).commit(3)
    assert last(core) == {"committed": 7}


def test_each_segment_begins_with_them(core: Core) -> None:
    client = core.client("t").ready(1)
    core.publish("t", b"a")
    client.finish()
    core.broker.write_journal()
    core.fill("other", 2)
    newest = core.broker.log.segments[-1]
    rows = [
        account.counts[ChannelCount.DELIVERED]
        for header, record in scan([newest], newest.base, RecoveryReport())
        if header.kind == RecordKind.ACCOUNTS
        for account in unpack_accounts(payload(header, record))
    ]
    assert rows == [1]


def test_counters_are_written_when_a_channel_or_a_topic_is_deleted(core: Core) -> None:
    for name in "tu":
        client = core.client(name).ready(1)
        core.publish(name, b"a")
        client.finish()
    ids = {topic.id for topic in core.broker.topics.values()}
    core.broker.delete_channel(core.topic(), "c")
    core.broker.delete_topic("u")
    assert {account.topic for _, account in accounts(core)} == ids


def test_counters_are_left_out_without_space(core: Core, monkeypatch: pytest.MonkeyPatch) -> None:
    client = core.client("t").ready(1)
    core.publish("t", b"a")
    client.finish()
    append = core.broker.log.append_journal

    def refuse(kind: RecordKind, *args: object, **options: object) -> int:
        if kind == RecordKind.ACCOUNTS:
            raise WritesRefused("full")
        return append(kind, *args, **options)  # type: ignore[arg-type]

    with monkeypatch.context() as patched:
        patched.setattr(core.broker.log, "append_journal", refuse)
        assert accounts(core) == []
    core.kill()
    assert core.channel("t").depth == 0


def test_an_unknown_count_is_skipped_and_a_cut_record_refused() -> None:
    entry = np.array([1, 5 | 7 << 32, 2, 3 << 56 | 9, 255 << 56 | 1], "<u8").tobytes()
    (account,) = unpack_accounts(entry)
    assert (account.topic, account.channel, account.counts.sum()) == (5, 7, 9)
    with pytest.raises(BadRecord):
        list(unpack_accounts(entry[:-1]))
