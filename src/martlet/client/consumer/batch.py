"""Batches of messages: fast, since single message objects are made only on demand."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from martlet.client.consumer.acks import AckBatcher
from martlet.client.consumer.columns import Decoded
from martlet.client.consumer.message import check_delay_ms
from martlet.client.errors import AlreadyAnswered
from martlet.properties.model import Properties
from martlet.protocol.nsq.message_run import MessageRun

Where = NDArray[np.bool_] | NDArray[np.integer[Any]] | list[int] | list[bool] | slice
"""A selection of a batch's messages: a mask, indexes from 0, or a slice."""


class Batch(Decoded):
    """Messages of one broker, in flight until you answer them or they time out.

    Attributes:
        count: the number of messages.
        answers: writes the answers to the broker.
        is_open: whether any message is unanswered.
    """

    def __init__(self, answers: AckBatcher, run: MessageRun) -> None:
        super().__init__(run)
        self.answers = answers
        self.is_open = True
        self._open = np.ones(run.count, np.bool_)

    def __repr__(self) -> str:
        return f"<Batch of {self.count} messages, {self.unanswered_count} unanswered>"

    @property
    def unanswered_count(self) -> int:
        """The number of messages that are neither finished nor requeued."""
        return int(np.count_nonzero(self._open))

    async def finish(self, where: Where | None = None) -> None:
        """Finish the messages, in one write.

        Without ``where``: all unanswered ones.

        Raises:
            AlreadyAnswered: one of them was finished or requeued before.
        """
        self.answers.finish_array(self._answer(where))
        await self.answers.drain()

    async def requeue(
        self, delay_ms: int = 0, where: Where | None = None, *, backoff: bool = False
    ) -> None:
        """Requeue the messages with a delay in milliseconds, in one write.

        Without ``where``: all unanswered ones.  By default this does not count as a failure; with
        ``backoff`` it counts as one (see ``FailureBackoff``).

        Raises:
            AlreadyAnswered: one of them was finished or requeued before. ValueError: the delay is
            negative.
        """
        delay_ms = check_delay_ms(delay_ms)
        self.answers.requeue_array(self._answer(where), delay_ms, backoff=backoff)
        await self.answers.drain()

    async def touch(self) -> None:
        """Reset the timeout of all unanswered messages, in one write."""
        self.touch_soon()
        await self.answers.drain()

    def touch_soon(self) -> None:
        """Touch, without waiting until the broker has read it."""
        self.answers.touch_array(self._run.ids()[self._open])

    @property
    def is_suspect(self) -> bool:
        """Whether a lost client was handling its first message."""
        return first_suspect(self._run) == 0

    @property
    def last_id(self) -> bytes:
        """The id of its last message."""
        return bytes(self._run.ids()[-1].tobytes())

    def give_back(self, *, is_started: bool = True) -> None:
        """Have the broker deliver unanswered messages to others, without waiting.

        Their delivery counts as an attempt only if `is_started`.
        """
        if self.is_open:
            self.answers.give_back(self._answer(None), is_started=is_started)

    def _answer(self, where: Where | None) -> NDArray[np.void]:
        """Mark these messages as answered, and return their ids."""
        ids = self._run.ids()
        if where is None:
            if not self._open.any():
                raise AlreadyAnswered(f"{self!r}: all were finished or requeued before")
            if self._open.all():
                self._open[:] = False
                self.is_open = False
                return ids
            where = self._open.copy()
        asked = np.zeros(self.count, np.bool_)
        asked[where] = True
        if (asked & ~self._open).any():
            raise AlreadyAnswered(f"{self!r}: some of these were finished or requeued before")
        self._open[asked] = False
        self.is_open = bool(self._open.any())
        return ids[asked]


def first_suspect(run: MessageRun) -> int | None:
    """Return the index in a run of the first suspect."""
    for place, packed in run.properties.items():
        if Properties.unpack(packed).system.get("suspect"):
            return place
    return None
