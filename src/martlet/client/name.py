"""A name is checked before the broker is asked, which hangs up on a wrong one."""

from __future__ import annotations

from functools import lru_cache

from martlet.client.errors import InvalidName
from martlet.name import LONGEST_NAME, is_valid_name


@lru_cache(maxsize=4096)
def check_name(name: str, kind: str) -> str:
    """The name, if a topic or channel (the kind) may be called that.

    Raises:
        InvalidName: it may not.
    """
    if not is_valid_name(name):
        raise InvalidName(
            f"{name!r} is no name of a {kind}: 1 to {LONGEST_NAME} of the characters"
            " . a-z A-Z 0-9 _ -, and #ephemeral at the end for one that is not kept"
        )
    return name
