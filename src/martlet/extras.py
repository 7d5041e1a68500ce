"""How an extra of the package is installed, in one place: there is no release on the index.

What the index may hold under the package's name until then is somebody else's.
"""

from __future__ import annotations


def how_to_install(extra: str) -> str:
    """What an error says that needs an extra: a command that works, and where."""
    return f"pip install '.[{extra}]' in a clone of Martlet's repository"
