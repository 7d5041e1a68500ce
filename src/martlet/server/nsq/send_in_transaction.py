"""SEND into a transaction: messages that nobody sees until it is committed.

The options are ``transaction``, the id; ``branch``, the name of who adds; ``number``, of the send
in its branch, from 0, so that one that is repeated is stored once; ``queue`` or ``order_key``, as
of any SEND; ``deliver_at_ms`` or ``delay_ms``, a list of ``[time, count]`` that tells, in order,
when how many of the messages are to be delivered: since 1970, or from now on; and, to begin the
transaction by that, ``begin`` with what `transaction.begin` takes.
The answer is ``{"status": "OK", "count": 3}``, once they are as safe as a PUB that is answered OK.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from martlet.broker.errors import BrokerError, WritesRefused
from martlet.broker.queue.queue_log import Receipt
from martlet.broker.transactions.state import TransactionState, TransitionRefused
from martlet.durations import MILLISECOND_NS
from martlet.server.nsq.reply_queue import DeferredReply
from martlet.server.nsq.send import encode_reply, queue_of, refusal
from martlet.server.rpc.arguments import CallArguments, CallError
from martlet.server.rpc.transactions import begin, refused

if TYPE_CHECKING:
    from martlet.protocol.nsq import v2
    from martlet.server.nsq.connection import ClientConnection

_OPTIONS = (
    "begin",
    "branch",
    "delay_ms",
    "deliver_at_ms",
    "number",
    "order_key",
    "queue",
    "transaction",
)
_MAX_TIMES = 10_000


class Added(DeferredReply):
    """What is answered once half messages are stored.

    Args:
        count: how many.
    """

    __slots__ = ("_count",)

    def __init__(self, count: int) -> None:
        super().__init__(waits=True)
        self._count = count

    def stored(self) -> bytes:
        """The answer."""
        return encode_reply(status="OK", count=self._count)

    def refused(self, error: WritesRefused) -> bytes:
        """The answer where they were not."""
        return refusal(error)


def add(connection: ClientConnection, command: v2.SendCommand) -> None:
    """SEND with the option ``transaction``."""
    try:
        _add(connection, command)
    except (BrokerError, WritesRefused) as error:
        connection.reply(refusal(refused(error)))
    except CallError as error:
        connection.reply(refusal(error))


def _add(connection: ClientConnection, command: v2.SendCommand) -> None:
    arguments = CallArguments(command.options)
    arguments.only(*_OPTIONS)
    transactions = connection.broker.transactions
    id = arguments.text("transaction", max_value=255)
    branch, number = arguments.text("branch", max_value=64), arguments.number("number")
    topic = connection.broker.topic(command.topic)
    queue = queue_of(topic, arguments)
    times = _times(connection, arguments, len(command.bodies))
    if "begin" in arguments and id not in transactions.open:
        state = begin(transactions, id, CallArguments(arguments.mapping("begin", max_value=5)))
        if state is not TransactionState.OPEN:
            raise TransitionRefused(f"transaction {id!r} is {state}", state)
    batch, position = transactions.add(
        id, branch, number, topic.name, command.bodies, command.properties, queue, times
    )
    receipt = Receipt()
    receipt.position = position
    connection.owed.append((receipt, "SEND", Added(batch.message_count)))
    connection.server.staged(connection)


def _times(
    connection: ClientConnection, arguments: CallArguments, count: int
) -> list[tuple[int, int]]:
    """When messages are to be delivered, in nanoseconds, and how many then. Raises CallError."""
    given = [name for name in ("deliver_at_ms", "delay_ms") if name in arguments]
    if not given:
        return []
    (name, *others) = given
    if others:
        raise CallError("BAD_ARGUMENT", "'deliver_at_ms' and 'delay_ms' each tell when: give one")
    now_ns = connection.broker.clock()
    base_ns = now_ns if name == "delay_ms" else 0
    latest_ns = now_ns + connection.server.options.max_delay_ns
    times: list[tuple[int, int]] = []
    for each in arguments.sequence(name, max_value=_MAX_TIMES):
        match each:
            case [int(time_ms), int(some)] if time_ms >= 0 and 0 < some <= count:
                at_ns = base_ns + time_ms * MILLISECOND_NS
            case _:
                raise CallError("BAD_ARGUMENT", f"{name!r} must be a list of [time, count]")
        if at_ns > latest_ns:
            raise CallError(
                "BAD_ARGUMENT",
                f"{name!r} has a time {(at_ns - now_ns) // 10**9} s from now; the longest delay is"
                f" {connection.server.options.max_delay_ns // 10**9} s (--max-delay)",
            )
        times.append((at_ns, some))
    if sum(some for _, some in times) != count:
        raise CallError("BAD_ARGUMENT", f"{name!r} must tell of {count} messages, no more or less")
    return times
