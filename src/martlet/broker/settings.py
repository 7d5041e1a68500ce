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
        max_topics: as many may be made; those that are there stay. 0 for no limit.
        max_delayed: so many delayed messages may wait; 0 for no limit.
        transactions: the limits of transactions.
        on_put_off: called with a channel that can not read its messages at the moment: topic,
            channel, why.
        on_lost: called with messages that can not be read any more: topic, channel, first offset,
            end offset, reason.
    """

    max_topics: int = 0
    max_delayed: int = 0
    transactions: TransactionLimits = field(default_factory=TransactionLimits)
    on_put_off: Callable[[str, str, OSError], None] = lambda *_: None
    on_lost: Callable[[str, str, int, int, str], None] = lambda *_: None
