"""The client without ``await``: the same classes, for programs with threads.

::

    from martlet.client.sync import Admin, Consumer, Producer

    with Producer("127.0.0.1:4150") as producer:
        producer.publish("orders", b"one")

    with Consumer("orders", "billing") as consumer:
        for message in consumer:
            ...
            message.finish()

    with Admin("127.0.0.1:4151") as admin:
        admin.channels.pause("orders", "billing")

All producers and consumers of a process share one event loop in one daemon thread: so heartbeats
are answered while your code works or blocks. All methods may be called from any thread, and Ctrl-C
ends a wait. Objects made before ``os.fork()`` raise an error in the child.

It may import the rest of the client. Start reading with `martlet.client.sync.base`, which
all of it uses, then `martlet.client.sync.producer`.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

# Each is imported with its first use: a producer needs no consumer.
if TYPE_CHECKING:
    from martlet.client.sync.admin import Admin
    from martlet.client.sync.consumer import Batch, Consumer
    from martlet.client.sync.group import BroadcastConsumer, PullConsumer, PulledBatch
    from martlet.client.sync.producer import Producer, Transaction

__all__ = [
    "Admin",
    "Batch",
    "BroadcastConsumer",
    "Consumer",
    "Producer",
    "PullConsumer",
    "PulledBatch",
    "Transaction",
]
_MODULES = {
    "Admin": "admin",
    "Batch": "consumer",
    "BroadcastConsumer": "group",
    "Consumer": "consumer",
    "Producer": "producer",
    "PullConsumer": "group",
    "PulledBatch": "group",
    "Transaction": "producer",
}


def __getattr__(name: str) -> Any:
    """Import a class."""
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(import_module(f"{__name__}.{_MODULES[name]}"), name)
    globals()[name] = value
    return value
