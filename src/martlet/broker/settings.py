"""The settings of a broker's core."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from martlet.broker.retention.context import RetentionSettings
from martlet.broker.transactions.state import TransactionLimits


@dataclass(kw_only=True, slots=True)
class BrokerSettings(RetentionSettings):
    """The settings of a broker's core.

    Attributes:
        max_topics: maximum for the creation of topics; existing ones stay. 0 for no limit.
        max_delayed: maximum number of waiting delayed messages; 0 for no limit.
        transactions: the limits of transactions.
        on_put_off: called with a channel that cannot read its messages at the moment: topic,
            channel, reason.
        on_lost: called with messages that are no longer readable: topic, channel, first offset, end
            offset, reason.
    """

    max_topics: int = 0
    max_delayed: int = 0
    transactions: TransactionLimits = field(default_factory=TransactionLimits)
    on_put_off: Callable[[str, str, OSError], None] = lambda *_: None
    on_lost: Callable[[str, str, int, int, str], None] = lambda *_: None
