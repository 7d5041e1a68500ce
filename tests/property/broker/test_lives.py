"""Lives of a broker that once went wrong, replayed step by step."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from tests.property.broker.test_broker import BrokerMachine, everything_small

__all__ = ["everything_small"]  # the fixture, which these need too


@contextmanager
def life(*, dropping: bool) -> Iterator[BrokerMachine]:
    """A life that ends where the model ends, with all delivered that is left."""
    state = BrokerMachine()
    state.open(seed=0, dropping=dropping)
    yield state
    state.stands_where_the_model_stands()
    state.teardown()


def test_a_segment_goes_only_when_the_copies_out_of_it_are_durable() -> None:
    """It was cleaned, and its batches stood elsewhere, but only in memory when the power failed."""
    with life(dropping=True) as state:
        state.flood(delay_ms=0, name="b", segments=1)
        state.flood(delay_ms=0, name="a", segments=1)
        state.stop_and_start()
        state.create_channel_in_the_past(name="y", pick=0, share=0)
        state.create_channel_in_the_past(name="y", pick=1, share=0)
        state.create_channel_in_the_past(name="z", pick=1, share=0)
        large = ("a", [2500], 0, False)
        state.publish(parts=[large, ("b", [8] * 17, 1, False), large])
        state.stop_and_start()
        state.publish(parts=[("a", [1], 0, False), ("a", [1, 1], 0, False)])
        state.stands_where_the_model_stands()
        state.cut_power(seed=0)


def test_held_back_messages_are_freed_once_each_channel_is_advanced_past_them() -> None:
    """A new channel would still have got it, so the topic's depth counts it until it goes."""
    with life(dropping=True) as state:
        state.flood(delay_ms=1, name="a", segments=2)
        state.pause_topic(name="a", paused=True)
        state.flood(delay_ms=0, name="a", segments=3)
        state.advance_channel(pick=0, share=81)
        before = state.real_topic(state.topics["a"]).limit
        state.flood(delay_ms=0, name="a", segments=1)
        state.stands_where_the_model_stands()
        assert state.real_topic(state.topics["a"]).limit > before


def test_pages_of_a_failed_flush_are_written_again_by_the_next_start() -> None:
    """The next flush succeeded, of what it did not write the kernel having kept nothing."""
    with life(dropping=True) as state:
        state.break_disk(failing=0)
        state.flood(delay_ms=1, name="b", segments=4)
        state.kill()
        state.stop_and_start()
        state.cut_power(seed=0)


def test_a_segment_that_finds_no_successor_is_not_ended() -> None:
    """A clean stop then left one record to read: the end of a segment that went on."""
    with life(dropping=True) as state:
        state.flood(delay_ms=1, name="a", segments=4)
        state.write_journal()
        state.flood(delay_ms=0, name="b", segments=1)
        state.stop_and_start()


def test_lost_offsets_are_not_given_again_when_the_channel_that_knew_them_is_deleted() -> None:
    """Only a channel's cursor knew of them. Voids had gone over them, and later messages
    would have been published into those.
    """
    with life(dropping=True) as state:
        state.publish(parts=[("a", [91, 117, 47, 12, 59], 50, True)])
        state.whole_checkpoint()
        state.flood(delay_ms=0, name="a", segments=3)
        state.create_channel_in_the_past(name="z", pick=0, share=0)
        state.flood(delay_ms=0, name="a", segments=2)
        state.publish(parts=[("b", [1, 1, 1, 1], 0, True)])
        state.delete_channel(pick=1, rarely=False)
        state.cut_power(seed=3432)
        state.kill()


def test_a_gap_behind_the_backlog_is_kept_while_the_backlog_begins_before_it() -> None:
    """Messages for a first channel had been copied to newer segments, in part; those that went
    behind them counted as waiting again after a checkpoint, as no channel was on its way there.
    """
    with life(dropping=True) as state:
        large = [2500]
        many = [90, 32, 98, 12, 94, 7, 93, 100, 62, 100, 88, 73, 30, 16, 60, 9, 79, 79, 80, 98]
        few = [14, 103, 93, 25, 49, 38]
        both = [("b", many, 1, True), ("a", large, 3000, True), ("a", few, 50, True)]
        some = [100, 98, 63, 78, 74, 25, 105, 107, 49, 17, 75]
        state.publish(
            parts=[
                ("b", large, 0, False),
                ("a", [9], 0, False),
                ("a", [17], 50, False),
                ("a", some, 9, True),
            ]
        )
        state.create_channel_in_the_past(name="y", pick=0, share=0)
        state.publish(
            parts=[
                ("a", large, 1, False),
                ("b", large, 50, False),
                ("b", large, 0, True),
                ("a", [9], 0, True),
            ]
        )
        state.publish(parts=both)
        state.empty_channel(pick=0)
        state.whole_checkpoint()
        state.publish(parts=both)
        state.publish(
            parts=[
                ("a", [9], 9, False),
                ("b", [100], 0, True),
                ("a", [8, 55], 7, True),
                ("a", large, 9, True),
            ]
        )
        state.empty_channel(pick=0)
        state.publish(
            parts=[
                ("a", [44, 57, 84, 119, 22], 3000, True),
                ("b", large, 0, True),
                ("b", [51, 60, 80], 0, False),
                ("b", [1] * 16, 0, True),
            ]
        )
        state.stands_where_the_model_stands()
        state.whole_checkpoint()


def test_a_queue_does_not_begin_before_a_gap_that_a_power_cut_left() -> None:
    """Finished messages had gone, only their gap was left, and a channel was set back to it."""
    with life(dropping=True) as state:
        state.create_topic(name="a")
        state.publish(parts=[("b", [77], 0, False), ("b", [9], 0, True)])
        state.publish(parts=[("a", [60, 60, 60, 60, 60], 0, True)])
        state.create_channel(name="z", pick=0)
        state.whole_checkpoint()
        state.pause_topic(name="a", paused=True)
        state.cut_power(seed=2074)
        state.publish(
            parts=[
                ("a", [77, 100, 80, 92, 51, 43, 77, 64, 22, 5, 87, 42, 72], 0, True),
                ("a", [9], 0, False),
            ]
        )
        state.cut_power(seed=0)
        state.create_channel(name="y", pick=1)
        state.create_channel(name="z", pick=1)
        state.kill()
        state.publish(parts=[("b", [60] * 22, 0, False), ("b", [1] * 13, 1, False)])
        state.empty_channel(pick=0)
        state.publish(parts=[("b", [2500], 1, True), ("a", [1] * 12, 0, False)])
        state.cut_power(seed=0)
        state.replay_channel(pick=0, share=0)
        state.whole_checkpoint()
        state.cut_power(seed=0)


def test_a_segment_is_freed_only_when_forwarded_messages_are_durable() -> None:
    """The delayed message had been due, so nobody needed its segment, and that made room; the batch
    that it was forwarded in was in memory alone when the power failed.
    """
    with life(dropping=True) as state:
        state.publish_for_later(name="a", sizes=[90], delay_ms=3500, times=1)
        state.create_channel(name="x", pick=0)
        for _ in range(12):
            state.publish([("a", [100] * 10, 0, False)])
        state.empty_channel(pick=0)
        state.begin_flush()
        state.end_flush()
        state.wait(3500)
        state.stands_where_the_model_stands()
        first = state.broker.log.segments[0]
        while state.broker.log.segments[0] is first:
            state.publish([("a", [100] * 10, 0, False)])
        state.stands_where_the_model_stands()
        state.cut_power(seed=2)


def test_a_cancelled_message_is_not_reported_lost_at_its_due_time() -> None:
    """It was one of several of its batch, so that was looked at, and the segment had gone."""
    with life(dropping=False) as state:
        state.publish_for_later(name="a", sizes=[9], delay_ms=3500, times=1)
        state.flood(name="a", segments=1, delay_ms=0)
        state.publish_for_later(name="a", sizes=[9, 9], delay_ms=3500, times=1)
        state.cancel(picks=[1, 2])
        cancelled_in = state.broker.log.segments[-1]
        state.flood(name="a", segments=1, delay_ms=0)
        state.empty_channel(pick=0)
        state.whole_checkpoint()
        assert cancelled_in not in state.broker.log.segments
        state.wait(3500)


def test_no_space_is_freed_for_delayed_messages_that_have_gone() -> None:
    """They had been given up, and when they would have been due others were, so that they fit."""
    with life(dropping=True) as state:
        state.publish_for_later(name="b", sizes=[38, 47], delay_ms=40, times=1)
        state.create_channel(name="z", pick=0)
        state.create_queues(name="b", more=1)
        state.stop_and_start()
        state.create_queues(name="a", more=2)
        state.flood(name="b", segments=4, delay_ms=0)
        state.write_journal()
        assert not state.broker.delays.pending_count
        before = [state.real_topic(part).dropped_count for part in state.parts()]
        state.wait(40)
        assert [state.real_topic(part).dropped_count for part in state.parts()] == before
