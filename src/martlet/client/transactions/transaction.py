"""A transaction: messages that become visible together or not at all.

::

    async with producer.transaction() as transaction:
        await transaction.publish("orders", b"one")
        await transaction.publish("mails", b"two")
        ...                                            # the work that they describe
    # both are seen from here on; after an exception in the block neither ever is

`Transaction.add` keeps messages in the client until the next step sends them. If that step is the
commit and one SEND holds them all, the SEND commits too: one request is the entire transaction::

    async with producer.transaction() as transaction:
        transaction.add("orders", [b"one", b"two"])

All of it is stored at one broker. Messages go there one numbered SEND at a time, so that a repeat
after a lost connection is stored once, and the order stays; messages added meanwhile go together in
the next SEND. Every other step is repeated too, until it is answered or timed out.
"""

from __future__ import annotations

import asyncio
import logging
import secrets
from collections import deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import groupby, islice
from operator import attrgetter
from types import TracebackType
from typing import Any, NamedTuple, Unpack, cast

from martlet.client.errors import (
    ClientError,
    Closed,
    TransactionEnded,
    TransactionRefused,
    TransactionUnclear,
)
from martlet.client.hooks import Hooks, Publishing
from martlet.client.names import check_name
from martlet.client.producer.message import Sendable, are_fit, check_message
from martlet.client.producer.options import (
    NO_HEADERS,
    MessageKeywords,
    SendOptions,
    options_of,
)
from martlet.client.producer.routing import order_key_of
from martlet.client.transactions.session import PinnedSession
from martlet.properties.block import pack_entries
from martlet.properties.model import NONE, NORMAL_PRIORITY, Properties, TextOrBytes, order_key_json
from martlet.protocol.nsq import commands

logger = logging.getLogger("martlet.client")

_MAX_MESSAGES = 1000
_MAX_BYTES = 1 << 20
"""The maximum size of one SEND, unless a single message is larger."""
_MAX_FUTURES = 2000
"""The maximum number of pieces that wait for their answers."""
_COMMIT_EXTENSIONS = 4
"""The first version of the extensions in which a SEND may commit its transaction."""
_ROLLBACK_S = 5.0
"""The time limit of the rollback after an exception in the block."""
_Destination = tuple[str, TextOrBytes, int | None, int]
"""A topic, an order key, a queue, and a priority."""


class Contribution(NamedTuple):
    """The contribution of one process to a transaction.

    Attributes:
        branch: the name of the process's part.
        message_count: the number of messages.
    """

    branch: str
    message_count: int


def new_branch() -> str:
    """Choose a random name."""
    return secrets.token_hex(8)


class _Adding(NamedTuple):
    """Messages that are added together, with equal properties and times."""

    destination: _Destination
    bodies: Sequence[bytes]
    size_bytes: int
    entry: bytes
    deliver_at_ms: int
    future: asyncio.Future[None] | None


_DELIVER_AT_MS = attrgetter("deliver_at_ms")


class Transaction:
    """One transaction. `Producer.transaction` and `Producer.join_transaction` make them.

    Attributes:
        id: the transaction's.
        branch: the name of this process's part of the transaction.
    """

    def __init__(
        self,
        pinned: PinnedSession,
        transaction_id: str,
        *,
        group: str,
        check_after_s: float | None,
        max_body_bytes: int,
        is_named: bool = False,
        is_joined: bool = False,
        hooks: Hooks | None = None,
    ) -> None:
        if not transaction_id.isprintable():
            raise ValueError(
                f"the transaction id {transaction_id!r} must have printable characters alone"
            )
        self.id = transaction_id
        self.branch = new_branch()
        self._pinned = pinned
        self._max_body_bytes = max_body_bytes
        self._is_named = is_named
        self._joined = is_joined
        self._hooks = hooks
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
        self._is_begun = False
        """Whether it was begun by itself, or that was tried."""
        self._is_committing = False
        """Whether a SEND that commits was sent, and not answered."""

    @property
    def contribution(self) -> Contribution:
        """The contribution of this process, an argument of `commit` in the committing process."""
        return Contribution(self.branch, self._message_count)

    # adding

    async def publish(
        self, topic: str, message: Sendable, **options: Unpack[MessageKeywords]
    ) -> None:
        """Add a message, and return once the broker has stored it; no consumer sees it yet.

        Args:
            topic: the topic's name; the broker creates it if there is none.
            message: the body, or anything with a body and properties.
            options: those of `SendOptions`, except ``wait_store_ok`` and ``timeout_s``.

        Raises:
            InvalidName, BadBody, BadProperties: the message is invalid. TransactionRefused: the
            broker refused it; the transaction can be rolled back. TransactionUnclear: no answer
            within the producer's timeout. TransactionEnded: it was committed or rolled back.
            WrongBroker: messages with this order key go to another broker. NotSupported: the broker
            is no Martlet broker.
        """
        chosen = _checked(options)
        if self._hooks is None:
            await self._add_one(topic, message, chosen)
            return
        with self._hooks.observed(Publishing(topic, message)) as call:
            await self._add_one(topic, message, chosen, call.headers)

    async def publish_many(
        self, topic: str, messages: Iterable[Sendable], **options: Unpack[MessageKeywords]
    ) -> int:
        """Add messages in order, and return how many once the broker has stored all of them.

        Raises as `publish`; some of them may be stored then.
        """
        chosen = _checked(options)
        if self._hooks is None:
            return await self._add_all(topic, messages, chosen, None)
        with self._hooks.observed(Publishing(topic)) as call:
            return await self._add_all(topic, messages, chosen, call)

    def add(
        self, topic: str, messages: Iterable[Sendable], **options: Unpack[MessageKeywords]
    ) -> None:
        """Add messages without waiting: the next step sends them, and raises their errors.

        If nothing was sent before, and all go to one topic, `commit` sends them and commits in one
        request: up to 1,000 messages and 1 MiB.

        Raises InvalidName, BadBody, BadProperties, TransactionEnded and WrongBroker as `publish`.
        """
        chosen = _checked(options)
        if self._hooks is None:
            for bodies, properties in self._pieces(messages, None):
                self._put(topic, bodies, properties, chosen, NO_HEADERS, None)
            return
        with self._hooks.observed(Publishing(topic)) as call:
            for bodies, properties in self._pieces(messages, call):
                self._put(topic, bodies, properties, chosen, call.headers, None)

    async def _add_all(
        self,
        topic: str,
        messages: Iterable[Sendable],
        options: SendOptions,
        call: Publishing | None,
    ) -> int:
        """Add messages, and count them for hooks."""
        more_headers = NO_HEADERS if call is None else call.headers
        futures: list[asyncio.Future[None]] = []
        count = 0
        for bodies, properties in self._pieces(messages, call):
            futures.append(self._add(topic, bodies, properties, options, more_headers))
            count += len(bodies)
            if len(futures) >= _MAX_FUTURES:
                await _all(futures)
                futures.clear()
        await _all(futures)
        return count

    def _pieces(
        self, messages: Iterable[Sendable], call: Publishing | None
    ) -> Iterator[tuple[Sequence[bytes], Properties]]:
        """Yield messages as they can be sent together: those without properties in pieces."""
        iterator = iter(messages)
        while some := list(islice(iterator, _MAX_MESSAGES)):
            if are_fit(some, self._max_body_bytes):
                bodies = cast("list[bytes]", some)
                if sum(map(len, bodies)) <= _MAX_BYTES:
                    if call is not None:
                        call.count(*bodies)
                    yield bodies, NONE
                    continue
            yield from self._small_pieces(some, call)

    def _small_pieces(
        self, messages: Iterable[Sendable], call: Publishing | None
    ) -> Iterator[tuple[Sequence[bytes], Properties]]:
        """Yield messages that are large, or have properties, as they can be sent together."""
        piece: list[bytes] = []
        piece_bytes = 0
        for message in messages:
            body, properties = check_message(message, self._max_body_bytes)
            if call is not None:
                call.count(message)
            size_bytes = len(body)
            if piece and (properties or piece_bytes + size_bytes > _MAX_BYTES):
                yield piece, NONE
                piece, piece_bytes = [], 0
            if properties:
                yield (body,), properties
            else:
                piece.append(body)
                piece_bytes += size_bytes
        if piece:
            yield piece, NONE

    def _add_one(
        self,
        topic: str,
        message: Sendable,
        options: SendOptions,
        more_headers: Mapping[str, str] = NO_HEADERS,
    ) -> asyncio.Future[None]:
        body, properties = check_message(message, self._max_body_bytes)
        return self._add(topic, (body,), properties, options, more_headers)

    def _add(
        self,
        topic: str,
        bodies: Sequence[bytes],
        properties: Properties,
        options: SendOptions,
        more_headers: Mapping[str, str],
    ) -> asyncio.Future[None]:
        future = asyncio.get_running_loop().create_future()
        self._put(topic, bodies, properties, options, more_headers, future)
        self._start()
        return future

    def _put(
        self,
        topic: str,
        bodies: Sequence[bytes],
        properties: Properties,
        options: SendOptions,
        more_headers: Mapping[str, str],
        future: asyncio.Future[None] | None,
    ) -> None:
        self._check_open()
        check_name(topic, "topic")
        if options.order_key:
            self._pinned.check_broker(self.id, order_key_of(topic, options.order_key))
        entry = options.pack_with(properties, more_headers)
        adding = _Adding(
            (topic, options.order_key or "", options.queue, options.message_priority),
            bodies,
            sum(map(len, bodies)) + len(bodies) * len(entry),
            entry,
            options.deliver_at_ms,
            future,
        )
        self._waiting.append(adding)

    def _start(self) -> None:
        """Send all messages that wait."""
        if self._waiting and (self._pump is None or self._pump.done()):
            self._pump = asyncio.create_task(self._send_all(), name=f"transaction {self.id}")

    def _check_open(self) -> None:
        if self._error is not None:
            raise self._error
        if self._ended:
            raise TransactionEnded(self.id, self._ended)
        self._check_not_committing()

    def _check_not_committing(self) -> None:
        if self._is_committing:
            raise TransactionUnclear(
                self.id,
                f"transaction {self.id!r} may be committed: call commit() again to learn it",
            )

    async def _send_all(self) -> None:
        while self._waiting:
            # Messages added later in this turn of the loop go with it.
            await asyncio.sleep(0)
            some = self._next()
            try:
                await self._send(some)
            except BaseException as error:
                cause = error if isinstance(error, ClientError) else Closed(f"closed: {error!r}")
                self._fail(some, cause)
                if not isinstance(error, ClientError):
                    raise
                return
            for adding in some:
                if adding.future is not None and not adding.future.done():
                    adding.future.set_result(None)

    def _next(self) -> list[_Adding]:
        """Take the messages of one SEND: consecutive ones to one destination."""
        waiting = self._waiting
        some = [waiting.popleft()]
        count, size_bytes = len(some[0].bodies), some[0].size_bytes
        while waiting and waiting[0].destination == some[0].destination:
            count += len(waiting[0].bodies)
            size_bytes += waiting[0].size_bytes
            if count > _MAX_MESSAGES or size_bytes > _MAX_BYTES:
                break
            some.append(waiting.popleft())
        return some

    async def _send(self, some: list[_Adding], *, commits: bool = False) -> None:
        topic, order_key, queue, priority = some[0].destination
        options: dict[str, Any] = {"transaction": self.id}
        if commits:
            options["commit"] = True
        else:
            options |= {"branch": self.branch, "number": self._number}
            if not self._joined and not self._number:
                options["begin"] = self._begin
        if queue is not None:
            options["queue"] = queue
        else:
            options |= order_key_json(order_key)
        if priority != NORMAL_PRIORITY:
            options["priority"] = priority
        times = [
            (at_ms, sum(len(adding.bodies) for adding in run))
            for at_ms, run in groupby(some, _DELIVER_AT_MS)
        ]
        if any(at_ms for at_ms, _ in times):
            options["deliver_at_ms"] = times
        entries: list[bytes] = []
        bodies: list[bytes] = []
        for adding in some:
            entries += [adding.entry] * len(adding.bodies)
            bodies += adding.bodies
        command = commands.send(topic, bodies, options, pack_entries(entries))
        # Set, not raised: two calls of commit() may send the same.
        counts = self._number + 1, self._message_count + len(bodies)
        await self._pinned.send(self.id, command)
        self._number, self._message_count = counts

    def _fail(self, some: list[_Adding], error: ClientError) -> None:
        """Fail all waiting messages: after one that failed they would be stored without it."""
        self._error = error
        for adding in (*some, *self._waiting):
            if adding.future is not None and not adding.future.done():
                adding.future.set_exception(error)
        self._waiting.clear()

    async def _drained(self) -> None:
        """Wait until all added messages are stored. Raises the error of adding them."""
        self._start()
        if self._pump is not None:
            await asyncio.wait([self._pump])
        if self._error is not None:
            raise self._error

    # steps

    async def begin(self) -> str:
        """Begin it, as the block does, and return its state.

        The state is ``open`` for a new transaction, and for an open or rolled-back one. A
        transaction that was prepared, committed or set aside (it waits for an operator) keeps that
        state, which is returned: so a restarted job learns whether it had done this part of its
        work.

        Raises TransactionRefused, TransactionUnclear and NotSupported.
        """
        self._check_not_committing()
        self._is_begun = True
        fields = await self._pinned.call(self.id, "transaction.begin", **self._begin)
        state = str(fields["state"])
        if state == "committed":
            self._ended = state
        return state

    async def prepare(self, *others: Contribution) -> None:
        """Complete the transaction: nothing more can be added, only commit or rollback follows.

        When this returns, all is on the broker's disk, in any flush mode.

        Args:
            others: the contributions of other processes.

        Raises TransactionRefused, TransactionUnclear and TransactionEnded.
        """
        self._check_open()
        await self._drained()
        await self._pinned.call(self.id, "transaction.prepare", **self._branches(others))

    async def commit(self, *others: Contribution) -> None:
        """Make the messages visible. Once this returns, that is as safe as a publish is.

        Args:
            others: the contributions of other processes; any other messages are left out.

        Raises:
            TransactionRefused: it was rolled back, or messages are missing.
            TransactionUnclear: no answer within the producer's timeout: call it again, or leave it
                to the check of its group.
        """
        if self._ended == "committed":
            return
        if self._ended:
            raise TransactionEnded(self.id, self._ended)
        if not others and await self._committed_at_once():
            self._ended = "committed"
            return
        await self._drained()
        if self._number or self._joined or others or self._pinned.is_bound:
            await self._pinned.call(self.id, "transaction.commit", **self._branches(others))
        self._ended = "committed"

    async def _committed_at_once(self) -> bool:
        """Send all messages and the commit in one request, if that can be. Raises as `commit`."""
        if not self._may_commit_at_once():
            return False
        if not self._is_committing:
            features = await self._pinned.features(self.id)
            # Meanwhile another task may have added messages, or sent or committed them.
            if features.extensions < _COMMIT_EXTENSIONS or not self._may_commit_at_once():
                return False
        some = self._next()
        is_all = not self._waiting
        # They stay until they are answered: after an unclear commit the next one sends them again.
        self._waiting.extendleft(reversed(some))
        if not is_all:
            return False
        self._is_committing = True
        try:
            await self._send(some, commits=True)
        except TransactionRefused:
            self._is_committing = False
            raise
        self._waiting.clear()
        return True

    def _may_commit_at_once(self) -> bool:
        return (
            bool(self._waiting)
            and self._pump is None
            and not (self._joined or self._is_named or self._is_begun)
        )

    async def rollback(self) -> None:
        """Discard the messages: no consumer ever sees them.

        Raises:
            TransactionRefused: it was committed.
            TransactionUnclear: no answer within the producer's timeout.
        """
        if self._ended == "rolled-back":
            return
        if self._ended:
            raise TransactionEnded(self.id, self._ended)
        self._check_not_committing()
        before = self._error
        self._fail([], TransactionEnded(self.id, "rolled-back"))
        if self._pump is not None and not self._pump.done():
            await asyncio.wait([self._pump])
        if self._pinned.is_bound:
            try:
                await self._pinned.call(self.id, "transaction.rollback")
            except TransactionRefused as error:
                # Nothing of it reached the broker, or it was rolled back long ago.
                if error.code != "NOT_FOUND":
                    self._error = before  # So commit() may be called, which tells the outcome.
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
            TransactionEnded: it was committed before, so the block's work was done.
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
            # The process that began it decides.
            await self._drained()
        elif error is None:
            if not self._ended:
                await self.commit()
        elif not self._ended:
            await self._give_up()

    async def _give_up(self) -> None:
        """Roll back after an exception in the block, which propagates."""
        try:
            async with asyncio.timeout(_ROLLBACK_S):
                await self.rollback()
        except (ClientError, TimeoutError) as error:
            logger.warning(
                "transaction %s could not be rolled back: %s; the broker will ask about it",
                self.id,
                error,
            )


def _checked(options: MessageKeywords) -> SendOptions:
    chosen = options_of("publish", options)
    if chosen.timeout_s is not None or not chosen.wait_store_ok:
        raise ValueError("in a transaction a message has no timeout_s or wait_store_ok of its own")
    return chosen


async def _all(futures: list[asyncio.Future[None]]) -> None:
    """Wait for all of them, and raise the first error."""
    for done in await asyncio.gather(*futures, return_exceptions=True):
        if isinstance(done, BaseException):
            raise done
