r"""Names of topics and channels, by NSQ's rule, ids of messages, patterns that meet names, and the
outcomes of a send, by RocketMQ's names.

The syntax of patterns is that of RE2 and of Go's ``regexp``, matched in linear time, as Go's are:
without lookaround and backreferences. Python's ``re`` tries one way after the other, so that a
short pattern and a short name can take it years.
"""

from __future__ import annotations

import re
from enum import StrEnum
from typing import Protocol

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
_MAX_BYTES = 1 << 20
"""The memory that one pattern may take, compiled and matching."""
_MAX_SHOWN = 200
_ESCAPED = re.compile(r"\\Q.*?(?:\\E|\Z)|\\(.)", re.DOTALL)
PUBLISH_AGAIN = "publish again"
"""The end of the reason for which a broker refuses messages until its next primary takes them, in a
moment. NSQ's protocol has one code for all reasons not to store.
"""


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


class BadPattern(ValueError):
    """A pattern that does not compile; the text says why."""


class Pattern(Protocol):
    """A compiled pattern."""

    @property
    def pattern(self) -> str:
        """Its text."""

    @property
    def programsize(self) -> int:
        """The number of its instructions, which decides how long compiling and matching take."""

    def search(self, text: str) -> object | None:
        """Match anywhere in a text; None if nothing does."""

    def fullmatch(self, text: str) -> object | None:
        """Match an entire text; None if it does not."""


def compile_pattern(text: str) -> Pattern:
    """Compile a pattern. Raises BadPattern."""
    import re2  # Here, as it takes time, and most processes have no pattern.

    options = re2.Options()
    options.max_mem = _MAX_BYTES
    options.log_errors = False
    try:
        if any(escape[1] == "C" for escape in _ESCAPED.finditer(text)):
            raise BadPattern(r"invalid escape sequence: \C")  # RE2 knows it, Go does not.
        compiled: Pattern = re2.compile(text, options)
    except re2.error as error:
        raise BadPattern(error.args[0].decode()[:_MAX_SHOWN]) from None
    except UnicodeEncodeError:
        raise BadPattern("it is not text in UTF-8") from None
    return compiled


class PutStatus(StrEnum):
    """The outcome of a send; in each of these cases the messages are stored."""

    OK = "OK"
    """As durably as was requested."""
    FLUSH_DISK_TIMEOUT = "FLUSH_DISK_TIMEOUT"
    """Stored and delivered, but no flush came in time: a power cut may lose the messages."""
    SLAVE_NOT_AVAILABLE = "SLAVE_NOT_AVAILABLE"
    """As durably as the replicas that are left allow: fewer are in sync than are wanted."""
    FLUSH_SLAVE_TIMEOUT = "FLUSH_SLAVE_TIMEOUT"
    """Stored by the primary, but too few replicas confirmed the messages in time, so a failover may
    lose them. They are delivered once they are confirmed.
    """
