"""The rooms of the calls: all methods of a broker, put together.

They stand apart from `martlet.server.rpc.registry`, since a broker listens before it needs them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from martlet.server.rpc.dead_letters import DeadLetterCalls
from martlet.server.rpc.delayed import DelayCalls
from martlet.server.rpc.external_readers import FollowCalls
from martlet.server.rpc.fetch import FetchCalls
from martlet.server.rpc.give_up import BurialCalls
from martlet.server.rpc.groups import GroupCalls
from martlet.server.rpc.messages import MessageCalls
from martlet.server.rpc.started import StartCalls
from martlet.server.rpc.topics import TopicCalls
from martlet.server.rpc.traces import TraceCalls
from martlet.server.rpc.transactions import TransactionCalls

if TYPE_CHECKING:
    from martlet.server.rpc.registry import Methods
    from martlet.server.server import Server


def broker_methods(server: Server) -> Methods:
    """The methods of a broker."""
    return {
        **DeadLetterCalls(server).methods(),
        **DelayCalls(server).methods(),
        **BurialCalls(server).methods(),
        **FetchCalls(server).methods(),
        **FollowCalls(server).methods(),
        **GroupCalls(server).methods(),
        **MessageCalls(server).methods(),
        **StartCalls(server).methods(),
        **TopicCalls(server).methods(),
        **TransactionCalls(server).methods(),
        **TraceCalls(server).methods(),
    }
