"""Batches of messages: columns of a run of frames, each made at first use.

That is fast, since single message objects are made only on demand.
"""

from __future__ import annotations

from functools import cached_property
from typing import TYPE_CHECKING, Any, cast

import numpy as np
from numpy.typing import NDArray

from martlet.client.consumer.acks import AckBatcher
from martlet.client.consumer.message import check_delay_ms
from martlet.client.errors import AlreadyAnswered
from martlet.properties.model import NONE, Properties
from martlet.protocol.nsq.message_run import FRAME_HEADER_BYTES, MessageRun
from martlet.text import how_to_install

if TYPE_CHECKING:
    import pyarrow as pa

Where = NDArray[np.bool_] | NDArray[np.integer[Any]] | list[int] | list[bool] | slice
"""A selection of a batch's messages: a mask, indexes from 0, or a slice."""


class Decoded:
    """The messages of a run."""

    def __init__(self, run: MessageRun) -> None:
        self.count = run.count
        self._run = run

    def __len__(self) -> int:
        return self.count

    @cached_property
    def ids(self) -> NDArray[np.bytes_]:
        """The id of each message: an array of 16 bytes each (``S16``)."""
        return self._run.ids().view("S16")

    @cached_property
    def attempts(self) -> NDArray[np.uint16]:
        """The number of deliveries of each message, this one included."""
        return cast("NDArray[np.uint16]", self._run.heads()["attempts"].astype(np.uint16))

    @cached_property
    def timestamps_ns(self) -> NDArray[np.int64]:
        """The publish time of each message, in nanoseconds since 1970."""
        return cast("NDArray[np.int64]", self._run.heads()["timestamp_ns"].astype(np.int64))

    @cached_property
    def bodies(self) -> list[bytes]:
        """The body of each message, made at first use."""
        return self._run.bodies()

    @cached_property
    def properties(self) -> list[Properties]:
        """The properties of each message, made at first use; equal ones are one object."""
        packed = self._run.properties
        unpacked = {block: Properties.unpack(block) for block in set(packed.values())}
        return [unpacked[packed[index]] if index in packed else NONE for index in range(self.count)]

    def arrow(self) -> pa.BinaryArray:
        """Return the bodies as one Arrow array, made without a step for each message.

        The received bytes are read as an array that alternates frame heads and bodies; then the
        bodies are selected.

        Raises ImportError: pyarrow is not installed.
        """
        try:
            import pyarrow as pa
        except ImportError as error:
            raise ImportError(f"Batch.arrow needs pyarrow: {how_to_install('arrow')}") from error
        ends = self._run.ends()
        offsets = np.empty(2 * self.count + 1, np.int32)
        offsets[0] = 0
        offsets[2::2] = ends
        offsets[1::2] = offsets[:-1:2] + FRAME_HEADER_BYTES
        buffers = [None, pa.py_buffer(offsets.data), pa.py_buffer(self._run.raw)]
        both = pa.Array.from_buffers(pa.binary(), 2 * self.count, buffers)
        bodies = both.take(np.arange(1, 2 * self.count, 2, dtype=np.int32))
        return cast("pa.BinaryArray", bodies)


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
        chosen = np.zeros(self.count, np.bool_)
        chosen[where] = True
        if (chosen & ~self._open).any():
            raise AlreadyAnswered(f"{self!r}: some of these were finished or requeued before")
        self._open[chosen] = False
        self.is_open = bool(self._open.any())
        return ids[chosen]


def first_suspect(run: MessageRun) -> int | None:
    """Return the index in a run of the first suspect."""
    for index, packed in run.properties.items():
        if Properties.unpack(packed).system.get("suspect"):
            return index
    return None
