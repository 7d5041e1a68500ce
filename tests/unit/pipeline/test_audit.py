"""Audits of the log of a simulated broker, with losses planted and without."""

from __future__ import annotations

import asyncio
import json
from dataclasses import replace
from pathlib import Path
from typing import NoReturn

import pytest
from tests.unit.broker.core import SECOND_NS, SEGMENT_BYTES, Core
from tests.unit.broker.delayed.test_delayed_messages import delay, due_now
from tests.unit.broker.retention.test_eviction import SEGMENTS, SmallCore
from tests.unit.broker.transactions.test_manager import add
from tests.unit.pipeline.audited import Files, audited, counts_of

from martlet.broker.delayed.delayed_messages import HOUR_NS
from martlet.broker.policy import ChannelPolicy
from martlet.client import Producer as ClientProducer
from martlet.log.record import HEADER_BYTES, RecordFlag, RecordKind, seal_again
from martlet.pipeline import audit as audit_job
from martlet.pipeline.audit import AuditOptions
from martlet.pipeline.audit.coverage import Extent, missing_from
from martlet.pipeline.audit.record_scan import walk
from martlet.pipeline.audit.result import Audit, CountLine, Finding, LogSummary, describe
from martlet.pipeline.html_page import HtmlTable, Plot
from martlet.reader.brokers.brokers import NoSuchTopicError
from martlet.testing import Broker

MILLISECOND_NS = 10**6


def only(audit: Audit, kind: str = "lost") -> Finding:
    """The one finding that there is."""
    (finding,) = audit.findings
    assert finding.kind == kind
    return finding


def halfway(core: Core) -> Core:
    """A channel has finished the first 30 of some hundred messages, in several segments."""
    client = core.client("t").ready(30)
    core.fill("t", 5)
    client.finish()
    client.leave()
    core.broker.write_journal()
    return core


@pytest.fixture
def files() -> Files:
    return Files(halfway(Core()))


def test_a_log_whose_listed_segments_are_all_removed_has_no_start() -> None:
    extent = Extent("b", gone=True)
    assert (extent.start, extent.end) == (-1, 0)


# what is counted


def test_a_channel_is_counted_by_the_hour() -> None:
    core = Core()
    core.clock.advance(HOUR_NS - core.clock.now_ns % HOUR_NS)
    client = core.client("t").ready(10)
    core.publish("t", b"a", b"bb", b"ccc")
    core.wait(3 * MILLISECOND_NS)
    client.finish(0, 1)
    client.requeue(2)
    core.broker.write_journal()
    core.wait(HOUR_NS)
    core.publish("t", b"d")
    audit = audited(core)
    first, second = audit.rows()
    assert (first["published"], first["bytes"], first["finished"]) == (3, 6, 2)
    assert (first["delivered"], first["retried"], first["requeued"]) == (4, 1, 1)
    assert (first["p50_ms"], first["p99_ms"], first["mean_ms"]) == (5, 5, 3)
    assert (second["published"], second["hour"] > first["hour"]) == (1, True)
    assert audit.verdict == "nothing is lost"


def test_a_topic_without_channels_has_a_row() -> None:
    core = Core()
    core.publish("t", b"a")
    (row,) = audited(core).totals()
    assert (row["topic"], row["channel"], row["published"]) == ("t", "", 1)


def test_released_messages_are_counted_as_earlier_and_not_as_lost() -> None:
    core = Core()
    client = core.client("t").ready(1000)
    core.fill("t", 6)
    client.finish()
    core.stop()
    audit = audited(core)
    published = counts_of(audit, "t")["published"]
    assert published == len(client.got)
    first = next(iter(audit.rows()))
    assert first["hour"] is None
    assert not audit.findings
    earlier = f"deleted segments had {first['published']} messages, which count as 'earlier'"
    assert first["published"] > 0
    assert earlier in audit.text()
    assert earlier.replace("'", "&#39;") in audit.page().html()


def test_dead_letters_are_counted_and_are_messages_of_their_own_topic() -> None:
    core = Core()
    core.channel("t")
    core.broker.topics["t"].configure_channel(
        "c", ChannelPolicy(retry_delays_ms=(1000,), max_attempts=2)
    )
    core.client("t", timeout_ns=SECOND_NS).ready(1)
    core.publish("t", b"a")
    for _ in range(5):
        core.wait(SECOND_NS)
    audit = audited(core)
    counts = counts_of(audit, "t", "c")
    assert (counts["dead"], counts["timed_out"], counts["retried"]) == (1, 2, 1)
    assert "open" not in counts
    assert counts_of(audit, "t.c.dead")["published"] == 1
    assert not audit.findings


def test_redriven_messages_are_for_one_channel_and_are_not_published_again() -> None:
    core = Core()
    core.channel("t", "other")
    client = core.client("t").ready(10)
    core.publish("t", b"a")
    client.finish()
    topic = core.broker.topics["t"]
    topic.stage([b"again"], -topic.channels["c"].id)
    core.broker.commit()
    audit = audited(core)
    assert counts_of(audit, "t")["published"] == 1
    assert counts_of(audit, "t", "other")["open"] == 1
    assert counts_of(audit, "t", "c")["delivered"] == 2
    assert not audit.findings


def test_groups_have_finished_messages_below_their_offset() -> None:
    core = Core()
    channel = core.channel("t")
    core.broker.topics["t"].configure_channel("c", ChannelPolicy(kind="offsets"))
    core.publish("t", *(b"%d" % n for n in range(10)))
    assert channel.group is not None
    channel.group.commit(7)
    counts = counts_of(audited(core), "t", "c")
    assert (counts["finished"], counts["open"]) == (7, 3)


# what is lost


def test_a_missing_segment_is_named_with_its_needed_messages(files: Files) -> None:
    base = sorted(files.segments)[3]
    before = counts_of(files.audit(), "t")["published"]
    del files.segments[base]
    audit = files.audit()
    finding = only(audit)
    assert (finding.topic, finding.broker) == ("t", "b")
    assert finding.unfinished == {"c": finding.count}
    assert [place.file for place in finding.places] == [f"log/{base:020d}.log"]
    assert counts_of(audit, "t")["published"] == before
    assert counts_of(audit, "t", "c")["lost"] == audit.lost == finding.count
    assert audit.is_lossy


@pytest.mark.parametrize("kept", [100, SEGMENT_BYTES // 2, SEGMENT_BYTES - 8])
def test_a_cut_segment_is_named(files: Files, kept: int) -> None:
    base = sorted(files.segments)[2]
    del files.segments[base][kept // 8 * 8 :]
    finding = files.audit().findings[0]
    assert base in {place.base for place in finding.places}
    assert "cut" in " ".join(place.reason for place in finding.places)
    assert kept > SEGMENT_BYTES - 100 or (finding.kind == "lost" and finding.count)


def test_messages_cut_from_a_stopped_log_are_known_by_the_checkpoint() -> None:
    core = Core()
    client = core.client("t").ready(100)
    core.publish("t", *(b"%d" % n for n in range(20)))
    client.finish(*range(5))
    core.stop()
    files = Files(core)
    first = files.headers(RecordKind.BATCH)[0]
    base = files.base_of(first)
    for at in range(first.position - base, len(files.segments[base])):
        files.segments[base][at] = 0
    audit = files.audit()
    lost = next(finding for finding in audit.findings if finding.kind == "lost")
    assert (lost.stretches, lost.unfinished) == ([(0, 20)], {"c": 15})


def test_a_segment_of_which_everything_was_finished_is_missed_too() -> None:
    core = Core()
    client = core.client("t").ready(1000)
    core.fill("t", 4)
    client.finish()
    core.broker.write_journal()
    files = Files(core)
    base = sorted(files.segments)[1]
    del files.segments[base]
    finding = only(files.audit())
    assert (finding.unfinished, finding.places[0].base) == ({}, base)
    assert "every channel had finished them" in describe(finding)


@pytest.mark.parametrize("at", [0, 4, 20, 100])
def test_a_damaged_batch_is_named_with_its_offsets_and_position(files: Files, at: int) -> None:
    batch = files.headers(RecordKind.BATCH)[40]
    files.damage(batch, at)
    finding = only(files.audit())
    assert finding.stretches == [(batch.first_offset, batch.first_offset + batch.count)]
    (place,) = finding.places
    assert (place.start, place.end) == (batch.position, batch.next_position)
    text = describe(finding)
    assert all(part in text for part in (place.file, f"position {batch.position}", "'t'"))


@pytest.mark.parametrize("how", ["damage", "drop"])
def test_a_finish_record_that_is_missing_is_named(how: str) -> None:
    core = Core()
    client = core.client("t").ready(100)
    core.publish("t", *(b"%d" % n for n in range(9)))
    for number in range(3):
        client.finish(*range(3 * number, 3 * number + 3))
        core.broker.write_journal()
    files = Files(core)
    dropped = files.headers(RecordKind.CURSOR, core.broker.topics["t"].id)[1]
    getattr(files, how)(dropped)
    audit = files.audit()
    finding = only(audit, "finish")
    assert (finding.topic, finding.channel, finding.count) == ("t", "c", 1)
    (place,) = finding.places
    assert place.start <= dropped.position < place.end or how == "drop"
    assert "1 finish record is lost" in audit.verdict
    assert "they say what was finished of these offsets" in describe(only(audit, "finish"))
    assert audit.is_lossy


def test_the_last_finish_record_of_a_stopped_log_is_missed_by_the_checkpoint() -> None:
    core = Core()
    client = core.client("t").ready(100)
    core.publish("t", b"a", b"b")
    client.finish()
    core.broker.write_journal()
    core.checkpoint()
    files = Files(core)
    files.drop(files.headers(RecordKind.CURSOR)[-1])
    assert only(files.audit(), "finish").channel == "c"


def test_a_message_that_is_stored_twice_is_named_and_is_no_loss() -> None:
    core = Core()
    core.channel("t")
    core.publish("t", b"a", b"b")
    core.publish("t", b"c")
    files = Files(core)
    first, second = files.headers(RecordKind.BATCH)
    base = files.base_of(first)
    copied = bytearray(files.segments[base][first.position - base :][: first.length])
    seal_again(copied, position=second.next_position, epoch=1, flags=first.flags)
    at = second.next_position - base
    files.segments[base][at : at + len(copied)] = copied
    audit = files.audit()
    finding = only(audit, "doubled")
    assert (finding.stretches, finding.count, audit.doubled) == ([(0, 2)], 2, 2)
    assert finding.places[0].start == second.next_position
    assert not audit.is_lossy
    assert not RecordFlag.RELOCATED & first.flags


def test_a_damaged_record_of_neither_kind_is_reported_as_damage() -> None:
    core = Core(traces=True)
    client = core.client("t").ready(1)
    core.publish("t", b"a")
    client.finish()
    core.broker.write_journal()
    core.publish("t", b"b")
    files = Files(core)
    trace = files.headers(RecordKind.TRACE)[0]
    files.damage(trace)
    audit = files.audit()
    finding = only(audit, "damage")
    assert finding.places[0].start == trace.position
    assert "trace record" in finding.places[0].reason
    assert audit.is_lossy


def test_the_head_of_a_segment_that_is_damaged_costs_nothing_else(files: Files) -> None:
    base = sorted(files.segments)[2]
    files.segments[base][HEADER_BYTES + 3] ^= 0xFF
    assert {finding.kind for finding in files.audit().findings} == {"damage"}


def test_the_newest_segment_of_a_killed_broker_is_missed_by_the_end_of_the_one_before(
    files: Files,
) -> None:
    before, newest = sorted(files.segments)[-2:]
    while not walk(memoryview(files.segments[before]), before).was_ended:
        del files.segments[newest]
        before, newest = sorted(files.segments)[-2:]
    del files.segments[newest]
    finding = files.audit().findings[0]
    assert newest in {place.base for place in finding.places}


def test_a_file_that_ends_within_a_record_is_cut_and_has_no_torn_tail(files: Files) -> None:
    last = files.headers(RecordKind.BATCH)[-1]
    base = files.base_of(last)
    del files.segments[base][last.next_position - base - 8 :]
    for other in [other for other in files.segments if other > base]:
        del files.segments[other]
    assert any(
        "cut within a record" in place.reason and place.start == last.position
        for finding in files.audit().findings
        for place in finding.places
    )


# what is none


def test_a_torn_tail_is_no_loss() -> None:
    core = halfway(Core())
    files = Files(core)
    last = files.headers(RecordKind.BATCH)[-1]
    end = core.broker.log.position
    base = max(files.segments)
    torn = files.segments[files.base_of(last)][last.position - files.base_of(last) :][:60]
    torn[16:24] = end.to_bytes(8, "little")
    files.segments[base][end - base : end - base + len(torn)] = torn
    assert not files.audit().findings


def test_half_messages_rolled_back_are_not_lost_and_those_of_an_open_transaction_may_be() -> None:
    core = Core()
    core.channel("t")
    transactions = core.broker.transactions
    for id in ("back", "open", "done"):
        transactions.begin(id)
        add(core, id, "t", b"half " * 20)
    transactions.rollback("back")
    transactions.commit("done")
    core.broker.write_journal()
    core.checkpoint()
    files = Files(core)
    audit = files.audit()
    assert not audit.findings
    assert counts_of(audit, "t")["published"] == 1
    half = next(topic for topic in core.broker.by_id.values() if topic.name == "%half")
    back, opened, _ = files.headers(RecordKind.BATCH, half.id)
    files.damage(opened)
    finding = only(files.audit())
    assert (finding.topic, finding.text) == ("%half", "messages of transactions")
    files.damage(opened)
    files.damage(back)
    assert only(files.audit(), "damage").places[0].start == back.position


def test_delayed_messages_that_still_wait_are_there_or_lost() -> None:
    core = Core()
    core.channel("t")
    delay(core, "t", b"soon", delay_ns=SECOND_NS)
    delay(core, "t", b"later", delay_ns=HOUR_NS)
    due_now(core, 2 * SECOND_NS)
    core.broker.write_journal()
    core.checkpoint()
    files = Files(core)
    audit = files.audit()
    assert not audit.findings
    assert counts_of(audit, "t")["published"] == 1
    waiting = [h for h in files.headers(RecordKind.BATCH) if h.topic != core.broker.topics["t"].id][
        -1
    ]
    files.damage(waiting)
    finding = only(files.audit())
    assert (finding.count, finding.text) == (1, "delayed messages")


def test_emptied_and_deleted_messages_are_not_lost() -> None:
    core = Core()
    for name in "tuv":
        core.client(name).ready(3)
        core.fill(name, 2)
    core.broker.empty_channel(core.broker.topics["t"], "c")
    core.broker.delete_channel(core.broker.topics["u"], "c")
    core.broker.delete_topic("v")
    core.stop()
    core.fill("w", 2)
    core.stop()
    audit = audited(core)
    assert not audit.findings
    assert "open" not in counts_of(audit, "t", "c")


def test_messages_given_up_for_a_full_disk_are_dropped_and_not_lost() -> None:
    core = SmallCore()
    client = core.client("t").ready(3)
    for number in range(300):
        core.storage.capacity_bytes = (SEGMENTS + 4) * SEGMENT_BYTES + 60 * number  # for indexes
        assert core.publish("t", b"%d " % number * 40).error is None
        if number % 20 == 0:
            client.finish(len(client.got) - 1)
            core.broker.write_journal()
        if number % 50 == 49:
            assert not Files(core).audit().findings
    audit = audited(core)
    assert core.dropped() == counts_of(audit, "t", "c")["dropped"] > 0
    assert not audit.findings
    assert "dropped" in audit.text()


# what was let go, and what was taken away


def test_a_stretch_is_missing_if_all_heads_that_cover_it_list_it() -> None:
    there = [(0, 100), (300, 400)]
    heads = [(100, [(0, 100)]), (300, [(0, 300)])]
    assert missing_from(there, heads) == [(100, 300)]
    # A checkpoint that was begun before the newest segment let one go.
    assert missing_from(there, [*heads, (290, [(0, 100), (200, 300)])]) == [(200, 300)]
    # A message not yet written when it was published need not be there.
    assert missing_from([(0, 100)], [(150, [(0, 200)])]) == [(100, 150)]
    assert missing_from([(0, 100)], []) == []


def test_json_and_text_report_the_same(files: Files) -> None:
    files.damage(files.headers(RecordKind.BATCH)[40])
    audit = files.audit()
    found = json.loads(audit.json())
    (finding,) = found["findings"]
    assert (found["lost"], finding["topic"], finding["places"][0]["file"]) == (
        1, "t", audit.findings[0].places[0].file,
    )  # fmt: skip
    assert "LOST: 1 message of topic 't'" in audit.text()
    assert found["hours"][0]["lost"] == 1


def test_a_finding_names_the_log_if_there_are_several_brokers(files: Files) -> None:
    files.damage(files.headers(RecordKind.BATCH)[40])
    audit = files.audit()
    logs = [
        LogSummary(broker, f"/data/{broker}", 1, 1, 1, 1, 1, 0, 0, is_whole=True)
        for broker in ("a", "b")
    ]
    assert "in the log of /data/b" in replace(audit, logs=logs).text()
    assert "in the log of" not in replace(audit, logs=logs[1:]).text()


def test_a_time_beyond_the_last_bound_is_valid_json() -> None:
    line = CountLine("t", "c", 0)
    line.buckets[-1] = 1
    audit = Audit([line], [], [], 0)

    def refuse(word: str) -> None:
        raise AssertionError(f"{word} is not JSON")

    fields = json.loads(audit.json(), parse_constant=refuse)
    assert [rows[0]["p99_ms"] for rows in (fields["totals"], fields["hours"])] == [None, None]
    assert fields["hours"][0]["within_ms"] == {"more": 1}
    assert ">2h" in audit.text()


def test_an_unreadable_checkpoint_is_a_note_and_no_loss() -> None:
    log = LogSummary(
        "b", "/data/b", 1, 1, 1, 1, 1, 0, 0, is_whole=False, trouble="the checkpoint is damaged"
    )
    audit = Audit([], [], [log], 0)
    assert not audit.is_lossy
    assert "/data/b: the checkpoint is damaged" in audit.text()
    assert "goes back to 1970-01-01 00:00:00: the broker has deleted earlier" in audit.text()


def test_the_page_has_tables_and_plots_of_all_this() -> None:
    core = Core()
    client = core.client("t").ready(10)
    core.publish("t", b"a", b"b")
    core.wait(3 * MILLISECOND_NS)
    client.finish(0)
    core.broker.write_journal()
    files = Files(core)
    files.damage(files.headers(RecordKind.BATCH)[0])
    page = files.audit().page().html()
    assert page.count("<svg") == 1  # One hour is no line.
    assert 'class="tiles"' in page
    assert all(
        part in page for part in ("LOST: 2 messages", "from publish to finish", "By the hour")
    )


def test_the_page_has_plots_before_tables() -> None:
    core = Core()
    for topic in ("t", "u"):
        core.publish(topic, b"a")
        core.client(topic).ready(1).finish(0)
    kinds = [type(section) for section in audited(core).page().sections]
    first_table = kinds.index(HtmlTable)
    assert set(kinds[first_table:]) == {HtmlTable}
    assert kinds.count(Plot) == 4


def test_dead_letters_are_part_of_the_verdict() -> None:
    counts = {"published": 200, "dead": 149}
    channel = CountLine("t", "c", 5, counts)
    audit = Audit([CountLine("t", "", 5, {"published": 200}), channel], [], [], 1.0)
    assert audit.verdict == "nothing is lost, 149 messages are dead letters"
    assert '<p class="notice">nothing is lost, 149 messages' in audit.page().html()
    channel.counts["dead"] = 0
    assert audit.verdict == "nothing is lost"
    assert '<p class="good">nothing is lost</p>' in audit.page().html()


# cuts by power loss, cuts by hand, and files of another broker


def test_skipped_bytes_that_no_message_misses_are_no_loss() -> None:
    core = Core(traces=True)
    client = core.client("t").ready(3)
    core.publish("t", b"a", b"b", b"c")
    core.checkpoint()
    client.finish(0)
    core.broker.write_journal()
    core.publish("t", b"d")
    files = Files(core)
    trace = files.headers(RecordKind.TRACE)[-1]
    at = trace.position - files.base_of(trace)
    core.storage.segment_bytes_of(files.base_of(trace))[at : at + trace.length] = bytes(
        trace.length
    )
    assert only(Files(core).audit(), "damage").places[0].start == trace.position
    core.kill()
    assert core.restored.report.damaged
    assert not Files(core).audit().findings
    # Later damage was not there when it was started.
    files = Files(core)
    files.damage(files.headers(RecordKind.TOPOLOGY)[-1])
    assert files.audit().is_lossy


def test_delayed_messages_that_a_full_disk_has_given_up_are_not_lost() -> None:
    core = SmallCore()
    core.channel("t")
    delay(core, "t", b"later" * 100, delay_ns=HOUR_NS)
    core.checkpoint()
    for number in range(200):
        core.storage.capacity_bytes = (SEGMENTS + 4) * SEGMENT_BYTES + 60 * number  # for indexes
        assert core.publish("t", b"%d " % number * 40).error is None
    assert not core.broker.delays.pending_count
    core.broker.write_journal()
    assert not [each for each in Files(core).audit().findings if each.topic.startswith("%")]


def test_a_cut_of_the_newest_file_behind_its_last_record_is_found(files: Files) -> None:
    last = files.headers(RecordKind.CURSOR)[-1]
    newest = max(files.segments)
    del files.segments[newest][last.position - newest :]
    place = files.audit().findings[-1].places[-1]
    assert (place.base, place.start) == (newest, last.position)
    assert place.reason == "the file is cut here"


def test_a_segment_of_another_broker_is_found() -> None:
    core, other = Core(), Core()
    other.broker.topic("u")
    for each, name in ((core, "t"), (other, "t")):
        each.channel(name)
        each.fill(name, 4)
    files, foreign = Files(core), Files(other)
    base = sorted(files.segments)[2]
    files.segments[base] = foreign.segments[base]
    found = [each for each in files.audit().findings if each.text == "these are of another log"]
    (place,) = found[0].places
    assert place.base == base
    assert "files of two brokers are mixed" in place.reason


def test_a_checkpoint_of_another_broker_is_found() -> None:
    core, other = halfway(Core()), Core()
    other.publish("u", b"a")
    for each in (core, other):
        each.stop()
    files = Files(core)
    files.checkpoint = Files(other).checkpoint
    assert "checkpoint" in {p.file for each in files.audit().findings for p in each.places}


def test_ephemeral_messages_that_are_damaged_are_damage_alone() -> None:
    core = Core()
    core.channel("e#ephemeral")
    for body in (b"a", b"b", b"c"):
        core.publish("e#ephemeral", body)
    files = Files(core)
    files.damage(files.headers(RecordKind.BATCH)[1])
    assert only(files.audit(), "damage").count == 0


# which topics there are


async def test_a_topic_that_no_log_has_is_an_error_before_spark_starts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def session(name: str, options: AuditOptions) -> NoReturn:
        raise AssertionError("Spark has started")

    monkeypatch.setattr(audit_job, "session", session)
    async with Broker(tmp_path, max_bytes_per_file=1 << 16) as broker:
        async with ClientProducer(broker.tcp_address) as producer:
            await producer.publish("gone", b"x")
            for number in range(8):
                if number == 4:
                    broker.server.broker.delete_topic("gone")
                await producer.publish("kept", b"x" * 40_000)
            await producer.publish("new", b"x")
        running = AuditOptions(addresses=(broker.http_address,))
        stopped = AuditOptions(data_paths=(str(tmp_path),))
        for options in (running, stopped):
            options = options.replace(topics=("gone", "kept", "new"))
            await asyncio.to_thread(audit_job.JOB.check, options)
            options = options.replace(topics=("kept", "knew"))
            with pytest.raises(NoSuchTopicError, match="no topic 'knew'; there is gone, kept, new"):
                await asyncio.to_thread(audit_job.audit, options)
