"""SEND into a transaction: messages that nobody sees until it is committed.

The options are ``transaction``, the id; ``branch``, the name of who adds; ``number``, of the send
in its branch, from 0, so that one that is repeated is stored once; ``queue`` or ``order_key``, as
of any SEND; and, to begin the transaction by that, ``begin`` with what `transaction.begin` takes.
The answer is ``{"status": "OK", "count": 3}``, once they are as safe as a PUB that is answered OK.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from martlet.broker.errors import BrokerError, WritesRefused
from martlet.broker.queue import Receipt
from martlet.broker.transaction import State, TransactionRefused
from martlet.server.arguments import Arguments, CallError
from martlet.server.owed import Promise
from martlet.server.sending import queue_of, refusal, told
from martlet.server.transaction_calls import begin, refused

if TYPE_CHECKING:
    from martlet.protocol import nsq_v2 as v2
    from martlet.server.connection import Connection

_OPTIONS = ("begin", "branch", "number", "order_key", "queue", "transaction")


class Added(Promise):
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
        return told(status="OK", count=self._count)

    def refused(self, error: WritesRefused) -> bytes:
        """The answer where they were not."""
        return refusal(error)


def add(connection: Connection, command: v2.Send) -> None:
    """SEND with the option ``transaction``."""
    try:
        _add(connection, command)
    except (BrokerError, WritesRefused) as error:
        connection.reply(refusal(refused(error)))
    except CallError as error:
        connection.reply(refusal(error))


def _add(connection: Connection, command: v2.Send) -> None:
    arguments = Arguments(command.options)
    arguments.only(*_OPTIONS)
    transactions = connection.broker.transactions
    id = arguments.text("transaction", most=255)
    branch, number = arguments.text("branch", most=64), arguments.number("number")
    topic = connection.broker.topic(command.topic)
    queue = queue_of(topic, arguments)
    if "begin" in arguments and id not in transactions.open:
        state = begin(transactions, id, Arguments(arguments.mapping("begin", most=4)))
        if state is not State.OPEN:
            raise TransactionRefused(f"transaction {id!r} is {state}", state)
    batch, position = transactions.add(
        id, branch, number, topic.name, command.bodies, command.properties, queue
    )
    receipt = Receipt()
    receipt.position = position
    connection.owed.append((receipt, "SEND", Added(batch.message_count)))
    connection.server.staged(connection)
