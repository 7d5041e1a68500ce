"""A test kit: a broker inside the test, a broker as a process that can be killed, and for the
core alone a clock that stands still and a disk that fails on demand.

::

    async with Broker() as broker, Producer(broker.tcp_address) as producer: ...

The fixtures ``martlet_broker`` and ``martlet_broker_process`` are there as soon as the package is
installed beside pytest.

It may import everything but the command line. Start reading with `martlet.testing.broker`; for
the core, with `martlet.testing.simulated`.
"""

from martlet.testing.broker import Broker
from martlet.testing.broker_process import BrokerProcess
from martlet.testing.simulated import SimulatedClock, SimulatedStorage

__all__ = ["Broker", "BrokerProcess", "SimulatedClock", "SimulatedStorage"]
