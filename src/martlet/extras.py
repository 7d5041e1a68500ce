"""How to install an extra of the package, in one place: there is no release on the package index
yet.

Until then the package's name on the index may belong to another project.
"""

from __future__ import annotations


def how_to_install(extra: str) -> str:
    """Return the remedy for an error about a missing extra: a working command, and where to run
    it.
    """
    return f"pip install '.[{extra}]' in a clone of Martlet's repository"
