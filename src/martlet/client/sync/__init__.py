"""The client without ``await``: the same producer and consumer, for programs that use threads.

::

    from martlet.client.sync import Consumer, Producer

    with Producer("127.0.0.1:4150") as producer:
        producer.publish("orders", b"one")

    with Consumer("orders", "billing") as consumer:
        for message in consumer:
            ...
            message.finish()

The connections live in one event loop, in one daemon thread of the process, whatever the number of
producers and consumers: so heartbeats are answered while your code works or blocks.  Everything
here may be called from any thread, and Ctrl-C ends what waits.  What is made before ``os.fork()``
cannot be used after it in the child, and says so.
"""

from martlet.client.sync.batch import Batch
from martlet.client.sync.consumer import Consumer
from martlet.client.sync.group import BroadcastConsumer, PullConsumer
from martlet.client.sync.group_batch import PulledBatch
from martlet.client.sync.producer import Producer
from martlet.client.sync.transaction import Transaction

__all__ = [
    "Batch",
    "BroadcastConsumer",
    "Consumer",
    "Producer",
    "PullConsumer",
    "PulledBatch",
    "Transaction",
]
