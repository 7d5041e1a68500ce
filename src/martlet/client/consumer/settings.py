"""Settings of consumers: how messages are delivered, and what becomes of those that fail."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable
from dataclasses import dataclass, field
from typing import Any, Literal

from martlet.client.consumer.handling.backoff import FailureBackoff
from martlet.client.consumer.handling.failure_policy import Delay, OnGivingUp
from martlet.client.consumer.rdy import Rotation
from martlet.client.names import check_tags
from martlet.client.settings import ConnectionOptions, check_at_least


@dataclass(frozen=True, kw_only=True, slots=True)
class HandlerSettings:
    """What becomes of messages whose handlers fail, or do not end.

    Attributes:
        retry: how long a message waits when its handler has failed, by its attempts; go-nsq's way
            is ``LinearDelay()``.  None for the default: 4 s to 10 minutes for a `Consumer`, unless
            the channel has a retry policy, which counts then; 1 s to a minute for a pull consumer.
        max_attempts: how often a message may be tried before it is given up; 0 for no limit.  None
            for the default: 16 for a `PullConsumer`, else 0.  A `Consumer` logs what it gives up,
            passes it to ``on_giving_up`` and finishes it; a pull consumer does the same.  Without
            ``on_giving_up`` a Martlet broker puts it into the dead-letter topic of the channel or
            group; with a broker of NSQ, or in a `BroadcastConsumer`, it is lost.
        on_giving_up: gets each message that is given up, to keep it elsewhere; a function or a
            coroutine function.  When it raises, the message is not finished, and comes again.
        close_timeout_s: how long closing may take: handlers at work are cancelled shortly before,
            and their messages come again.
    """

    retry: Delay | None = None
    max_attempts: int | None = None
    on_giving_up: Callable[[Any], Awaitable[object] | object] | None = None
    close_timeout_s: float = 10.0

    def __post_init__(self) -> None:
        check_at_least("max_attempts", self.max_attempts or 0, 0, "0 stands for no limit")
        check_at_least("close_timeout_s", self.close_timeout_s, 0)


@dataclass(frozen=True, kw_only=True, slots=True)
class DeliverySettings:
    """Which messages a `Consumer` asks its channel for, and how many at a time.

    Attributes:
        tags: take messages with one of these tags alone, as ``["red", "blue"]`` or
            ``"red || blue"``.  The broker keeps the filter for the channel and finishes all other
            messages; all consumers of a channel must name the same.  It must be a Martlet broker.
        order: handle the messages of each order key, or of each queue, one after the other; one
            that fails comes again before any later one.  It too applies to the whole channel.
        max_in_flight: how many messages may be here and not be answered, from all brokers together.
        rotation: how brokers take turns where there are more of them than ``max_in_flight``.
        failure_backoff: for how long no messages are asked for when handlers fail; two minutes at
            most by default, ``FailureBackoff(max_s=0)`` for never.
        auto_touch: ask for more time, up to the broker's ``--max-msg-timeout``, for messages whose
            handlers are at work, and for messages of ``async for`` and batches that the application
            holds and has not answered.
        stall_after_s: log an error when nothing progresses for so long (messages wait and none is
            handed out or answered, or none are asked for); 0 for never.
        on_stall: called with the cause, once for each stall.
    """

    tags: str | Iterable[str] = ()
    order: Literal["key", "queue"] | None = None
    max_in_flight: int = 200
    rotation: Rotation = field(default_factory=Rotation)
    failure_backoff: FailureBackoff = field(default_factory=FailureBackoff)
    auto_touch: bool = True
    stall_after_s: float = 120.0
    on_stall: Callable[[str], object] | None = None

    def __post_init__(self) -> None:
        object.__setattr__(self, "tags", check_tags(self.tags))
        if self.order not in ("key", "queue", None):
            raise ValueError(f"order={self.order!r} must be 'key' or 'queue', or None for no order")
        check_at_least("max_in_flight", self.max_in_flight, 1, "pause() lets none in")
        check_at_least("stall_after_s", self.stall_after_s, 0, "0 stands for never")

    @property
    def policy(self) -> dict[str, Any]:
        """What the channel must be like, as ``channel.want`` takes it; empty for what it is."""
        wanted: dict[str, Any] = {"tags": list(self.tags)} if self.tags else {}
        return {**wanted, "order": self.order} if self.order is not None else wanted


class ConsumerOptions(ConnectionOptions, total=False):
    """What a `Consumer` takes as keywords: each field of its settings."""

    tags: str | Iterable[str]
    order: Literal["key", "queue"] | None
    max_in_flight: int
    rotation: Rotation | None
    failure_backoff: FailureBackoff | None
    auto_touch: bool
    stall_after_s: float
    on_stall: Callable[[str], object] | None
    retry: Delay | None
    max_attempts: int
    on_giving_up: OnGivingUp | None
    close_timeout_s: float
