"""The kinds of values in requests: each with its limit, and the rule that a refusal tells."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from typing import TYPE_CHECKING, Annotated, Any

from msgspec import Meta

from martlet.names import ID_PATTERN, ID_RULE, MAX_NAME_LENGTH, NAME_RULE

_NAME = r"^[.a-zA-Z0-9_-]+(#ephemeral)?$(?!\n)"  # In Python $ matches before a last newline.
_IS_NAME = {"code": "BAD_NAME", "rule": f" is not valid: {NAME_RULE}"}
IS_ID = {"rule": f": {ID_RULE}"}
MAX_NUMBER = (1 << 63) - 1

TopicName = Annotated[str, Meta(pattern=_NAME, max_length=MAX_NAME_LENGTH, extra=_IS_NAME)]
ChannelName = Annotated[str, Meta(pattern=_NAME, max_length=MAX_NAME_LENGTH, extra=_IS_NAME)]
Text = Annotated[str, Meta(min_length=1, max_length=1024)]
Number = Annotated[int, Meta(ge=0, le=MAX_NUMBER)]
"""A queue, an offset or a count."""
Limit = Annotated[int, Meta(ge=1, le=MAX_NUMBER)]
"""A maximum of items; a broker answers as many as it will in one call, and where the next are."""
Size = Annotated[int, Meta(ge=0, le=8 << 20, extra={"kind": "size"})]
"""A number of bytes; commands take ``4MiB``."""
TimeMs = Annotated[int, Meta(ge=0, le=MAX_NUMBER, extra={"kind": "time"})]
"""A time in milliseconds since 1970; commands and pages take a date, or how long ago it was."""
TimeNs = Annotated[int, Meta(ge=0, le=MAX_NUMBER)]
"""A time in nanoseconds since 1970."""
if TYPE_CHECKING:
    MessageId = str | bytes
    """The id of a message; those of the client's messages are bytes."""
    MessageIds = MessageId | Iterable[MessageId]
    """The ids of messages; clients take one, too."""
else:
    MessageId = Annotated[
        str,
        Meta(pattern=rf"^{ID_PATTERN}$(?!\n)", extra=IS_ID),
    ]
    MessageIds = Annotated[
        Collection[MessageId], Meta(min_length=1, max_length=10_000, extra={"flag": "id"})
    ]
Position = Annotated[int, Meta(ge=0, le=MAX_NUMBER, extra={"flag": ""})]
"""A queue or an offset where a list continues; commands have no flag for it."""
PolicyChanges = Annotated[dict[str, Any], Meta(max_length=10_000)]
"""Fields of a policy, which `martlet.broker.policy` checks; null resets one to its default."""
