"""The rooms of the calls: all methods of a broker, put together.

They stand apart from `martlet.server.calls`, since a broker listens before it needs them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from martlet.server.burial_calls import BurialCalls
from martlet.server.dead_letter_calls import DeadLetterCalls
from martlet.server.delay_calls import DelayCalls
from martlet.server.fetch_calls import FetchCalls
from martlet.server.follow_calls import FollowCalls
from martlet.server.group_calls import GroupCalls
from martlet.server.message_calls import MessageCalls
from martlet.server.start_calls import StartCalls
from martlet.server.topic_calls import TopicCalls
from martlet.server.trace_calls import TraceCalls
from martlet.server.transaction_calls import TransactionCalls

if TYPE_CHECKING:
    from martlet.server.calls import Methods
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
