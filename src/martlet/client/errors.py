"""The errors of the client.  All of them are a ``ClientError``."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any


class ClientError(Exception):
    """The base of all errors that the client raises."""


class ConnectFailed(ClientError, ConnectionError):
    """No broker could be reached, or the peer is no broker; the text says why."""


class ConnectRefused(ConnectFailed):
    """A broker permanently refuses this client; the text says why.

    It lacks a requested feature, its certificate is not trusted, or it rejects IDENTIFY. A broker
    that has accepted this client before is tried again for a minute all the same, since it may be
    in the middle of a change.
    """


class AuthRefused(ConnectRefused):
    """The broker requires AUTH, and the client has no secret, or one that is not accepted.

    Attributes:
        code: NSQ's error code: ``E_AUTH_FAILED`` (the auth server did not accept the secret, or
            could not be asked), ``E_UNAUTHORIZED`` (it allows nothing), ``E_AUTH_FIRST`` (there is
            no secret).
    """

    def __init__(self, code: str, text: str) -> None:
        super().__init__(text)
        self.code = code


class ConnectionLost(ClientError, ConnectionError):
    """An established connection was lost; the text says why.

    Producers and consumers reconnect by themselves, so an application sees this only as the cause
    of another error.
    """


class Refused(ClientError):
    """The broker answered a command with an error.

    Attributes:
        code: NSQ's error code, such as ``E_BAD_TOPIC``.
        text: the broker's text after it.
    """

    def __init__(self, code: str, text: str) -> None:
        super().__init__(f"{code} {text}")
        self.code = code
        self.text = text


class NotSupported(ClientError):
    """The operation needs a (newer) Martlet broker; the text says which."""


class CallRefused(ClientError):
    """A Martlet broker refused a call.

    Attributes:
        code: one word in capitals, such as ``NOT_FOUND``.
        text: why.
        fields: further fields of the answer.
    """

    def __init__(self, code: str, text: str, fields: Mapping[str, Any]) -> None:
        super().__init__(f"{code} {text}")
        self.code = code
        self.text = text
        self.fields = fields


class PublishRefused(Refused):
    """The broker answered a publish with an error: the messages are not stored."""


class SubscribeRefused(Refused):
    """The broker permanently refuses the client's subscription to that channel."""


class PublishTimeout(ClientError, TimeoutError):
    """No broker answered within the timeout. The text says whether the messages may be stored, and
    which settings give them longer.
    """


class PublishLost(ClientError, ConnectionError):
    """The connection was lost at every attempt; the messages may be stored or not."""


class PublishUnclear(ClientError):
    """A broker answered a publish neither with OK nor with an error, but as the text quotes; the
    messages may be stored or not.
    """


class RequestFailed(ClientError):
    """The handler of a request raised an error, whose text is this one's.

    Attributes:
        kind: the name of the error's class, such as ``ValueError``.
    """

    def __init__(self, kind: str, error: str) -> None:
        super().__init__(error)
        self.kind = kind
        self.error = error

    def __str__(self) -> str:
        return f"{self.kind}: {self.error}"


class RequestTimeout(ClientError, TimeoutError):
    """No reply came within the timeout; the request may be handled or not, or be handled later."""


class NoRequest(ClientError):
    """The message is no request: no client waits for a reply."""


class TransactionError(ClientError):
    """The base of errors about a transaction.

    Attributes:
        id: of the transaction.
    """

    def __init__(self, transaction_id: str, text: str) -> None:
        super().__init__(text)
        self.id = transaction_id


class TransactionRefused(TransactionError):
    """The broker refused a step of a transaction.

    Attributes:
        code: one word in capitals: ``CONFLICT`` (it is in another state), ``INCOMPLETE`` (messages
            of it are missing), ``NOT_FOUND`` (it is unknown), ``BAD_TRANSACTION`` (such as too
            large), ``LIMIT_REACHED``, or ``REFUSED`` (the disk is full).
        state: its state, if the broker reports it.
    """

    def __init__(self, transaction_id: str, code: str, text: str, state: str = "") -> None:
        super().__init__(transaction_id, f"{code} {text}")
        self.code = code
        self.state = state


class TransactionUnclear(TransactionError, TimeoutError):
    """The broker did not answer within the timeout; it may have done the step or not.

    The step may be repeated. A commit that stays unclear is decided by a check-back of its group.
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
    """The messages of one transaction would go to different brokers; the text names them."""


class ProducerFull(ClientError):
    """The limit of unanswered messages is reached: the message was not accepted."""


class Closed(ClientError):
    """The producer or consumer was closed."""


class AlreadyAnswered(ClientError):
    """The message, or the batch, was finished or requeued before."""


class HandlerFailed(ClientError):
    """A handler in a process failed, as the text describes, or the process has ended."""


class InvalidName(ClientError, ValueError):
    """The name is not valid for a topic or channel."""


class BadBody(ClientError, ValueError):
    """The body is empty, or above the broker's limit."""
