"""The identity of a queue: its broker and number."""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple


class QueueId(NamedTuple):
    """A queue, unique among all brokers of a consumer.

    Attributes:
        broker: its address, as ``host:port``; of several, the first at which it was reached.
        queue: its number there.
    """

    broker: str
    queue: int

    def __str__(self) -> str:
        return f"queue {self.queue} at {self.broker}"


def find_queue(
    queue: QueueId | tuple[str, int] | int, assigned: Iterable[QueueId], topic: str
) -> QueueId:
    """Find a queue; its number alone is enough if only one broker has it. Raises ValueError: it is
    not assigned to the consumer, or several brokers have that number.
    """
    if isinstance(queue, int):
        matches = [queue_id for queue_id in assigned if queue_id.queue == queue]
        if len(matches) > 1:
            brokers = ", ".join(queue_id.broker for queue_id in matches)
            raise ValueError(f"queue {queue} is held at {brokers}: say (broker, queue)")
    else:
        matches = [queue_id for queue_id in assigned if queue_id == tuple(queue)]
    if not matches:
        name = f"queue {queue}" if isinstance(queue, int) else str(QueueId(*queue))
        raise ValueError(
            f"{name} of topic {topic} is not assigned to this consumer; consumer.assignment lists"
            " the queues that are"
        )
    return matches[0]
