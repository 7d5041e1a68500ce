"""What the operator has set for a broker, and what is told of it as it happens."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from martlet.broker.context import TopicSettings
from martlet.broker.retention.history import Retention, Watermarks
from martlet.broker.transactions.state import TransactionLimits


@dataclass(kw_only=True, slots=True)
class BrokerSettings(TopicSettings):
    """The settings of a broker's core, beside those of all its topics.

    Attributes:
        max_topics: as many may be made; those that are there stay. 0 for no limit.
        max_delayed: so many delayed messages may wait; 0 for no limit.
        retention: how much history of a topic is kept whose policy does not say.
        watermarks: how full the disk may be before history is spared less.
        transactions: the limits of transactions.
        on_put_off: called with a channel that can not read its messages at the moment: topic,
            channel, why.
        on_lost: called with messages that can not be read any more: topic, channel, first offset,
            end offset, reason.
    """

    max_topics: int = 0
    max_delayed: int = 0
    retention: Retention = field(default_factory=Retention)
    watermarks: Watermarks = field(default_factory=Watermarks)
    transactions: TransactionLimits = field(default_factory=TransactionLimits)
    on_put_off: Callable[[str, str, OSError], None] = lambda *_: None
    on_lost: Callable[[str, str, int, int, str], None] = lambda *_: None
