"""Names of topics and channels, by NSQ's rule, checked before a broker hangs up on a wrong one."""

from __future__ import annotations

import re
from functools import lru_cache

from martlet.client.errors import InvalidName

LONGEST_NAME = 64
_VALID = re.compile(r"[.a-zA-Z0-9_-]+(#ephemeral)?", re.ASCII)


@lru_cache(maxsize=4096)
def check_name(name: str, kind: str) -> str:
    """The name, if a topic or channel (the kind) may be called that.

    Raises:
        InvalidName: it may not.
    """
    if len(name) > LONGEST_NAME or _VALID.fullmatch(name) is None:
        raise InvalidName(
            f"{name!r} is no name of a {kind}: 1 to {LONGEST_NAME} of the characters"
            " . a-z A-Z 0-9 _ -, and #ephemeral at the end for one that is not kept"
        )
    return name
