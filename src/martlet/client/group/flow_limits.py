"""Flow control: the limits of fetched messages that are not done, for each queue."""

from __future__ import annotations

from dataclasses import dataclass

MIB = 1 << 20
FETCH_MESSAGES = 256
MAX_FETCH_MESSAGES = 10_000
MAX_FETCH_BYTES = 8 * MIB
"""The maximum size of a broker's answer."""


@dataclass(frozen=True, kw_only=True, slots=True)
class FlowLimits:
    """The limits of fetches, and of messages that are not done, for each queue.

    The first three are RocketMQ's. At a limit nothing more is fetched until messages are done.

    Attributes:
        max_messages: that are not done.
        max_bytes: of those; one message may exceed it.
        max_span: between the lowest offset that is not done and the next to fetch, so that one slow
            handler does not leave thousands of messages to be repeated after a crash.
        fetch_messages: of one fetch. RocketMQ has 32; here frames are a slice of the log, so that
            larger fetches are cheaper.
        fetch_bytes: likewise; a larger message comes alone.
        fetch_wait_s: how long the broker may hold a fetch without messages.
    """

    max_messages: int = 1000
    max_bytes: int = 100 * MIB
    max_span: int = 2000
    fetch_messages: int = FETCH_MESSAGES
    fetch_bytes: int = MIB
    fetch_wait_s: float = 15.0

    def __post_init__(self) -> None:
        for name in ("max_messages", "max_bytes", "max_span", "fetch_messages", "fetch_bytes"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name}={getattr(self, name)}: must be at least 1")
        for name, max_count in (
            ("fetch_messages", MAX_FETCH_MESSAGES),
            ("fetch_bytes", MAX_FETCH_BYTES),
        ):
            if getattr(self, name) > max_count:
                raise ValueError(f"{name}={getattr(self, name)}: must be at most {max_count}")
        if not 0 < self.fetch_wait_s <= 60:
            raise ValueError(f"fetch_wait_s={self.fetch_wait_s} must be above 0, and 60 at most")
