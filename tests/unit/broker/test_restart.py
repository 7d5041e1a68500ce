"""The state of a broker after a clean stop, a kill and a power cut."""

from __future__ import annotations

import errno
from collections.abc import Callable
from dataclasses import replace

import pytest
from tests.unit.broker.core import SECOND_NS, Client, Core

from martlet.broker.errors import WritesRefused
from martlet.broker.journal.entries import (
    ChannelDeletedEntry,
    ChannelEntry,
    ChannelRecord,
    TopicEntry,
)
from martlet.broker.retention.checkpoint import (
    MAX_SYNCED,
    begin_checkpoint,
    end_checkpoint,
    leave_spent_segment,
)
from martlet.broker.topic.rewind import replay
from martlet.log.record import FRAME_HEADER_BYTES, HEADER_BYTES, RecordKind, read_header


def positions(core: Core, kind: RecordKind = RecordKind.TOPOLOGY) -> list[int]:
    """Where the log's records of a kind are."""
    return [header.position for header, _ in core.records(kind)]


def make_topics(core: Core, count: int) -> None:
    for number in range(count):
        core.broker.topic(f"t{number}")


def fill_disk(core: Core) -> int:
    """Publish until the disk is full. Returns how many messages were stored."""
    core.storage.capacity_bytes = 7 * core.segment_bytes
    core.storage.keep_free_bytes = core.segment_bytes
    count = 0
    while (receipt := core.publish("t", b"x" * 500)).error is None:
        count += 1
    assert "the disk is full" in str(receipt.error)
    with pytest.raises(WritesRefused):
        make_topics(core, 1000)
    return count


def test_a_clean_stop_leaves_nothing_to_read(core: Core) -> None:
    client = core.client("t").ready(2)
    core.publish("t", b"1", b"2", b"3")
    client.finish(0)
    client.requeue(1, 100 * SECOND_NS)
    core.topic().pause_channel("c", True)
    core.stop()
    assert core.restored.report.records == 0
    assert core.restored.notes == []
    channel = core.channel("t")
    assert channel.paused
    assert (channel.depth, channel.deferred_count, channel.in_flight_count) == (1, 1, 0)
    assert channel.message_count == 0, "counts begin anew"
    core.topic().pause_channel("c", False)
    again = core.client("t").ready(10)
    assert [(m.attempts, m.body) for m in again.got] == [(2, b"3")]
    core.wait(100 * SECOND_NS)
    assert (2, b"2") in [(m.attempts, m.body) for m in again.got[1:]]


def test_messages_in_flight_are_delivered_again_after_a_kill(core: Core) -> None:
    client = core.client("t").ready(3)
    core.publish("t", b"1", b"2", b"3")
    client.finish(1)
    core.broker.write_journal()
    client.finish(0)
    core.kill()
    again = core.client("t").ready(10)
    assert sorted(again.bodies) == [b"1", b"3"]
    assert {m.attempts for m in again.got} == {2}


def test_an_emptied_channel_is_empty_after_a_kill_though_no_journal_was_due_yet(core: Core) -> None:
    client = core.client("t").ready(2)
    core.publish("t", b"1", b"2", b"3")
    core.publish("t", b"4", delay_ns=SECOND_NS)
    client.requeue(0, SECOND_NS)
    core.broker.empty_channel(core.topic(), "c")
    core.publish("t", b"5")
    core.kill()
    again = core.client("t").ready(10)
    core.wait(10 * SECOND_NS)
    assert again.bodies == [b"5"]


def test_an_emptied_channel_that_is_set_back_begins_there_after_a_kill(core: Core) -> None:
    core.channel("t")
    core.publish("t", b"1", b"2", b"3")
    core.broker.empty_channel(core.topic(), "c")
    replay(core.topic(), "c", {0: 2})
    core.kill()
    assert core.client("t").ready(10).bodies == [b"3"]


def test_messages_of_an_ephemeral_channel_are_no_backlog_after_a_restart(core: Core) -> None:
    client = core.client("t", "c#ephemeral").ready(10)
    core.publish("t", b"1")
    client.finish()
    for restart in (core.kill, core.stop, core.kill):
        restart()
        assert core.topic().channels == {}
        core.publish("t", b"2")
        assert core.topic().depth == 1
        client = core.client("t", "c#ephemeral").ready(10)
        assert client.bodies == [b"2"]
        client.finish()


def test_a_lost_journal_entry_makes_messages_come_again_and_loses_none(core: Core) -> None:
    client = core.client("t").ready(3)
    core.publish("t", b"1", b"2", b"3")
    client.requeue(0, 100 * SECOND_NS)
    core.broker.write_journal()
    lost = positions(core, RecordKind.CURSOR)[-1]
    client.finish(1)
    core.broker.write_journal()
    core.damage(lost)
    core.kill()
    assert [d.start for d in core.restored.report.damaged] == [lost]
    again = core.client("t").ready(10)
    assert sorted(again.bodies) == [b"1", b"2", b"3"]


def test_a_new_channel_has_its_deferred_messages_even_in_the_head_of_a_segment() -> None:
    """The head that a segment begins with may be all that is left of a new channel."""
    for padding in range(0, 1600, 24):
        core = Core()
        core.publish("t", b"later", delay_ns=SECOND_NS)
        core.publish("u", b"x" * (2000 + padding))
        base = core.broker.log.segments[-1].base
        core.channel("t")
        if core.broker.log.segments[-1].base > base:
            break
    else:
        raise AssertionError("the sizes of this test do not come out")
    core.damage(positions(core)[-1])
    core.kill()
    client = core.client("t").ready(1)
    core.wait(SECOND_NS)
    assert client.bodies == [b"later"]


def test_numbers_of_topics_with_a_lost_entry_are_not_given_again(core: Core) -> None:
    core.publish("lost", b"1")
    (position,) = positions(core)[1:]
    core.publish("kept", b"2")
    core.damage(position)
    core.kill()
    assert set(core.broker.topics) == {"kept"}
    core.broker.topic("new")
    core.kill()
    assert core.topic("new").queue.end_offset == 0
    assert core.client("kept").ready(1).bodies == [b"2"]


def test_of_two_topics_of_one_name_the_newer_one_counts(core: Core) -> None:
    core.publish("t", b"old")
    core.broker.delete_topic("t")
    lost = positions(core)[-1]
    core.publish("t", b"new")
    core.damage(lost)
    core.kill()
    assert list(core.broker.topics) == ["t"]
    assert core.client("t").ready(10).bodies == [b"new"]
    assert core.topic().id in core.broker.by_id
    assert len(core.broker.by_id) == 1


def test_a_deletion_holds_though_that_of_an_older_namesake_was_lost(core: Core) -> None:
    core.channel("t", "kept")
    core.checkpoint()
    deleted: list[int] = []

    def delete(act: Callable[[], None]) -> None:
        act()
        deleted.append(positions(core)[-1])

    core.channel("t", "c")
    delete(lambda: core.topic().delete_channel("c"))
    core.channel("t", "c")
    core.channel("u", "c")
    delete(lambda: core.broker.delete_topic("u"))
    core.channel("u", "c")
    for lost in deleted:
        core.damage(lost)
    core.kill()
    core.topic().delete_channel("c")
    core.broker.delete_topic("u")
    core.kill()
    assert list(core.broker.topics) == ["t"]
    assert list(core.topic().channels) == ["kept"]


def test_an_index_made_from_the_log_knows_a_copy_behind_the_checkpoint(core: Core) -> None:
    """Its first place was dropped for space since, and the index file was lost in a power cut."""
    client = core.client("t").ready(1000)
    core.publish("t", b"precious")
    client.requeue(0, 100 * SECOND_NS)
    core.fill("t", 6)
    client.finish(*range(1, len(client.got)))
    core.broker.write_journal()
    core.checkpoint()
    core.flush()
    first = core.broker.log.segments[0]
    assert core.broker.log.is_releasable(first)
    core.broker.log.retire(first)
    core.storage.write_at(core.topic().queue.index.name, b"lost", 0)
    core.kill()
    assert any("is missing or wrong" in note for note in core.restored.notes)
    core.wait(100 * SECOND_NS)
    assert core.client("t").ready(1000).bodies == [b"precious"]


def test_a_batch_is_restored_though_its_topic_entry_lies_behind_it(core: Core) -> None:
    """The earlier entry of the topic is damaged; the head of the next segment has it."""
    core.checkpoint()
    core.channel("t")
    core.damage(positions(core)[-2])
    bodies = core.fill("t", 2)
    core.kill()
    assert [str(d.reason) for d in core.restored.report.damaged]
    assert core.client("t").ready(1000).bodies == bodies


def test_a_new_message_is_never_published_under_an_offset_that_was_lost(core: Core) -> None:
    client = core.client("t").ready(10)
    core.channel("t", "d")
    core.publish("t", b"1")
    client.finish()
    core.checkpoint()
    core.publish("t", b"lost")
    lost = positions(core, RecordKind.BATCH)[-1]
    client.finish(1)
    core.broker.write_journal()
    core.damage(lost)
    core.kill()
    core.topic().set_paused(True)
    core.topic().set_paused(False)
    core.topic().delete_channel("c")
    core.kill()
    core.publish("t", b"2")
    assert core.client("t", "d").ready(10).bodies == [b"1", b"2"]
    assert core.topic().queue.end_offset == 3


def test_a_record_that_does_not_fit_behind_a_segments_head_gets_a_segment_of_its_size() -> None:
    core = Core()
    for name in "abcdefgh":
        core.channel(name)
    sizes = range(core.segment_bytes - 900, core.segment_bytes + 200, 50)
    for size in sizes:
        assert core.publish("a", b"x" * size).error is None
    assert len(core.broker.log.segments) < 3 * len(sizes)
    client = core.client("a").ready(len(sizes))
    assert [len(body) for body in client.bodies] == list(sizes)


@pytest.mark.parametrize("is_killed", [False, True])
def test_a_full_disk_refuses_publishers_until_consumers_have_freed_segments(
    core: Core, is_killed: bool
) -> None:
    core.channel("t")
    count = fill_disk(core)
    assert core.broker.health.startswith("NOK - the disk is full")
    if is_killed:
        core.kill()
        assert any("nothing can be written yet" in note for note in core.restored.notes)
    client = core.client("t").ready(1000)
    assert len(client.got) == count
    client.finish()
    core.checkpoint()
    assert core.publish("t", b"again").error is None
    assert core.broker.health == "OK"
    assert client.bodies[-1] == b"again"


def test_ephemeral_channels_and_topics_come_and_go_on_a_full_disk(core: Core) -> None:
    tail = core.client("t", "tail#ephemeral")
    other = core.client("t#ephemeral", "c#ephemeral")
    fill_disk(core)
    with pytest.raises(WritesRefused):
        core.channel("t", "stays")
    topic = core.topic()
    late = core.client("t", "late#ephemeral")
    for client, of in ((other, core.topic("t#ephemeral")), (tail, topic), (late, topic)):
        client.leave()
        core.broker.left(of, client.channel)
    assert "t#ephemeral" not in core.broker.topics
    assert topic.channels == {}
    assert (topic.depth, topic.backlog_offset) == (0, topic.queue.end_offset)
    core.storage.capacity_bytes = None
    assert core.publish("t", b"for the next channel").error is None
    core.kill()
    assert "t#ephemeral" not in core.broker.topics
    assert core.topic().channels == {}
    assert core.client("t").ready(10).bodies == [b"for the next channel"]


def test_a_message_that_fits_where_the_end_of_a_channel_did_not_is_kept(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    core = Core()
    tail = core.client("t", "tail#ephemeral")
    tail.leave()

    def refuse(*_: object, **fields: object) -> None:
        raise WritesRefused("the disk is full")

    with monkeypatch.context() as context:
        context.setattr(core.broker, "journal_topology", refuse)
        core.broker.left(core.topic(), tail.channel)
    assert core.publish("t", b"for the next channel").error is None
    core.kill()
    assert core.client("t").ready(10).bodies == [b"for the next channel"]


@pytest.mark.parametrize(
    "operation", ["pause", "unpause", "pause channel", "empty", "delete channel"]
)
def test_a_refused_operation_changes_nothing(core: Core, operation: str) -> None:
    client = core.client("t").ready(1)
    topic = core.topic()
    if operation in ("unpause", "empty"):
        topic.set_paused(True)
    core.publish("t", b"1")
    core.storage.write_error = OSError(errno.EIO, "Input/output error")
    before = (topic.describe(), topic.depth, client.channel.paused, list(client.got))
    acts: dict[str, Callable[[], None]] = {
        "pause": lambda: topic.set_paused(True),
        "unpause": lambda: topic.set_paused(False),
        "pause channel": lambda: topic.pause_channel("c", True),
        "empty": topic.empty,
        "delete channel": lambda: topic.delete_channel("c"),
    }
    with pytest.raises(WritesRefused, match="writing to the log failed"):
        acts[operation]()
    assert (topic.describe(), topic.depth, client.channel.paused, client.got) == before
    assert topic.channels == {"c": client.channel}
    assert not client.closed


def test_a_failed_flush_is_final_and_a_checkpoint_on_its_way_lets_nothing_go(core: Core) -> None:
    client = core.client("t").ready(1000)
    core.fill("t", 4)
    client.finish()
    job = begin_checkpoint(core.broker)
    assert job.free
    error = OSError(errno.EIO, "Input/output error")
    core.broker.log.flush_failed(error)
    with pytest.raises(WritesRefused, match="flushing the log failed"):
        end_checkpoint(core.broker, job)
    assert all(segment in core.broker.log.segments for segment in job.free)
    assert core.publish("t", b"1").error is not None
    assert core.broker.health.startswith("NOK - flushing the log failed")


def fail_to_flush(core: Core) -> None:
    core.storage.flush_error = OSError(errno.EIO, "Input/output error")
    with pytest.raises(OSError, match="Input/output") as raised:
        core.flush()
    core.broker.log.flush_failed(raised.value)
    core.storage.flush_error = None


def test_a_copy_in_doubt_takes_the_place_of_nothing_durable(core: Core) -> None:
    """The flush of a copy failed. The next broker saw it in memory, and its flushes succeeded."""
    client = core.client("t").ready(1000)
    core.publish("t", b"precious")
    client.requeue(0, 100 * SECOND_NS)
    core.fill("t", 6)
    client.finish(*range(1, len(client.got)))
    core.checkpoint()
    assert core.broker.log.position > core.broker.log.durable_position, "it was copied"
    fail_to_flush(core)
    core.kill()
    assert any("a flush had failed" in note for note in core.restored.notes)
    core.stop()
    assert core.restored.notes == []
    assert core.broker.log.segments[0].base > 0, "its first place has gone"
    core.kill(power=True)
    core.wait(100 * SECOND_NS)
    assert b"precious" in core.client("t").ready(1000).bodies


def test_a_flush_that_fails_on_a_full_disk_leaves_its_note_all_the_same(core: Core) -> None:
    core.publish("t", b"1")
    core.storage.capacity_bytes = core.storage.used_bytes
    fail_to_flush(core)
    assert "start the broker again" in core.broker.health
    core.kill()
    core.start_again("power")
    assert core.client("t").ready(1).bodies == [b"1"]


def test_where_no_note_can_be_left_the_machine_is_to_be_started_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    core = Core()
    core.publish("t", b"1")

    def refused(name: str, data: bytes, at: int) -> None:
        raise OSError(errno.EROFS, "Read-only file system")

    monkeypatch.setattr(core.storage, "write_at", refused)
    fail_to_flush(core)
    assert core.broker.health.endswith("could not be written ([Errno 30] Read-only file system)")
    assert "check the disk, then start the machine" in core.broker.health


def test_the_next_flush_covers_a_dropped_flush_job(core: Core) -> None:
    core.publish("t", b"1")
    core.broker.log.flush_job()
    core.start_again("power")
    assert core.client("t").ready(1).bodies == [b"1"]


def test_the_next_broker_flushes_the_writes_of_a_killed_one(core: Core) -> None:
    bodies = core.fill("t", 3)
    core.kill()
    assert core.broker.log.durable_position == 0
    core.start_again("power")
    assert core.client("t").ready(1000).bodies == bodies


def test_segments_that_every_channel_has_passed_are_used_again(core: Core) -> None:
    clients = [core.client("t", name).ready(1000) for name in ("c", "d")]
    core.fill("t", 5)
    clients[0].finish()
    core.checkpoint()
    assert len(core.broker.log.segments) > 5
    clients[1].finish()
    core.checkpoint()
    assert len(core.broker.log.segments) <= 2
    kept = core.storage.spare_count
    assert kept > 2, "some of those that were used lately"
    for _ in range(4):
        core.publish("t", b"x")
        core.checkpoint()
    assert core.storage.spare_count == 2


def test_the_segment_that_is_written_is_kept_when_it_is_exactly_full(core: Core) -> None:
    client = core.client("t").ready(100)
    log = core.broker.log
    core.publish("t", b"x")
    end = log.segments[-1].base + log.segments[-1].capacity
    trailer_bytes = 8
    space = end - log.position - HEADER_BYTES - FRAME_HEADER_BYTES - trailer_bytes
    assert core.publish("t", b"y" * space).error is None
    assert log.position == end
    client.finish()
    core.checkpoint()
    core.kill()
    assert core.publish("t", b"more").error is None
    assert core.client("t").ready(1).bodies == [b"more"]


def test_a_forgotten_channel_of_a_small_topic_does_not_pin_segments(core: Core) -> None:
    core.channel("small", "forgotten")
    core.publish("small", b"1", b"2")
    client = core.client("big").ready(10_000)
    for _ in range(12):
        core.fill("big", 1)
        client.finish(*[n for n in range(len(client.got)) if n >= client.consumer.finish_count])
        core.checkpoint()
    assert len(core.broker.log.segments) < 6
    for restart in (core.kill, core.stop):
        restart()
        assert core.client("small", "forgotten").ready(10).bodies == [b"1", b"2"]
    assert core.lost == []


def test_a_missing_or_damaged_index_is_made_from_the_log(core: Core) -> None:
    bodies = core.fill("t", 2)
    core.publish("u", b"1")
    core.publish("cut", b"1")
    core.checkpoint()
    (name,) = [n for n in core.storage.names("index") if n.startswith("1-")]
    core.storage.remove(f"index/{name}")
    core.storage.write_at("index/2-0.idx", b"\xff", 8)
    content = core.storage.read("index/3-0.idx")
    assert content
    core.storage.replace("index/3-0.idx", content[:-1])
    core.kill()
    assert len(core.restored.notes) == 3
    assert all("is missing or wrong; it is made from the log" in n for n in core.restored.notes)
    assert core.client("t").ready(1000).bodies == bodies
    assert core.client("u").ready(1000).bodies == core.client("cut").ready(1000).bodies == [b"1"]


def test_a_missing_or_damaged_checkpoint_costs_reading_the_whole_log(core: Core) -> None:
    client = core.client("t").ready(1)
    bodies = core.fill("t", 2)
    client.finish(0)
    core.broker.write_journal()
    core.checkpoint()
    content = core.storage.read("checkpoint")
    assert content is not None
    core.storage.replace("checkpoint", content[:-20] + b"?" + content[-19:])
    core.kill()
    assert "the checkpoint is damaged" in core.restored.notes[0]
    assert sorted(core.client("t").ready(1000).bodies) == sorted(bodies[1:])
    core.checkpoint()
    core.storage.remove("checkpoint")
    core.kill()
    assert "there is no checkpoint" in core.restored.notes[0]
    assert sorted(core.client("t").ready(1000).bodies) == sorted(bodies[1:])


def test_a_queue_without_rows_starts_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("martlet.broker.retention.checkpoint._DROP_ROWS", 3)
    core = Core()
    client = core.client("t").ready(1000)
    core.fill("t", 3)
    client.finish()
    for _ in range(3):
        core.fill("u", 2)
        core.client("u", "v").channel.empty()
        core.topic("u").delete_channel("v")
        core.checkpoint()
    end = core.topic().queue.end_offset
    index = core.topic().queue.index
    assert index.first_row == index.end_row > 0
    core.stop()
    assert core.topic().queue.end_offset == end
    assert core.topic().queue.start_offset == end
    again = core.client("t").ready(10)
    core.publish("t", b"new")
    assert again.bodies == [b"new"]


def test_damaged_messages_are_reported_and_those_around_them_delivered(core: Core) -> None:
    for body in (b"1", b"2", b"3"):
        core.publish("t", body)
    core.stop()
    core.damage(core.topic().queue.index.row(1).position)
    client = core.client("t").ready(10)
    assert client.bodies == [b"1", b"3"]
    ((topic, channel, first, end, reason),) = core.lost
    assert (topic, channel, first, end) == ("t", "c", 1, 2)
    assert "checksum" in reason
    client.finish()
    assert client.channel.depth == 0


def test_a_log_that_ends_before_its_checkpoint_goes_on_behind_it(core: Core) -> None:
    core.fill("t", 3)
    core.checkpoint()
    log = core.broker.log
    position = log.position
    storage = core.storage.crash()
    for segment in storage.segments()[1:]:
        storage.retire(segment)
    core.storage = storage
    core._open()
    assert any("the log ends before the checkpoint" in note for note in core.restored.notes)
    assert core.broker.log.position >= position
    core.publish("t", b"new")
    core.kill()
    client = core.client("t").ready(1000)
    assert client.bodies[-1] == b"new"


def test_records_of_the_log_name_their_run(core: Core) -> None:
    core.publish("t", b"1")
    first = core.broker.log.epoch
    core.kill()
    core.publish("t", b"2")
    core.stop()
    assert core.broker.log.epoch == first + 2
    epochs = []
    for entry in core.topic().queue.index.rows(0, 2):
        record = core.broker.log.view(entry.position, entry.length)
        assert record is not None
        epochs.append(read_header(record, 0, entry.position).epoch)
    assert epochs == [first, first + 1]


def test_a_checkpoint_of_many_topics_waits_for_few_of_their_indexes() -> None:
    """A stop took seconds, a second for each few hundred topics; the others come from the log."""
    core = Core(segment_bytes=1 << 20)
    for number in range(4 * MAX_SYNCED):
        core.publish(f"t{number}", b"%d" % number)
    job = begin_checkpoint(core.broker)
    assert len(job.names) == MAX_SYNCED
    core.complete(job)
    core.kill(power=True)
    for number in range(4 * MAX_SYNCED):
        assert core.client(f"t{number}").ready(1).bodies == [b"%d" % number]
    assert core.lost == []
    core.checkpoint(4)
    assert begin_checkpoint(core.broker).names == [], "in the end all are durable"


def test_a_channel_with_a_lost_creation_begins_where_a_later_entry_says(core: Core) -> None:
    core.channel("t", "first")
    core.publish("t", b"before it")
    core.channel("t", "c")
    made = positions(core)[-1]
    core.publish("t", b"1")
    core.topic().pause_channel("c", True)
    core.damage(made)
    core.kill()
    assert core.channel("t").paused
    assert core.channel("t").depth == 1
    core.topic().pause_channel("c", False)
    assert core.client("t").ready(10).bodies == [b"1"]


def test_a_channel_begins_where_the_head_of_a_segment_says_though_its_cursor_is_lost() -> None:
    core = Core()
    core.channel("t", "first")
    core.publish("t", b"before it")
    channel = core.channel("t", "c")
    made = positions(core)[-1]
    core.broker.begin_segment()
    core.publish("t", b"1")
    later = [p for p in positions(core, RecordKind.CURSOR) if p > made]
    for position in (made, *later):
        core.damage(position)
    core.kill()
    assert core.channel("t", "c").id == channel.id
    assert core.client("t").ready(10).bodies == [b"1"]


@pytest.mark.parametrize("lost", [False, True])
def test_a_deletion_and_the_backlog_that_it_leaves_are_one_entry(core: Core, lost: bool) -> None:
    client = core.client("t").ready(1)
    core.publish("t", b"1", b"2")
    client.finish()
    core.broker.write_journal()
    before = core.broker.log.position
    core.topic().delete_channel("c")
    (position,) = (p for p in positions(core) if p >= before)
    if lost:
        core.damage(position)
    core.kill()
    assert core.topic().depth == 0
    assert list(core.topic().channels) == (["c"] if lost else [])
    assert core.client("t").ready(10).bodies == ([b"2"] if lost else [])


def test_channel_records_of_the_old_form_are_read(core: Core) -> None:
    channel = core.channel("t")
    record = ChannelRecord(id=channel.id, name="c", paused=True)
    core.broker.journal_topology(core.topic().id, ChannelEntry(core.topic().id, record))
    core.publish("t", b"1")
    core.kill()
    assert core.channel("t").paused
    assert core.channel("t").depth == 1
    topic = core.topic()
    core.broker.journal_topology(topic.id, TopicEntry(replace(topic.describe(), backlog_offset=1)))
    core.broker.journal_topology(topic.id, ChannelDeletedEntry(topic.id, channel.id))
    core.kill()
    assert core.topic().channels == {}
    assert core.topic().depth == 0


def test_emptied_messages_stay_gone_though_a_later_cursor_entry_is_lost(core: Core) -> None:
    client = core.client("t").ready(10)
    core.publish_emptied("t", b"emptied")
    before = core.broker.log.position
    core.publish("t", b"1")
    client.finish()
    core.broker.write_journal()
    core.publish_emptied("t", b"emptied too")
    lost = [p for p in positions(core, RecordKind.CURSOR) if p >= before]
    assert lost
    for position in lost:
        core.damage(position)
    core.kill()
    assert core.client("t").ready(10).bodies == [b"1"]


def test_voids_are_kept_as_long_as_a_channel_may_go_back_to_them(core: Core) -> None:
    client = core.client("t").ready(1000)
    topic = core.topic()
    topic.set_paused(True)
    core.publish("t", b"1")
    topic.empty()
    core.checkpoint()
    assert topic.voids == [(0, 1)], "the channel has yet to pass it"
    topic.set_paused(False)
    core.publish("t", b"2")
    core.checkpoint()
    assert topic.voids == [(0, 1)], "it may be set back before it"
    core.fill("t", 2)
    client.finish()
    core.checkpoint(2)
    assert topic.queue.start_offset > 0
    assert topic.voids == []


def test_a_topic_with_a_lost_resume_is_paused_behind_what_its_channels_saw(core: Core) -> None:
    client = core.client("t")
    core.topic().set_paused(True)
    core.publish("t", b"1", delay_ns=SECOND_NS)
    core.topic().set_paused(False)
    lost = positions(core)[-1]
    core.wait(SECOND_NS)
    client.ready(1).ready(0).finish()
    core.broker.write_journal()
    core.damage(lost)
    core.kill()
    assert core.topic().paused
    client = core.client("t").ready(10)
    core.publish("t", b"2")
    core.wait(SECOND_NS)
    assert client.bodies == []
    core.topic().set_paused(False)
    core.wait(SECOND_NS)
    assert client.bodies == [b"2"], "what was finished comes again"


def test_a_channel_behind_a_pause_with_a_lost_end_gets_nothing_before_it(core: Core) -> None:
    core.channel("t", "first")
    core.topic().set_paused(True)
    core.publish("t", b"1")
    core.topic().set_paused(False)
    lost = positions(core)[-1]
    late = core.channel("t", "late")
    assert positions(core)[-1] != lost
    core.damage(lost)
    core.kill()
    assert core.topic().paused
    late = core.channel("t", "late")
    core.topic().set_paused(False)
    assert (late.depth, late.message_count) == (0, 0)
    assert core.channel("t", "first").depth == 1


def test_a_first_channel_does_not_count_emptied_messages(core: Core) -> None:
    core.channel("t")
    made = positions(core)[-1]
    core.publish("t", b"1")
    core.publish_emptied("t", b"emptied")
    core.damage(made)
    core.kill()
    assert core.topic().channels == {}
    assert core.topic().depth == 1
    client = core.client("t").ready(10)
    assert client.bodies == [b"1"]
    assert client.channel.message_count == 1


def test_a_damaged_batch_keeps_its_segment_from_cleaning_and_is_reported_once(core: Core) -> None:
    core.channel("small", "forgotten")
    core.publish("small", b"1")
    (position,) = positions(core, RecordKind.BATCH)
    client = core.client("big").ready(10_000)
    core.fill("big", 6)
    client.finish()
    core.damage(position)
    core.checkpoint(4)
    assert [(topic, channel) for topic, channel, *_ in core.lost] == [("", "")]
    assert f"position {position}: the checksum" in core.lost[0][-1]
    log = core.broker.log
    assert log.find(position) is not None
    core.channel("small", "forgotten").advance(1)
    core.checkpoint()
    assert log.find(position) is None, "it goes when nobody needs it"
    assert core.broker.not_cleanable == set()


def test_files_to_be_dropped_are_remembered_when_a_checkpoint_fails(core: Core) -> None:
    core.publish("t", b"1")
    core.checkpoint()
    (name,) = core.storage.names("index")
    core.broker.delete_topic("t")
    job = begin_checkpoint(core.broker)
    job.flush.run()
    core.storage.flush_error = OSError(errno.EIO, "Input/output error")
    with pytest.raises(OSError, match="Input/output"):
        job.save()
    core.storage.flush_error = None
    assert core.storage.names("index") == [name], "the last checkpoint tells of it"
    core.checkpoint()
    assert core.storage.names("index") == []
    assert core.broker.dropped_names == []


@pytest.mark.parametrize("restart", ["kill", "stop"])
def test_a_message_that_fails_for_ever_does_not_keep_a_hundred_segments(restart: str) -> None:
    core = Core(max_timeout_ns=1000 * SECOND_NS)
    client = core.client("t").ready(1000)
    core.publish("t", b"fails")
    log = core.broker.log
    for _ in range(100):
        core.fill("t", 1)
        client.requeue(-len(client.got), SECOND_NS)
        for number, message in enumerate(client.got):
            if message.body != b"fails":
                client.finish(number)
        client.got.clear()
        core.checkpoint()
        core.wait(SECOND_NS)
        assert [message.body for message in client.got] == [b"fails"]
    core.checkpoint()
    assert log.position > 100 * core.segment_bytes
    assert len(log.segments) <= 6
    queue = core.topic().queue
    assert queue.first_stored_offset == 0
    getattr(core, restart)()
    queue = core.topic().queue
    again = core.client("t").ready(10)
    assert again.bodies == [b"fails"]
    assert core.lost == []
    assert queue.end_offset - queue.start_offset <= 100, "what is behind it is no hole"


def test_a_broker_that_lost_its_indexes_starts_on_a_full_disk(core: Core) -> None:
    core.channel("t")
    bodies = core.fill("t", 2)
    core.checkpoint()
    for name in core.storage.names("index"):
        core.storage.remove(f"index/{name}")
    core.storage.capacity_bytes = core.storage.used_bytes
    core.kill()
    assert core.client("t").ready(1000).bodies == bodies
    core.storage.capacity_bytes = None
    core.checkpoint()
    core.kill()
    assert core.restored.notes == []
    assert core.channel("t").depth == len(bodies)


def small_core() -> tuple[Core, Client]:
    """A core whose disk has room for two segments, and a client that has got all messages of its
    channel when the log is full.
    """
    core = Core(segment_bytes=1 << 16)
    client = core.client("t").ready(1 << 20)
    core.storage.capacity_bytes = 3 * core.segment_bytes
    core.storage.keep_free_bytes = core.segment_bytes // 2
    fill_up(core)
    return core, client


def fill_up(core: Core) -> None:
    while core.publish("t", b"x" * 500).error is None:
        pass


@pytest.mark.parametrize("kept_count", [0, 5])
def test_a_full_log_leaves_the_segment_of_which_little_is_needed(kept_count: int) -> None:
    core, client = small_core()
    finished_count = 0
    for _ in range(4):
        before, end_count = len(client.got), len(client.got) - kept_count
        client.finish(*range(finished_count, end_count))
        finished_count = end_count
        core.checkpoint()
        assert core.publish("t", b"x" * 500).error is not None, "it is the one that is written"
        assert leave_spent_segment(core.broker)
        for _ in range(2):  # What is needed is moved, and then nothing is.
            core.checkpoint()
        assert len(core.broker.log.segments) == 1
        assert core.broker.health == "OK"
        fill_up(core)
        assert len(client.got) - before > 80
    core.start_again("power")
    left = core.client("t").ready(1 << 20)
    assert len(left.got) == len(client.got) - finished_count


def test_a_full_log_keeps_the_segment_of_which_much_is_needed() -> None:
    core, client = small_core()
    client.finish(*range(len(client.got) // 2))
    assert not leave_spent_segment(core.broker)
    assert len(core.broker.log.segments) == 1


def test_a_message_larger_than_a_segment_does_not_make_a_full_log_leave_one() -> None:
    core, client = small_core()
    client.finish()
    assert core.publish("t", b"x" * core.segment_bytes).error is not None
    assert not leave_spent_segment(core.broker)
