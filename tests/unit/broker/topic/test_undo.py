"""A channel gets again what was emptied from it, and nothing that was finished before."""

from __future__ import annotations

import pytest
from tests.unit.broker.core import SECOND_NS, Core

from martlet.broker.errors import NotFound, OutOfReach
from martlet.broker.retention.history import Retention
from martlet.broker.topic import rewind as undo
from martlet.broker.topic.rewind import EmptiedQueue, UnfinishedRun, replay

TEN = [b"%d" % number for number in range(10)]
KEEP_NS = 900 * SECOND_NS


def empty(core: Core) -> list[EmptiedQueue]:
    return core.broker.empty_channel(core.topic(), "c")


def restore(core: Core, emptied: list[EmptiedQueue]) -> None:
    core.broker.restore_channel(core.topic(), "c", emptied)


def half_done() -> tuple[Core, list[EmptiedQueue]]:
    """A core whose channel was emptied: 0 and 2 were finished, 1 was requeued and is in flight
    again, as 3 to 5 are, and the others were never delivered.
    """
    core = Core(keep_emptied_ns=KEEP_NS)
    core.publish("t", *TEN)
    client = core.client("t").ready(4)
    client.channel.set_paused(True)
    client.finish(0, 2)
    client.requeue(1)
    client.channel.set_paused(False)
    client.ready(0)
    client.channel.set_paused(True)
    emptied = empty(core)
    assert client.channel.depth == client.channel.in_flight_count == 0
    client.leave()
    client.channel.set_paused(False)
    return core, emptied


@pytest.mark.parametrize("is_killed", [False, True])
def test_what_was_unfinished_comes_again_and_nothing_else(is_killed: bool) -> None:
    core, emptied = half_done()
    if is_killed:
        core.kill()
    restore(core, emptied)
    if is_killed:
        core.kill()
    assert core.channel("t").depth == 8
    client = core.client("t").ready(20)
    assert sorted(client.bodies) == [b"1", *TEN[3:]]
    assert {got.body: got.attempts for got in client.got}[b"3"] == 2
    client.finish()
    assert core.channel("t").depth == 0


def test_an_undo_that_is_repeated_changes_nothing() -> None:
    core, emptied = half_done()
    restore(core, emptied)
    restore(core, emptied)
    assert sorted(core.client("t").ready(20).bodies) == [b"1", *TEN[3:]]


def test_a_deferred_message_waits_for_its_time(core: Core) -> None:
    core.channel("t")
    core.publish("t", b"later", delay_ns=10 * SECOND_NS)
    core.publish("t", b"now")
    client = core.client("t").ready(2)
    client.requeue(0, 20 * SECOND_NS)
    emptied = empty(core)
    restore(core, emptied)
    assert client.bodies == [b"now"]
    core.wait(10 * SECOND_NS)
    assert client.bodies == [b"now", b"later"]
    core.wait(10 * SECOND_NS)
    assert client.bodies == [b"now", b"later", b"now"]


def test_all_queues_are_restored(core: Core) -> None:
    core.broker.set_queues("t", 3)
    core.channel("t")
    core.publish("t", *TEN)
    emptied = empty(core)
    assert [queue.queue for queue in emptied] == [0, 1, 2]
    restore(core, emptied)
    assert core.channel("t").all_queues.depth == 10


def test_emptied_messages_stay_in_the_log_for_a_time_and_no_longer() -> None:
    core = Core(keep_emptied_ns=KEEP_NS)
    client = core.client("t")
    bodies = core.fill("t", 6)
    emptied = empty(core)
    core.wait(KEEP_NS - 1)
    core.checkpoint(3)
    restore(core, emptied)
    assert client.ready(1 << 20).bodies == bodies
    client.finish()
    core.wait(1)
    core.checkpoint(3)
    with pytest.raises(OutOfReach, match="offset 0 of topic 't' was deleted") as refused:
        restore(core, emptied)
    assert refused.value.gone


def test_a_second_empty_keeps_what_the_first_one_did() -> None:
    core = Core(keep_emptied_ns=KEEP_NS, retention=Retention(SECOND_NS, 0))
    core.channel("t")
    bodies = core.fill("t", 4)
    first = empty(core)
    core.wait(KEEP_NS // 2)
    bodies += core.fill("t", 4)
    empty(core)
    core.checkpoint(3)
    restore(core, first)
    assert core.client("t").ready(1 << 20).bodies == bodies


def test_without_time_to_keep_them_emptied_messages_go(core: Core) -> None:
    core.channel("t")
    core.fill("t", 6)
    emptied = empty(core)
    core.checkpoint(3)
    with pytest.raises(OutOfReach, match="was deleted"):
        restore(core, emptied)


def test_a_channel_that_was_set_back_further_is_left_as_it_is() -> None:
    core, emptied = half_done()
    replay(core.topic(), "c", {0: 2})
    with pytest.raises(OutOfReach, match="cannot be set back to 6"):
        restore(core, emptied)
    assert core.channel("t").depth == 8


def test_what_was_emptied_elsewhere_is_refused() -> None:
    core, emptied = half_done()
    for wrong in (EmptiedQueue(0, 11, 12), EmptiedQueue(0, 2, 3, (UnfinishedRun(1, 4, 1),))):
        with pytest.raises(OutOfReach, match="is not of this topic: its queue 0 ends at offset 10"):
            restore(core, [wrong])
    with pytest.raises(NotFound):
        restore(core, [EmptiedQueue(1, 0, 0)])
    assert core.channel("t").depth == 0
    restore(core, emptied)


def test_too_many_places_fall_back_on_the_lowest(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(undo, "MAX_RUNS", 1)
    core, emptied = half_done()
    assert emptied == [EmptiedQueue(0, 1, 10)]
    restore(core, emptied)
    assert core.client("t").ready(20).bodies == TEN[1:]


def test_messages_of_all_queues_count_together(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(undo, "MAX_RESTORED", 3)
    core = Core()
    core.broker.set_queues("t", 2)
    core.channel("t")
    core.publish("t", *TEN)
    client = core.client("t").ready(20)
    emptied = empty(core)
    client.leave()
    assert [sum(run.end - run.first for run in queue.unfinished) for queue in emptied] in (
        [0, 0],
        [3, 0],
    )
    restore(core, emptied)
    assert core.channel("t").all_queues.depth == 10
