r"""Regular expressions that meet names which others chose: matched in linear time, as Go's are.

The syntax is that of RE2 and of Go's ``regexp``, without lookaround and backreferences. Python's
``re`` tries one way after the other, so that a short pattern and a short name can take it years.
"""

from __future__ import annotations

import re
from typing import Protocol

_MAX_BYTES = 1 << 20
"""The memory that one pattern may take, compiled and matching."""
_MAX_SHOWN = 200
_ESCAPED = re.compile(r"\\Q.*?(?:\\E|\Z)|\\(.)", re.DOTALL)


class BadPattern(ValueError):
    """A pattern that does not compile; the text says why."""


class Pattern(Protocol):
    """A compiled pattern."""

    @property
    def pattern(self) -> str:
        """Its text."""

    @property
    def programsize(self) -> int:
        """The number of its instructions: compiling and matching take time by it."""

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
