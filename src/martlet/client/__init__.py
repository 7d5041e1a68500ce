"""The client: publish, consume and administer from asyncio, on any NSQ broker.

::

    from martlet.client import Admin, Consumer, Producer

The package may import `martlet.protocol` and `martlet.layer`. Start with `consumer` and `producer`,
which stand on `transport`; `group` has consumers that fetch by offset, `admin` asks brokers over
HTTP, and `sync` has the same without ``await``.
"""

import warnings
from importlib import import_module
from typing import TYPE_CHECKING, Any

# Imported with the first of its names: a command that asks a broker needs no consumer, nor numpy.
if TYPE_CHECKING:
    from martlet.client.public import *  # noqa: F403 - `__all__` has them

_RENAMED = {"Place": "QueueId", "Tally": "PullCounts"}


def __getattr__(name: str) -> Any:
    """Return a name of `public`; also by its former name."""
    new = _RENAMED.get(name, name)
    public = import_module("martlet.client.public")
    if new not in (*public.__all__, "__all__"):
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(public, new)
    if new != name:
        warnings.warn(f"martlet.client.{name} is {new} now", DeprecationWarning, stacklevel=2)
    else:
        globals()[name] = value  # So that the next use does not come here.
    return value


def __dir__() -> list[str]:
    names: list[str] = __getattr__("__all__")
    return names
