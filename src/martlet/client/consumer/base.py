"""Three ways to get messages: one by one, through a handler, or in whole batches."""

from __future__ import annotations

import asyncio
import time
from abc import ABC, abstractmethod
from collections.abc import AsyncIterator, Iterable
from typing import TYPE_CHECKING, Literal, overload

from martlet.client.consumer.batch import Batch
from martlet.client.consumer.buffer import ReceiveBuffer
from martlet.client.consumer.handling.auto_touch import AutoTouch
from martlet.client.consumer.handling.failure_policy import FailurePolicy
from martlet.client.consumer.handling.handed_out import HandedOut
from martlet.client.consumer.handling.worker import Handler
from martlet.client.consumer.handling.workers import WorkerPool
from martlet.client.consumer.message import Message
from martlet.client.errors import Closed

if TYPE_CHECKING:
    from martlet.client.consumer.handling.handler_pool import HandlerPlace, PlainHandler


_LENT = 2
"""How often ``max_in_flight`` messages are remembered that were handed out one by one: when their
time runs out they come again, beside those that are remembered."""


class ConsumerBase(ABC):
    """Hands out what comes into an inbox, and knows what it handed out.

    Args:
        max_in_flight: how many messages may be here and not be answered.
        failures: what becomes of messages whose handler fails.
        auto_touch: whether to ask for more time for what is being worked on.
    """

    def __init__(self, max_in_flight: int, failures: FailurePolicy, auto_touch: bool) -> None:
        self._inbox = ReceiveBuffer()
        self._failures = failures
        self._lent = HandedOut(_LENT * max_in_flight)
        self._toucher = AutoTouch(auto_touch, self._lent)
        self._inbox.is_out = lambda: self._lent.has_open or bool(self._toucher.held())
        self._crew = WorkerPool(self._inbox, failures, self._toucher)
        self._entered = False

    @property
    @abstractmethod
    def max_in_flight(self) -> int:
        """How many messages may be here and not be answered."""

    def _expect(self, max_in_flight: int) -> None:
        """So many messages may be here from now on."""
        self._lent.remember(_LENT * max_in_flight)

    def __aiter__(self) -> AsyncIterator[Message]:
        return self

    async def __anext__(self) -> Message:
        """The next message; you finish it or requeue it.  Ends when the consumer is stopped."""
        self._check_entered()
        inbox = self._inbox
        while not inbox.is_closed:
            now_s = time.monotonic()
            if now_s > inbox.turn_ends_at_s:
                await inbox.rest()
            elif not inbox.refill():
                await inbox.arrival()
            elif now_s <= inbox.touch_at_s:
                message = inbox.ready.popleft()
                self._lent.add(message)
                return message
            elif now_s > inbox.expires_at_s:
                inbox.drop_ready()
            else:
                message = inbox.ready.popleft()
                self._lent.add(message)
                message.touch()
                return message
        inbox.check()
        raise StopAsyncIteration

    async def batches(
        self, *, max_messages: int = 10_000, max_wait_ms: float = 0
    ) -> AsyncIterator[Batch]:
        """The messages in batches, each of one broker; you finish or requeue them.

        Args:
            max_messages: no more than this in a batch.  A batch is never larger than the broker's
                part of ``max_in_flight`` either, so choose that for the batches that you want.
            max_wait_ms: how long to wait for a batch to fill after its first message came.
        """
        self._check_entered()
        if max_messages < 1:
            raise ValueError(f"max_messages={max_messages}: 1 is the least")
        inbox = self._inbox
        while not inbox.is_closed:
            if max_wait_ms > 0:
                await inbox.fill(max(1, min(max_messages, self.max_in_flight)), max_wait_ms / 1000)
            batch = inbox.next_batch(max_messages)
            if batch is None:
                await inbox.arrival()
            else:
                self._toucher.take(batch)
                if batch.start():
                    await asyncio.sleep(0)  # The broker is told before anything is done with it.
                yield batch
        inbox.check()

    @overload
    async def run(
        self, handler: Handler, *, concurrency: int = 1, on: Literal["loop"] = "loop"
    ) -> None: ...

    @overload
    async def run(
        self, handler: PlainHandler, *, concurrency: int = 1, on: HandlerPlace
    ) -> None: ...

    async def run(
        self,
        handler: Handler | PlainHandler,
        *,
        concurrency: int = 1,
        on: Literal["loop"] | HandlerPlace = "loop",
    ) -> None:
        """Hand each message to the handler until the consumer is stopped or closed.

        When the handler returns the message is finished, unless it answered the message itself;
        when it raises ``Requeue`` the message is put off; when it raises ``Reject`` a Martlet
        broker puts it into the channel's dead-letter topic; when it raises anything else, that is
        logged and the message requeued, for longer with each attempt.

        Args:
            handler: called with each message.  On the loop: a coroutine function, or a function
                that returns soon.  In threads and processes: a function, called with a
                ``MessageView``; for processes one at the top of a module.
            concurrency: how many handlers may be at work at once.
            on: ``loop``, or ``threads`` for a handler that blocks, or ``processes`` for one that
                computes for long: heartbeats are answered meanwhile.

        Raises:
            SubscribeRefused, ConnectRefused: a broker would no longer have it when connecting
                again.
            ValueError: the handler cannot be run there.
        """
        self._check_entered()
        await self._crew.run(handler, concurrency, on)
        self._inbox.check()

    def _check_entered(self) -> None:
        if not self._entered:
            raise Closed("use 'async with Consumer(...)'")

    async def _take_back(
        self, timeout_s: float, besides: Iterable[asyncio.Task[object]] = ()
    ) -> None:
        """Let handlers end, others than those; give what is not answered back to the brokers,
        handed out or not.
        """
        await self._crew.end(timeout_s, besides)
        self._lent.give_back()
        for batch in self._toucher.held():
            batch.give_back()
        self._give_back()

    def _give_back(self) -> None:
        for answers, ids in self._inbox.drain():
            answers.give_back(ids)
