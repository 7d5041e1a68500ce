"""Queues with messages that were fetched."""

from __future__ import annotations

from tests.unit.client.scripted_broker import message_frame

from martlet.client import QueueId
from martlet.client.group.queues.assigned_queue import AssignedQueue
from martlet.client.group.queues.ready_queues import ReadyQueues
from martlet.client.group.settings import FlowLimits
from martlet.client.group.stats import PullCounts
from martlet.protocol.nsq.message_run import MessageRun


def queue_in(line: ReadyQueues, number: int = 0, count: int = 1) -> AssignedQueue:
    held = AssignedQueue("t", QueueId("b:1", number), 0, 0, FlowLimits(), line, PullCounts())
    fill(held, count)
    return held


def fill(held: AssignedQueue, count: int) -> None:
    frames = [message_frame(b"%06d" % offset, number=offset) for offset in range(count)]
    held.put(MessageRun.uniform(b"".join(frames), len(frames[0])), count)
