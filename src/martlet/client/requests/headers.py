"""The headers of requests and replies.

========================== ==================================================
header                      meaning
========================== ==================================================
``martlet-reply-to``        of a request: the topic of its reply
``martlet-correlation-id``  of both: tells which request a reply answers
``martlet-error``           of a reply: the kind of the handler's error, whose
                            text is the body
========================== ==================================================
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from martlet.client.errors import HandlerFailed
from martlet.names import is_valid_name
from martlet.properties.model import Properties, TextOrBytes

REPLY_TO = "martlet-reply-to"
CORRELATION_ID = "martlet-correlation-id"
ERROR = "martlet-error"
_RESERVED = (REPLY_TO, CORRELATION_ID, ERROR)
MAX_KIND_LENGTH = 100
MAX_ERROR_LENGTH = 4000
"""The maximum number of characters of an error's text."""


class ReplyAddress(NamedTuple):
    """Where the reply to a request goes."""

    topic: str
    """The requester's reply topic."""
    correlation_id: str

    @classmethod
    def of(cls, properties: Properties) -> ReplyAddress | None:
        """Return the address in a message's properties; None if it is no request."""
        topic = properties.header_text(REPLY_TO)
        if topic is None or not is_valid_name(topic):
            return None
        return cls(topic, properties.header_text(CORRELATION_ID) or "")


class HandlerError(NamedTuple):
    """The error of a handler, as its requester gets it."""

    kind: str
    """The name of the error's class."""
    text: str

    @classmethod
    def of(cls, error: BaseException) -> HandlerError:
        """Describe an error."""
        kind = type(error).__qualname__
        text = str(error)
        if isinstance(error, HandlerFailed):
            text = text.strip().rpartition("\n")[2]  # In a process: the end of its traceback.
        return cls(kind[:MAX_KIND_LENGTH], text[:MAX_ERROR_LENGTH] or kind)


def check_headers(headers: Mapping[str, TextOrBytes] | None) -> Mapping[str, TextOrBytes]:
    """Check an application's headers of a request or reply. Raises ValueError: one of them is
    reserved.
    """
    for name in _RESERVED:
        if headers and name in headers:
            raise ValueError(f"the header {name!r} is set by request and reply: leave it out")
    return headers or {}
