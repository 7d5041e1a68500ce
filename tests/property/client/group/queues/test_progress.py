"""The progress of a queue's handling against a set, and that of a held queue beside it."""

from __future__ import annotations

import asyncio
from struct import Struct

from hypothesis import given, settings
from hypothesis import strategies as st

from martlet.client.group.batch import PulledBatch
from martlet.client.group.message import PulledMessage
from martlet.client.group.queues.assigned_queue import AssignedQueue, OffsetTracker
from martlet.client.group.queues.queue_id import QueueId
from martlet.client.group.queues.ready_queues import ReadyQueues
from martlet.client.group.settings import FlowLimits
from martlet.client.group.stats import PullCounts
from martlet.protocol.nsq.message_run import MessageRun

BASE = (1 << 64) - 20
"""Of ids: they go over the end of 64 bits and begin at 0 again."""
_HEAD = Struct(">IIqH16s")


@settings(max_examples=25)
@given(st.data())
def test_the_lowest_that_has_not_ended(data: st.DataObject) -> None:
    progress = OffsetTracker()
    begun: set[int] = set()
    for _ in range(data.draw(st.integers(1, 40))):
        ends = data.draw(st.booleans())
        if ends and begun:
            offset = data.draw(st.sampled_from(sorted(begun)))
            progress.end(offset)
            begun.discard(offset)
        else:
            offset = data.draw(st.sampled_from(sorted(set(range(60)) - begun)))
            progress.begin(offset)
            begun.add(offset)
        assert progress.lowest == min(begun, default=None)
    for offset in sorted(begun, reverse=True):
        progress.end(offset)
    assert progress.lowest is None
    assert not progress._begun
    assert not progress._ended


def run_of(offsets: list[int], sizes: list[int]) -> MessageRun:
    frames, ends, end = [], [], 0
    for offset, size in zip(offsets, sizes, strict=True):
        body = b"%0*d" % (size, offset)
        id = b"%016x" % ((BASE + offset) % (1 << 64))
        frames.append(_HEAD.pack(len(body) + 30, 2, offset, 1, id) + body)
        end += len(frames[-1])
        ends.append(end)
    run = MessageRun(b"".join(frames), ends)
    run.properties = {at: b"%d" % offset for at, offset in enumerate(offsets) if offset % 3 == 0}
    return run


ACTIONS = ["fetch", "take", "batch", "finish", "finish late", "back", "off", "leave and stay"]


@settings(max_examples=60)
@given(st.data())
def test_a_held_queue_commits_finished_messages_and_hands_out_the_rest(data: st.DataObject) -> None:
    asyncio.run(check(data))


async def check(data: st.DataObject) -> None:
    held = AssignedQueue("t", QueueId("b", 0), 0, BASE, FlowLimits(), ReadyQueues(), PullCounts())
    stored: set[int] = set()
    done: set[int] = set()
    out: list[PulledMessage | PulledBatch] = []
    put_off: list[PulledMessage] = []
    begun: list[PulledMessage] = []
    for _ in range(data.draw(st.integers(1, 40))):
        action = data.draw(st.sampled_from(ACTIONS))
        if action == "fetch" and held.fetch_offset < 200:
            gaps = data.draw(st.lists(st.integers(1, 3), max_size=6))
            offsets, at = [], held.fetch_offset - 1
            for gap in gaps:
                at += gap
                offsets.append(at)
            # What was forgotten is there again, and nothing else.
            fetched = [offset for offset in sorted(stored) if offset >= held.fetch_offset]
            offsets = fetched or offsets
            size = data.draw(st.integers(3, 5))
            sizes = [size + (offset % 2 if size == 4 else 0) for offset in offsets]
            end = offsets[-1] + 1 if offsets else held.fetch_offset + 1
            held.put(run_of(offsets, sizes) if offsets else None, end)
            stored |= set(offsets)
        elif action == "take" and held.is_ready:
            message = held.take()
            assert int(message.body) == message.offset == message.timestamp_ns
            assert message.packed == (b"%d" % message.offset if message.offset % 3 == 0 else b"")
            out.append(message)
            begun.append(message)
        elif action == "finish late":
            finish_late(data, begun, done)
        elif action == "batch" and held.is_ready:
            max_count = data.draw(st.integers(1, 5))
            batch = held.take_batch(max_count)
            assert batch.count <= max_count
            assert [int(body) for body in batch.bodies] == batch.offsets.tolist()
            assert batch.offsets.tolist() == sorted(set(batch.offsets.tolist()))
            properties = [batch.piece.run.properties.get(at, b"") for at in range(batch.count)]
            assert properties == [b"%d" % n if n % 3 == 0 else b"" for n in batch.offsets.tolist()]
            out.append(batch)
        elif action == "leave and stay":
            held.begin_leaving()
            assert not held.is_ready
            held.stay()
        elif action in ("finish", "back", "off") and out:
            one = out.pop(data.draw(st.integers(0, len(out) - 1)))
            if isinstance(one, PulledBatch):
                if action == "finish":
                    one.finish()
                    done |= set(one.offsets.tolist())
                else:
                    held.put_back_batch(one)
            elif action == "finish":
                one.finish()
                done.add(one.offset)
            elif action == "back":
                held.put_back(one)
            else:
                held.put_off(one)
                put_off.append(one)
        comes_back = data.draw(st.booleans())
        if comes_back and put_off:
            held.put_back(put_off.pop())
        assert held.next_commit == min(stored - done, default=held.fetch_offset)
        assert held.at_work == len(out)
    await finish_all(held, out, put_off, stored, done)


def finish_late(data: st.DataObject, begun: list[PulledMessage], done: set[int]) -> None:
    """A message is finished while it waits to be retried."""
    waiting = [message for message in begun if not message.is_out and not message.is_finished]
    if waiting:
        message = data.draw(st.sampled_from(waiting))
        message.finish()
        done.add(message.offset)


async def finish_all(
    held: AssignedQueue,
    out: list[PulledMessage | PulledBatch],
    put_off: list[PulledMessage],
    stored: set[int],
    done: set[int],
) -> None:
    """In the end all of it is done, and nothing is left."""
    for one in out:
        one.finish()
        done |= set(one.offsets.tolist()) if isinstance(one, PulledBatch) else {one.offset}
    for message in put_off:
        held.put_back(message)
    left = [n for n in sorted(stored) if n >= held.fetch_offset]
    if left:
        held.put(run_of(left, [4] * len(left)), left[-1] + 1)
    seen = []
    while held.is_ready:
        message = held.take()
        seen.append(message.offset)
        message.finish()
    assert seen == sorted(stored - done)
    assert (held.count, held.size_bytes, held.at_work) == (0, 0, 0)
    assert held.next_commit == held.fetch_offset
