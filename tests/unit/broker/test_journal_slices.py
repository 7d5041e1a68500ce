"""The journal of very many cursors, which is written some at a time."""

from __future__ import annotations

import pytest
from tests.unit.broker.core import SECOND_NS, Client, Core

from martlet.broker.errors import WritesRefused
from martlet.broker.retention.checkpoint import begin_checkpoint
from martlet.log.commit_log import CommitLog

CHANNELS = 200


def all_finish(core: Core) -> None:
    topic = core.broker.topic("t")
    clients = [Client(topic.channel(f"c{n}"), SECOND_NS).ready(1) for n in range(CHANNELS)]
    core.publish("t", b"x")
    for client in clients:
        client.finish()


def finished(core: Core) -> int:
    channels = core.topic().channels.values()
    return sum(channel.depth + channel.in_flight_count == 0 for channel in channels)


def test_entries_left_unwritten_are_written_the_next_time(core: Core) -> None:
    all_finish(core)
    some = core.broker.write_some_journal()
    next(some)
    next(some)
    del some
    core.kill(journaled=True)
    assert finished(core) == CHANNELS


def test_cursors_that_move_meanwhile_are_written_the_next_time(core: Core) -> None:
    all_finish(core)
    some = core.broker.write_some_journal()
    next(some)
    late = core.topic().channel("late")
    late.empty()
    core.topic().delete_channel("c150")
    pieces = sum(1 for _ in some)
    assert pieces < CHANNELS // 8
    assert late.dirty
    core.kill(journaled=True)
    assert finished(core) == CHANNELS


def test_a_refusal_in_the_middle_loses_nothing(core: Core, monkeypatch: pytest.MonkeyPatch) -> None:
    all_finish(core)
    some = core.broker.write_some_journal()
    next(some)
    with monkeypatch.context() as patched:

        def refuse(*arguments: object, **named: object) -> None:
            raise WritesRefused("no room")

        patched.setattr(CommitLog, "append_entries", refuse)
        with pytest.raises(WritesRefused):
            next(some)
    core.kill(journaled=True)
    assert finished(core) == CHANNELS


def test_a_checkpoint_is_laid_out_where_blocking_does_no_harm(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Of thousands of channels it takes long: only what it is to say is taken down at once."""
    core = Core()
    all_finish(core)

    def not_now(*arguments: object, **named: object) -> bytes:
        raise AssertionError("it is laid out on the loop")

    with monkeypatch.context() as patched:
        patched.setattr("martlet.log.checkpoint_file.pack", not_now)
        job = begin_checkpoint(core.broker)
        job.flush.run()
        with pytest.raises(AssertionError):
            job.save()
