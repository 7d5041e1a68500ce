"""Settings of a producer: timeouts, retries and limits."""

from __future__ import annotations

from dataclasses import dataclass, field

from martlet.client.keywords import check_above_zero, check_at_least
from martlet.client.producer.limits import Limits
from martlet.client.settings import ConnectionOptions
from martlet.client.transactions.check_back import Check


@dataclass(frozen=True, kw_only=True, slots=True)
class PublishSettings:
    """The settings of a `Producer`.

    Attributes:
        ordered: whether all messages of a topic stay in order.
        timeout_s: the time limit of a publish, all attempts included.
        retries: the number of retries of a publish; None for no limit within the timeout.
        send_timeout_s, send_retries: the same for ``send``, ``send_async`` and ``send_many``. They
            retry twice, as RocketMQ's ``retryTimesWhenSendFailed``: a caller that wants to know
            where its message is stored waits for it.
        retry_another_broker: whether a SEND that its broker could not store, or not as safely as
            wanted, is sent to another; it may be stored twice then.
        idempotent: whether a broker recognises a repeated SEND, and so stores it exactly once.
        answer_timeout_s: the time limit of a broker's answer while there is another; then its
            connection is aborted, and messages that may go to the other do.
        limits: of one command, and of messages in flight.
        group: the common name of producers that know the same transactions.
        check: called for the outcome of a transaction of the group whose producer is silent.
    """

    ordered: bool = False
    timeout_s: float = 30.0
    retries: int | None = None
    send_timeout_s: float = 30.0
    send_retries: int | None = 2
    retry_another_broker: bool = False
    idempotent: bool = True
    answer_timeout_s: float = 10.0
    limits: Limits = field(default_factory=Limits)
    group: str = ""
    check: Check | None = None

    def __post_init__(self) -> None:
        for name in ("timeout_s", "send_timeout_s", "answer_timeout_s"):
            check_above_zero(name, getattr(self, name))
        for name in ("retries", "send_retries"):
            if (count := getattr(self, name)) is not None:
                check_at_least(name, count, 0, "None stands for any number")
        if self.check is not None and not self.group:
            raise ValueError("check=... needs group=...: the group whose transactions it knows")
        if not self.group.isprintable():
            raise ValueError(f"group={self.group!r} must have printable characters alone")


class ProducerOptions(ConnectionOptions, total=False):
    """The keywords of a `Producer`: each field of its settings."""

    ordered: bool
    timeout_s: float
    retries: int | None
    send_timeout_s: float
    send_retries: int | None
    retry_another_broker: bool
    idempotent: bool
    answer_timeout_s: float
    limits: Limits | None
    group: str
    check: Check | None
