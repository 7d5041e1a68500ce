"""All methods of a broker.

They are apart from `martlet.server.rpc.registry`, since a broker listens before it imports them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from martlet.server.rpc.dead_letters import DeadLetterCalls
from martlet.server.rpc.delayed import DelayCalls
from martlet.server.rpc.fetch import FetchCalls
from martlet.server.rpc.find import FindCalls
from martlet.server.rpc.group_failures import GroupFailureCalls
from martlet.server.rpc.groups import GroupCalls
from martlet.server.rpc.messages import MessageCalls
from martlet.server.rpc.topics import TopicCalls
from martlet.server.rpc.traces import TraceCalls
from martlet.server.rpc.transactions import TransactionCalls

if TYPE_CHECKING:
    import logging
    from collections.abc import Callable

    from martlet.broker.broker import BrokerCore
    from martlet.options import BrokerOptions
    from martlet.server.data_folder import DataFolder
    from martlet.server.group_commit import GroupCommit
    from martlet.server.rpc.registry import Methods


def broker_methods(
    broker: BrokerCore,
    commits: GroupCommit,
    options: BrokerOptions,
    folder: DataFolder,
    is_stopping: Callable[[], bool],
    log: logging.Logger,
) -> Methods:
    """Return the methods of a broker."""
    return {
        **DeadLetterCalls(broker).methods(),
        **DelayCalls(broker).methods(),
        **FetchCalls(broker).methods(),
        **FindCalls(broker, folder).methods(),
        **GroupFailureCalls(broker, commits).methods(),
        **GroupCalls(broker, commits, options, is_stopping, log).methods(),
        **MessageCalls(broker, options.max_req_timeout_ns).methods(),
        **TopicCalls(broker, log).methods(),
        **TransactionCalls(broker.transactions, commits).methods(),
        **TraceCalls(broker, folder).methods(),
    }
