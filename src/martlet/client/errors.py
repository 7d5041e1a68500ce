"""The errors of the client.  All of them are a ``ClientError``."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any


class ClientError(Exception):
    """The base of all errors that the client raises."""


class ConnectFailed(ClientError, ConnectionError):
    """No broker could be reached, or what was reached is none; the text says why."""


class ConnectRefused(ConnectFailed):
    """A broker was reached and does not take this client, nor would next time; the text says why.

    It does not offer what was asked for, its certificate is not trusted, or it does not take what
    IDENTIFY says.  One that has taken this client before is tried again for a minute all the same,
    since it may be half-way through a change.
    """


class AuthRefused(ConnectRefused):
    """The broker wants AUTH, and the client has no secret, or one that is not accepted.

    Attributes:
        code: NSQ's error code: ``E_AUTH_FAILED`` (the auth server did not accept the secret, or
            could not be asked), ``E_UNAUTHORIZED`` (it allows nothing), ``E_AUTH_FIRST`` (there is
            no secret).
    """

    def __init__(self, code: str, text: str) -> None:
        super().__init__(text)
        self.code = code


class ConnectionLost(ClientError, ConnectionError):
    """A connection that stood is gone; the text says why.

    Producers and consumers connect again by themselves, so an application sees this only as the
    cause of another error.
    """


class Refused(ClientError):
    """The broker answered a command with an error.

    Attributes:
        code: NSQ's error code, such as ``E_BAD_TOPIC``.
        text: what the broker said after it.
    """

    def __init__(self, code: str, text: str) -> None:
        super().__init__(f"{code} {text}")
        self.code = code
        self.text = text


class NotSupported(ClientError):
    """The broker is no Martlet, or an older one, and cannot do that; the text says what."""


class CallRefused(ClientError):
    """A Martlet broker did not do what it was asked.

    Attributes:
        code: one word in capitals, such as ``NOT_FOUND``.
        text: why.
        fields: what else it said.
    """

    def __init__(self, code: str, text: str, fields: Mapping[str, Any]) -> None:
        super().__init__(f"{code} {text}")
        self.code = code
        self.text = text
        self.fields = fields


class PublishRefused(Refused):
    """The broker answered a publish with an error: what was to be published is not stored."""


class SubscribeRefused(Refused):
    """The broker does not let the client consume that channel, and would not the next time."""


class PublishTimeout(ClientError, TimeoutError):
    """No broker answered within the time; what was to be published may be stored or not."""


class PublishLost(ClientError, ConnectionError):
    """The connection was lost, as often as may be; what was published may be stored or not."""


class PublishUnclear(ClientError):
    """A broker answered a publish neither with OK nor with an error, but with something that the
    text quotes; what was to be published may be stored or not.
    """


class TransactionError(ClientError):
    """Something about a transaction.

    Attributes:
        id: which.
    """

    def __init__(self, transaction_id: str, text: str) -> None:
        super().__init__(text)
        self.id = transaction_id


class TransactionRefused(TransactionError):
    """The broker did not do it.

    Attributes:
        code: one word in capitals: ``CONFLICT`` (it is in another state), ``INCOMPLETE`` (messages
            of it are missing), ``NOT_FOUND`` (it is not known), ``BAD_TRANSACTION`` (it is too
            large, say), ``LIMIT_REACHED``, or ``REFUSED`` (the disk is full).
        state: its state, where the broker reports it.
    """

    def __init__(self, transaction_id: str, code: str, text: str, state: str = "") -> None:
        super().__init__(transaction_id, f"{code} {text}")
        self.code = code
        self.state = state


class TransactionUnclear(TransactionError, TimeoutError):
    """The broker did not answer within the time; it may have done what it was asked, or not.

    It may be asked again.  A commit that stays unclear is settled by the check of its group.
    """


class TransactionEnded(TransactionError):
    """The transaction was committed or rolled back before.

    Attributes:
        state: ``committed`` or ``rolled-back``.
    """

    def __init__(self, transaction_id: str, state: str) -> None:
        super().__init__(transaction_id, f"transaction {transaction_id!r} is {state}")
        self.state = state


class WrongBroker(ClientError):
    """What belongs to one transaction would go to different brokers; the text names them."""


class ProducerFull(ClientError):
    """As much is published and not answered as may be: nothing was taken."""


class Closed(ClientError):
    """The producer or consumer has been closed."""


class AlreadyAnswered(ClientError):
    """The message, or the batch, was finished or requeued before."""


class HandlerFailed(ClientError):
    """A handler in a process failed, as the text describes, or the process has ended."""


class InvalidName(ClientError, ValueError):
    """No topic or channel may be called that."""


class BadBody(ClientError, ValueError):
    """A body that no broker would take: empty, or above the limit."""
