"""Settings of consumers: the delivery of messages, and the handling of failed ones."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable
from dataclasses import dataclass, field
from typing import Any, Literal

from martlet.client.consumer.handling.backoff import FailureBackoff
from martlet.client.consumer.handling.failure_policy import Delay, OnGivingUp
from martlet.client.consumer.rdy import Rotation
from martlet.client.consumer.waiters import SharedRate, rate_limit_of
from martlet.client.keywords import check_at_least
from martlet.client.names import check_filter, check_tags
from martlet.client.settings import ConnectionOptions


@dataclass(frozen=True, kw_only=True, slots=True)
class HandlerSettings:
    """The handling of messages whose handlers fail or do not end.

    Attributes:
        retry: the delay of a failed message, by its attempts; go-nsq's is ``LinearDelay()``. None
            for the default: 4 s to 10 minutes for a `Consumer`, or the channel's retry policy if it
            has one; 1 s to a minute for a pull consumer.
        max_attempts: the maximum number of attempts; 0 for no limit. None for the default: 16 for a
            `PullConsumer`, else 0. After the last one the consumer logs the message, passes it to
            ``on_giving_up`` and finishes it. Without ``on_giving_up`` a Martlet broker moves it to
            the dead-letter topic of the channel or group; with an NSQ broker, or in a
            `BroadcastConsumer`, it is lost.
        on_giving_up: called with each message after its last attempt, to keep it elsewhere; a
            function or a coroutine function. If it raises, the message is not finished, and comes
            again.
        close_timeout_s: the time limit of closing: running handlers are cancelled shortly before,
            and their messages are redelivered.
        rate_per_s: the maximum number of messages handed out in a second; 0 for no limit. A
            `SharedRate` is a limit of several consumers. It is of this consumer alone; a channel's
            policy limits all of its consumers together.
        rate_burst: with ``rate_per_s``, the maximum number at once after a pause; 0 for a tenth of
            a second's, at least 1.
    """

    retry: Delay | None = None
    max_attempts: int | None = None
    on_giving_up: Callable[[Any], Awaitable[object] | object] | None = None
    close_timeout_s: float = 10.0
    rate_per_s: float | SharedRate = 0
    rate_burst: int = 0

    def __post_init__(self) -> None:
        rate_limit_of(self.rate_per_s, self.rate_burst)  # Raises ValueError.
        check_at_least("max_attempts", self.max_attempts or 0, 0, "0 stands for no limit")
        check_at_least("close_timeout_s", self.close_timeout_s, 0)


@dataclass(frozen=True, kw_only=True, slots=True)
class DeliverySettings:
    """Which messages a `Consumer` requests from its channel, and how many at a time.

    Attributes:
        tags: receive only messages with one of these tags, as ``["red", "blue"]`` or ``"red ||
            blue"``. The broker keeps the filter for the channel and finishes all other messages;
            all consumers of a channel must have the same. It needs a Martlet broker.
        filter: receive only messages for which this condition on their headers is true, in
            RocketMQ's subset of SQL92, as ``"region = 'eu' AND price > 3"``; with tags, both must
            fit. As tags, it applies to the entire channel.
        order: handle the messages of each order key, or of each queue, one after the other; a
            failed one is redelivered before any later one. It too applies to the entire channel.
        max_in_flight: the maximum number of unanswered messages, from all brokers together.
        rotation: how brokers take turns if there are more of them than ``max_in_flight``.
        failure_backoff: for how long no messages are requested when handlers fail, and
            ``FailureBackoff(max_s=0)`` for never. By default at most two minutes, and never where
            the channel has a retry policy: there the broker delays the failed message alone.
        auto_touch: extend the timeout, up to the broker's ``--max-msg-timeout``, of messages in
            running handlers, and of messages of ``async for`` and batches that the application
            holds and has not answered.
        answers_requests: whether the error of a request's handler is its reply. Set it to False for
            a channel that only watches requests that another channel replies to.
        stall_after_s: log an error after this time without progress (messages wait and none is
            handed out or answered, or none are requested); 0 for never.
        on_stall: called with the cause, once for each stall.
    """

    tags: str | Iterable[str] = ()
    filter: str | None = None
    order: Literal["key", "queue"] | None = None
    max_in_flight: int = 200
    rotation: Rotation = field(default_factory=Rotation)
    failure_backoff: FailureBackoff | None = None
    auto_touch: bool = True
    answers_requests: bool = True
    stall_after_s: float = 120.0
    on_stall: Callable[[str], object] | None = None

    def __post_init__(self) -> None:
        object.__setattr__(self, "tags", check_tags(self.tags))
        if self.filter is not None:
            object.__setattr__(self, "filter", check_filter(self.filter))
        if self.order not in ("key", "queue", None):
            raise ValueError(f"order={self.order!r} must be 'key' or 'queue', or None for no order")
        check_at_least("max_in_flight", self.max_in_flight, 1, "pause() lets none in")
        check_at_least("stall_after_s", self.stall_after_s, 0, "0 stands for never")

    @property
    def policy(self) -> dict[str, Any]:
        """The required policy of the channel, for ``channel.want``; empty for any."""
        fields = {"tags": list(self.tags), "filter": self.filter, "order": self.order}
        return {name: value for name, value in fields.items() if value}


class ConsumerOptions(ConnectionOptions, total=False):
    """The keywords of a `Consumer`: each field of its settings."""

    tags: str | Iterable[str]
    filter: str
    order: Literal["key", "queue"] | None
    max_in_flight: int
    rotation: Rotation | None
    failure_backoff: FailureBackoff | None
    auto_touch: bool
    answers_requests: bool
    stall_after_s: float
    on_stall: Callable[[str], object] | None
    retry: Delay | None
    max_attempts: int
    on_giving_up: OnGivingUp | None
    close_timeout_s: float
    rate_per_s: float | SharedRate
    rate_burst: int
