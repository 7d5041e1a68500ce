"""What tests need: a broker inside the test, a broker as a process that can be killed.

::

    async with Broker() as broker, Producer(broker.tcp_address) as producer: ...

The fixtures ``martlet_broker`` and ``martlet_broker_process`` are there as soon as the package is
installed beside pytest.
"""

from martlet.testing.broker import Broker
from martlet.testing.broker_process import BrokerProcess

__all__ = ["Broker", "BrokerProcess"]
