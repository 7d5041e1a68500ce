"""Three replicas of a log, of which one writes and the others copy, through kills, power cuts,
cuts and changes of the writer.
"""

from __future__ import annotations

import errno
from contextlib import suppress
from random import Random

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)
from tests.property.log.feed import end_in, feed, flushed, join, mend

from martlet.log.commit_log import CommitLog
from martlet.log.copy import CopiedLog, CopyRefused, open_copy
from martlet.log.record import RecordKind
from martlet.log.recovery import RecoveryReport, scan
from martlet.log.segmented import FlushJob
from martlet.log.storage import Segment
from martlet.testing import SimulatedStorage

SEGMENT_BYTES = 1024
copies = st.sampled_from([0, 1])


class CopyMachine(RuleBasedStateMachine):
    """A log and two copies of it."""

    def __init__(self) -> None:
        super().__init__()
        self.random = Random(0)
        self.primary: CommitLog
        self.copies: list[CopiedLog] = []
        self.epoch = 1
        self.made = 0
        self.holds = False
        """So far all went well: it makes sense to look at the end."""
        self.retired: set[int] = set()
        self.flushes: list[tuple[CopiedLog, FlushJob]] = []

    @initialize(seed=st.integers(0, 1000))
    def open(self, seed: int) -> None:
        self.random.seed(seed)
        self.primary = CommitLog(SimulatedStorage(self.random), [], 0, 1, SEGMENT_BYTES)
        self.copies = [open_copy(SimulatedStorage(self.random))[0] for _ in range(2)]

    def storage(self, log: CommitLog | CopiedLog) -> SimulatedStorage:
        assert isinstance(log.storage, SimulatedStorage)
        return log.storage

    @rule(sizes=st.lists(st.integers(0, 300), min_size=1, max_size=6), bundled=st.booleans())
    def append(self, sizes: list[int], bundled: bool) -> None:
        for size in sizes:
            self.made += 1
            entry = (b"%d " % self.made).ljust(size, b".")
            if bundled:
                self.primary.append_bundle(entry, [], [], 1)
            else:
                self.primary.append_journal(RecordKind.TOPOLOGY, entry, topic=1, stored_at_ns=1)

    @rule(number=copies, max_bytes=st.sampled_from([1, 60, 500, 1 << 40]))
    def ship(self, number: int, max_bytes: int) -> None:
        feed(self.primary, self.copies[number], self.random, max_bytes)

    @rule(number=copies)
    def begin_flush(self, number: int) -> None:
        job = self.copies[number].flush_job()
        job.run()
        self.flushes.append((self.copies[number], job))

    @rule()
    def end_flush(self) -> None:
        """The copy hears of a flush, and may have got more meanwhile."""
        if self.flushes:
            copy, job = self.flushes.pop(0)
            if copy in self.copies:
                copy.flushed(job)
                assert copy.durable_position >= job.position or copy.cut_count != job.cut_count

    @rule()
    def flush_primary(self) -> None:
        flushed(self.primary)

    @precondition(lambda self: len(self.primary.segments) > 2)
    @rule(pick=st.integers(0, 5))
    def retire(self, pick: int) -> None:
        """The primary retires a segment that nothing needs."""
        self.flush_primary()
        closed = self.primary.closed_segments
        segment = closed[pick % len(closed)]
        self.retired.add(segment.base)
        self.primary.retire(segment)

    @rule(number=copies, power=st.booleans())
    def restart_copy(self, number: int, power: bool) -> None:
        before = self.copies[number]
        end = min(before.end_position, before.durable_position) if power else before.end_position
        kept = {r for r in records_of(before.segments) if position_of(r) < end}
        copy, _ = open_copy(self.storage(before).crash(power=power))
        copy = self.copies[number] = mend(self.primary, copy)
        assert kept <= set(records_of(copy.segments))

    @rule(number=copies)
    def bad_bytes(self, number: int) -> None:
        """A bit flips on the way: nothing behind what was good counts, and it is sent again."""
        copy = self.copies[number]
        feed(self.primary, copy, self.random)
        self.append([100], False)
        source, position = self.primary.segments[-1], copy.position
        if copy.segments[-1].base != source.base:
            return
        at = position - source.base
        sent = bytearray(source.view[at : self.primary.position - source.base])
        flipped = self.random.randrange(len(sent))
        sent[flipped] ^= 1 << self.random.randrange(8)
        # What follows a wrong length may be waited for; so the record comes once more behind it.
        twice = (bytes(sent) * 2)[: source.capacity - at]
        with suppress(CopyRefused):
            copy.write(position, twice)
            copy.restart()
        assert copy.position == copy.received_position == position
        assert not any(copy.segments[-1].view[at : at + len(twice)])

    @rule(number=copies, failing=st.booleans(), power=st.booleans())
    def fail_over(self, number: int, failing: bool, power: bool) -> None:
        """One of the copies becomes the primary; the others cut off what it does not have."""
        chosen = self.copies[number]
        if self.retired and chosen.position < max(self.retired) + SEGMENT_BYTES:
            feed(self.primary, chosen, self.random)  # Nothing is retired before it is confirmed,
        for segment in [s for s in chosen.segments if s.base in self.retired]:
            chosen.retire(segment)  # and what is retired is at all replicas.
        other = self.copies[1 - number]
        chosen.restart()
        self.epoch += 1
        former = open_copy(self.storage(self.primary).crash(power=power))[0]
        self.primary = CommitLog(
            chosen.storage, chosen.segments, chosen.position, self.epoch, SEGMENT_BYTES
        )
        self.primary.distrust_heads()
        self.copies = [former, other]
        for index, copy in enumerate(self.copies):
            storage = self.storage(copy)
            if failing:
                error = OSError(errno.EIO, "Input/output error")
                failure = self.random.choice(["write_error", "flush_error"])
                setattr(storage, failure, error)
            try:
                copy = join(self.primary, chosen.epochs, copy, self.epoch)
            except (OSError, CopyRefused):
                assert failing
                assert copy.failed is not None
                with pytest.raises(CopyRefused):
                    copy.begin_segment(1 << 30, SEGMENT_BYTES)
                storage = storage.crash(power=power)
                storage.write_error = storage.flush_error = None
                copy, _ = open_copy(storage)
                copy = join(self.primary, chosen.epochs, copy, self.epoch)
            self.copies[index] = copy
            storage.write_error = storage.flush_error = None

    @invariant()
    def same_bytes(self) -> None:
        self.holds = False
        for copy in self.copies:
            for segment in copy.segments:
                same = self.primary.find(segment.base)
                if same is not None:
                    end = min(end_in(same, same.base, self.primary.position), copy.position)
                    length = max(0, end - segment.base)
                    assert segment.view[:length] == same.view[:length]
        self.holds = True

    def teardown(self) -> None:
        if not self.holds:
            return
        self.flush_primary()
        for copy in self.copies:
            feed(self.primary, copy, self.random)
            assert copy.position == self.primary.position
            assert [s.base for s in copy.segments] == [s.base for s in self.primary.segments]
            assert records_of(copy.segments) == records_of(self.primary.segments)
        self.same_bytes()


def position_of(record: bytes) -> int:
    return int.from_bytes(record[16:24], "little")


def records_of(segments: list[Segment]) -> list[bytes]:
    report = RecoveryReport()
    records = [bytes(record) for _, record in scan(list(segments), 0, report)]
    assert not report.damaged
    return records


def test_three_replicas_of_a_log_are_the_same() -> None:
    run_state_machine_as_test(
        CopyMachine,
        settings=settings(
            max_examples=300,
            stateful_step_count=40,
            derandomize=True,
            report_multiple_bugs=False,
            suppress_health_check=list(HealthCheck),
        ),
    )
