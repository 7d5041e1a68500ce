"""The lives of a replica's name: which process, on which folder, a name of the replica set is.

::

    a starts     claims the name: life 1, of folder X         the document names life 1
    a hangs
    a' starts    empty folder Y, same name: claims life 4      the document names life 4
    a wakes up   its life is not the one that is named, and was before: it stands down for good

Each process claims its name by compare-and-swap before it takes part. The numbers of lives rise
over all names of a set, so that a later claim is known from an earlier one.
"""

from __future__ import annotations

from collections.abc import Sequence
from enum import Enum
from typing import NamedTuple


class Life(NamedTuple):
    """One process as a replica."""

    number: int = 0
    """Of the claim; 0 before any."""
    instance: str = ""
    """A random name of the process."""
    incarnation: str = ""
    """A random name of the data folder, made when it joins the set under a name; empty where an
    operator has named a process whose folder is not known.
    """


NO_LIFE = Life()
"""That of a folder which has claimed no name."""


class Entitlement(Enum):
    """What a process is by the document."""

    NAMED = "named"
    """The replica of its name."""
    SUCCEEDS = "succeeds"
    """It may claim the name, and its folder has all that the life before acknowledged, as far as
    its note is right.
    """
    REPLACES = "replaces"
    """It may claim the name if another replica has what the life before acknowledged: its own
    folder may lack that.
    """
    REPLACED = "replaced"
    """Another process has the name for good."""


def entitlement(
    named: Life | None, own: Life, runs: Sequence[str], instance: str, *, has_pledged: bool
) -> Entitlement:
    """Return what a process is.

    Args:
        named: the life in the document; None where it has none, as that of an earlier version.
        own: the last life of the folder that the document is known to have named.
        runs: the processes on the folder since then, which may have claimed the name.
        instance: the process.
        has_pledged: whether the folder has been a replica's.
    """
    if named is None:
        is_new = own.number == 0 and not has_pledged
        return Entitlement.REPLACES if is_new else Entitlement.SUCCEEDS
    if named.instance == instance:
        is_bound = named.incarnation == own.incarnation
        return Entitlement.NAMED if is_bound else Entitlement.SUCCEEDS
    if named.number < own.number:
        return Entitlement.SUCCEEDS  # This is an old state of the document.
    if own.instance == instance:
        return Entitlement.REPLACED
    if named.instance in (own.instance, *runs):
        return Entitlement.SUCCEEDS
    # A new folder, or one of an earlier version, which has claimed nothing; or a copy of the folder
    # was the replica meanwhile.
    may_replace = own.number == 0 or named.incarnation == own.incarnation
    return Entitlement.REPLACES if may_replace else Entitlement.REPLACED
