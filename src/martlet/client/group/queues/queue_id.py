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


def find_place(
    wanted: QueueId | tuple[str, int] | int, held: Iterable[QueueId], topic: str
) -> QueueId:
    """Find a queue; its number alone is enough if only one broker has it.

    Raises:
        ValueError: it is not assigned to the consumer, or several brokers have that number.
    """
    if isinstance(wanted, int):
        found = [place for place in held if place.queue == wanted]
        if len(found) > 1:
            brokers = ", ".join(place.broker for place in found)
            raise ValueError(f"queue {wanted} is held at {brokers}: say (broker, queue)")
    else:
        found = [place for place in held if place == tuple(wanted)]
    if not found:
        name = f"queue {wanted}" if isinstance(wanted, int) else str(QueueId(*wanted))
        raise ValueError(
            f"{name} of topic {topic} is not assigned to this consumer; consumer.assignment lists"
            " the queues that are"
        )
    return found[0]
