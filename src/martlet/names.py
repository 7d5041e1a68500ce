"""Names of topics and channels, by NSQ's rule, and ids of messages."""

from __future__ import annotations

import re

MAX_NAME_LENGTH = 64
EPHEMERAL = "#ephemeral"
NAME_RULE = (
    f"1 to {MAX_NAME_LENGTH} of the characters . a-z A-Z 0-9 _ -, and {EPHEMERAL} at the end for"
    " one that is not kept"
)
ID_PATTERN = "[0-9a-f]{16}"
ID_RULE = "an id has 16 hexadecimal digits"
_ID = re.compile(ID_PATTERN)
_VALID = re.compile(r"[.a-zA-Z0-9_-]+(#ephemeral)?", re.ASCII)


def is_valid_name(name: str) -> bool:
    """Whether a name is valid for a topic or a channel: 1 to 64 of ``.a-zA-Z0-9_-``, and the suffix
    ``#ephemeral`` if it is not to be kept.
    """
    return len(name) <= MAX_NAME_LENGTH and _VALID.fullmatch(name) is not None


def is_system(name: str) -> bool:
    """Whether it names an internal topic of the broker, which clients cannot name."""
    return name.startswith("%")


def is_ephemeral(name: str) -> bool:
    """Whether the name's suffix says that its messages are not kept."""
    return name.endswith(EPHEMERAL)


def is_message_id(text: str) -> bool:
    """Whether it is an id of a message."""
    return _ID.fullmatch(text) is not None
