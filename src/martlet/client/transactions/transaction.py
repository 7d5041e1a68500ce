"""A transaction: messages that are seen together or not at all.

::

    async with producer.transaction() as transaction:
        await transaction.publish("orders", b"one")
        await transaction.publish("mails", b"two")
        ...                                            # the work that they tell of
    # both are seen from here on; after an exception in the block neither ever is

All of it is stored at one broker.  What is added goes there one SEND at a time, with a number, so
that one which is sent again after a lost connection is stored once, and the order stays; what is
added meanwhile goes together in the next.  Every other step may be repeated too, and is, until it
is answered or the time is over.
"""

from __future__ import annotations

import asyncio
import logging
import secrets
from collections import deque
from collections.abc import Iterable, Mapping
from types import TracebackType
from typing import TYPE_CHECKING, Any, NamedTuple

from martlet.client.errors import (
    ClientError,
    Closed,
    TransactionEnded,
    TransactionRefused,
)
from martlet.client.names import check_name
from martlet.client.producer.message import Body, check_body
from martlet.properties.block import pack_block
from martlet.properties.model import Properties
from martlet.protocol.nsq import commands

if TYPE_CHECKING:
    from martlet.client.transactions.session import PinnedSession

logger = logging.getLogger("martlet.client")

_MAX_MESSAGES = 1000
_MAX_BYTES = 1 << 20
"""Of one SEND, unless a single message is larger."""
_ROLLBACK_S = 5.0
"""How long a block that failed waits at most until its transaction is rolled back."""
_Place = tuple[str, str, int | None]
"""A topic, an order key, and a queue."""


class Contribution(NamedTuple):
    """What one process has added to a transaction.

    Attributes:
        branch: its name there.
        message_count: how many messages.
    """

    branch: str
    message_count: int


def new_branch() -> str:
    """A name that nobody else will choose."""
    return secrets.token_hex(8)


class _Adding(NamedTuple):
    place: _Place
    body: bytes
    entry: bytes
    future: asyncio.Future[None]


class Transaction:
    """One transaction. `Producer.transaction` and `Producer.join_transaction` make them.

    Attributes:
        id: by which it is known.
        branch: by which what is added here is known in it.
    """

    def __init__(
        self,
        pinned: PinnedSession,
        id: str,
        *,
        group: str,
        check_after_s: float | None,
        max_body_bytes: int,
        is_named: bool = False,
        is_joined: bool = False,
    ) -> None:
        if not id.isprintable():
            raise ValueError(f"the transaction id {id!r} must have printable characters alone")
        self.id = id
        self.branch = new_branch()
        self._pinned = pinned
        self._max_body_bytes = max_body_bytes
        self._is_named = is_named
        self._joined = is_joined
        self._begin: dict[str, Any] = {"group": group} if group else {}
        if check_after_s is not None:
            if check_after_s <= 0:
                raise ValueError(f"check_after_s={check_after_s} must be above 0")
            self._begin["check_after_ms"] = max(1, round(check_after_s * 1000))
        self._waiting: deque[_Adding] = deque()
        self._pump: asyncio.Task[None] | None = None
        self._number = 0
        self._message_count = 0
        self._error: ClientError | None = None
        self._ended = ""

    @property
    def contribution(self) -> Contribution:
        """What was added here, as whoever commits the transaction wants to know it."""
        return Contribution(self.branch, self._message_count)

    # adding

    async def publish(
        self,
        topic: str,
        body: Body,
        *,
        tag: str = "",
        keys: Iterable[str] | str = (),
        headers: Mapping[str, str] | None = None,
        order_key: str = "",
        queue: int | None = None,
    ) -> None:
        """Add a message, and return once the broker has stored it; nobody sees it yet.

        Args:
            topic: where it belongs; the broker creates it if there is none.
            body: the message; not empty.
            tag, keys, headers, order_key: its properties.
            queue: the number of the queue; else that of the order key, or any.

        Raises:
            InvalidName, BadBody, BadProperties: no message may be like that.
            TransactionRefused: the broker did not take it; the transaction can be rolled back.
            TransactionUnclear: no answer within the producer's timeout.
            TransactionEnded: it was committed or rolled back.
            WrongBroker: messages with this order key go to another broker.
            NotSupported: the broker is no Martlet broker.
        """
        keys = (keys,) if isinstance(keys, str) else tuple(keys)
        entry = Properties(tag, keys, headers or {}, order_key).pack()
        await self._add((topic, order_key, queue), body, entry)

    async def publish_many(
        self, topic: str, bodies: Iterable[Body], *, order_key: str = "", queue: int | None = None
    ) -> int:
        """Add messages in order, and return how many once the broker has stored all of them.

        Raises as `publish`; some of them may be stored then.
        """
        entry = Properties(order_key=order_key).pack()
        futures: list[asyncio.Future[None]] = []
        count = 0
        for body in bodies:
            futures.append(self._add((topic, order_key, queue), body, entry))
            count += 1
            if len(futures) >= 2 * _MAX_MESSAGES:
                await _all(futures)
                futures.clear()
        await _all(futures)
        return count

    def _add(self, place: _Place, body: Body, entry: bytes) -> asyncio.Future[None]:
        self._check_open()
        topic, order_key, _ = place
        check_name(topic, "topic")
        if order_key:
            self._pinned.check_home(self.id, topic, order_key)
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        adding = _Adding(place, check_body(body, self._max_body_bytes), entry, future)
        self._waiting.append(adding)
        if self._pump is None or self._pump.done():
            self._pump = asyncio.create_task(self._send_all(), name=f"transaction {self.id}")
        return future

    def _check_open(self) -> None:
        if self._error is not None:
            raise self._error
        if self._ended:
            raise TransactionEnded(self.id, self._ended)

    async def _send_all(self) -> None:
        while self._waiting:
            # Whatever else is added in this turn of the loop goes with it.
            await asyncio.sleep(0)
            some = self._next()
            try:
                await self._send(some)
            except BaseException as error:
                told = error if isinstance(error, ClientError) else Closed(f"closed: {error!r}")
                self._fail(some, told)
                if not isinstance(error, ClientError):
                    raise
                return
            for adding in some:
                if not adding.future.done():
                    adding.future.set_result(None)

    def _next(self) -> list[_Adding]:
        """What goes in one SEND: as much as follows each other, and belongs to one place."""
        waiting = self._waiting
        some = [waiting.popleft()]
        size_bytes = len(some[0].body)
        while waiting and len(some) < _MAX_MESSAGES and waiting[0].place == some[0].place:
            size_bytes += len(waiting[0].body) + len(waiting[0].entry)
            if size_bytes > _MAX_BYTES:
                break
            some.append(waiting.popleft())
        return some

    async def _send(self, some: list[_Adding]) -> None:
        topic, order_key, queue = some[0].place
        options: dict[str, Any] = {
            "transaction": self.id,
            "branch": self.branch,
            "number": self._number,
        }
        if not self._joined and not self._number:
            options["begin"] = self._begin
        if queue is not None:
            options["queue"] = queue
        elif order_key:
            options["order_key"] = order_key
        entries = [(number, adding.entry) for number, adding in enumerate(some) if adding.entry]
        bodies = [adding.body for adding in some]
        command = commands.send(topic, bodies, options, pack_block(entries))
        await self._pinned.send(self.id, command)
        self._number += 1
        self._message_count += len(some)

    def _fail(self, some: list[_Adding], error: ClientError) -> None:
        """What was not added is not tried again: those behind it would come without it."""
        self._error = error
        for adding in (*some, *self._waiting):
            if not adding.future.done():
                adding.future.set_exception(error)
        self._waiting.clear()

    async def _drained(self) -> None:
        """Wait until all that was added is stored. Raises what adding it has raised."""
        if self._pump is not None:
            await asyncio.wait([self._pump])
        if self._error is not None:
            raise self._error

    # what becomes of it

    async def begin(self) -> str:
        """Begin it, as the block does, and return its state.

        That is ``open`` for one that is new, was rolled back, or was begun before and did not end.
        Of one that was prepared, committed or set aside it says so, and the transaction stays as it
        is: so a job that was restarted learns whether it had done this part of its work.

        Raises TransactionRefused, TransactionUnclear and NotSupported.
        """
        fields = await self._pinned.call(self.id, "transaction.begin", **self._begin)
        state = str(fields["state"])
        if state == "committed":
            self._ended = state
        return state

    async def prepare(self, *others: Contribution) -> None:
        """Have it complete: nothing more is added, and all is on the broker's disk when this
        returns, whatever its flush mode is. What follows can be nothing but commit or rollback.

        Args:
            others: what was added elsewhere and belongs to it.

        Raises TransactionRefused, TransactionUnclear and TransactionEnded.
        """
        self._check_open()
        await self._drained()
        await self._pinned.call(self.id, "transaction.prepare", **self._branches(others))

    async def commit(self, *others: Contribution) -> None:
        """Have everybody see its messages. Once this returns, it is as safe as a publish is.

        Args:
            others: what was added elsewhere and belongs to it; what is not named is left out.

        Raises:
            TransactionRefused: it was rolled back, or messages are missing.
            TransactionUnclear: no answer within the producer's timeout: call it again, or leave it
                to the check of its group.
        """
        if self._ended == "committed":
            return
        if self._ended:
            raise TransactionEnded(self.id, self._ended)
        await self._drained()
        if self._number or self._joined or others or self._pinned.is_bound:
            await self._pinned.call(self.id, "transaction.commit", **self._branches(others))
        self._ended = "committed"

    async def rollback(self) -> None:
        """Have nobody see its messages, ever.

        Raises:
            TransactionRefused: it was committed.
            TransactionUnclear: no answer within the producer's timeout.
        """
        if self._ended == "rolled-back":
            return
        if self._ended:
            raise TransactionEnded(self.id, self._ended)
        self._fail([], TransactionEnded(self.id, "rolled-back"))
        if self._pump is not None and not self._pump.done():
            await asyncio.wait([self._pump])
        if self._pinned.is_bound:
            try:
                await self._pinned.call(self.id, "transaction.rollback")
            except TransactionRefused as error:
                # Nothing of it came to the broker, or it was rolled back long ago.
                if error.code != "NOT_FOUND":
                    raise
        self._ended = "rolled-back"

    def _branches(self, others: Iterable[Contribution]) -> dict[str, Any]:
        branches = {branch: count for branch, count in others if count}
        if self._message_count:
            branches[self.branch] = self._message_count
        return {"branches": branches}

    async def __aenter__(self) -> Transaction:
        """Begin.

        Raises:
            TransactionEnded: it was committed before, so what the block does was done.
            TransactionRefused: it was prepared or set aside, and waits for its outcome.
        """
        if self._is_named:
            state = await self.begin()
            if state == "committed":
                raise TransactionEnded(self.id, state)
            if state != "open":
                raise TransactionRefused(
                    self.id, "CONFLICT", f"transaction {self.id!r} is {state}", state
                )
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self._joined:
            # Who has begun it decides.
            await self._drained()
        elif error is None:
            if not self._ended:
                await self.commit()
        elif not self._ended:
            await self._give_up()

    async def _give_up(self) -> None:
        """Roll back, while something worse is on its way to the caller."""
        try:
            async with asyncio.timeout(_ROLLBACK_S):
                await self.rollback()
        except (ClientError, TimeoutError) as error:
            logger.warning(
                "transaction %s could not be rolled back: %s; the broker will ask about it",
                self.id,
                error,
            )


async def _all(futures: list[asyncio.Future[None]]) -> None:
    """Wait for all of them, and raise the first error."""
    for done in await asyncio.gather(*futures, return_exceptions=True):
        if isinstance(done, BaseException):
            raise done
